"""Inputs without solutions: what a surrogate is asked to predict from."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from ikno.config import suggest
from ikno.data.catalog import Card
from ikno.data.formats import DataFile, Mesh
from ikno.errors import UserError

Stack = Float32[np.ndarray, "_ _ _"]  # samples or 1, points, and coordinates or channels
Sample = tuple[Float32[np.ndarray, "points dim"], Float32[np.ndarray, "points channels"]]


def array_inputs(
    file: DataFile, card: Card, time: float | None = None, given: Mapping[str, float] | None = None
) -> list[Sample]:
    """Return points and input channels of each sample in a file of arrays, under the names of the card's arrays.

    The points are [points, dim] for all samples, or [samples, points, dim]. Problems in time need u at the start,
    [points, variables] or [samples, points, variables] or all snapshots, of which that at ``time`` is taken (the first
    by default); so do conditions that change in time. Conditions may be one number each per sample. Axes of length one
    that the released layout has are accepted. A given number takes the place of the channel of its name, at all
    points of all samples; an array of which all channels are given is not needed.
    """
    given = given or {}
    check_given(given, input_names(card))
    snapshot = None if time is None else _snapshot(card, time)
    points, values, conditions = _wanted(file, card, given)
    points = _samples(file.path, card.arrays.points, points, card.dim)
    count = points.shape[1]
    start = np.zeros((1, count, 0 if card.steady else len(card.targets)), np.float32)
    if values is not None:
        every = _samples(file.path, card.arrays.values, values, len(card.variables), card.snapshots, snapshot)
        start = every[..., [card.variables.index(v) for v in card.targets]]
    known = np.zeros((1, count, len(card.conditions)), np.float32)
    if conditions is not None:
        array, width = np.atleast_1d(conditions), len(card.conditions)
        # [k, width] is read as in training, one number per sample, unless only the points are as many.
        if array.ndim <= 2 and array.shape[-1] == width and (len(array) != count or count in (len(points), len(start))):
            array = np.broadcast_to(array.reshape(-1, 1, width), (array.size // width, count, width))
        known = _samples(file.path, card.arrays.conditions or "c", array, width, card.snapshots, snapshot)
    return _joined(file.path, card, [points, start, known], given)


def mesh_inputs(mesh: Mesh, card: Card, given: Mapping[str, float]) -> Sample:
    """Return points and input channels: the arrays of the file with the names of the card, or given numbers.

    Channels are u at the start of problems in time, then the conditions. A given number is one for all points, and
    goes before an array.
    """
    names = input_names(card)
    check_given(given, names)
    points, columns = mesh.plane(card.dim), []
    for name in names:
        said = f"{name}=0.5" if " " not in name else repr(f"{name}=0.5")
        remedy = f"; add it, or give one number for all points: {said}"
        columns.append(np.full(len(points), given[name]) if name in given else mesh.column(name, remedy))
    inputs = np.stack(columns, 1) if columns else np.zeros((len(points), 0))
    return points.astype(np.float32), inputs.astype(np.float32)


def _wanted(
    file: DataFile, card: Card, given: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the arrays of points, values and conditions; None of which all channels are given or there are none."""
    moving = not card.steady and not set(card.targets) <= given.keys()
    conditional = not set(card.conditions) <= given.keys()
    names = [card.arrays.points, *[card.arrays.values] * moving, *[card.arrays.conditions or "c"] * conditional]
    found = []
    for name in names:
        if name not in file.items:
            raise UserError(f"{file.path}: no array {name!r}; expected {', '.join(names)}")
        found.append(file.array(name))
        if found[-1].dtype.kind not in "fiu":
            raise UserError(f"{file.path}: {name} has the type {found[-1].dtype}, expected numbers")
    return found[0], found[1] if moving else None, found[-1] if conditional else None


def _joined(path: Path, card: Card, arrays: Sequence[Stack], given: Mapping[str, float]) -> list[Sample]:
    """Return points and all other channels of each sample; what there is once is for all of them."""
    points, *channels = arrays
    sizes = {len(a) for a in arrays} - {1}
    if len(sizes) > 1:
        raise UserError(f"{path}: the arrays have different numbers of samples: {', '.join(map(str, sorted(sizes)))}")
    count = points.shape[1]
    for array in channels:
        if array.shape[1] != count:
            raise UserError(f"{path}: inputs at {array.shape[1]} points, but there are {count} points")
    samples = []
    for i in range(max(sizes, default=1)):
        inputs = np.concatenate([a[i if len(a) > 1 else 0] for a in channels], 1)
        for k, name in enumerate(input_names(card)):
            inputs[:, k] = given.get(name, inputs[:, k])
        samples.append((points[i if len(points) > 1 else 0], inputs))
    return samples


def input_names(card: Card) -> tuple[str, ...]:
    """Return the names of the input channels: u(t) of problems in time, then the conditions."""
    return card.conditions if card.steady else (*card.targets, *card.conditions)


def check_given(given: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise a UserError unless all given values are finite numbers for inputs of these names."""
    for name, value in given.items():
        if name not in names:
            hint = suggest(name, names) if names else "points are all it takes"
            raise UserError(f"{name}={value}: the model has no such input; {hint}")
        if not math.isfinite(value):
            raise UserError(f"{name}={value}: expected a finite number")


def _snapshot(card: Card, time: float) -> float:
    """Return the number of the snapshot at a time, a fraction if it lies between two."""
    if card.times is None:
        return 0.0
    first, last = card.times
    if not math.isfinite(time):
        raise UserError("time: NaN or infinite")
    place = (time - first) / (last - first) * (card.snapshots - 1)
    return float(round(place)) if abs(place - round(place)) < 1e-6 * card.snapshots else place


def _samples(
    path: Path, name: str, array: np.ndarray, width: int, snapshots: int = 1, snapshot: float | None = None
) -> Float32[np.ndarray, "samples points width"]:
    """Return an array as [samples, points, width], one of its snapshots (None: the first) if it has several."""
    full = array
    if width == 1 and full.shape[-1:] != (1,):
        full = full[..., None]
    if full.ndim == 4 and (full.shape[1] in (1, snapshots) or (snapshots > 1 and array.ndim == 4)):
        place = 0 if full.shape[1] == 1 else snapshot or 0
        if place != int(place) or not 0 <= place < full.shape[1]:
            wrong = f"{name} has no snapshot at the time asked for"
            raise UserError(f"{path}: {wrong}; leave --time out or choose one of its times")
        full = full[:, int(place)]
    full = full[None] if full.ndim == 2 else full
    if full.ndim != 3 or full.shape[2] != width or 0 in full.shape[:2]:
        raise UserError(f"{path}: {name} has shape {list(array.shape)}, expected [samples, points, {width}]")
    return np.ascontiguousarray(full, dtype=np.float32)
