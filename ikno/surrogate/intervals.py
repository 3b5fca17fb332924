"""Split-conformal intervals: how far the truth may lie from a prediction, from samples that were not trained on.

The score of a value is |u - mean| / sqrt(spread^2 + floor^2), with the spread over the members of an ensemble (zero for
one run) and a floor per variable. An interval is the mean and a quantile of the scores times the same root to both
sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from ikno.config import Settings
from ikno.errors import UserError

Array = np.ndarray | Tensor
Band = Literal["pointwise", "whole field"]
BANDS: tuple[Band, ...] = get_args(Band)


@dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation over the members, and the ends of the intervals if they were asked for."""

    mean: Any
    spread: Any
    lower: Any = None
    upper: Any = None


class Quantiles(Settings):
    """Quantiles of the scores for one way to one time, None where predictions were not finite.

    ``lead`` is None for steady problems; ``steps`` is None for a way of unequal steps, which ``predict`` cannot take.
    """

    strategy: str
    lead: PositiveFloat | None
    steps: PositiveInt | None
    pointwise: tuple[float | None, ...]
    whole_field: float | None

    def of(self, band: Band) -> tuple[float, ...]:
        """Return one quantile per variable."""
        found = self.pointwise if band == "pointwise" else (self.whole_field,) * len(self.pointwise)
        if any(q is None for q in found):
            raise UserError(
                f"intervals: the {self.strategy} predictions were not finite on the calibration samples; train longer"
            )
        return tuple(q for q in found if q is not None)


class Calibration(Settings):
    """What turns predictions into intervals; ``members`` are the checksums of the weights that it is for."""

    coverage: Annotated[float, Field(gt=0, lt=1)]
    samples: PositiveInt
    source: str
    variables: tuple[str, ...]
    floor: tuple[PositiveFloat, ...]
    start: float | None
    quantiles: tuple[Quantiles, ...]
    members: tuple[str, ...]

    def width(
        self, spread: Float[np.ndarray, "*shape variables"], quantile: Float[np.ndarray, "... _"]
    ) -> Float[np.ndarray, "*shape variables"]:
        """Return half of the width of the intervals, for one quantile per variable or one for all of them."""
        return quantile * scale(spread, self.floor)

    def find(self, time: float | None, lead: float | None, steps: int) -> Quantiles:
        """Return what was calibrated for one way to one time; another is refused."""
        if self.start is None:
            return self.quantiles[0]
        known = [q for q in self.quantiles if q.steps is not None and q.lead is not None]
        if time is None or _same(time, self.start):
            for q in known:
                if q.steps == steps and lead is not None and _same(lead, q.lead or 0.0):
                    return q
        ways = ", ".join(f"{lead:g} ({steps})" for lead, steps in dict.fromkeys((q.lead, q.steps) for q in known))
        raise UserError(
            f"intervals: calibrated from the time {self.start:g} for the leads (steps) {ways}; use one of these, "
            f"found time {self.start if time is None else time:g}, lead {lead}, steps {steps}"
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


def estimate(
    values: Sequence[Array],
    calibration: Calibration | None,
    band: Band | None,
    time: float | Array | None,
    lead: float | Array | None,
    steps: int,
) -> Estimate:
    """Return mean and spread over the members' values [..., points, variables], and intervals if a band is named."""
    stacked = torch.stack([torch.as_tensor(v) for v in values])
    stacked = stacked if band is None else stacked.detach()  # the ends of intervals have no gradients
    mean, spread = stacked.mean(0), stacked.std(0, correction=0)
    found = [mean, spread]
    if band is not None:
        if band not in BANDS:
            raise UserError(f"intervals: {band!r} is none of {', '.join(BANDS)}")
        if calibration is None:
            raise UserError(
                "intervals: not calibrated, or the weights have changed since; `ikno calibrate RUN` does it"
            )
        half = torch.from_numpy(
            calibration.width(spread.cpu().numpy(), _each(calibration, band, time, lead, steps))
        ).to(mean)
        found += [mean - half, mean + half]
    return Estimate(*(v.cpu().numpy() if isinstance(values[0], np.ndarray) else v for v in found))


def _each(
    calibration: Calibration, band: Band, time: float | Array | None, lead: float | Array | None, steps: int
) -> Float[np.ndarray, "*batch variables"]:
    """Return the quantiles of the variables, for several leads or times one row [1, variables] for each input."""
    times, leads = (np.atleast_1d(np.asarray(np.nan if v is None else v, dtype=float)) for v in (time, lead))
    rows = [
        calibration.find(*(None if np.isnan(v) else float(v) for v in (t, tau)), steps=steps).of(band)
        for t, tau in np.broadcast(times, leads)
    ]
    return np.array(rows[0]) if len(rows) == 1 else np.array(rows)[:, None]


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b), 1e-30)
