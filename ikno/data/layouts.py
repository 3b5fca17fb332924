"""How samples lie on the disk: arrays of all samples, a group per sample, a file per sample.

They are read one by one, as float32, and checked as they are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ikno.data.catalog import Card
from ikno.data.formats import FORMATS, DataFile, open_mesh
from ikno.data.records import Trajectory
from ikno.errors import UserError

TRIANGLES = "Triangles"  # of a surface, in a group of its sample
Rows = Callable[[int], slice]  # from the number of points of a sample to those that are wanted


def all_rows(count: int) -> slice:
    """Return all of so many points."""
    return slice(0, count)


class Dataset(ABC):
    """An open data file: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block.

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
        """Return a trajectory at some of its points; only these are read where the format allows it."""
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

    def _wrong(self, name: str | None, shape: tuple[int, ...], expected: str) -> UserError:
        return UserError(f"{self.path}: {name} has shape {list(shape)}, expected {expected}")


class Arrays(Dataset):
    """Named arrays [sample, time, node, variable], where steady sets may lack the time and single variables theirs."""

    def __init__(self, file: DataFile, card: Card) -> None:
        super().__init__(file.path, card, file)
        path, arrays, names = file.path, file.items, card.arrays
        self.values = self._find(arrays, names.values)
        self.points = self._find(arrays, names.points)
        self.conditions = None if names.conditions is None else self._find(arrays, names.conditions)
        shape = self._four(names.values, self.values.shape, len(card.variables))
        self.samples, self.times, self.nodes, _ = shape
        if self.samples == 0 or self.nodes == 0:
            raise UserError(f"{path}: {names.values} has shape {self.values.shape}: no samples or no points")
        if self.times != card.snapshots:
            raise UserError(f"{path}: {names.values} has {self.times} snapshots, the card says {card.snapshots}")
        self._check_points(names.points, self.points.shape)
        alone = all(n == 1 for n in self.points.shape[:-2])
        self.shared = alone and (self.samples > 1 or card.cloud == "shared")
        if self.conditions is not None:
            self._check_conditions(self.conditions.shape)

    def _find(self, arrays: Mapping[str, Any], name: str) -> Any:
        array: Any = arrays.get(name)
        if not hasattr(array, "dtype"):
            raise UserError(f"{self.path}: no variable {name!r}; the file has {', '.join(sorted(arrays)) or 'none'}")
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
            raise self._wrong(name, shape, f"[sample, time, node, {variables}] for {self.card.name}")
        return full[0], full[1], full[2], full[3]

    def _check_points(self, name: str, shape: tuple[int, ...]) -> None:
        lead, dim = shape[:-2], self.card.dim
        if shape[-1] != dim:
            wrong = f"{name} has {shape[-1]} coordinates, the card of {self.card.name} has {dim} axes"
            raise UserError(f"{self.path}: {wrong}")
        good = len(shape) >= 2 and shape[-2] == self.nodes and lead[:1] in ((), (1,), (self.samples,))
        if not good or lead[1:] not in ((), (1,)):
            raise self._wrong(name, shape, f"[1 or {self.samples}, 1, {self.nodes}, {dim}] to go with the values")

    def _check_conditions(self, shape: tuple[int, ...]) -> None:
        name, count = self.card.arrays.conditions, len(self.card.conditions)
        if shape[0] != self.samples or (shape[-1] != count and not (count == 1 and shape[-1] == self.nodes)):
            known = ", ".join(self.card.conditions) or "(none in the card)"
            raise self._wrong(name, shape, f"{self.samples} samples of the conditions {known}")
        if len(shape) == 2 and shape[1] == count:  # one number per sample and condition
            return
        _, times, nodes, _ = self._four(str(name), shape, count)
        if nodes != self.nodes or times not in (1, self.times):
            raise self._wrong(name, shape, f"1 or {self.times} times at {self.nodes} points")

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        chosen, count = rows(self.nodes), len(self.card.conditions)
        nodes = len(range(*chosen.indices(self.nodes)))
        own = self.points.ndim > 2 and self.points.shape[0] > 1
        lead = (sample if own else 0, ...) if self.points.ndim > 2 else ()
        points = np.asarray(self.points[(*lead, chosen, slice(None))]).reshape(nodes, -1)
        values = self._at(self.values, len(self.card.variables), sample, chosen).reshape(self.times, nodes, -1)
        conditions = None
        if self.conditions is not None:
            if self.conditions.ndim == 2 and self.conditions.shape[1] == count:
                c = np.asarray(self.conditions[sample])
                conditions = np.broadcast_to(c, (1, nodes, count))
            else:
                conditions = self._at(self.conditions, count, sample, chosen).reshape(-1, nodes, count)
        return _trajectory(points, values, conditions)

    def _at(self, array: Any, channels: int, sample: int, rows: slice) -> np.ndarray:
        """Return some points of a sample; they are the last axis where a single channel has none of its own."""
        last = channels == 1 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] != 1))
        return np.asarray(array[(sample, ..., rows) if last else (sample, ..., rows, slice(None))])


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
        group = self.groups[self.names[sample]]
        axes = [f"Coordinate{a}" for a in "XYZ"[: self.card.dim]]
        shape = getattr(group.get(axes[0]), "shape", None)
        if shape is None:
            raise UserError(f"{self.path}: {group.name} has no array {axes[0]!r}")
        if len(shape) != 1:
            raise self._wrong(f"{axes[0]} of {group.name}", shape, "[points]")
        chosen = rows(shape[0])
        points, values, conditions = (
            [self._column(group, name, shape, chosen) for name in names]
            for names in (axes, self.card.variables, self.card.conditions)
        )
        known = np.stack(conditions, 1)[None] if conditions else None
        made = _trajectory(np.stack(points, 1), np.stack(values, 1)[None], known)
        drawn = TRIANGLES in group and len(made.points) == shape[0]
        return replace(made, triangles=self._triangles(group, shape[0])) if drawn else made

    def _triangles(self, group: Any, count: int) -> Int[np.ndarray, "triangles 3"]:
        found = np.asarray(group[TRIANGLES])
        good = found.dtype.kind in "iu" and found.ndim == 2 and found.shape[1] == 3 and len(found)
        if not good or found.min() < 0 or found.max() >= count:
            raise UserError(
                f"{self.path}: {TRIANGLES} of {group.name} is not [triangles, 3] of points 0 to {count - 1}"
            )
        return found

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
        chosen, d, v = table[rows(len(table))], card.dim, len(card.variables)
        conditions = chosen[None, :, d + v :] if card.conditions else None
        made = _trajectory(chosen[:, :d], chosen[None, :, d : d + v], conditions)
        whole = d == 3 and len(mesh.triangles) and len(chosen) == len(table)
        return replace(made, triangles=mesh.triangles) if whole else made


class Joined(Dataset):
    """The samples of one file, then those of another."""

    def __init__(self, first: Dataset, second: Dataset) -> None:
        super().__init__(first.path, first.card, first)
        self.first, self.second, self.samples = first, second, len(first) + len(second)
        self.close = lambda: (first.close(), second.close())[1]

    def _read(self, sample: int, rows: Rows) -> Trajectory:
        first = sample < len(self.first)
        return self.first._read(sample, rows) if first else self.second._read(sample - len(self.first), rows)


def _trajectory(points: np.ndarray, values: np.ndarray, conditions: np.ndarray | None) -> Trajectory:
    parts = [None if a is None else np.ascontiguousarray(a, dtype=np.float32) for a in (points, values, conditions)]
    assert parts[0] is not None
    assert parts[1] is not None
    return Trajectory(parts[0], parts[1], parts[2])
