"""Data files: the released layouts (NetCDF and the aircraft's HDF5), and plain npz and csv files of users.

Everything is read sample by sample, as float32, and checked as it is read. Nothing else in the package knows HDF5.
"""

import csv
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import BadZipFile

import h5py
import numpy as np
from jaxtyping import Float

from ikno.data.catalog import Card, plain
from ikno.data.records import Trajectory
from ikno.errors import UserError

SUFFIXES = {"netcdf": (".nc", ".h5", ".hdf5"), "npz": (".npz",), "csv": ("",), "groups": (".h5", ".hdf5")}


Array = np.ndarray | h5py.Dataset


class Dataset:
    """An open data file: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path, card: Card, source: "_Arrays | _Groups | _Tables | _Joined", close) -> None:
        self.path, self.card, self._source, self._close = path, card, source, close

    def __len__(self) -> int:
        return self._source.samples

    def __getitem__(self, sample: int) -> Trajectory:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        made = self._source.read(sample)
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
        first = self._source.read(0)
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
        return Dataset(path, card, _Tables(path, card), lambda: None)
    if card.format == "npz":
        return Dataset(path, card, _Arrays(path, card, read_npz(path), {}), lambda: None)
    file = _hdf5(path)
    with _readable(path, file.close):
        if card.format == "groups":
            return Dataset(path, card, _Groups(path, card, file), file.close)
        found = {str(name): item for name in file if isinstance(item := file[name], h5py.Dataset)}
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        return Dataset(path, card, _Arrays(path, card, found, attributes), file.close)


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

    def read(self, sample: int) -> Trajectory:
        return self.first[sample] if sample < len(self.first) else self.second[sample - len(self.first)]


class _Arrays:
    """Named arrays [sample, time, node, variable], where steady sets may lack the time and single variables theirs."""

    def __init__(self, path: Path, card: Card, arrays: Mapping[str, Array], attributes: dict[str, Any]) -> None:
        self.path, self.card, self.attributes = path, card, attributes
        names = card.arrays
        self.values = self._find(arrays, names.values)
        self.points = self._find(arrays, names.points)
        self.conditions = None if names.conditions is None else self._find(arrays, names.conditions)
        shape = self._four(names.values, self.values.shape, len(card.variables))
        self.samples, self.times, self.nodes, _ = shape
        if self.samples == 0 or self.nodes == 0:
            raise UserError(f"{path}: {names.values} has shape {self.values.shape}: no samples or no points")
        if self.times != card.snapshots:
            raise UserError(f"{path}: {names.values} has {self.times} snapshots, the card says {card.snapshots}")
        self._check_points()
        alone = all(n == 1 for n in self.points.shape[:-2])
        self.shared = alone and (self.samples > 1 or card.cloud == "shared")
        if self.conditions is not None:
            self._check_conditions(self.conditions.shape)

    def _find(self, arrays: Mapping[str, Array], name: str) -> Array:
        if name not in arrays:
            raise UserError(f"{self.path}: no variable {name!r}; the file has {', '.join(sorted(arrays)) or 'none'}")
        array = arrays[name]
        if array.dtype.kind != "f" or array.dtype.byteorder == ">":
            raise UserError(f"{self.path}: {name} has the type {array.dtype}, expected float32 or float64; convert it")
        return array

    def _four(self, name: str, shape: tuple[int, ...], variables: int) -> tuple[int, int, int, int]:
        """Return the shape with axes that may be missing: that of a single variable, and the time of steady sets."""
        full = shape
        if variables == 1 and (len(full) == 2 or (len(full) == 3 and full[2] != 1)):
            full = (*full, 1)
        if len(full) == 3 and self.card.steady:
            full = (full[0], 1, *full[1:])
        if len(full) != 4 or full[3] != variables:
            expected = f"[sample, time, node, {variables}]"
            raise UserError(f"{self.path}: {name} has shape {list(shape)}, expected {expected} for {self.card.name}")
        return full[0], full[1], full[2], full[3]

    def _check_points(self) -> None:
        shape, name = self.points.shape, self.card.arrays.points
        if shape[-1] != self.card.dim:
            raise UserError(
                f"{self.path}: {name} has {shape[-1]} coordinates, "
                f"the card of {self.card.name} has {self.card.dim} axes"
            )
        lead = shape[:-2]
        good = len(shape) >= 2 and shape[-2] == self.nodes and len(lead) <= 2
        if good and len(lead) >= 1:
            good = lead[0] in (1, self.samples) and lead[1:] in ((), (1,))
        if not good:
            expected = f"[1 or {self.samples}, 1, {self.nodes}, {self.card.dim}]"
            raise UserError(f"{self.path}: {name} has shape {list(shape)}, expected {expected} to go with the values")

    def _check_conditions(self, shape: tuple[int, ...]) -> None:
        name, count = self.card.arrays.conditions, len(self.card.conditions)
        if shape[0] != self.samples or (shape[-1] != count and not (count == 1 and shape[-1] == self.nodes)):
            raise UserError(
                f"{self.path}: {name} has shape {list(shape)}, expected {self.samples} samples of the conditions "
                f"{', '.join(self.card.conditions) or '(none in the card)'}"
            )
        if len(shape) == 2 and shape[1] == count:  # one number per sample and condition
            return
        _, times, nodes, _ = self._four(str(name), shape, count)
        if nodes != self.nodes or times not in (1, self.times):
            raise UserError(
                f"{self.path}: {name} has shape {list(shape)}, expected 1 or {self.times} times at {self.nodes} points"
            )

    def read(self, sample: int) -> Trajectory:
        nodes = self.nodes
        index = sample if self.points.ndim > 2 and self.points.shape[0] > 1 else 0
        points = self.points[index] if self.points.ndim > 2 else self.points[:]
        values = np.asarray(self.values[sample]).reshape(self.times, nodes, -1)
        conditions = None
        if self.conditions is not None:
            c = np.asarray(self.conditions[sample])
            flat = c.ndim == 1 and len(c) == len(self.card.conditions)
            conditions = (
                np.broadcast_to(c, (1, nodes, len(c))) if flat else c.reshape(-1, nodes, len(self.card.conditions))
            )
        return _trajectory(np.asarray(points).reshape(nodes, -1), values, conditions)


class _Groups:
    """The aircraft's layout: one group per sample with 1-D arrays and scalar attributes; samples differ in size."""

    shared = False

    def __init__(self, path: Path, card: Card, file: h5py.File) -> None:
        self.path, self.card, self.file = path, card, file
        self.attributes: dict[str, Any] = {k: str(v) for k, v in file.attrs.items()}
        names = [str(n) for n in file if isinstance(file[n], h5py.Group)]
        self.names = sorted(names, key=lambda n: (len(n), n))  # numbered names in the order of their numbers
        self.samples = len(self.names)
        if not self.names:
            raise UserError(f"{path}: no groups; expected one group per sample with CoordinateX, ...")
        self.read(0)

    def read(self, sample: int) -> Trajectory:
        group = self.file[self.names[sample]]
        axes = [f"Coordinate{a}" for a in "XYZ"[: self.card.dim]]
        count = len(self._column(group, axes[0], None))
        points = np.stack([self._column(group, a, count) for a in axes], 1)
        values = np.stack([self._column(group, v, count) for v in self.card.variables], 1)
        columns = [self._column(group, c, count) for c in self.card.conditions]
        return _trajectory(points, values[None], np.stack(columns, 1)[None] if columns else None)

    def _column(self, group: Any, name: str, count: int | None) -> Float[np.ndarray, "points"]:
        if name in group:
            values = np.asarray(group[name], dtype=np.float32)
            if values.ndim != 1 or count not in (None, len(values)):
                raise UserError(
                    f"{self.path}: {name} of {group.name} has shape {list(values.shape)}, "
                    f"expected [{count or 'points'}]"
                )
            return values
        if name in group.attrs and count is not None:
            return np.full(count, float(group.attrs[name]), dtype=np.float32)
        raise UserError(f"{self.path}: {group.name} has neither an array nor an attribute {name!r}")


