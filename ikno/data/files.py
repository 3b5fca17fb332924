"""Data sets in files: arrays of all samples, a group per sample, or a file per sample.

Samples are read one by one, as float32, and checked as they are read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
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
Reader = Callable[[Rows], Trajectory]


def all_rows(count: int) -> slice:
    """Return all of so many points."""
    return slice(0, count)


class Dataset:
    """An open data set: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block.

    ``shared`` tells whether all samples have one cloud, and ``attributes`` are what the file says about how it was
    made. ``readers`` return one sample each, at some of its points.
    """

    def __init__(self, file: DataFile, card: Card, readers: Sequence[Reader], shared: bool = False) -> None:
        self.path, self.card, self.readers, self.shared = file.path, card, readers, shared
        self.attributes, self.close = file.attributes, file.close

    def read(self, sample: int, rows: Rows = all_rows) -> Trajectory:
        """Return a trajectory at some of its points; only these are read where the format allows it.

        Args:
            sample: Its number, from 0.
            rows: Which points, as a function from their number to a slice.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        made = self.readers[sample](rows)
        for what in ("points", "values", "conditions"):
            array = getattr(made, what)
            if array is not None and not np.isfinite(array).all():
                raise UserError(f"{self.path}: sample {sample} has NaN or infinite {what}; remove it or mend the file")
        return made

    def __len__(self) -> int:
        return len(self.readers)

    def __getitem__(self, sample: int) -> Trajectory:
        return self.read(sample)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[i] for i in range(len(self)))

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the file: samples, times, points (of the first sample), variables, conditions, dim."""
        first = self.readers[0](all_rows)
        sizes = (len(self), *first.values.shape, len(self.card.conditions), first.points.shape[1])
        return dict(zip(("samples", "times", "points", "variables", "conditions", "dim"), sizes, strict=True))

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Arrays:
    """Named arrays [sample, time, node, variable], where steady sets may lack the time and single variables theirs."""

    def __init__(self, file: DataFile, card: Card) -> None:
        self.path, self.card, names = file.path, card, card.arrays
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
            raise _wrong(self.path, name, shape, f"[sample, time, node, {channels}] for {self.card.name}")
        return full[0], full[1], full[2]

    def _check_points(self, name: str, shape: tuple[int, ...]) -> None:
        lead, dim = shape[:-2], self.card.dim
        if shape[-1] != dim:
            wrong = f"{name} has {shape[-1]} coordinates, the card of {self.card.name} has {dim} axes"
            raise UserError(f"{self.path}: {wrong}")
        good = len(shape) >= 2 and shape[-2] == self.nodes and lead[:1] in ((), (1,), (self.samples,))
        if not good or lead[1:] not in ((), (1,)):
            raise _wrong(self.path, name, shape, f"[1 or {self.samples}, 1, {self.nodes}, {dim}] to go with the values")

    def _check_conditions(self, name: str, shape: tuple[int, ...]) -> None:
        count = len(self.card.conditions)
        if shape[0] != self.samples or (shape[-1] != count and not (count == 1 and shape[-1] == self.nodes)):
            known = ", ".join(self.card.conditions) or "(none in the card)"
            raise _wrong(self.path, name, shape, f"{self.samples} samples of the conditions {known}")
        self.constant = shape[1:] == (count,)  # one number per sample and condition
        if self.constant:
            return
        _, times, nodes = self._sizes(name, shape, count)
        if nodes != self.nodes or times not in (1, self.times):
            raise _wrong(self.path, name, shape, f"1 or {self.times} times at {self.nodes} points")

    def read(self, sample: int, rows: Rows) -> Trajectory:
        chosen, count = rows(self.nodes), len(self.card.conditions)
        lead = () if self.points.ndim == 2 else (sample if len(self.points) > 1 else 0, ...)
        points = np.asarray(self.points[(*lead, chosen, slice(None))]).reshape(-1, self.card.dim)
        values = self._at(self.values, len(self.card.variables), sample, chosen, len(points))
        conditions = None
        if self.conditions is not None and self.constant:
            conditions = np.broadcast_to(np.asarray(self.conditions[sample]), (1, len(points), count))
        elif self.conditions is not None:
            conditions = self._at(self.conditions, count, sample, chosen, len(points))
        return _trajectory(self.card, points, values, conditions)

    def _at(self, array: Any, channels: int, sample: int, rows: slice, count: int) -> np.ndarray:
        """Return some points of a sample; they are the last axis where a single channel has none of its own."""
        last = channels == 1 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] != 1))
        part = np.asarray(array[(sample, ..., rows) if last else (sample, ..., rows, slice(None))])
        return part.reshape(-1, count, channels)


def _groups(file: DataFile, card: Card) -> Dataset:
    """Return the aircraft's layout: one group per sample with 1-D arrays and scalar attributes; sizes may differ."""
    names = [str(name) for name, item in file.items.items() if not hasattr(item, "shape")]
    names.sort(key=lambda name: (len(name), name))  # numbered names in the order of their numbers
    if not names:
        raise UserError(f"{file.path}: no groups; expected one group per sample with CoordinateX, ...")
    readers = [partial(_read_group, file, card, name) for name in names]
    readers[0](all_rows)
    return Dataset(file, card, readers)


