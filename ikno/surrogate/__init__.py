"""From physical quantities to physical quantities: what surrounds a model."""

from ikno.surrogate.intervals import BANDS, Band, Calibration, Estimate, Quantiles, quantile, scale
from ikno.surrogate.memory_estimate import check_available, prediction_memory, training_memory
from ikno.surrogate.normalize import Normalizer
from ikno.surrogate.predictor import Gradient
from ikno.surrogate.signature import Signature, half_size
from ikno.surrogate.surrogate import Ensemble, State, Surrogate, parts_of

__all__ = [
    "BANDS",
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
    "prediction_memory",
    "quantile",
    "scale",
    "training_memory",
]
