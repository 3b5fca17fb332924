"""Training: the loop, several processes, and the search for kernel scales."""

from ikno.training.engine import Report, Stopped, train
from ikno.training.search import Found, search

__all__ = ["Found", "Report", "Stopped", "search", "train"]
