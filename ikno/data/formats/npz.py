"""Files of numpy: npz files of arrays or with a table, and npy files of one array, never with pickled objects."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

import numpy as np

from ikno.data.formats import (
    FORMATS,
    Columns,
    DataFile,
    Filled,
    Format,
    Kind,
    Mesh,
    Notes,
    Shapes,
    check_file,
    new_file,
)
from ikno.data.formats.tables import TableFormat
from ikno.errors import UserError

SMALL = 1 << 28  # bytes: arrays that always fit


class Npz(TableFormat):
    """Arrays of all samples, or the columns x, y(, z), ... of one."""

    suffixes, holds, results = (".npz",), ("arrays", "points"), (".npz",)

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile | Mesh:
        arrays = self.read(path)
        table = {"x", "y"} <= arrays.keys() and arrays["x"].ndim == 1
        return (
            self.table(path, arrays, result) if kind == "points" or (kind is None and table) else DataFile(path, arrays)
        )

    def read(self, path: Path) -> Columns:
        check_file(path)
        try:
            with path.open("rb") as stream:
                _check_size(path, stream)
            with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except UserError:
            raise
        except (ValueError, OSError, EOFError, BadZipFile, KeyError, zlib.error, MemoryError) as error:
            raise UserError(f"{path}: not a readable npz file, or cut short: {error}") from None

    def write(self, path: Path, columns: Columns) -> None:
        with path.open("wb") as stream:
            np.savez(stream, **columns)  # type: ignore[arg-type]

    @contextmanager
    def create(self, out: Path, shapes: Shapes, known: Columns, notes: Notes) -> Iterator[Filled]:
        arrays: Filled = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        with new_file(out) as partial:
            yield arrays
            self.write(partial, {**arrays, **known, **{k: np.array(v) for k, v in notes.items()}})


class Npy(Format):
    """One array, as a memory map: only what is used is read."""

    suffixes, holds = (".npy",), ("arrays",)

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile:
        check_file(path)
        try:
            return DataFile(path, {"the array": np.lib.format.open_memmap(path, mode="r")})
        except (ValueError, OSError, EOFError, SyntaxError) as error:
            raise UserError(f"{path}: not a readable npy file, or cut short: {error}") from None


def _check_size(path: Path, stream: BinaryIO) -> None:
    """Raise a UserError for arrays that need more memory than there is: a small file may hold large ones."""
    with ZipFile(stream) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > SMALL:
        import torch

        from ikno.memory import available_memory

        if size > (free := available_memory(torch.device("cpu"))):
            raise UserError(f"{path}: its arrays take {size / 1e9:.1f} GB of memory, {free / 1e9:.1f} are available")


FORMATS.update(npz=Npz(), npy=Npy())
