"""Data files: the released layouts (NetCDF and the aircraft's HDF5), and plain npz and csv files of users.

Everything is read sample by sample, as float32, and checked as it is read.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import BadZipFile

import h5py
import numpy as np

from ikno.data.catalog import Card, plain
from ikno.data.layouts import Arrays, Groups, Rows, Tables, all_rows
from ikno.data.records import Trajectory
from ikno.errors import UserError

SUFFIXES = {"netcdf": (".nc", ".h5", ".hdf5"), "npz": (".npz",), "csv": ("",), "groups": (".h5", ".hdf5")}


class Dataset:
    """An open data file: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path, card: Card, source: "Arrays | Groups | Tables | _Joined", close) -> None:
        self.path, self.card, self._source, self._close = path, card, source, close

    def __len__(self) -> int:
        return self._source.samples

    def __getitem__(self, sample: int) -> Trajectory:
        return self.read(sample)

    def read(self, sample: int, rows: Rows = all_rows) -> Trajectory:
        """Return a trajectory at some of its points; only these are read where the format allows it."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        made = self._source.read(sample, rows)
        parts = {"points": made.points, "values": made.values, "conditions": made.conditions}
        for what, array in parts.items():
            if array is not None and not np.isfinite(array).all():
                raise UserError(f"{self.path}: sample {sample} has NaN or infinite {what}; remove it or mend the file")
        return made

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[i] for i in range(len(self)))

    @property
    def shared(self) -> bool:
        """Whether all samples have one cloud."""
        return self._source.shared

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the file: samples, times, points (of the first sample), variables, conditions, dim."""
        first = self._source.read(0, all_rows)
        channels = 0 if first.conditions is None else first.conditions.shape[2]
        times, points, variables = first.values.shape
        sizes = {"samples": len(self), "times": times, "points": points, "variables": variables}
        return {**sizes, "conditions": channels, "dim": first.points.shape[1]}

    @property
    def attributes(self) -> dict[str, Any]:
        """What the file says about how it was made."""
        return self._source.attributes

    def close(self) -> None:
        self._close()

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_data(path: str | Path, card: Card) -> Dataset:
    """Return the data set in a file, checked against its card: names, shapes, number types.

    If the card names a second file and it lies beside this one, its samples follow.
    """
    path = Path(path)
    first = _open_file(path, card)
    if card.second is None or plain(path.stem) == plain(card.second):
        return first
    beside = [p for p in sorted(path.parent.iterdir()) if _fits(p, card, {plain(card.second)})]
    if not beside:
        return first
    with _readable(beside[0], first.close):
        second = _open_file(beside[0], card)
    return Dataset(path, card, _Joined(first, second), lambda: (first.close(), second.close()))


def _open_file(path: Path, card: Card) -> Dataset:
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if path.is_dir() and card.format != "csv":
        raise UserError(f"{path}: is a folder, expected a {card.format} file")
    if card.format == "csv":
        return Dataset(path, card, Tables(path, card), lambda: None)
    if card.format == "npz":
        return Dataset(path, card, Arrays(path, card, read_npz(path), {}), lambda: None)
    file = _hdf5(path)
    with _readable(path, file.close):
        if card.format == "groups":
            return Dataset(path, card, Groups(path, card, file), file.close)
        found = {str(name): item for name in file if isinstance(item := file[name], h5py.Dataset)}
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        return Dataset(path, card, Arrays(path, card, found, attributes), file.close)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an npz file."""
    _check_file(path)
    try:
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, BadZipFile, KeyError, zlib.error) as error:
        raise UserError(f"{path}: not a readable npz file, or cut short: {error}") from None


def read_npy(path: Path) -> np.ndarray:
    """Return the array of an npy file as a memory map: only what is used is read."""
    _check_file(path)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise UserError(f"{path}: not a readable npy file, or cut short: {error}") from None


def map_netcdf(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return variables of a NetCDF file that ikno wrote as memory maps: only what is used is read."""
    with _hdf5(path) as file, _readable(path, file.close):
        found = {n: item for n in names if isinstance(item := file[n], h5py.Dataset)}
        places = {n: (item.dtype, item.id.get_offset(), item.shape) for n, item in found.items()}
    return {n: np.memmap(path, dtype, "r", offset, shape) for n, (dtype, offset, shape) in places.items()}


def read_netcdf(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return those of the named variables that a NetCDF file has."""
    with _hdf5(path) as file, _readable(path, file.close):
        return {n: np.asarray(file[n]) for n in names if n in file}


def benchmark_of(path: Path) -> str | None:
    """Return the benchmark that a file names as its own, as generated ones do."""
    if path.suffix not in SUFFIXES["netcdf"]:
        return None
    with _hdf5(path) as file, _readable(path, file.close):
        return str(file.attrs.get("benchmark"))


def _hdf5(path: Path) -> h5py.File:
    _check_file(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: not a readable NetCDF or HDF5 file, or cut short: {error}") from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")


@contextmanager
def _readable(path: Path, close) -> Iterator[None]:
    """Close the file if what it holds is not what it should be."""
    try:
        yield
    except UserError:
        close()
        raise
    except (OSError, KeyError, RuntimeError, ValueError, EOFError) as error:
        close()
        raise UserError(f"{path}: the file is damaged: {error}") from None


def find_file(card: Card, folder: str | Path) -> Path:
    """Return the file of a benchmark in a folder, whatever the case and separators of its name."""
    folder = Path(folder)
    if card.file is not None:
        return Path(card.file)
    wanted = {plain(n) for n in (card.name, *card.aliases)}
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in files:
        if _fits(path, card, wanted):
            return path
    hint = f"make one with: ikno data generate {card.name}" if card.generated else f"it comes from {card.source}"
    raise UserError(f"{card.name}: no file {card.name}{SUFFIXES[card.format][0]} in {folder}; {hint}")


def _fits(path: Path, card: Card, names: set[str]) -> bool:
    """Tell whether this is a file of the card's format under one of the names."""
    return path.is_file() and path.suffix.lower() in SUFFIXES[card.format] and plain(path.stem) in names


class _Joined:
    """The samples of one file, then those of another."""

    shared = False

    def __init__(self, first: Dataset, second: Dataset) -> None:
        self.first, self.second, self.attributes = first, second, first.attributes
        self.samples = len(first) + len(second)

    def read(self, sample: int, rows: Rows) -> Trajectory:
        first = sample < len(self.first)
        return self.first.read(sample, rows) if first else self.second.read(sample - len(self.first), rows)
