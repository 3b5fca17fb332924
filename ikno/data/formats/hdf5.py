"""NetCDF files of arrays, as the benchmarks are released, and HDF5 files with a group per sample, as the aircraft's."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import h5py
import numpy as np

from ikno.data.formats import FORMATS, Columns, DataFile, Filled, Format, Kind, Notes, Shapes, check_file, new_file
from ikno.errors import UserError


class NetCDF(Format):
    """Arrays that are read where they are indexed, and written to the disk part by part."""

    suffixes, holds, results, on_disk = (".nc", ".h5", ".hdf5", ".nc4"), ("arrays",), (".nc",), True

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile:
        check_file(path)
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise UserError(f"{path}: not a readable NetCDF or HDF5 file, or cut short: {error}") from None
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        return DataFile(path, file, attributes, file.close)

    @contextmanager
    def create(self, out: Path, shapes: Shapes, known: Columns, notes: Notes) -> Iterator[Filled]:
        import h5netcdf

        with new_file(out) as partial, h5netcdf.File(partial, "w") as file:
            file.attrs.update(notes)
            for name, shape in {**shapes, **{k: a.shape for k, a in known.items()}}.items():
                names = [f"{name}{i}" for i in range(len(shape))]
                file.dimensions.update(zip(names, shape, strict=True))
                array = known.get(name)
                file.create_variable(name, names, np.float32 if array is None else array.dtype, data=array)
            yield (arrays := {name: file.variables[name] for name in shapes})
        with closing(self.open(out)) as made:  # memory maps: only what is used is read
            places = {name: made.items[name].id.get_offset() for name in shapes}
        arrays.update({name: np.memmap(out, np.float32, "r", places[name], tuple(shapes[name])) for name in shapes})


class Groups(NetCDF):
    """A group of arrays and numbers per sample."""

    suffixes, holds, results = (".h5", ".hdf5"), ("groups",), ()


FORMATS.update(netcdf=NetCDF(), groups=Groups())
