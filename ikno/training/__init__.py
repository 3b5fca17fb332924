"""Training: the loop, several processes, and the tuning of kernel scales."""

from ikno.training.engine import TrainingInterrupted, prepare_step, train
from ikno.training.prepare import complete, explain, new_surrogate
from ikno.training.progress import Report
from ikno.training.tuning import tune_scales

__all__ = [
    "Report",
    "TrainingInterrupted",
    "complete",
    "explain",
    "new_surrogate",
    "prepare_step",
    "train",
    "tune_scales",
]
