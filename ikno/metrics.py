"""Error measures. Everything follows from sums over the points of one sample, so clouds may differ in size.

Fields are normalized first: (v - mean) / std per component. Relative errors are fractions, not percent. A truth of norm
zero has the relative error 0 if it is met exactly and infinity if not; predictions that are not numbers are infinitely
wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float
from torch import Tensor

POOL = 64  # samples in a batch of GAOT, which pools steady problems before the median

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sums:
    """Of one sample, per component: sums over its points of |error| and error^2, and of |truth| and truth^2."""

    points: int
    errors: Float[np.ndarray, "2 variables"]
    truths: Float[np.ndarray, "2 variables"]


def sums(
    truth: Float[np.ndarray, "points variables"] | Float[Tensor, "points variables"],
    prediction: Float[np.ndarray, "points variables"] | Float[Tensor, "points variables"],
    mean: Sequence[float],
    std: Sequence[float],
) -> Sums:
    """Return the sums of one sample in the normalized fields; its points may be of any number, above zero."""
    wanted, found, center, scale = (_float64(v) for v in (truth, prediction, mean, std))
    if wanted.shape != found.shape or center.shape != scale.shape or center.shape != wanted.shape[1:]:
        raise ValueError(f"shapes differ: {wanted.shape}, {found.shape}, mean {center.shape}, std {scale.shape}")
    if len(wanted) == 0 or not (scale > 0).all():
        raise ValueError("a sample needs points, and std must be positive")
    with np.errstate(over="ignore", invalid="ignore"):  # predictions may be infinite
        error, normal = (found - wanted) / scale, (wanted - center) / scale
        pairs = [np.stack([np.abs(v).sum(0), (v**2).sum(0)]) for v in (error, normal)]
    return Sums(len(wanted), *pairs)


def relative_errors(samples: Sequence[Sums], groups: Groups, order: int = 1) -> Float[np.ndarray, "samples groups"]:
    """Return ||error|| / ||truth|| per sample and group of components, in the norm of order 1 or 2."""
    errors, truths = (_grouped(samples, groups, order, of) for of in ("errors", "truths"))
    return _ratio(errors, truths) ** (1 / order)


def pooled_errors(samples: Sequence[Sums], groups: Groups, size: int = POOL) -> Float[np.ndarray, "batches groups"]:
    """Return sum |error| / sum |truth| per batch of samples and group: GAOT's kind for steady problems."""
    starts = range(0, len(samples), size)
    errors, truths = (
        np.stack([_grouped(samples[i : i + size], groups, 1, of).sum(0) for i in starts]) for of in ("errors", "truths")
    )
    return _ratio(errors, truths)


def normalized_errors(samples: Sequence[Sums], groups: Groups, order: int) -> Float[np.ndarray, "samples groups"]:
    """Return the mean of |error| (order 1, MAE) or error^2 (order 2, MSE) over points and components of each group."""
    counts = np.array([[s.points * len(g) for g in groups] for s in samples])
    return _finite(_grouped(samples, groups, order, "errors") / counts)


def median_then_mean(errors: Float[np.ndarray, "samples groups"]) -> float:
    """Return the median over the samples of each group, then the mean over the groups."""
    return float(np.median(errors, 0).mean())


def mean_then_mean(errors: Float[np.ndarray, "samples groups"]) -> float:
    """Return the mean over the samples of each group, then the mean over the groups."""
    return float(errors.mean(0).mean())


def summarize(samples: Sequence[Sums], chunks: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return all measures by name; ``chunks`` are named groups of components that the codes of GAOT and RIGNO pool.

    Per component with the median is the measure of the paper's text, per chunk that of the published codes. The
    normalized MSE and MAE are those of the aircraft: over points and components of a chunk, the mean over samples, and
    (without the name of a chunk) the mean over chunks.
    """
    if not samples or not chunks:
        raise ValueError("nothing to summarize: no samples or no chunks")
    single = [[v] for v in range(samples[0].errors.shape[1])]
    grouped = list(chunks.values())
    result: dict[str, float] = {}
    for order in (1, 2):
        result[f"median L{order} per component"] = median_then_mean(relative_errors(samples, single, order))
        result[f"median L{order} per chunk"] = median_then_mean(relative_errors(samples, grouped, order))
    result["mean L1 per chunk"] = mean_then_mean(relative_errors(samples, grouped, 1))
    result["pooled L1 per chunk"] = median_then_mean(pooled_errors(samples, grouped))
    for name, order in (("MSE", 2), ("MAE", 1)):
        errors = normalized_errors(samples, grouped, order)
        result[f"normalized {name}"] = mean_then_mean(errors)
        if len(chunks) > 1:
            result |= {f"normalized {name} of {c}": float(errors[:, i].mean()) for i, c in enumerate(chunks)}
    return result


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1) over seeds; None for one value, or if one is not finite."""
    if not values:
        raise ValueError("no values to take the mean of")
    if not np.isfinite(values).all():
        return float("inf"), None
    return fmean(values), stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Measure:
    """How errors of a data set are measured: constants of the normalization, named chunks, the measure that decides.

    ``origin`` says where the constants come from.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str
    chunks: Mapping[str, Sequence[int]]
    main: str

    def sums(
        self,
        truth: Float[np.ndarray, "points variables"] | Float[Tensor, "points variables"],
        prediction: Float[np.ndarray, "points variables"] | Float[Tensor, "points variables"],
    ) -> Sums:
        """Return the sums of one sample."""
        return sums(truth, prediction, self.mean, self.std)

    def summary(self, samples: Sequence[Sums]) -> dict[str, float]:
        """Return all measures over the samples."""
        return summarize(samples, self.chunks)

    def each(self, samples: Sequence[Sums]) -> list[float]:
        """Return the error of each sample alone, by the measure that decides."""
        return [self.summary([s])[self.main] for s in samples]


def _float64(values: np.ndarray | Tensor | Sequence[float]) -> Float[np.ndarray, "..."]:
    plain = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    return np.asarray(plain, dtype=np.float64)


def _grouped(samples: Sequence[Sums], groups: Groups, order: int, of: str) -> Float[np.ndarray, "samples groups"]:
    """Return the sums over the components of each group."""
    if order not in (1, 2):
        raise ValueError(f"order is 1 or 2, found {order}")
    table = np.stack([getattr(s, of)[order - 1] for s in samples])
    return np.stack([table[:, list(g)].sum(1) for g in groups], 1)


def _ratio(errors: Float[np.ndarray, "*shape"], truths: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    unmet = np.where(errors == 0, 0.0, np.inf)
    return _finite(np.divide(errors, truths, out=unmet, where=truths > 0))


def _finite(errors: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.where(np.isnan(errors), np.inf, errors)
