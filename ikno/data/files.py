"""Data sets in files: arrays of all samples, a group per sample, or a file per sample.

Samples are read one by one, as float32, and checked as they are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data.catalog import Card, plain
from ikno.data.formats import FORMATS, DataFile, open_arrays, open_mesh, readable
from ikno.data.records import Trajectory
from ikno.errors import UserError

# Names in the group of a sample: the coordinates, and the triangles of a surface.
AXES, TRIANGLES = ("CoordinateX", "CoordinateY", "CoordinateZ"), "Triangles"
Rows = Callable[[int], slice]  # from the number of points of a sample to those that are wanted


def all_rows(count: int) -> slice:
    """Return all of so many points."""
    return slice(0, count)


class Dataset(ABC):
    """An open data set: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block.

    ``samples`` is their number, ``shared`` tells whether all have one cloud, and ``attributes`` are what the file says
    about how it was made.
    """

    samples = 0
    shared = False

    def __init__(self, path: Path, card: Card, file: "DataFile | Dataset | None" = None) -> None:
        self.path, self.card = path, card
        self.attributes: dict[str, Any] = {} if file is None else file.attributes
        self.close: Callable[[], None] = (lambda: None) if file is None else file.close

    @abstractmethod
    def _read(self, sample: int, rows: Rows) -> Trajectory:
        """Return a trajectory at some of its points."""

    def read(self, sample: int, rows: Rows = all_rows) -> Trajectory:
        """Return a trajectory at some of its points; only these are read where the format allows it.

        Args:
            sample: Its number, from 0.
            rows: Which points, as a function from their number to a slice.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        made = self._read(sample, rows)
        for what in ("points", "values", "conditions"):
            array = getattr(made, what)
            if array is not None and not np.isfinite(array).all():
                raise UserError(f"{self.path}: sample {sample} has NaN or infinite {what}; remove it or mend the file")
        return made

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, sample: int) -> Trajectory:
        return self.read(sample)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[i] for i in range(len(self)))

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the file: samples, times, points (of the first sample), variables, conditions, dim."""
        first = self._read(0, all_rows)
        channels = 0 if first.conditions is None else first.conditions.shape[2]
        sizes = (len(self), *first.values.shape, channels, first.points.shape[1])
        return dict(zip(("samples", "times", "points", "variables", "conditions", "dim"), sizes, strict=True))

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trajectory(self, points: Any, values: Any, conditions: Any, triangles: Any = None) -> Trajectory:
        known = [conditions] if self.card.conditions else []
        arrays = (np.ascontiguousarray(a, dtype=np.float32) for a in (points, values, *known))
        return Trajectory(*arrays, triangles=triangles)

    def _of_table(self, table: Float[np.ndarray, "points _"], triangles: Any) -> Trajectory:
        """Return a steady sample of a table of its coordinates, variables and conditions."""
        dim, end = self.card.dim, self.card.dim + len(self.card.variables)
        return self._trajectory(table[:, :dim], table[None, :, dim:end], table[None, :, end:], triangles)

    def _wrong(self, name: str | None, shape: tuple[int, ...], expected: str) -> UserError:
        return UserError(f"{self.path}: {name} has shape {list(shape)}, expected {expected}")


class Arrays(Dataset):
    """Named arrays [sample, time, node, variable], where steady sets may lack the time and single variables theirs."""

    def __init__(self, file: DataFile, card: Card) -> None:
        super().__init__(file.path, card, file)
        names = card.arrays
        self.values, self.points = self._find(file, names.values), self._find(file, names.points)
        self.conditions = None if names.conditions is None else self._find(file, names.conditions)
        self.samples, self.times, self.nodes = self._sizes(names.values, self.values.shape, len(card.variables))
        if self.samples == 0 or self.nodes == 0:
            raise UserError(f"{self.path}: {names.values} has shape {self.values.shape}: no samples or no points")
        if self.times != card.snapshots:
            raise UserError(f"{self.path}: {names.values} has {self.times} snapshots, the card says {card.snapshots}")
        self._check_points(names.points, self.points.shape)
        alone = all(n == 1 for n in self.points.shape[:-2])
        self.shared = alone and (self.samples > 1 or card.cloud == "shared")
        if self.conditions is not None:
            self._check_conditions(str(names.conditions), self.conditions.shape)

    def _find(self, file: DataFile, name: str) -> Any:
        array: Any = file.items.get(name)
        if not hasattr(array, "dtype"):
            have = ", ".join(sorted(file.items)) or "none"
            raise UserError(f"{self.path}: no variable {name!r}; the file has {have}")
        if array.dtype.kind != "f" or array.dtype.byteorder == ">":
            raise UserError(f"{self.path}: {name} has the type {array.dtype}, expected float32 or float64; convert it")
        return array

    def _sizes(self, name: str, shape: tuple[int, ...], channels: int) -> tuple[int, int, int]:
        """Return samples, times and nodes; the axis of a single channel and the time of steady sets may be missing."""
        full = shape
        if channels == 1 and (len(full) == 2 or (len(full) == 3 and full[2] != 1)):
            full = (*full, 1)
        if len(full) == 3 and self.card.steady:
            full = (full[0], 1, *full[1:])
        if len(full) != 4 or full[3] != channels:
            raise self._wrong(name, shape, f"[sample, time, node, {channels}] for {self.card.name}")
        return full[0], full[1], full[2]

    def _check_points(self, name: str, shape: tuple[int, ...]) -> None:
        lead, dim = shape[:-2], self.card.dim
        if shape[-1] != dim:
            wrong = f"{name} has {shape[-1]} coordinates, the card of {self.card.name} has {dim} axes"
            raise UserError(f"{self.path}: {wrong}")
        good = len(shape) >= 2 and shape[-2] == self.nodes and lead[:1] in ((), (1,), (self.samples,))
        if not good or lead[1:] not in ((), (1,)):
            raise self._wrong(name, shape, f"[1 or {self.samples}, 1, {self.nodes}, {dim}] to go with the values")

    def _check_conditions(self, name: str, shape: tuple[int, ...]) -> None:
        count = len(self.card.conditions)
        if shape[0] != self.samples or (shape[-1] != count and not (count == 1 and shape[-1] == self.nodes)):
            known = ", ".join(self.card.conditions) or "(none in the card)"
            raise self._wrong(name, shape, f"{self.samples} samples of the conditions {known}")
        self.constant = shape[1:] == (count,)  # one number per sample and condition
        if self.constant:
            return
        _, times, nodes = self._sizes(name, shape, count)
        if nodes != self.nodes or times not in (1, self.times):
            raise self._wrong(name, shape, f"1 or {self.times} times at {self.nodes} points")

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        chosen, count = rows(self.nodes), len(self.card.conditions)
        lead = () if self.points.ndim == 2 else (sample if len(self.points) > 1 else 0, ...)
        points = np.asarray(self.points[(*lead, chosen, slice(None))]).reshape(-1, self.card.dim)
        values = self._at(self.values, len(self.card.variables), sample, chosen, len(points))
        conditions = None
        if self.conditions is not None and self.constant:
            conditions = np.broadcast_to(np.asarray(self.conditions[sample]), (1, len(points), count))
        elif self.conditions is not None:
            conditions = self._at(self.conditions, count, sample, chosen, len(points))
        return self._trajectory(points, values, conditions)

    def _at(self, array: Any, channels: int, sample: int, rows: slice, count: int) -> np.ndarray:
        """Return some points of a sample; they are the last axis where a single channel has none of its own."""
        last = channels == 1 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] != 1))
        part = np.asarray(array[(sample, ..., rows) if last else (sample, ..., rows, slice(None))])
        return part.reshape(-1, count, channels)


class Groups(Dataset):
    """The aircraft's layout: one group per sample with 1-D arrays and scalar attributes; samples differ in size."""

    def __init__(self, file: DataFile, card: Card) -> None:
        super().__init__(file.path, card, file)
        self.groups = file.items
        names = [str(n) for n, item in file.items.items() if not hasattr(item, "shape")]
        self.names = sorted(names, key=lambda n: (len(n), n))  # numbered names in the order of their numbers
        self.samples = len(self.names)
        if not self.names:
            raise UserError(f"{self.path}: no groups; expected one group per sample with CoordinateX, ...")
        self._read(0, all_rows)

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        group, card = self.groups[self.names[sample]], self.card
        shape = getattr(group.get(AXES[0]), "shape", None)
        if shape is None:
            raise UserError(f"{self.path}: {group.name} has no array {AXES[0]!r}")
        if len(shape) != 1:
            raise self._wrong(f"{AXES[0]} of {group.name}", shape, "[points]")
        chosen = rows(shape[0])
        names = (*AXES[: card.dim], *card.variables, *card.conditions)
        table = np.stack([self._column(group, name, shape, chosen) for name in names], 1)
        drawn = TRIANGLES in group and len(table) == shape[0]
        return self._of_table(table, self._triangles(group, shape[0]) if drawn else None)

    def _triangles(self, group: Any, count: int) -> np.ndarray:
        corners = np.asarray(group[TRIANGLES])
        good = corners.dtype.kind in "iu" and corners.ndim == 2 and corners.shape[1] == 3 and len(corners)
        if not good or corners.min() < 0 or corners.max() >= count:
            wrong = f"{TRIANGLES} of {group.name} is not [triangles, 3] of points 0 to {count - 1}"
            raise UserError(f"{self.path}: {wrong}")
        return corners

    def _column(self, group: Any, name: str, wanted: tuple[int], rows: slice) -> Float[np.ndarray, "points"]:
        item = group.get(name)
        shape = getattr(item, "shape", None)
        if shape is not None and shape != wanted:
            raise self._wrong(f"{name} of {group.name}", shape, str(list(wanted)))
        if shape is not None:
            return np.asarray(item[rows], dtype=np.float32)
        if name in group.attrs:
            return np.full(len(range(*rows.indices(wanted[0]))), float(group.attrs[name]), dtype=np.float32)
        raise UserError(f"{self.path}: {group.name} has neither an array nor an attribute {name!r}")


