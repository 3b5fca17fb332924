"""Baselines: trivial guesses that need no model, so that an error means something."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from ikno.data.batches import Samples, in_order
from ikno.data.pairs import Accumulator
from ikno.data.problem import Problem
from ikno.data.records import Trajectory
from ikno.metrics import Measure, Sums, summarize

CELLS = 12  # per axis of the coarse grid on which samples with different clouds are compared
BLOCK = 64  # training samples whose distances are computed at a time


def baselines(
    problem: Problem, samples: Samples, measure: Measure, learned: bool = True
) -> dict[str, dict[str, float]]:
    """Return the errors of the training mean, of the nearest training sample, and of no change for problems in time.

    Args:
        problem: The data.
        samples: What is guessed.
        measure: The measure of errors.
        learned: Whether to make those guesses that need training samples.
    """
    final = problem.last
    average, near = (_training_mean(problem), nearest(problem, samples)) if learned else (None, ())
    sums: dict[str, list[Sums]] = {}
    for k, made in enumerate(samples):
        truth, guesses = made.values[final], {}
        if average is not None:
            neighbor = problem.train.get(int(near[k]))
            place = slice(None) if samples.shared else KDTree(neighbor.points).query(made.points)[1]
            guesses["training mean"] = np.broadcast_to(average, truth.shape)
            guesses["nearest training sample"] = neighbor.values[final][place]
        if not problem.steady:
            guesses["no change"] = made.values[0]
        for name, guess in guesses.items():
            sums.setdefault(name, []).append(measure.sums(truth, guess))
    return {name: summarize(of, measure.chunks) for name, of in sums.items()}


def nearest(problem: Problem, samples: Samples) -> Int[np.ndarray, "samples"]:
    """Return for each sample the number of the training sample with the most similar inputs, never itself.

    On a shared cloud the distance is L2 over points and normalized channels (u at the start, conditions). Samples with
    their own clouds are compared by averages in the cells of a coarse grid, and by the share of points in each cell.
    """
    describe = _description(problem)
    wanted = np.stack([describe(made) for made in samples])
    best, index = np.full(len(samples), np.inf), np.zeros(len(samples), dtype=int)
    for chosen in in_order(len(problem.train), BLOCK):
        known = np.stack([describe(problem.train.get(k)) for k in chosen])
        distance = (wanted**2).sum(1)[:, None] - 2 * wanted @ known.T + (known**2).sum(1)
        same = np.equal.outer(np.array(samples.indices), np.array(problem.train.indices)[chosen])
        distance[same] = np.inf  # the training part evaluated on itself
        closest = distance.argmin(1)
        smallest = distance[np.arange(len(samples)), closest]
        index = np.where(smallest < best, np.array(chosen)[closest], index)
        best = np.minimum(best, smallest)
    return index


def _description(problem: Problem) -> Callable[[Trajectory], Float[np.ndarray, "numbers"]]:
    """Return what turns a sample into numbers whose distance says how much its inputs differ."""
    shared, box = problem.train.shared, () if problem.train.shared else problem.box()
    inputs, share = Accumulator(), Accumulator()
    for made in problem.train:
        channels = problem.inputs(made)
        if channels.shape[1]:
            inputs.add(channels)
        if not shared:
            share.add(_cells(made.points, box, channels[:, :0]))
    mean, scale = inputs.moments().mean, _scale(inputs)

    def describe(made: Trajectory) -> Float[np.ndarray, "numbers"]:
        normal = (problem.inputs(made) - mean) / scale
        if shared:
            return normal.ravel()
        cells = _cells(made.points, box, normal)
        cells[:, 0] /= _scale(share)
        return cells.ravel()

    return describe


def _scale(values: Accumulator) -> Float[np.ndarray, "channels"]:
    """Return the standard deviation, 1 for constant channels."""
    moments = values.moments()
    return np.where(moments.std <= 1e-6 * np.abs(moments.mean), 1.0, moments.std)


def _cells(
    points: Float[np.ndarray, "points dim"],
    box: tuple[tuple[float, float], ...],
    channels: Float[np.ndarray, "points channels"],
) -> Float[np.ndarray, "cells 1+channels"]:
    """Return the share of the points in each cell of a coarse grid, and the averages there (0 in empty cells)."""
    low, high = np.array(box).T
    place = ((points - low) / (high - low) * CELLS).astype(int).clip(0, CELLS - 1)
    cell, size = np.ravel_multi_index(tuple(place.T), (CELLS,) * len(low)), CELLS ** len(low)
    count = np.bincount(cell, minlength=size)
    totals = [np.bincount(cell, weights=c, minlength=size) for c in channels.T]
    return np.stack([count / len(points), *(t / np.maximum(count, 1) for t in totals)], 1)


def _training_mean(problem: Problem) -> Float[np.ndarray, "#points variables"]:
    """Return the mean of the training solutions at the last time: of each point, or one number if clouds differ."""
    values = Accumulator()
    for made in problem.train:
        last = made.values[problem.last]
        values.add(last.reshape(1, -1) if problem.train.shared else last)
    return values.moments().mean.reshape(-1, len(problem.card.targets))
