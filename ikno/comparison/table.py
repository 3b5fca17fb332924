"""Tables of comparisons and costs as text."""

from typing import Any

from ikno.metrics import find_metric

LEFT = ("", "model", "optimizer")  # columns of words


def caption(result: dict[str, Any]) -> str:
    """Return one line on what was compared."""
    samples = result["samples"]
    points = f", {result['points']:,} points" if result["points"] else ""
    return (
        f"{result['benchmark']}: {samples['train']} training, {samples['validation']} validation and {samples['test']} "
        f"test samples{points}; budget {result['budget']}, {len(result['seeds'])} seed"
        f"{'s' if len(result['seeds']) > 1 else ''}, {result['machine']['threads']} thread"
        f"{'s' if result['machine']['threads'] > 1 else ''}"
    )


def cells_of(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table; guesses that need no model come last."""
    target = result["target"]
    header = [
        "model",
        "optimizer",
        "rate",
        "error",
        "parameters",
        "epochs",
        "steps",
        "s / step",
        "training s",
        "peak MB",
    ]
    if target is not None:
        header.append(f"s to {100 * target:g} %")
    lines = []
    metric = find_metric(result["metric"]) if result["metric"] else None
    for row in result["rows"]:
        error = "-" if row["error"] is None or metric is None else metric.text(row["error"], row["std"])
        line = [row["model"], row["optimizer"], _text(row["learning_rate"], "g"), error]
        line += [_text(row["parameters"], ",d"), _text(row["epochs"], "d"), _text(row.get("steps"), ",d")]
        line += [_text(row["seconds_per_step"], ".3f")]
        line += [_seconds(row["seconds"]), _text(row["memory"], ".0f")]
        if target is not None:
            line.append(_seconds(row["seconds_to_target"]))
        lines.append(line)
    for name, value in result["guesses"].items():
        lines.append([name, "", "", metric.text(value) if metric else "-", *[""] * (len(header) - 4)])
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


def costs_of(rows: list[dict[str, Any]], batch: int, samples: int) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table of costs; an epoch has so many samples."""
    growth = ["x 2 points"] if "growth" in rows[0] else []
    shares = [f"% {kind}" for kind in rows[0]["profile"]]
    header = ["model", "parameters", "s / step", "CPU s", "s / epoch", "peak MB", *growth, *shares]
    lines = []
    for row in rows:
        line = [row["model"], f"{row['parameters']:,}", f"{row['seconds']:.3f}", f"{row['cpu_seconds']:.3f}"]
        line += [f"{row['seconds'] / batch * samples:,.0f}", _text(row["memory"], ".0f")]
        line += [f"{row['growth']:.2f}"] if growth else []
        lines.append([*line, *(f"{100 * share:.0f}" for share in row["profile"].values())])
    return header, lines


def _text(value: int | float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    return _text(value, ".1f" if value is not None and value < 10 else ",.0f")
