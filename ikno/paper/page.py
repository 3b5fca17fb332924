"""The report as one HTML page, for people: every table with what it was made of and what may be concluded."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ikno.comparison import count, seconds
from ikno.paper.filled import Filled
from ikno.paper.presets import Preset
from ikno.paper.report import data, footer, measured, published, text_table, verdict


def page(tables: Sequence[Filled], preset: Preset, pictures: Mapping[str, Sequence[str]]) -> str:
    """Return the page of all tables.

    Args:
        tables: What ``fill`` returns.
        preset: The preset they were run with.
        pictures: Names of files beside the page, by table.
    """
    style = Path(__file__).with_suffix(".css").read_text()
    done, name = sum(t["trainings"] for t in tables), escape(preset.name)
    hours = sum(t["seconds"] for t in tables) / 3600
    links = "".join(f'<a href="#{t["name"]}">{escape(t["title"])}</a>' for t in tables)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>IKNO: tables, preset {name}</title><style>\n{style}</style></head>\n<body>",
        f"<h1>The tables of the paper, preset {name}</h1>",
        f'<div class="box"><p>{escape(preset.about)}</p><p><b>{escape(preset.conclusion)}</b></p></div>',
        f"<p>Made by <code>ikno reproduce --preset {name}</code> from {done} results; {hours:.1f} hours "
        "of training steps (a training that several tables share counts in each).</p>",
        '<p class="note">In each cell: what was measured (mean and standard deviation over seeds), below it the '
        'published number and measured / published. <span class="holds">Green</span>: best and second of a line. '
        "Point at a cell to see its cost.</p>",
        f"<nav>{links}</nav>",
        *(_section(t, pictures.get(t["name"], ())) for t in tables),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _section(filled: Filled, pictures: Sequence[str]) -> str:
    unit = f" In {escape(filled['unit'])}." if filled["unit"] else ""
    header, lines = text_table(filled, _cell)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    rows = "".join(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>" for name, *cells in lines)
    text = [
        f'<h2 id="{filled["name"]}">{escape(filled["title"])}</h2>',
        f"<p>{escape(filled['caption'])}.{unit} <span class='note'>{escape(filled['label'])}</span></p>",
        f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>',
    ]
    made = [s["set"] for s in filled["sets"] if "generated" in s["source"]]
    given = [s["set"] for s in filled["sets"] if "generated" not in s["source"]]
    origin = [f"{kind}: {', '.join(names)}" for kind, names in (("Generated", made), ("From files", given)) if names]
    text += [f"<p class='note'>Data. {escape('; '.join(origin))}.</p>"] if origin else []
    if filled["claims"]:
        items = "".join(f"<li>{_claim(claim)}</li>" for claim in filled["claims"])
        text.append(f"<p>What the paper says, and what was found:</p><ul>{items}</ul>")
    text += [f'<p><img src="{escape(name)}" alt="{escape(filled["title"])}"></p>' for name in pictures]
    about = "".join(f"<li>{escape(line)}</li>" for line in [*data(filled), *footer(filled)])
    text += [f"<details><summary>Data, cost and versions</summary><ul>{about}</ul></details>"] if about else []
    return "\n".join(text)


def _cell(cell: dict[str, Any], rank: int) -> str:
    """Return the element of a cell, with its cost as a tooltip."""
    costs = []
    if cell.get("parameters"):
        costs.append(f"{cell['parameters']:,} parameters")
    if cell.get("seconds") is not None:
        costs.append(f"{seconds(cell['seconds'])} s of training")
    kind, text = "none", "not run"
    if "measured" in cell:
        costs.append(count(cell["measured"]["seeds"], "seed"))
        kind, text = ("first", "second", "")[rank], measured(cell)
    below = f"<small>{published(cell, ' · x {}')}</small>" if cell["published"] is not None else ""
    return f'<td class="{kind}" title="{escape(", ".join(costs))}">{escape(text)}{below}</td>'


def _claim(claim: dict[str, Any]) -> str:
    judged = claim["measured"]
    kind = "note" if not judged["lines"] else "fails" if judged["not"] else "holds"
    return f"{escape(claim['text'])}: <span class='{kind}'>{escape(verdict(claim))}</span>"
