"""Stretching of the latent grid: its lines are close together where the points of the training clouds cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from ikno.data.problem import Problem

CLOUDS, POINTS = 64, 4096  # at most, of each cloud, are used
NEIGHBOR = 4  # its distance is the spacing of the points; that of the nearest is mostly random
BINS, LEAST, FEW = 20, 0.01, 30  # along each axis; a bin counts with this share and this number of the points
CLUSTERED = 1.75
KNOTS = 17
FLOOR = 0.05  # share of evenly spaced grid lines
FINEST = 100.0  # factor by which lines may be closer than evenly spaced ones


@dataclass(frozen=True)
class Clustering:
    """The variation of the spacing of neighbors along each axis (largest / smallest), and the latent grid for it.

    ``stretching``: positions between which the latent grid has equally many lines; None: a regular grid, as no points
    cluster. Along an axis with a uniform spacing they are evenly spaced, whatever the number of points along it: the
    domain may be narrow there, or have a hole.
    """

    ratios: list[float]
    stretching: list[list[float]] | None

    def __str__(self) -> str:
        grid = "regular" if self.stretching is None else "finer where points are close together"
        ratios = ", ".join(f"{r:.1f}" for r in self.ratios)
        return f"{grid}; the spacing of neighboring points varies by factors of {ratios} along the axes"


def measure_clustering(problem: Problem, half: Sequence[float]) -> Clustering:
    """Return the clustering of the training points in the box of the model, in units of ``half``."""
    rng = np.random.default_rng(0)
    center = np.mean(problem.box(), 1)
    points, spacings = [], []
    for k in np.unique(np.linspace(0, len(problem.train) - 1, CLOUDS).astype(int)):
        x = (problem.train.get(int(k)).points.astype(np.float64) - center) / half
        x = x[rng.permutation(len(x))[:POINTS]]
        if len(x) > NEIGHBOR:
            points.append(x)
            nearest: Any = KDTree(x).query(x, NEIGHBOR + 1)[0]  # the nearest is the point itself
            spacings.append(nearest[:, -1])
    if not points:
        return Clustering([1.0] * len(half), None)
    axes, spacing = np.concatenate(points).T, np.concatenate(spacings)
    ratios = [_ratio(x, spacing) for x in axes]
    if max(ratios) < CLUSTERED:
        return Clustering(ratios, None)
    even = np.linspace(-1, 1, KNOTS)
    knots = [_quantiles(x) if ratio >= CLUSTERED else even for x, ratio in zip(axes, ratios, strict=True)]
    return Clustering(ratios, [k.tolist() for k in knots])


def _ratio(x: Float[np.ndarray, "points"], spacing: Float[np.ndarray, "points"]) -> float:
    """Return the ratio of the largest to the smallest spacing along an axis, as geometric means over bins."""
    real = spacing > 0  # excludes coinciding points
    index = np.clip(((x[real] + 1) / 2 * BINS).astype(int), 0, BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    sums = np.bincount(index, np.log(spacing[real]), BINS)
    chosen = counts >= max(LEAST * len(index), FEW)
    if not chosen.any():
        return 1.0
    means = sums[chosen] / counts[chosen]
    return float(np.exp(means.max() - means.min()))


def _quantiles(x: Float[np.ndarray, "points"]) -> Float[np.ndarray, "knots"]:
    """Return positions from -1 to 1 with about equally many points between them, not closer than the finest width."""
    x = np.sort(np.clip(x, -1, 1))
    below = (1 - FLOOR) * np.linspace(0, 1, len(x)) + FLOOR * (x + 1) / 2
    inner = np.interp(np.linspace(0, 1, KNOTS)[1:-1], below, x)
    widths = np.maximum(np.diff([-1, *inner, 1]), 2 / (KNOTS - 1) / FINEST)
    return np.array([-1, *(2 * np.cumsum(widths[:-1]) / widths.sum() - 1), 1])
