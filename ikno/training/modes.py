"""The prediction mode in time (states, changes or rates of change), chosen from the training data alone."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ikno.data.pairs import Accumulator, Mode
from ikno.data.problem import Problem

PUBLISHED: Mode = "derivative"  # that of the paper
SAMPLES, POINTS = 32, 2048
# Changes larger than this times the state they lead to are not worth learning. Measured: the errors of direct and
# residual are equal somewhere between 0.2 and 0.46 (python -m benchmarks.modes, docs/learning.md).
LARGE = 0.3


@dataclass(frozen=True)
class Sizes:
    """Sizes of normalized fields over pairs of times.

    ``change``: |u_j - u_i| / |u_j|, the median over samples and the pairs that begin with the first snapshot.
    ``residual`` and ``derivative``: how uneven these targets are, the factor by which their size varies over all pairs.
    """

    change: float
    residual: float
    derivative: float

    @property
    def mode(self) -> Mode:
        """The mode to learn: states if the changes are large, else the more even of changes and rates of change.

        A model learns its target with some relative error. If the target is the change, the state u_i + change has this
        error times |u_j - u_i| / |u_j|: a larger one where the change cancels most of u_i, a smaller one where little
        happens. Changes are harder to learn than states, so both are equally good at a ratio below 1.
        """
        if self.change > LARGE:
            return "direct"
        return "derivative" if self.derivative <= self.residual else "residual"

    def __str__(self) -> str:
        size = f"changes are {self.change:.2g} times the states they lead to"
        if self.mode == "direct":
            return f"{size}, more than {LARGE:g}"
        return (
            f"{size}, at most {LARGE:g}; from pair to pair of times rates of change differ in size by a factor of "
            f"{self.derivative:.2g}, changes by {self.residual:.2g}"
        )


def measure_sizes(problem: Problem) -> Sizes:
    """Return the sizes of states and changes in some training samples, the same for every seed and choice of points."""
    train = replace(problem.train, points=None, sampling="first")
    numbers = np.unique(np.linspace(0, len(train) - 1, SAMPLES).astype(int))
    used = sorted({i for pair in problem.pairs for i in pair})
    fields, all_values = [], Accumulator()
    for k in numbers:
        values = train.whole(int(k)).values[used]
        fields.append(values[:, :: -(-values.shape[1] // POINTS)])
        all_values.add(fields[-1])
    moments = all_values.moments()
    scale = np.where(moments.std > 1e-6 * abs(moments.mean), moments.std, 1.0)  # as in the normalizer
    place = {snapshot: row for row, snapshot in enumerate(used)}
    pairs = [(place[i], place[j]) for i, j in problem.pairs]
    normalized = [(u - moments.mean) / scale for u in fields]
    changes = np.array([[_size(u[j] - u[i]) for i, j in pairs] for u in normalized])
    states = np.array([[_size(u[j]) for _, j in pairs] for u in normalized])
    leads = np.array([problem.times[j] - problem.times[i] for i, j in problem.pairs])
    first = [p for p, (i, _) in enumerate(problem.pairs) if i == 0]
    ratios = changes[:, first] / np.maximum(states[:, first], 1e-30)
    mean = np.sqrt((changes**2).mean(0))
    return Sizes(float(np.median(ratios)), _unevenness(mean), _unevenness(mean / leads))


def _size(values: Float[np.ndarray, "points variables"]) -> float:
    return float(np.sqrt((values**2).mean()))


def _unevenness(sizes: Float[np.ndarray, "pairs"]) -> float:
    """Return the factor by which sizes typically differ from their mean: exp of the deviation of their logarithms."""
    return float(np.exp(np.log(np.maximum(sizes, 1e-30)).std()))
