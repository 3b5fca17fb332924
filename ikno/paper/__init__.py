"""The tables and figures of the paper: what they hold, how they are made again, and how they are shown."""

from ikno.paper.filled import fill, stored
from ikno.paper.page import page
from ikno.paper.report import latex, markdown
from ikno.paper.results import Place, reproduce, run_of
from ikno.paper.scales import Scale, load_scale
from ikno.paper.tables import NAMES, Table, entries, load_table

__all__ = [
    "NAMES",
    "Place",
    "Scale",
    "Table",
    "entries",
    "fill",
    "latex",
    "load_scale",
    "load_table",
    "markdown",
    "page",
    "reproduce",
    "run_of",
    "stored",
]
