"""NetCDF files of arrays, as the benchmarks are released, and HDF5 files with a group per sample, as the aircraft's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ikno.data.formats.format import DataFile, Format, Kind, check_file, readable, register
from ikno.errors import UserError


@register
class NetCDF(Format):
    """Arrays that are read where they are indexed, and written to the disk part by part."""

    name, suffixes, holds = "netcdf", (".nc", ".h5", ".hdf5", ".nc4"), ("arrays",)
    results, on_disk = (".nc",), True

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile:
        check_file(path)
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise UserError(f"{path}: not a readable NetCDF or HDF5 file, or cut short: {error}") from None
        with readable(path, file.close):
            attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
            return DataFile(path, file, attributes, file.close)

    @contextmanager
    def create(
        self, path: Path, shapes: Mapping[str, Sequence[int]], known: Mapping[str, np.ndarray], notes: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        import h5netcdf

        with h5netcdf.File(path, "w") as file:
            file.attrs.update(notes)
            for name, shape in {**shapes, **{k: a.shape for k, a in known.items()}}.items():
                names = [f"{name}{i}" for i in range(len(shape))]
                file.dimensions.update(zip(names, shape, strict=True))
                array = known.get(name)
                file.create_variable(name, names, np.float32 if array is None else array.dtype, data=array)
            yield {name: file.variables[name] for name in shapes}

    def written(self, path: Path, arrays: dict[str, Any]) -> dict[str, Any]:
        """Return memory maps: only what is used is read."""
        with self.open(path) as file:
            places = {n: (item.dtype, item.id.get_offset(), item.shape) for n in arrays if (item := file.items[n])}
        return {n: np.memmap(path, dtype, "r", offset, shape) for n, (dtype, offset, shape) in places.items()}


@register
class Groups(NetCDF):
    """A group of arrays and numbers per sample."""

    name, suffixes, holds, results = "groups", (".h5", ".hdf5"), ("groups",), ()
