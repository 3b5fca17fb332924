"""A comparison as text: its columns, its caption, and tables for documents. A table is a header and lines of cells."""

from collections.abc import Callable
from typing import Any

from ikno.metrics import find_metric

LEFT = ("", "model", "optimizer")  # columns of words


def count(value: int, word: str) -> str:
    """Return a number of things."""
    return f"{value:,} {word}{'s' * (value != 1)}"


def seconds(value: float) -> str:
    """Return a time, with one digit after the point if it is short."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


# The columns: the key of the number in a row, and its text. {target} is that of the plan, in percent.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "model": ("model", str),
    "optimizer": ("optimizer", str),
    "rate": ("learning_rate", "{:g}".format),
    "error": ("error", str),
    "parameters": ("parameters", "{:,d}".format),
    "epochs": ("epochs", str),
    "steps": ("steps", "{:,d}".format),
    "s / step": ("seconds_per_step", "{:.3f}".format),
    "training s": ("seconds", seconds),
    "peak MB": ("memory", "{:.0f}".format),
    "s to {target} %": ("seconds_to_target", seconds),
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


def lines_of(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a comparison; trivial guesses come last.

    Args:
        result: What ``compare`` returns, or what a table.json of this or an earlier version holds.
    """
    target = result["target"]

    def error(value: float | None, std: float | None = None) -> str | None:
        return None if value is None else find_metric(result["metric"]).text(value, std)

    columns = {k: v for k, v in COLUMNS.items() if target is not None or "{target}" not in k}
    rows = [{**row, "error": error(row["error"], row["std"])} for row in result["rows"]]
    empty = {key: "" for key, _ in columns.values()}
    rows += [{**empty, "model": name, "error": error(value)} for name, value in result["guesses"].items()]
    lines = []
    for row in rows:
        values = [(row.get(key), text) for key, text in columns.values()]
        lines.append(["-" if v is None else v if isinstance(v, str) else text(v) for v, text in values])
    return [name.format(target=f"{100 * (target or 0):g}") for name in columns], lines


def markdown(result: dict[str, Any]) -> str:
    """Return a comparison for a document: caption, table, and the reasons for what is missing."""
    metric = f"Error: {result['metric']} on the test samples." if result["metric"] else ""
    text = [f"{caption(result)}. {metric}", "", markdown_table(*lines_of(result))]
    reasons = [f"- {r['model']}, {r['optimizer']}: {r['reason']}" for r in result["rows"] if r["reason"]]
    return "\n".join([*text, *([""] if reasons else []), *reasons]) + "\n"


def markdown_table(header: list[str], lines: list[list[str]]) -> str:
    """Return lines of cells as a table for a document, numbers aligned right."""
    sides = [":--" if name in LEFT else "--:" for name in header]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, sides, *lines))
