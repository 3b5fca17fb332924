"""Split-conformal intervals: how far the truth may lie from a prediction, from samples that were not trained on.

The score of a value is |u - mean| / sqrt(spread^2 + floor^2), with the spread over the members of an ensemble (zero for
one run) and a floor per variable. An interval is the mean and a quantile of the scores times the same root to both
sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import Annotated, Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from pydantic import AliasChoices, Field, PositiveFloat, PositiveInt

from ikno.config import Settings
from ikno.errors import UserError

Band = Literal["pointwise", "simultaneous"]
BANDS: tuple[Band, ...] = get_args(Band)


@dataclass(frozen=True)
class Estimate:
    """A prediction with its uncertainty; arrays or tensors [..., queries, variables].

    Attributes:
        mean: The mean over the members.
        spread: Their standard deviation, zero for one run.
        lower: The lower ends of the intervals, None if they were not asked for.
        upper: The upper ends.
    """

    mean: Any
    spread: Any
    lower: Any = None
    upper: Any = None


class Quantiles(Settings):
    """Quantiles of the scores for one way to one time, None where predictions were not finite.

    ``lead`` is None for steady problems. ``steps`` is None for unequal steps, which ``predict`` cannot take.
    """

    strategy: str
    lead: PositiveFloat | None
    steps: PositiveInt | None
    pointwise: tuple[float | None, ...]
    simultaneous: float | None = Field(validation_alias=AliasChoices("simultaneous", "whole_field"))  # the former name

    def of(self, band: Band) -> Float[np.ndarray, "variables"]:
        """Return one quantile per variable, infinity for None."""
        each = self.pointwise if band == "pointwise" else (self.simultaneous,) * len(self.pointwise)
        return np.array([np.inf if q is None else q for q in each])


class Calibration(Settings):
    """What turns predictions into intervals, as ``calibrate`` returns it.

    Attributes:
        coverage: The share of the truth that intervals hold.
        samples: How many samples were calibrated on.
        source: Where these samples come from.
        variables: The names of the variables.
        floor: What is added to the spread of each variable.
        start: The time of the inputs, None for steady problems.
        quantiles: Those of each way (direct or in steps) to each time.
        members: Checksums of the weights that it is for.
    """

    coverage: Annotated[float, Field(gt=0, lt=1)]
    samples: PositiveInt
    source: str
    variables: tuple[str, ...]
    floor: tuple[PositiveFloat, ...]
    start: float | None
    quantiles: tuple[Quantiles, ...]
    members: tuple[str, ...]

    def half_width(
        self,
        spread: Float[np.ndarray, "*shape variables"],
        band: Band,
        time: Any = None,
        lead: Any = None,
        steps: int = 1,
    ) -> Float[np.ndarray, "*shape variables"]:
        """Return half of the width of the intervals around predictions with this spread over the members.

        Time, lead and steps are those of the prediction. Raises a UserError if they were not calibrated.
        """
        if band not in BANDS:
            raise UserError(f"intervals: {band!r} is none of {', '.join(BANDS)}")
        times, leads = (np.atleast_1d(np.asarray(np.nan if v is None else v, dtype=float)) for v in (time, lead))
        ways = [self._find(t, tau, steps) for t, tau in np.broadcast(times, leads)]
        factors = np.array([way.of(band) for way in ways])
        if not np.isfinite(factors).all():
            way = ways[np.isinf(factors).any(1).argmax()].strategy
            raise UserError(
                f"intervals: the {way} predictions were not finite on the calibration samples; train longer"
            )
        return (factors[0] if len(ways) == 1 else factors[:, None]) * scale(spread, self.floor)

    def _find(self, time: float, lead: float, steps: int) -> Quantiles:
        """Return what was calibrated for one way to one time; NaN is a time or lead that is not given."""
        if self.start is None:
            return self.quantiles[0]
        time = self.start if np.isnan(time) else time
        known = [q for q in self.quantiles if q.steps is not None]
        for q in known:
            if (
                q.steps == steps
                and isclose(time, self.start, rel_tol=1e-6)
                and isclose(lead, q.lead or 0, rel_tol=1e-6)
            ):
                return q
        ways = ", ".join(f"{lead:g} ({steps})" for lead, steps in dict.fromkeys((q.lead, q.steps) for q in known))
        raise UserError(
            f"intervals: calibrated from the time {self.start:g} for the leads (steps) {ways}; use one of these, "
            f"found time {time:g}, lead {lead:g}, steps {steps}"
        )


def scale(
    spread: Float[np.ndarray, "*shape variables"], floor: Sequence[float]
) -> Float[np.ndarray, "*shape variables"]:
    """Return sqrt(spread^2 + floor^2), by which errors are divided; never zero."""
    return np.hypot(spread.astype(np.float64), np.asarray(floor))


def quantile(scores: Sequence[Float[np.ndarray, "_"]], coverage: float) -> float:
    """Return the smallest q for which the shares of scores <= q, added over n samples, reach coverage * (n + 1).

    Samples are exchangeable, the scores inside one are not: each sample has the weight 1 / (n + 1), shared by its
    scores, and the missing weight is at infinity. A score drawn from a new sample is then at most q with probability
    >= coverage (Lee, Barber and Willett 2023). With one score per sample this is the split-conformal quantile, the
    ceil(coverage * (n + 1))-th smallest. Infinity if n is too small.
    """
    if not scores or any(len(s) == 0 for s in scores) or not 0 < coverage < 1:
        raise ValueError(f"needs samples with scores and a coverage between 0 and 1, found {len(scores)}, {coverage}")
    values = np.concatenate(scores)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.concatenate([np.full(len(s), 1 / len(s)) for s in scores])[order])
    place = int(np.searchsorted(reached, coverage * (len(scores) + 1) - 1e-9))
    return float(values[order[place]]) if place < len(values) else float("inf")