class _Tables:
    """A folder of csv files, one per sample, with a header: coordinates x, y(, z), variables and conditions by name."""

    shared = False

    def __init__(self, path: Path, card: Card) -> None:
        self.path, self.card, self.attributes = path, card, {}
        if not path.is_dir():
            raise UserError(f"{path}: expected a folder of csv files, one per sample")
        self.files = sorted(path.glob("*.csv"))
        self.samples = len(self.files)
        if not self.files:
            raise UserError(f"{path}: no csv files; expected one per sample")
        if not card.steady:
            raise UserError(f"{path}: csv files hold one snapshot each; use npz or NetCDF for times")

    def read(self, sample: int) -> Trajectory:
        path = self.files[sample]
        names = [*"xyz"[: self.card.dim], *self.card.variables, *self.card.conditions]
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file)
                missing = [n for n in names if n not in (rows.fieldnames or [])]
                if missing:
                    raise UserError(
                        f"{path}: no column {missing[0]!r}; the file has {', '.join(rows.fieldnames or [])}"
                    )
                table = np.array([[float(row[n]) for n in names] for row in rows], dtype=np.float32)
        except (ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: sample {sample} is no table of numbers: {error}") from None
        if len(table) == 0:
            raise UserError(f"{path}: sample {sample} has no points")
        d, v = self.card.dim, len(self.card.variables)
        conditions = table[None, :, d + v :] if self.card.conditions else None
        return _trajectory(table[:, :d], table[None, :, d : d + v], conditions)


def _trajectory(points: np.ndarray, values: np.ndarray, conditions: np.ndarray | None) -> Trajectory:
    parts = [None if a is None else np.ascontiguousarray(a, dtype=np.float32) for a in (points, values, conditions)]
    assert parts[0] is not None
    assert parts[1] is not None
    return Trajectory(parts[0], parts[1], parts[2])
