"""Error measures. Everything follows from sums over the points of one sample, so clouds may differ in size.

Fields are normalized first: (v - mean) / std per component. Relative errors are fractions, not percent. Where the truth
has norm zero, the relative error is 0 for an exact prediction and infinity otherwise; that of NaN is infinity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ikno.errors import UserError

POOL = 64  # samples in a batch of GAOT, which pools steady problems before the median

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sums:
    """Sums over the points of one sample, per component: of |error| and error^2, and of |truth| and truth^2."""

    points: int
    errors: Float[np.ndarray, "2 variables"]
    truths: Float[np.ndarray, "2 variables"]


def sums(
    truth: Float[np.ndarray, "points variables"],
    prediction: Float[np.ndarray, "points variables"],
    mean: Sequence[float],
    std: Sequence[float],
) -> Sums:
    """Return the sums of one sample with one point or more, in the normalized fields."""
    wanted, found, center, scale = (np.asarray(v, dtype=np.float64) for v in (truth, prediction, mean, std))
    if wanted.shape != found.shape or center.shape != scale.shape or center.shape != wanted.shape[1:]:
        raise ValueError(f"shapes differ: {wanted.shape}, {found.shape}, mean {center.shape}, std {scale.shape}")
    if len(wanted) == 0 or not (scale > 0).all():
        raise ValueError("a sample needs points, and std must be positive")
    with np.errstate(over="ignore", invalid="ignore"):  # predictions may be infinite
        error, normal = (found - wanted) / scale, (wanted - center) / scale
        pairs = [np.stack([np.abs(v).sum(0), (v**2).sum(0)]) for v in (error, normal)]
    return Sums(len(wanted), *pairs)


def relative_errors(
    samples: Sequence[Sums], groups: Groups, order: int = 1, pool: int = 1
) -> Float[np.ndarray, "batches groups"]:
    """Return ||error|| / ||truth|| per sample and group of components.

    Args:
        samples: The sums of each sample.
        groups: The components that are taken together.
        order: Of the norm, 1 or 2.
        pool: How many samples make a batch, whose points are taken together: GAOT's kind for steady problems.
    """
    starts = range(0, len(samples), pool)
    errors, truths = (
        np.stack([sums_of[i : i + pool].sum(0) for i in starts])
        for sums_of in (_grouped(samples, groups, order, of) for of in ("errors", "truths"))
    )
    unmet = np.where(errors == 0, 0.0, np.inf)
    return _finite(np.divide(errors, truths, out=unmet, where=truths > 0)) ** (1 / order)


def normalized_errors(samples: Sequence[Sums], groups: Groups, order: int) -> Float[np.ndarray, "samples groups"]:
    """Return the mean of |error| (order 1, MAE) or error^2 (order 2, MSE) over points and components of each group."""
    counts = np.array([[s.points * len(g) for g in groups] for s in samples])
    return _finite(_grouped(samples, groups, order, "errors") / counts)


@dataclass(frozen=True)
class Metric:
    """One number for the errors of all samples: how it is computed, reduced and printed.

    ``errors`` returns an error for each sample (or batch of samples) and group of components, ``reduce`` combines the
    samples, and the mean over the groups is the metric. Groups are single components or, with ``per`` chunk, the named
    chunks. ``title`` heads a column of a table; if empty there is no column. ``of_sample`` names the error of a single
    sample. A card selects the main metric by its ``in_card``. With ``each_chunk`` the metric is also reported for every
    ``chunk`` alone.
    """

    name: str
    title: str
    reduce: Callable[..., Float[np.ndarray, "groups"]]
    errors: Callable[[Sequence[Sums], Groups], Float[np.ndarray, "samples groups"]] = relative_errors
    per: Literal["component", "chunk"] = "chunk"
    relative: bool = True
    of_sample: str = "relative $L^1$ error"
    in_card: str | None = None
    each_chunk: bool = False
    chunk: str | None = None

    def __call__(self, samples: Sequence[Sums], chunks: Mapping[str, Sequence[int]]) -> float:
        """Return the metric over the samples."""
        if not samples or not chunks:
            raise ValueError("nothing to measure: no samples or no chunks")
        groups = list(chunks.values()) if self.per == "chunk" else [[v] for v in range(samples[0].errors.shape[1])]
        if self.chunk is not None:
            groups = [chunks[self.chunk]]
        return float(self.reduce(self.errors(samples, groups), 0).mean())

    @property
    def factor(self) -> float:
        """The factor of printed values."""
        return 100.0 if self.relative else 1.0

    @property
    def unit(self) -> str:
        """The unit of printed values: percent of the truth, or none: fields are normalized."""
        return "%" if self.relative else ""

    def text(self, value: float, std: float | None = None) -> str:
        """Return a value and its standard deviation over seeds as text, with the unit."""
        numbers = [value] if std is None else [value, std]
        text = " ± ".join(f"{100 * v:.2f}" if self.relative else f"{v:.3g}" for v in numbers)
        return f"{text} {self.unit}".rstrip()

    def of(self, chunks: Mapping[str, Sequence[int]]) -> "list[Metric]":
        """Return the metrics of the single chunks, if they are reported and there are several."""
        if not self.each_chunk or len(chunks) < 2:
            return []
        return [self.of_chunk(c) for c in chunks]

    def of_chunk(self, chunk: str) -> "Metric":
        """Return the metric of one chunk."""
        return replace(self, name=f"{self.name} of {chunk}", title=f"{self.title} of {chunk}", chunk=chunk)


# In the order of the columns of a table. Per component with the median is the measure of the paper's text, per chunk
# that of the published codes of GAOT and RIGNO, which pool the components of a chunk. The normalized MSE and MAE are
# those of the aircraft: over points and components of a chunk, the mean over samples.
_L2: dict[str, Any] = {"errors": partial(relative_errors, order=2), "of_sample": "relative $L^2$ error"}
_MSE: dict[str, Any] = {"errors": partial(normalized_errors, order=2), "of_sample": "normalized MSE"}
_MAE: dict[str, Any] = {"errors": partial(normalized_errors, order=1), "of_sample": "normalized MAE"}
_ALL = (
    Metric("median L1 per component", "median L1", np.median, per="component", in_card="relative L1"),
    Metric("median L1 per chunk", "per chunk", np.median),
    Metric("pooled L1 per chunk", "pooled", np.median, partial(relative_errors, pool=POOL)),
    Metric("mean L1 per chunk", "mean", np.mean),
    Metric("median L2 per component", "median L2", np.median, per="component", **_L2),
    Metric("median L2 per chunk", "", np.median, **_L2),
    Metric("normalized MSE", "MSE", np.mean, relative=False, each_chunk=True, in_card="normalized MSE and MAE", **_MSE),
    Metric("normalized MAE", "MAE", np.mean, relative=False, each_chunk=True, **_MAE),
)
METRICS: dict[str, Metric] = {m.name: m for m in _ALL}
IN_CARDS: dict[str, Metric] = {m.in_card: m for m in _ALL if m.in_card is not None}


def find_metric(name: str) -> Metric:
    """Return the metric of a name as in results; "NAME of CHUNK" is that of one chunk."""
    whole, _, chunk = name.partition(" of ")
    if whole not in METRICS or (chunk and not METRICS[whole].each_chunk):
        raise UserError(f"{name}: no such metric; known are {', '.join(METRICS)}")
    return METRICS[whole].of_chunk(chunk) if chunk else METRICS[whole]


def summarize(samples: Sequence[Sums], chunks: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return all metrics by name; ``chunks`` are named groups of components."""
    return {m.name: m(samples, chunks) for metric in METRICS.values() for m in (metric, *metric.of(chunks))}


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1) over seeds; None for one value, or if one is not finite."""
    if not values:
        raise ValueError("no values to take the mean of")
    if not np.isfinite(values).all():
        return float("inf"), None
    return fmean(values), stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Measure:
    """How errors on a data set are measured: constants of the normalization, named chunks, the main metric.

    ``origin`` says where the constants come from.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str
    chunks: Mapping[str, Sequence[int]]
    main: Metric

    def sums(
        self,
        truth: Float[np.ndarray, "points variables"],
        prediction: Float[np.ndarray, "points variables"],
    ) -> Sums:
        """Return the sums of one sample."""
        return sums(truth, prediction, self.mean, self.std)

    def each(self, samples: Sequence[Sums]) -> list[float]:
        """Return the error of each sample alone, by the main metric."""
        return [self.main([s], self.chunks) for s in samples]


def _grouped(samples: Sequence[Sums], groups: Groups, order: int, of: str) -> Float[np.ndarray, "samples groups"]:
    """Return the sums over the components of each group."""
    if order not in (1, 2):
        raise ValueError(f"order is 1 or 2, found {order}")
    table = np.stack([getattr(s, of)[order - 1] for s in samples])
    return np.stack([table[:, list(g)].sum(1) for g in groups], 1)


def _finite(errors: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.where(np.isnan(errors), np.inf, errors)
