"""Inputs without solutions: what a surrogate is asked to predict from."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from ikno.config import suggest
from ikno.data.catalog import Card
from ikno.data.files import read_netcdf, read_npz
from ikno.errors import UserError

Sample = tuple[Float32[np.ndarray, "points dim"], Float32[np.ndarray, "points channels"]]


def read_inputs(
    path: Path, card: Card, time: float | None = None, given: Mapping[str, float] | None = None
) -> list[Sample]:
    """Return points and input channels of each sample in a file (.npz or .nc), under the names of the card's arrays.

    The points are [points, dim] for all samples, or [samples, points, dim]. Problems in time need u at the start,
    [points, variables] or [samples, points, variables] or all snapshots, of which that at ``time`` is taken (the first
    by default); so do conditions that change in time. Conditions may be one number each per sample. Axes of length one
    that the released layout has are accepted. A given number takes the place of the channel of its name, at all
    points of all samples; an array of which all channels are given is not needed.
    """
    names, given = card.arrays, given or {}
    check_given(given, input_names(card))
    wanted = {"points": names.points}
    if not card.steady and not set(card.active) <= given.keys():
        wanted["values"] = names.values
    if not set(card.conditions) <= given.keys():
        wanted["conditions"] = names.conditions or "c"
    found = read_npz(path) if path.suffix == ".npz" else read_netcdf(path, list(wanted.values()))
    for name in wanted.values():
        if name not in found:
            raise UserError(f"{path}: no array {name!r}; expected {', '.join(wanted.values())}")
        if found[name].dtype.kind not in "fiu":
            raise UserError(f"{path}: {name} has the type {found[name].dtype}, expected numbers")
    points = _samples(path, wanted["points"], found[wanted["points"]], card.dim)
    count = points.shape[1]
    channels = []
    snapshot = None if time is None else _snapshot(card, time)
    if "values" in wanted:
        values = _samples(
            path, wanted["values"], found[wanted["values"]], len(card.variables), card.snapshots, snapshot
        )
        channels.append(values[..., [card.variables.index(v) for v in card.active]])
    elif not card.steady:
        channels.append(np.zeros((1, count, len(card.active)), np.float32))
    if "conditions" in wanted:
        name, width = wanted["conditions"], len(card.conditions)
        array = np.atleast_1d(found[name])
        # [k, width] is read as in training, one number per sample, unless only the points are as many.
        several = {len(a) for a in (points, *channels)}
        if array.ndim <= 2 and array.shape[-1] == width and (array.shape[0] != count or count in several):
            array = np.broadcast_to(array.reshape(-1, 1, width), (array.size // width, count, width))
        channels.append(_samples(path, name, array, width, card.snapshots, snapshot))
    else:
        channels.append(np.zeros((1, count, len(card.conditions)), np.float32))
    sizes = {len(a) for a in (points, *channels)} - {1}
    if len(sizes) > 1:
        raise UserError(f"{path}: the arrays have different numbers of samples: {', '.join(map(str, sorted(sizes)))}")
    for array in channels:
        if array.shape[1] != count:
            raise UserError(f"{path}: inputs at {array.shape[1]} points, but there are {count} points")
    samples = []
    for i in range(max(sizes, default=1)):
        own = [a[i if len(a) > 1 else 0] for a in channels]
        inputs = np.concatenate(own, 1)
        for k, name in enumerate(input_names(card)):
            inputs[:, k] = given.get(name, inputs[:, k])
        samples.append((points[i if len(points) > 1 else 0], inputs))
    return samples


def input_names(card: Card) -> tuple[str, ...]:
    """Return the names of the input channels: u(t) of problems in time, then the conditions."""
    return card.conditions if card.steady else (*card.active, *card.conditions)


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
            raise UserError(
                f"{path}: {name} has no snapshot at the time asked for; leave --time out or choose one of its times"
            )
        full = full[:, int(place)]
    full = full[None] if full.ndim == 2 else full
    if full.ndim != 3 or full.shape[2] != width or 0 in full.shape[:2]:
        raise UserError(f"{path}: {name} has shape {list(array.shape)}, expected [samples, points, {width}]")
    return np.ascontiguousarray(full, dtype=np.float32)