def _read_group(file: DataFile, card: Card, name: str, rows: Rows) -> Trajectory:
    group = file.items[name]
    shape = getattr(group.get(AXES[0]), "shape", None)
    if shape is None:
        raise UserError(f"{file.path}: {group.name} has no array {AXES[0]!r}")
    if len(shape) != 1:
        raise _wrong(file.path, f"{AXES[0]} of {group.name}", shape, "[points]")
    chosen = rows(shape[0])
    columns = []
    for column in (*AXES[: card.dim], *card.variables, *card.conditions):
        item: Any = group.get(column)
        if hasattr(item, "shape"):
            if item.shape != shape:
                raise _wrong(file.path, f"{column} of {group.name}", item.shape, str(list(shape)))
            columns.append(np.asarray(item[chosen], dtype=np.float32))
        elif column in group.attrs:
            columns.append(np.full_like(columns[0], float(group.attrs[column])))
        else:
            raise UserError(f"{file.path}: {group.name} has neither an array nor an attribute {column!r}")
    corners = None
    if TRIANGLES in group and len(columns[0]) == shape[0]:
        corners = np.asarray(group[TRIANGLES])
        good = corners.dtype.kind in "iu" and corners.ndim == 2 and corners.shape[1] == 3 and len(corners)
        if not good or corners.min() < 0 or corners.max() >= shape[0]:
            wrong = f"{TRIANGLES} of {group.name} is not [triangles, 3] of points 0 to {shape[0] - 1}"
            raise UserError(f"{file.path}: {wrong}")
    return _of_table(card, np.stack(columns, 1), corners)


def _folder(path: Path, card: Card) -> Dataset:
    """Return a folder of files, one per sample, with points and named arrays at them."""
    if not path.is_dir():
        raise UserError(f"{path}: expected a folder of {card.format} files, one per sample")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in FORMATS[card.format].suffixes)
    if not files:
        raise UserError(f"{path}: no {card.format} files; expected one per sample")
    if not card.steady:
        raise UserError(f"{path}: {card.format} files hold one snapshot each; use npz or NetCDF for times")
    return Dataset(DataFile(path, {}), card, [partial(_read_mesh, file, card) for file in files])


def _read_mesh(path: Path, card: Card, rows: Rows) -> Trajectory:
    with closing(open_mesh(path, FORMATS[card.format])) as mesh:
        if mesh.points.shape[1] < card.dim:
            raise UserError(f"{path}: {mesh.points.shape[1]} coordinates, the card has {card.dim} axes")
        table = np.stack([*mesh.points.T[: card.dim], *map(mesh.column, (*card.variables, *card.conditions))], 1)
    chosen = table[rows(len(table))]
    drawn = card.dim == 3 and len(mesh.triangles) and len(chosen) == len(table)
    return _of_table(card, chosen, mesh.triangles if drawn else None)


def _of_table(card: Card, table: Float[np.ndarray, "points _"], triangles: Any) -> Trajectory:
    """Return a steady sample of a table of its coordinates, variables and conditions."""
    dim, end = card.dim, card.dim + len(card.variables)
    return _trajectory(card, table[:, :dim], table[None, :, dim:end], table[None, :, end:], triangles)


def _trajectory(card: Card, points: Any, values: Any, conditions: Any, triangles: Any = None) -> Trajectory:
    known = [conditions] if card.conditions else []
    return Trajectory(*(np.ascontiguousarray(a, np.float32) for a in (points, values, *known)), triangles=triangles)


def _wrong(path: Path, name: str, shape: Sequence[int], expected: str) -> UserError:
    return UserError(f"{path}: {name} has shape {list(shape)}, expected {expected}")


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
    with ExitStack() as opened:
        opened.callback(first.close)
        last = _open_one(second, card)
        opened.callback(last.close)
        file = DataFile(path, {}, first.attributes, opened.pop_all().close)
    return Dataset(file, card, [*first.readers, *last.readers])


def _open_one(path: Path, card: Card) -> Dataset:
    form = FORMATS[card.format]
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if form.holds[0] == "points":
        return _folder(path, card)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a {card.format} file")
    file = open_arrays(path, form)
    try:
        with readable(path, card.format):
            if form.holds[0] == "groups":
                return _groups(file, card)
            arrays = _Arrays(file, card)
            return Dataset(file, card, [partial(arrays.read, i) for i in range(arrays.samples)], arrays.shared)
    except UserError:
        file.close()
        raise


def find_named(folder: Path, card: Card, *names: str) -> Path | None:
    """Return the file of the card's format that has one of the names in any spelling, None if there is none."""
    wanted, suffixes = {plain(name) for name in names}, FORMATS[card.format].suffixes
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    named = (p for p in files if p.suffix.lower() in suffixes and plain(p.stem) in wanted)
    return next((p for p in named if p.is_file()), None)
