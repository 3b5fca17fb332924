"""Filled tables as text: Markdown and LaTeX."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ikno.comparison import count, markdown_table, seconds
from ikno.metrics import find_metric
from ikno.paper.filled import Filled, Kind, lines_of
from ikno.paper.presets import Preset


def number(value: float | None, std: float | None = None) -> str:
    """Return a number with three digits that count, and its spread."""
    if value is None:
        return "diverged"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def measured(cell: dict[str, Any]) -> str:
    """Return what was measured in a cell, - if nothing was."""
    return number(cell["measured"]["mean"], cell["measured"]["std"]) if "measured" in cell else "-"


def published(cell: dict[str, Any], ratio: str = " (x {})") -> str:
    """Return what was published of a cell and measured / published, - if nothing was."""
    if cell["published"] is None:
        return "-"
    times = ratio.format(number(cell["ratio"])) if cell.get("ratio") is not None else ""
    return number(cell["published"], cell["published_std"]) + times


def ranks(filled: Filled, kind: Kind) -> dict[tuple[str, str], int]:
    """Return the cells that are best (0) and second (1) of their line, by the names of row and column."""
    best = {}
    for line, numbers in lines_of(filled, kind).items() if filled["compare"] else ():
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        for rank, name in enumerate(sorted(finite, key=lambda name: finite[name])[:2]):
            if len(finite) > 1:
                best[(line, name) if filled["compare"] == "columns" else (name, line)] = rank
    return best


def beside(cell: dict[str, Any], rank: int = 2, marks: Sequence[str] = ("{}", "{}", "{}")) -> str:
    """Return what was measured in a cell, marked by its rank, and the published number in parentheses."""
    text = f" ({number(cell['published'])})" if cell["published"] is not None else ""
    return marks[rank].format(measured(cell)) + text


def text_table(
    filled: Filled, show: Callable[[dict[str, Any], int], str] = beside, kind: Kind = "measured"
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table.

    Args:
        filled: What ``fill`` returns.
        show: Makes the text of a cell; it also receives 0 for the best of a line, 1 for the second, 2 for others.
        kind: The numbers by which cells are ranked.
    """
    best = ranks(filled, kind)
    header = ["", *(f"{filled['axis']} = {c}" if filled["axis"] else c for c in filled["columns"])]
    lines = []
    for row in filled["rows"]:
        cells = zip(filled["columns"], row["cells"], strict=True)
        lines.append([row["name"], *(show(cell, best.get((row["name"], column), 2)) for column, cell in cells)])
    return header, lines


def markdown(filled: Filled, preset: Preset, pictures: Sequence[str] = ()) -> str:
    """Return a table for a document: measured, published and the ratio, the cost, the data, and the claims."""
    command = f"ikno reproduce {filled['argument']} --preset {preset.name}"
    unit = f", {filled['unit']}" if filled["unit"] else ""

    def grid(show: Callable[[dict[str, Any]], str], kind: Kind = "measured") -> str:
        marks = ("**{}**", "*{}*", "{}")
        return markdown_table(*text_table(filled, lambda cell, rank: marks[rank].format(show(cell)), kind))

    text = [f"# {filled['title']}", "", f"{filled['caption']}. In the paper: `{filled['label']}`.", ""]
    text += [f"Made by `{command}`.", "", f"{preset.about} {preset.conclusion}", ""]
    text += [f"## Measured{unit}", "", "Best of a line bold, second in italics." * bool(filled["compare"]), ""]
    text += [grid(measured), ""]
    if any(cell["published"] is not None for row in filled["rows"] for cell in row["cells"]):
        text += [f"## Published{unit} (measured / published)", "", grid(published, "published"), ""]
    if filled["kind"] == "errors":
        times = text_table(filled, lambda cell, _: "-" if cell.get("seconds") is None else seconds(cell["seconds"]))
        text += ["## Cost: seconds of training (one seed)", "", markdown_table(*times), ""]
    if filled["claims"]:
        claims = [f"- {claim['text']}: {verdict(claim)}." for claim in filled["claims"]]
        text += ["## What the paper says, and what was found", "", *claims, ""]
    text += ["## Data", "", *(f"- {line}" for line in data(filled)), ""] if filled["sets"] else []
    text += [f"![{filled['title']}]({name})\n" for name in pictures]
    return "\n".join([*text, *footer(filled)]) + "\n"


def verdict(claim: dict[str, Any]) -> str:
    """Return where a claim holds by the published numbers, and where by ours."""
    parts = []
    for kind, name in (("published", "published numbers"), ("measured", "here")):
        judged = claim[kind]
        but = f" (not: {', '.join(judged['not'])})" if judged["not"] else ""
        held = f"{judged['holds']} of {judged['lines']}{but}" if judged["lines"] else "nothing to compare"
        parts.append(f"{name}: {held}")
    return "; ".join(parts)


def data(filled: Filled) -> list[str]:
    """Return a line for each data set."""
    lines = []
    for s in filled["sets"]:
        source, metric = s["source"], find_metric(s["metric"])
        options = ", ".join(f"{k} = {v}" for k, v in source.get("options", {}).items()) or "default settings"
        where = f"generated ({s['label']}; {options})" if "generated" in source else source["file"]
        guesses = ", ".join(f"{name} {metric.text(v)}" for name, v in s["guesses"].items() if v is not None)
        sizes = "/".join(str(n) for n in s["samples"])
        points = " to ".join(f"{n:,}" for n in sorted(set(s["points"])))
        lines.append(
            f"{s['set']}: {where}; {sizes} samples for training, validation and test, {points} points, "
            f"{count(s['epochs'], 'epoch')}. Error: {s['metric']}. Without any model: {guesses}."
        )
    return lines


def footer(filled: Filled) -> list[str]:
    """Return with what, and in which time, the table was made."""
    lines = []
    if filled["trainings"]:
        trainings = count(filled["trainings"], "training")
        lines.append(f"{trainings}, {filled['seconds'] / 60:,.0f} minutes of steps in all.")
    for machine in filled["machines"]:
        device = count(machine["threads"], "thread") if machine["device"] == "cpu" else machine["device"]
        versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "numpy", "ikno"))
        lines.append(f"{device}, Python {machine['python']}, {versions}.")
    return lines


def latex(filled: Filled) -> str:
    """Return the table for a paper: measured with the published number in parentheses, marked as in the paper."""
    marks = (r"\textbf{{{}}}", r"\underline{{{}}}", "{}")
    _, rows = text_table(filled, lambda cell, rank: beside(cell, rank, marks).replace("±", r"$\pm$"))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(filled['caption'])} (preset {filled['scale']}).}}"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(filled['columns'])}}}", r"\toprule"]
    lines += [" & ".join(["", *(_tex(name) for name in filled["columns"])]) + r" \\", r"\midrule"]
    lines += [" & ".join([_tex(name), *cells]) + r" \\" for name, *cells in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
