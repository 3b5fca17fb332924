"""Comparison: several models on the same data with the same budget, each cell of the table a run that is made once."""

from ikno.comparison.cells import Cell, digest_of, evaluated, measured
from ikno.comparison.compare import Budget, Plan, Shown, compare, cost_of
from ikno.comparison.costs import Cost, measure_costs
from ikno.comparison.efficiency import KINDS, Shape, measure_efficiency
from ikno.comparison.table import LEFT, caption, cells_of, costs_of, markdown, markdown_table

__all__ = [
    "KINDS",
    "LEFT",
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
    "costs_of",
    "digest_of",
    "evaluated",
    "markdown",
    "markdown_table",
    "measure_costs",
    "measure_efficiency",
    "measured",
]
