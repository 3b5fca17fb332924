"""Comparison: several models on the same data with the same budget, each cell of the table a run that is made once."""

from ikno.comparison.cells import Cell, measured
from ikno.comparison.compare import Budget, Plan, Shown, compare, cost_of
from ikno.comparison.costs import Cost, measure_costs
from ikno.comparison.efficiency import KINDS, Shape, measure_efficiency
from ikno.comparison.table import caption, cells_of, markdown

__all__ = [
    "KINDS",
    "Budget",
    "Cell",
    "Cost",
    "Plan",
    "Shape",
    "Shown",
    "caption",
    "cells_of",
    "compare",
    "cost_of",
    "markdown",
    "measure_costs",
    "measure_efficiency",
    "measured",
]
