"""From physical quantities to physical quantities: what surrounds a model."""

from ikno.surrogate.ensemble import Ensemble
from ikno.surrogate.gradient import Gradient
from ikno.surrogate.intervals import BANDS, Band, Calibration, Estimate, Quantiles, quantile, scale
from ikno.surrogate.normalize import Normalizer
from ikno.surrogate.rollout import STRATEGIES, path, rollout
from ikno.surrogate.surrogate import Signature, State, Surrogate, half_size

__all__ = [
    "BANDS",
    "STRATEGIES",
    "Band",
    "Calibration",
    "Ensemble",
    "Estimate",
    "Gradient",
    "Normalizer",
    "Quantiles",
    "Signature",
    "State",
    "Surrogate",
    "half_size",
    "path",
    "quantile",
    "rollout",
    "scale",
]
