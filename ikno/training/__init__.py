"""Training: the loop, several processes, and the search for kernel scales."""

from ikno.training.engine import Report, Stopped, train
from ikno.training.prepare import complete, new_surrogate
from ikno.training.search import Found, search
from ikno.training.settings import Setting, explain
from ikno.training.step import prepare_step

__all__ = [
    "Found",
    "Report",
    "Setting",
    "Stopped",
    "complete",
    "explain",
    "new_surrogate",
    "prepare_step",
    "search",
    "train",
]
