"""Filled tables as text: Markdown and LaTeX."""

from collections.abc import Sequence
from typing import Any

from ikno.comparison import count, markdown_table, seconds
from ikno.metrics import find_metric
from ikno.paper.filled import Filled
from ikno.paper.scales import Scale


def number(value: float | None, std: float | None = None) -> str:
    """Return a number with three digits that count, and its spread."""
    if value is None:
        return "diverged"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def measured(cell: dict[str, Any]) -> str:
    """Return what was measured in a cell, - if nothing was."""
    return number(cell["measured"]["mean"], cell["measured"]["std"]) if "measured" in cell else "-"


def ranks(filled: Filled, kind: str) -> dict[tuple[int, int], int]:
    """Return the cells that are best (0) and second (1) of their line, by row and column."""
    found = {}
    rows, columns = len(filled["rows"]), len(filled["columns"])
    places = [(i, j) for i in range(rows) for j in range(columns)]
    if filled["compare"] is None:
        return {}
    across = 0 if filled["compare"] == "columns" else 1
    for line in range(rows if across == 0 else columns):
        numbers = {}
        for place in places:
            cell = filled["rows"][place[0]]["cells"][place[1]]
            value = cell["published"] if kind == "published" else cell.get("measured", {}).get("mean")
            if place[across] == line and value is not None:
                numbers[place] = value
        for rank, place in enumerate(sorted(numbers, key=lambda p: numbers[p])[:2]):
            if len(numbers) > 1:
                found[place] = rank
    return found


def markdown(filled: Filled, scale: Scale, pictures: Sequence[str] = ()) -> str:
    """Return a table for a document: measured, published and the ratio, the cost, the data, and the claims."""
    command = f"ikno reproduce {filled['argument']} --preset {scale.name}"
    unit = f", {filled['unit']}" if filled["unit"] else ""
    text = [f"# {filled['title']}", "", f"{filled['caption']}. In the paper: `{filled['label']}`.", ""]
    text += [f"Made by `{command}`.", "", f"{scale.about} {scale.conclusion}", ""]
    text += [f"## Measured{unit}", "", "Best of a line bold, second in italics." * bool(filled["compare"]), ""]
    text += [_grid(filled, _marked(filled, "measured", measured)), ""]
    if any(cell["published"] is not None for row in filled["rows"] for cell in row["cells"]):
        text += [f"## Published{unit} (measured / published)", ""]
        text += [_grid(filled, _marked(filled, "published", _published)), ""]
    if filled["kind"] == "errors":
        text += ["## Cost: seconds of training (one seed)", "", _grid(filled, _seconds), ""]
    text += ["## What the paper says, and what was found", "", *claims(filled), ""] if filled["claims"] else []
    text += ["## Data", "", *(f"- {line}" for line in data(filled)), ""] if filled["sets"] else []
    text += [f"![{filled['title']}]({name})\n" for name in pictures]
    return "\n".join([*text, *footer(filled)]) + "\n"


def claims(filled: Filled) -> list[str]:
    """Return a line for each claim: where it holds by the published numbers, and where by ours."""
    lines = []
    for claim in filled["claims"]:
        parts = []
        for kind, name in (("published", "published numbers"), ("measured", "here")):
            found = claim[kind]
            if found["lines"]:
                but = f" (not: {', '.join(found['not'])})" if found["not"] else ""
                parts.append(f"{name}: {found['holds']} of {found['lines']}{but}")
            else:
                parts.append(f"{name}: nothing to compare")
        lines.append(f"- {claim['text']}: {'; '.join(parts)}.")
    return lines


def origin(filled: Filled) -> str:
    """Return in one sentence whether the data was generated or came from others."""
    made = [s["set"] for s in filled["sets"] if "generated" in s["source"]]
    given = [s["set"] for s in filled["sets"] if "generated" not in s["source"]]
    parts = [f"{kind}: {', '.join(names)}" for kind, names in (("Generated", made), ("From files", given)) if names]
    return f"Data. {'; '.join(parts)}."


def data(filled: Filled) -> list[str]:
    """Return a line for each data set."""
    lines = []
    for s in filled["sets"]:
        source = s["source"]
        options = ", ".join(f"{k} = {v}" for k, v in source.get("options", {}).items())
        where = (
            f"generated ({s['label']}; {options or 'default settings'})" if "generated" in source else source["file"]
        )
        metric = find_metric(s["metric"])
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
        lines.append(
            f"{count(filled['trainings'], 'training')}, {filled['seconds'] / 60:,.0f} minutes of steps in all."
        )
    for machine in filled["machines"]:
        device = count(machine["threads"], "thread") if machine["device"] == "cpu" else machine["device"]
        lines.append(
            f"{device}, Python {machine['python']}, torch {machine['torch']}, numpy {machine['numpy']}, "
            f"ikno {machine['ikno']}."
        )
    return lines


def latex(filled: Filled) -> str:
    """Return the table for a paper: measured with the published number in parentheses, marked as in the paper."""
    best = ranks(filled, "measured")
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(filled['caption'])} ({filled['scale']} scale).}}"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(filled['columns'])}}}", r"\toprule"]
    lines += [" & ".join(["", *(_tex(name) for name in filled["columns"])]) + r" \\", r"\midrule"]
    for i, row in enumerate(filled["rows"]):
        cells = [_tex(row["name"])]
        for j, cell in enumerate(row["cells"]):
            text = measured(cell).replace("±", r"$\pm$")
            text = {0: rf"\textbf{{{text}}}", 1: rf"\underline{{{text}}}"}.get(best.get((i, j), 2), text)
            cells.append(text + (f" ({number(cell['published'])})" if cell["published"] is not None else ""))
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")


def _grid(filled: Filled, show: Any) -> str:
    """Return the cells as a table."""
    lines = [
        [row["name"], *(show((i, j), cell) for j, cell in enumerate(row["cells"]))]
        for i, row in enumerate(filled["rows"])
    ]
    return markdown_table(["", *(f"{filled['axis']} = {c}" if filled["axis"] else c for c in filled["columns"])], lines)


def _marked(filled: Filled, kind: str, show: Any) -> Any:
    best = ranks(filled, kind)

    def marked(place: tuple[int, int], cell: dict[str, Any]) -> str:
        mark = {0: "**", 1: "*"}.get(best.get(place, 2), "")
        return f"{mark}{show(cell)}{mark}"

    return marked


def _published(cell: dict[str, Any]) -> str:
    if cell["published"] is None:
        return "-"
    ratio = f" (x {number(cell['ratio'])})" if cell.get("ratio") is not None else ""
    return number(cell["published"], cell["published_std"]) + ratio


def _seconds(place: tuple[int, int], cell: dict[str, Any]) -> str:
    return "-" if cell.get("seconds") is None else seconds(cell["seconds"])
