"""Comparison: several models on the same data with the same budget, each cell of the table a run that is made once."""

from ikno.comparison.cells import Cell, Say, Schedule, Show, alone, digest_of, with_train
from ikno.comparison.compare import Budget, Plan, compare
from ikno.comparison.costs import FREE, Cost, measure_costs
from ikno.comparison.efficiency import KINDS, Shape, costs_of, measure_efficiency
from ikno.comparison.table import LEFT, caption, cells_of, count, markdown, markdown_table, seconds

__all__ = [
    "FREE",
    "KINDS",
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
    "cells_of",
    "compare",
    "costs_of",
    "count",
    "digest_of",
    "markdown",
    "markdown_table",
    "measure_costs",
    "measure_efficiency",
    "seconds",
    "with_train",
]