class Folder(Dataset):
    """A folder of files, one per sample, with points and named arrays at them."""

    def __init__(self, path: Path, card: Card) -> None:
        super().__init__(path, card)
        if not path.is_dir():
            raise UserError(f"{path}: expected a folder of {card.format} files, one per sample")
        suffixes = FORMATS[card.format].suffixes
        self.files = sorted(p for p in path.iterdir() if p.suffix.lower() in suffixes)
        self.samples = len(self.files)
        if not self.files:
            raise UserError(f"{path}: no {card.format} files; expected one per sample")
        if not card.steady:
            raise UserError(f"{path}: {card.format} files hold one snapshot each; use npz or NetCDF for times")

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        card, path = self.card, self.files[sample]
        with closing(open_mesh(path, FORMATS[card.format])) as mesh:
            if mesh.points.shape[1] < card.dim:
                raise UserError(f"{path}: {mesh.points.shape[1]} coordinates, the card has {card.dim} axes")
            table = np.stack([*mesh.points.T[: card.dim], *map(mesh.column, (*card.variables, *card.conditions))], 1)
        chosen = table[rows(len(table))]
        drawn = card.dim == 3 and len(mesh.triangles) and len(chosen) == len(table)
        return self._of_table(chosen, mesh.triangles if drawn else None)


