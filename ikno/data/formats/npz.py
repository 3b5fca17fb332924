"""Files of numpy: npz files of arrays or with a table, and npy files of one array, never with pickled objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from ikno.data.formats import FORMATS, Columns, DataFile, Filled, Format, Kind, Notes, Shapes, new_file, readable
from ikno.data.formats.tables import TableFormat
from ikno.errors import UserError

SMALL = 1 << 28  # bytes: arrays that always fit


@FORMATS.register("npz")
class Npz(TableFormat):
    """Arrays of all samples, or the columns x, y(, z), ... of one."""

    suffixes, holds, results = (".npz",), ("arrays", "points"), (".npz",)

    def read(self, path: Path) -> Columns:
        with ZipFile(path) as archive:  # a small file may hold large arrays
            size = sum(member.file_size for member in archive.infolist())
        if size > SMALL:
            import torch

            from ikno.memory import available_memory

            if size > (free := available_memory(torch.device("cpu"))):
                raise UserError(
                    f"{path}: its arrays take {size / 1e9:.1f} GB of memory, {free / 1e9:.1f} are available"
                )
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def write(self, path: Path, columns: Columns) -> None:
        with path.open("wb") as stream:
            np.savez(stream, **columns)  # type: ignore[arg-type]

    @contextmanager
    def create(self, out: Path, shapes: Shapes, known: Columns, notes: Notes) -> Iterator[Filled]:
        arrays: Filled = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        with new_file(out) as partial:
            yield arrays
            self.write(partial, {**arrays, **known, **{k: np.array(v) for k, v in notes.items()}})


@FORMATS.register("npy")
class Npy(Format):
    """One array, as a memory map: only what is used is read."""

    suffixes, holds = (".npy",), ("arrays",)

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile:
        with readable(path, "npy"):
            return DataFile(path, {"the array": np.lib.format.open_memmap(path, mode="r")})
