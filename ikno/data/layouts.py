"""How samples lie on the disk: arrays of all samples, a group per sample, a file per sample."""

from collections.abc import Callable, Mapping
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

Array = Any  # of numpy, or read where it is indexed, as h5py's
TRIANGLES = "Triangles"  # of a surface, in a group of its sample
Rows = Callable[[int], slice]  # from the number of points of a sample to those that are wanted


def all_rows(count: int) -> slice:
    """Return all of so many points."""
    return slice(0, count)


class Arrays:
    """Named arrays [sample, time, node, variable], where steady sets may lack the time and single variables theirs."""

    def __init__(self, file: DataFile, card: Card) -> None:
        path, arrays, names = file.path, file.items, card.arrays
        self.path, self.card, self.attributes = path, card, file.attributes
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

    def read(self, sample: int, rows: Rows) -> Trajectory:
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

    def _at(self, array: Array, channels: int, sample: int, rows: slice) -> np.ndarray:
        """Return some points of a sample; they are the last axis where a single channel has none of its own."""
        last = channels == 1 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] != 1))
        return np.asarray(array[(sample, ..., rows) if last else (sample, ..., rows, slice(None))])


class Groups:
    """The aircraft's layout: one group per sample with 1-D arrays and scalar attributes; samples differ in size."""

    shared = False

    def __init__(self, file: DataFile, card: Card) -> None:
        self.path, self.card, self.groups, self.attributes = file.path, card, file.items, file.attributes
        names = [str(n) for n, item in file.items.items() if not hasattr(item, "shape")]
        self.names = sorted(names, key=lambda n: (len(n), n))  # numbered names in the order of their numbers
        self.samples = len(self.names)
        if not self.names:
            raise UserError(f"{self.path}: no groups; expected one group per sample with CoordinateX, ...")
        self.read(0, all_rows)

    def read(self, sample: int, rows: Rows) -> Trajectory:
        group: Any = self.groups[self.names[sample]]
        axes = [f"Coordinate{a}" for a in "XYZ"[: self.card.dim]]
        count = self._count(group, axes[0])
        chosen = rows(count)
        points = np.stack([self._column(group, a, count, chosen) for a in axes], 1)
        values = np.stack([self._column(group, v, count, chosen) for v in self.card.variables], 1)
        columns = [self._column(group, c, count, chosen) for c in self.card.conditions]
        made = _trajectory(points, values[None], np.stack(columns, 1)[None] if columns else None)
        drawn = TRIANGLES in group and len(points) == count
        return replace(made, triangles=self._triangles(group, count)) if drawn else made

    def _triangles(self, group: Any, count: int) -> Int[np.ndarray, "triangles 3"]:
        found = np.asarray(group[TRIANGLES])
        good = found.dtype.kind in "iu" and found.ndim == 2 and found.shape[1] == 3 and len(found)
        if not good or found.min() < 0 or found.max() >= count:
            raise UserError(
                f"{self.path}: {TRIANGLES} of {group.name} is not [triangles, 3] of points 0 to {count - 1}"
            )
        return found

    def _count(self, group: Any, name: str) -> int:
        shape = self._shape(group, name)
        if shape is None:
            raise UserError(f"{self.path}: {group.name} has no array {name!r}")
        if len(shape) != 1:
            raise UserError(f"{self.path}: {name} of {group.name} has shape {list(shape)}, expected [points]")
        return shape[0]

    def _shape(self, group: Any, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array, None where there is no array of that name."""
        return getattr(group[name], "shape", None) if name in group else None

    def _column(self, group: Any, name: str, count: int, rows: slice) -> Float[np.ndarray, "points"]:
        shape = self._shape(group, name)
        if shape is not None and shape != (count,):
            raise UserError(f"{self.path}: {name} of {group.name} has shape {list(shape)}, expected [{count}]")
        if shape is not None:
            return np.asarray(group[name][rows], dtype=np.float32)
        if name in group.attrs:
            return np.full(len(range(*rows.indices(count))), float(group.attrs[name]), dtype=np.float32)
        raise UserError(f"{self.path}: {group.name} has neither an array nor an attribute {name!r}")


class Folder:
    """A folder of files, one per sample, with points and named arrays at them."""

    shared = False

    def __init__(self, path: Path, card: Card) -> None:
        self.card, self.attributes = card, {}
        if not path.is_dir():
            raise UserError(f"{path}: expected a folder of {card.format} files, one per sample")
        suffixes = FORMATS[card.format].suffixes
        self.files = sorted(p for p in path.iterdir() if p.suffix.lower() in suffixes)
        self.samples = len(self.files)
        if not self.files:
            raise UserError(f"{path}: no {card.format} files; expected one per sample")
        if not card.steady:
            raise UserError(f"{path}: {card.format} files hold one snapshot each; use npz or NetCDF for times")

    def read(self, sample: int, rows: Rows) -> Trajectory:
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


def _trajectory(points: np.ndarray, values: np.ndarray, conditions: np.ndarray | None) -> Trajectory:
    parts = [None if a is None else np.ascontiguousarray(a, dtype=np.float32) for a in (points, values, conditions)]
    assert parts[0] is not None
    assert parts[1] is not None
    return Trajectory(parts[0], parts[1], parts[2])
