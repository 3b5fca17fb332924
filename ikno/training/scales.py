"""Initial scales of the kernels: multiples of given ones, or chosen from the data without trial runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from ikno.data.pairs import Mode, target
from ikno.data.problem import Problem
from ikno.errors import UserError

SCALES = ("init_scales_l1", "init_scales_l2")
SAMPLES, POINTS, PAIRS, NEIGHBORS = 32, 2048, 16384, 8
LEAST = 100  # pairs in a bin that counts


@dataclass(frozen=True)
class Lengths:
    """Correlation lengths of the fields, one per channel, and the spacing of the points, in the model's coordinates."""

    fields: Float[np.ndarray, "channels"]
    spacing: float


def measure_lengths(problem: Problem, half: Sequence[float], mode: Mode, seed: int) -> Lengths:
    """Return the correlation length of each input and target channel and the median distance to the nearest point.

    The variogram E |f(x) - f(y)|^2 / 2 rises with the distance of x and y from 0 to the variance of f; the length is
    where it reaches half of that. Channels that are constant on each cloud are numbers, not fields: they have none.
    ``half`` is half the size of the domain, by which the coordinates of the model are smaller.
    """
    rng = np.random.default_rng((seed, 5))
    edges = np.geomspace(1e-4, 4 * np.sqrt(len(half)), 90)  # between them the means of the variogram
    sums, counts, variances, spacings = [], [], [], []
    for k in rng.permutation(len(problem.train))[:SAMPLES]:
        made = problem.train.get(int(k))
        if len(made.points) < 2:
            continue
        pair = problem.pairs[rng.integers(len(problem.pairs))] if problem.pairs else None
        chosen = rng.permutation(len(made.points))[:POINTS]
        fields = np.concatenate([problem.inputs(made), target(made, pair, problem.times, mode)], 1)[chosen]
        fields = (fields - fields.mean(0, dtype=np.float64)).astype(np.float64)
        x = made.points[chosen] / half
        neighbors: Any = KDTree(x).query(x, min(NEIGHBORS + 1, len(x)))
        distance, near = (a[:, 1:] for a in neighbors)  # the nearest is the point itself
        far = rng.integers(len(x), size=(2, PAIRS))
        i = np.concatenate([np.repeat(np.arange(len(x)), near.shape[1]), far[0]])
        j = np.concatenate([near.ravel(), far[1]])
        bins = np.digitize(np.linalg.norm(x[i] - x[j], axis=1), edges)
        halves = (fields[i] - fields[j]) ** 2 / 2
        sums.append([np.bincount(bins, h, len(edges) + 1)[1:-1] for h in halves.T])
        counts.append(np.bincount(bins, minlength=len(edges) + 1)[1:-1])  # without pairs in the same place
        variances.append(fields.var(0))
        spacings.append(np.median(distance[:, 0]))
    count = np.sum(counts, 0)
    if not (count >= LEAST).any():
        return Lengths(np.zeros(0), np.inf)
    variograms = np.sum(sums, 0)[:, count >= LEAST] / count[count >= LEAST]
    distances = np.sqrt(edges[1:] * edges[:-1])[count >= LEAST]
    reached = variograms >= np.mean(variances, 0)[:, None] / 2
    fields = (np.mean(variances, 0) > 0) & reached.any(1)
    return Lengths(distances[reached[fields].argmax(1)], float(np.median(spacings)))


def auto_scale(lengths: Lengths) -> float:
    """Return the scale s of the finest kernel, which falls to half within half of the shortest length.

    Gaussian and Laplace fall to half at 0.83 / s and 0.69 / s, on average at 0.76 / s. Lengths that the points do not
    resolve count as two spacings, and lengths above half of the domain as half of it.
    """
    shortest = lengths.fields.min(initial=1.0)
    return float(2 * 0.76 / np.clip(shortest, min(2 * lengths.spacing, 1.0), 1.0))


def rescaled(model: Mapping[str, Any], factor: Callable[[float], float]) -> dict[str, list[float]]:
    """Return the initial scales of a complete model, multiplied by a factor that may depend on the largest one."""
    if model.get("kernel") != "base" or not model.keys() >= set(SCALES):
        raise UserError(f"model: {model['name']} has no kernel scales to choose; train it with `ikno train`")
    return {key: [factor(max(model[key])) * s for s in model[key]] for key in SCALES}
