"""The tables and figures of the paper: what they hold, how they are made again, and how they are shown."""

from ikno.paper.filled import fill
from ikno.paper.page import page
from ikno.paper.presets import Preset, load_preset
from ikno.paper.report import latex, markdown, text_table
from ikno.paper.results import Place, reproduce, run_of
from ikno.paper.tables import NAMES, Table, entries, load_table

__all__ = [
    "NAMES",
    "Place",
    "Preset",
    "Table",
    "entries",
    "fill",
    "latex",
    "load_preset",
    "load_table",
    "markdown",
    "page",
    "reproduce",
    "run_of",
    "text_table",
]
