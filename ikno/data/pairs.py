"""From trajectories to what is learned: splits, choice of points, pairs of times, statistics of the training part."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ikno.config import Mode
from ikno.data.records import Trajectory
from ikno.errors import UserError


class Split(NamedTuple):
    """Disjoint ranges of samples: the first for training, the next for validation, the last for testing."""

    train: range
    validation: range
    test: range


def split(count: int, sizes: Sequence[int], exact: bool = True) -> Split:
    """Return the first, next and last samples; validation shrinks to what is left, since overlap is never allowed.

    With ``exact`` fewer samples than asked for training and test are an error; without, all three shrink in
    proportion (small generated sets).
    """
    train, validation, test = sizes
    if train + test > count and exact:
        raise UserError(
            f"the split asks for {train} training and {test} test samples, found {count} in all; ask for fewer"
        )
    if train + test > count:
        if count < 2:
            raise UserError(f"{count} samples cannot be split into training and test; at least 2 are needed")
        total = train + validation + test
        test = min(max(round(count * test / total), 1), count - 1)
        validation = min(round(count * validation / total), count - test - 1)
        train = count - test - validation
    validation = min(validation, count - train - test)
    return Split(range(train), range(train, train + validation), range(count - test, count))


def farthest_points(
    points: Float[np.ndarray, "points dim"], count: int, rng: np.random.Generator
) -> Int[np.ndarray, "chosen"]:
    """Return the indices of ``count`` points, each the farthest from those before it; all in order if there are fewer.

    The first is random.
    """
    n = len(points)
    if count >= n:
        return np.arange(n)
    chosen = np.empty(count, dtype=int)
    chosen[0] = rng.integers(n)
    distance = np.full(n, np.inf)
    for i in range(1, count):
        distance = np.minimum(distance, ((points - points[chosen[i - 1]]) ** 2).sum(1))
        distance[chosen[i - 1]] = -1  # below that of any other point, even one in the same place
        chosen[i] = distance.argmax()
    return chosen


def snapshots(final: int, stride: int) -> tuple[int, ...]:
    """Return the snapshots that are used: 0, stride, ..., and the final one."""
    if not 1 <= stride <= final:
        raise UserError(f"a stride of {stride} does not fit between snapshot 0 and {final}")
    return (*range(0, final, stride), final)


def time_pairs(final: int, stride: int) -> tuple[tuple[int, int], ...]:
    """Return all pairs (i, j), i < j, of the snapshots that are used: 28 for 0, 2, ..., 14 (all2all training)."""
    used = snapshots(final, stride)
    return tuple((i, j) for a, i in enumerate(used) for j in used[a + 1 :])


@dataclass(frozen=True)
class Prediction:
    """A prediction mode: what is learned of u(t + lead), given u(t), and back. For numpy arrays and tensors alike."""

    target: Callable[[Any, Any, Any], Any]
    values: Callable[[Any, Any, Any], Any]


MODES: dict[Mode, Prediction] = {
    "direct": Prediction(lambda start, end, lead: end, lambda start, target, lead: target),
    "residual": Prediction(lambda start, end, lead: end - start, lambda start, target, lead: start + target),
    "derivative": Prediction(
        lambda start, end, lead: (end - start) / lead, lambda start, target, lead: start + lead * target
    ),
}


def target(
    trajectory: Trajectory, pair: tuple[int, int] | None, times: Sequence[float], mode: Mode
) -> Float[np.ndarray, "points variables"]:
    """Return what a model predicts: u(t_j), u(t_j) - u(t_i), or (u(t_j) - u(t_i)) / (t_j - t_i); u itself if steady."""
    if pair is None:
        if mode != "direct":
            raise UserError(f"a steady problem has no {mode} target; use surrogate.mode=direct")
        return trajectory.values[0]
    i, j = pair
    return MODES[mode].target(trajectory.values[i], trajectory.values[j], times[j] - times[i])


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation per channel."""

    mean: Float[np.ndarray, "channels"]
    std: Float[np.ndarray, "channels"]


class Accumulator:
    """Mean, standard deviation and bounds of a stream of arrays [..., channels].

    Means and squares are combined by the pairwise update of Chan et al.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.square = self.low = self.high = np.zeros(0)

    def add(self, values: Float[np.ndarray, "*space channels"]) -> None:
        """Take more values into account."""
        flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if len(flat) == 0:
            return
        mean = flat.mean(0)
        square = ((flat - mean) ** 2).sum(0)
        if self.count == 0:
            self.count, self.mean, self.square, self.low, self.high = len(flat), mean, square, flat.min(0), flat.max(0)
            return
        self.low, self.high = np.minimum(self.low, flat.min(0)), np.maximum(self.high, flat.max(0))
        total, delta = self.count + len(flat), mean - self.mean
        self.mean = self.mean + delta * (len(flat) / total)
        self.square = self.square + square + delta**2 * (self.count * len(flat) / total)
        self.count = total

    def moments(self) -> Moments:
        """Return mean and standard deviation so far; without values there are no channels."""
        return Moments(self.mean, np.sqrt(self.square / max(self.count, 1)))


@dataclass(frozen=True)
class Statistics:
    """Moments over the training samples: of the inputs u and c, of t and tau over the pairs, and of the targets."""

    values: Moments
    conditions: Moments
    time: Moments
    lead: Moments
    target: Moments


def statistics(
    training: Iterable[Trajectory],
    times: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    mode: Mode,
) -> Statistics:
    """Return the statistics of the training samples, on the very targets of the prediction mode.

    Inputs u and c are those snapshots that occur in a pair; steady problems have none, their values are targets.
    """
    values, conditions, targets = Accumulator(), Accumulator(), Accumulator()
    used = sorted({i for pair in pairs for i in pair}) or [0]
    for trajectory in training:
        values.add(trajectory.values[used])
        if trajectory.conditions is not None:
            conditions.add(trajectory.conditions[used] if len(trajectory.conditions) > 1 else trajectory.conditions)
        for pair in pairs or [None]:
            targets.add(target(trajectory, pair, times, mode))
    time, lead = Accumulator(), Accumulator()
    time.add(np.array([times[i] for i, _ in pairs], np.float64).reshape(-1, 1))
    lead.add(np.array([times[j] - times[i] for i, j in pairs], np.float64).reshape(-1, 1))
    return Statistics(*(accumulator.moments() for accumulator in (values, conditions, time, lead, targets)))
