"""The table of a comparison: its rows, the numbers in them (table.json), and its columns as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ikno.comparison.cells import Cell
from ikno.comparison.costs import Cost
from ikno.config import CompleteConfig
from ikno.metrics import Metric, find_metric, mean_and_std

LEFT = ("", "model", "optimizer")  # columns of words
# The columns: the key of the number in a row, and how it is printed. {target} is that of the plan, in percent.
COLUMNS = {
    "model": ("model", "s"),
    "optimizer": ("optimizer", "s"),
    "rate": ("learning_rate", "g"),
    "error": ("error", "metric"),
    "parameters": ("parameters", ",d"),
    "epochs": ("epochs", "d"),
    "steps": ("steps", ",d"),
    "s / step": ("seconds_per_step", ".3f"),
    "training s": ("seconds", "seconds"),
    "peak MB": ("memory", ".0f"),
    "s to {target} %": ("seconds_to_target", "seconds"),
}


@dataclass
class Row:
    """A line of the table: the config, the cost of a step, the reason for what is missing, the cells of all seeds."""

    config: CompleteConfig
    cost: Cost | None = None
    reason: str | None = None
    cells: Sequence[Cell] = ()

    @property
    def label(self) -> str:
        """The names of model and optimizer."""
        return f"{self.config.model['name']}, {self.config.train.optimizer}"

    @property
    def error(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the error over the seeds; infinite without any."""
        return mean_and_std([c.error for c in self.cells]) if self.cells else (math.inf, None)

    def numbers(self, target: float | None) -> dict[str, Any]:
        """Return the row as plain numbers; None is what is not known."""
        config, cost, cells = self.config, self.cost, self.cells
        mean, std = self.error
        seconds = cost.seconds if cost else math.nan
        steps = [c.steps for c in cells]
        reached = [s for c in cells if target is not None and (s := c.steps_to(target)) is not None]
        train = cells[0].run.config.train if cells else None
        return {
            "model": config.model["name"],
            "optimizer": config.train.optimizer,
            "reason": self.reason,
            "learning_rate": train and train.learning_rate,
            "epochs": train and train.epochs,
            "steps": steps[0] if cells else None,
            "error": _finite(mean),
            "std": std,
            "errors": [_finite(c.error) for c in cells] or None,
            "seconds": seconds * median(steps) if cells else None,
            "seconds_to_target": seconds * median(reached) if cells and len(reached) == len(cells) else None,
            "parameters": cost and cost.parameters,
            "seconds_per_step": cost and cost.seconds,
            "cpu_seconds_per_step": cost and cost.cpu_seconds,
            "memory": cost and cost.memory,
        }


def caption(result: dict[str, Any]) -> str:
    """Return one line on what was compared."""
    samples = result["samples"]
    points = f", {result['points']:,} points" if result["points"] else ""
    return (
        f"{result['benchmark']}: {samples['train']} training, {samples['validation']} validation and {samples['test']} "
        f"test samples{points}; budget {result['budget']}, {count(len(result['seeds']), 'seed')}, "
        f"{count(result['machine']['threads'], 'thread')}"
    )


def cells_of(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table; guesses that need no model come last."""
    target = result["target"]
    metric = find_metric(result["metric"]) if result["metric"] else None
    shown = {k: v for k, v in COLUMNS.items() if target is not None or "{target}" not in k}
    header = [k.format(target=f"{100 * (target or 0):g}") for k in shown]
    lines = [[_text(row, key, form, metric) for key, form in shown.values()] for row in result["rows"]]
    for name, value in result["guesses"].items():
        guess = {"model": name, "error": metric.text(value) if metric else "-"}
        lines.append([guess.get(key, "") for key, _ in shown.values()])
    return header, lines


def markdown(result: dict[str, Any]) -> str:
    """Return the table for a document."""
    text = markdown_table(*cells_of(result))
    reasons = [f"- {r['model']}, {r['optimizer']}: {r['reason']}" for r in result["rows"] if r["reason"]]
    metric = f"Error: {result['metric']} on the test samples." if result["metric"] else ""
    return "\n".join([caption(result) + ". " + metric, "", text, *([""] if reasons else []), *reasons]) + "\n"


def markdown_table(header: list[str], lines: list[list[str]]) -> str:
    """Return lines of cells as a table for a document, numbers to the right."""
    sides = [":--" if name in LEFT else "--:" for name in header]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, sides, *lines))


def _text(row: dict[str, Any], key: str, form: str, metric: Metric | None) -> str:
    """Return a number of a row as text; tables of older versions may not have it."""
    value = row.get(key)
    if value is None or (form == "metric" and metric is None):
        return "-"
    if form == "metric" and metric is not None:
        return metric.text(value, row["std"])
    return seconds(value) if form == "seconds" else format(value, form)


def seconds(value: float) -> str:
    """Return a time, with one digit after the point if it is short."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def count(value: int, word: str) -> str:
    """Return a number of things."""
    return f"{value:,} {word}{'s' * (value != 1)}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
