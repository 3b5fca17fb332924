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

Sample = tuple[Float32[np.ndarray, "points dim"], Float32[np.ndarray, "points channels"]]


def array_inputs(
    file: DataFile, card: Card, time: float | None = None, given: Mapping[str, float] | None = None
) -> list[Sample]:
    """Return points and input channels of each sample in a file of arrays, under the names of the card's arrays.

    The points are [points, dim] for all samples, or [samples, points, dim]. Problems in time need u at the start,
    [points, variables] or [samples, points, variables] or all snapshots. Conditions may be one number each per sample.
    Axes of length one that the released layout has are accepted.

    Args:
        file: The open file.
        card: That of the data that was learned.
        time: Of the snapshot to start from, where u or the conditions have several; None: the first.
        given: Numbers that take the place of the channels of their names, at all points of all samples. An array of
            which all channels are given is not needed.
    """
    given, names = given or {}, card.arrays
    check_given(given, card.inputs)
    snapshot, wanted = _snapshot(card, time), [names.points]
    if not card.steady and not set(card.targets) <= given.keys():
        wanted.append(names.values)
    if not set(card.conditions) <= given.keys():
        wanted.append(names.conditions or "c")
    arrays = {name: _numbers(file, name, wanted) for name in wanted}
    points = _samples(file.path, names.points, arrays[names.points], card.dim)
    count, width = points.shape[1], len(card.conditions)
    start = np.zeros((1, count, len(card.inputs) - width), np.float32)
    if names.values in arrays:
        every = _samples(file.path, names.values, arrays[names.values], len(card.variables), card.snapshots, snapshot)
        start = every[..., [card.variables.index(v) for v in card.targets]]
    known = np.zeros((1, count, width), np.float32)
    if (name := names.conditions or "c") in arrays:
        array = np.atleast_1d(arrays[name])
        # [k, width] is read as in training, one number per sample, unless only the points are as many.
        if array.ndim <= 2 and array.shape[-1] == width and (len(array) != count or count in (len(points), len(start))):
            array = np.broadcast_to(array.reshape(-1, 1, width), (array.size // width, count, width))
        known = _samples(file.path, name, array, width, card.snapshots, snapshot)
    sizes = sorted({len(points), len(start), len(known)} - {1})
    if len(sizes) > 1:
        raise UserError(f"{file.path}: the arrays have different numbers of samples: {', '.join(map(str, sizes))}")
    for channels in (start, known):
        if channels.shape[1] != count:
            raise UserError(f"{file.path}: inputs at {channels.shape[1]} points, but there are {count} points")
    samples = []
    for i in range(max(sizes, default=1)):  # what there is once is for all samples
        inputs = np.concatenate([start[i % len(start)], known[i % len(known)]], 1)
        for k, name in enumerate(card.inputs):
            inputs[:, k] = given.get(name, inputs[:, k])
        samples.append((points[i % len(points)], inputs))
    return samples


def mesh_inputs(mesh: Mesh, card: Card, given: Mapping[str, float]) -> Sample:
    """Return points and input channels: the arrays of the file with the names of the card, or given numbers.

    Channels are u at the start of problems in time, then the conditions. A given number is one for all points, and
    goes before an array.
    """
    check_given(given, card.inputs)
    points, columns = mesh.plane(card.dim), []
    for name in card.inputs:
        said = f"{name}=0.5" if " " not in name else repr(f"{name}=0.5")
        remedy = f"; add it, or give one number for all points: {said}"
        columns.append(np.full(len(points), given[name]) if name in given else mesh.column(name, remedy))
    inputs = np.stack(columns, 1) if columns else np.zeros((len(points), 0))
    return points.astype(np.float32), inputs.astype(np.float32)


def check_given(given: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise a UserError unless all given values are finite numbers for inputs of these names."""
    for name, value in given.items():
        if name not in names:
            hint = suggest(name, names) if names else "points are all it takes"
            raise UserError(f"{name}={value}: the model has no such input; {hint}")
        if not math.isfinite(value):
            raise UserError(f"{name}={value}: expected a finite number")


def _numbers(file: DataFile, name: str, wanted: Sequence[str]) -> np.ndarray:
    if name not in file.items:
        raise UserError(f"{file.path}: no array {name!r}; expected {', '.join(wanted)}")
    array = file.array(name)
    if array.dtype.kind not in "fiu":
        raise UserError(f"{file.path}: {name} has the type {array.dtype}, expected numbers")
    return array


def _snapshot(card: Card, time: float | None) -> float:
    """Return the number of the snapshot at a time, a fraction if it lies between two; None: the first."""
    if card.times is None or time is None:
        return 0.0
    if not math.isfinite(time):
        raise UserError("time: NaN or infinite")
    first, last = card.times
    place = (time - first) / (last - first) * (card.snapshots - 1)
    return float(round(place)) if abs(place - round(place)) < 1e-6 * card.snapshots else place


def _samples(
    path: Path, name: str, array: np.ndarray, width: int, snapshots: int = 1, snapshot: float = 0.0
) -> Float32[np.ndarray, "samples points width"]:
    """Return an array as [samples, points, width], one of its snapshots if it has several."""
    full = array
    if width == 1 and full.shape[-1:] != (1,):
        full = full[..., None]
    if full.ndim == 4 and (full.shape[1] in (1, snapshots) or (snapshots > 1 and array.ndim == 4)):
        place = 0 if full.shape[1] == 1 else snapshot
        if place != int(place) or not 0 <= place < full.shape[1]:
            wrong = f"{name} has no snapshot at the time asked for"
            raise UserError(f"{path}: {wrong}; leave --time out or choose one of its times")
        full = full[:, int(place)]
    full = full[None] if full.ndim == 2 else full
    if full.ndim != 3 or full.shape[2] != width or 0 in full.shape[:2]:
        raise UserError(f"{path}: {name} has shape {list(array.shape)}, expected [samples, points, {width}]")
    return np.ascontiguousarray(full, dtype=np.float32)
