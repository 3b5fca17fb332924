"""Comparison: several models on the same data with the same budget, each cell of the table a run that is made once."""

from ikno.comparison.cells import Cell, Say, Schedule, Show, alone, digest_of, usable, with_train
from ikno.comparison.compare import Budget, Plan, compare
from ikno.comparison.costs import FREE, Cost, measure_costs
from ikno.comparison.efficiency import Shape, costs_of, measure_efficiency
from ikno.comparison.table import LEFT, caption, count, lines_of, markdown, markdown_table, seconds

__all__ = [
    "FREE",
    "LEFT",
    "Budget",
    "Cell",
    "Cost",
    "Plan",
    "Say",
    "Schedule",
    "Shape",
    "Show",
    "alone",
    "caption",
    "compare",
    "costs_of",
    "count",
    "digest_of",
    "lines_of",
    "markdown",
    "markdown_table",
    "measure_costs",
    "measure_efficiency",
    "seconds",
    "usable",
    "with_train",
]
