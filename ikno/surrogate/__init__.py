"""From physical quantities to physical quantities: what surrounds a model."""

from ikno.surrogate.ensemble import Ensemble, stream
from ikno.surrogate.footprint import check_available, prediction_memory, training_memory
from ikno.surrogate.gradient import Gradient
from ikno.surrogate.intervals import BANDS, Band, Calibration, Estimate, Quantiles, quantile, scale
from ikno.surrogate.normalize import Normalizer
from ikno.surrogate.rollout import STRATEGIES, path, rollout
from ikno.surrogate.signature import Signature, half_size
from ikno.surrogate.surrogate import State, Surrogate, parts_of

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
    "check_available",
    "half_size",
    "parts_of",
    "path",
    "prediction_memory",
    "quantile",
    "rollout",
    "scale",
    "stream",
    "training_memory",
]
