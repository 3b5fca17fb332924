"""NetCDF files of arrays, as the benchmarks are released, and HDF5 files with a group per sample, as the aircraft's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import h5py
import numpy as np

from ikno.data.formats import FORMATS, Columns, DataFile, Filled, Format, Kind, Notes, Shapes, new_file, readable

# The arrays of a sample, and numbers that hold at all of its points.
Group = tuple[Columns, Mapping[str, float]]


@FORMATS.register("netcdf")
class NetCDF(Format):
    """Arrays that are read where they are indexed, and written to the disk part by part."""

    suffixes, holds, results, on_disk = (".nc", ".h5", ".hdf5", ".nc4"), ("arrays",), (".nc",), True

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile:
        with readable(path, "NetCDF or HDF5"):
            file = h5py.File(path, "r")
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        return DataFile(path, file, attributes, file.close)

    @contextmanager
    def create(
        self, out: Path, shapes: Shapes, known: Columns, notes: Notes, axes: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Filled]:
        """Return a context as that of any format; ``axes`` name the dimensions of arrays that share them."""
        import h5netcdf

        with new_file(out) as partial, h5netcdf.File(partial, "w") as file:
            file.attrs.update(notes)
            for name, shape in {**shapes, **{k: a.shape for k, a in known.items()}}.items():
                names = axes[name] if axes else [f"{name}{i}" for i in range(len(shape))]
                sizes = zip(names, shape, strict=True)
                file.dimensions.update((n, size) for n, size in sizes if n not in file.dimensions)
                array = known.get(name)
                file.create_variable(name, names, np.float32 if array is None else array.dtype, data=array)
            yield (arrays := {name: file.variables[name] for name in shapes})
        with closing(self.open(out)) as made:  # memory maps: only what is used is read
            places = {name: made.items[name].id.get_offset() for name in shapes}
        arrays.update({name: np.memmap(out, np.float32, "r", places[name], tuple(shapes[name])) for name in shapes})


@FORMATS.register("groups")
class Groups(NetCDF):
    """A group of arrays and numbers per sample."""

    suffixes, holds, results = (".h5", ".hdf5"), ("groups",), ()


def write_groups(path: Path, samples: Iterable[Group], attributes: Mapping[str, str]) -> None:
    """Write one group of arrays and numbers (attributes) per sample; the file appears only when it is complete."""
    with new_file(path) as partial, h5py.File(partial, "w") as file:  # attributes of h5netcdf are arrays of one number
        file.attrs.update(attributes)
        for k, (columns, numbers) in enumerate(samples):
            group = file.create_group(f"{k:06d}")
            for name, values in columns.items():
                group.create_dataset(name, data=values)
            group.attrs.update(numbers)