class Joined(Dataset):
    """The samples of one file, then those of another."""

    def __init__(self, first: Dataset, second: Dataset) -> None:
        super().__init__(first.path, first.card, first)
        self.first, self.second, self.samples = first, second, len(first) + len(second)
        self.close = lambda: (first.close(), second.close())[1]

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        first = sample < len(self.first)
        return self.first._read(sample, rows) if first else self.second._read(sample - len(self.first), rows)


def open_data(path: str | Path, card: Card) -> Dataset:
    """Return the data set in a file or folder, checked against its card: names, shapes, number types.

    If the card names a ``test_file`` and it lies beside this one, its samples follow.
    """
    path = Path(path)
    first = _open_one(path, card)
    if card.test_file is None or plain(path.stem) == plain(card.test_file):
        return first
    second = find_named(path.parent, card, card.test_file)
    if second is None:
        return first
    try:
        return Joined(first, _open_one(second, card))
    except UserError:
        first.close()
        raise


def _open_one(path: Path, card: Card) -> Dataset:
    form = FORMATS[card.format]
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if form.holds[0] == "points":
        return Folder(path, card)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a {card.format} file")
    file = open_arrays(path, form)
    try:
        with readable(path, card.format):
            return Groups(file, card) if form.holds[0] == "groups" else Arrays(file, card)
    except UserError:
        file.close()
        raise


def find_named(folder: Path, card: Card, *names: str) -> Path | None:
    """Return the file of the card's format that has one of the names in any spelling, None if there is none."""
    wanted, suffixes = {plain(name) for name in names}, FORMATS[card.format].suffixes
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    named = (p for p in files if p.suffix.lower() in suffixes and plain(p.stem) in wanted)
    return next((p for p in named if p.is_file()), None)
