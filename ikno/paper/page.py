"""The report as one HTML page, for people: every table with what it was made of and what may be concluded."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ikno.comparison import count, seconds
from ikno.paper.filled import Filled
from ikno.paper.report import data, footer, measured, number, origin, ranks
from ikno.paper.scales import Scale

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8883; --good: #2a9d5a; --bad: #c65d3b; --quiet: #777; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
nav { columns: 3 16rem; } nav a { display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid var(--soft); white-space: nowrap; }
th:first-child { text-align: left; }
td small { display: block; color: var(--quiet); font-weight: 400; }
td.first { background: #2a9d5a33; font-weight: 600; } td.second { background: #2a9d5a18; }
td.none { color: var(--quiet); }
.note { color: var(--quiet); } .holds { color: var(--good); } .fails { color: var(--bad); }
.box { border-left: 4px solid var(--line); padding: .2rem 1rem; }
img { max-width: 100%; background: white; }
"""


def page(tables: Sequence[Filled], scale: Scale, pictures: Mapping[str, Sequence[str]]) -> str:
    """Return the page; ``pictures`` are files beside it, by table."""
    done = sum(t["trainings"] for t in tables)
    hours = sum(t["seconds"] for t in tables) / 3600
    links = "".join(f'<a href="#{t["name"]}">{escape(t["title"])}</a>' for t in tables)
    parts = [
        f"<h1>The tables of the paper, {escape(scale.name)} scale</h1>",
        f'<div class="box"><p>{escape(scale.about)}</p><p><b>{escape(scale.conclusion)}</b></p></div>',
        f"<p>Made by <code>ikno reproduce --preset {escape(scale.name)}</code> from {done} results; {hours:.1f} hours "
        "of training steps (a training that several tables share counts in each).</p>",
        '<p class="note">In each cell: what was measured (mean and standard deviation over seeds), below it the '
        'published number and measured / published. <span class="holds">Green</span>: best and second of a line. '
        "Point at a cell to see its cost.</p>",
        f"<nav>{links}</nav>",
        *(_section(t, pictures.get(t["name"], ())) for t in tables),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>IKNO: tables, {escape(scale.name)} scale</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(filled: Filled, pictures: Sequence[str]) -> str:
    unit = f" In {escape(filled['unit'])}." if filled["unit"] else ""
    text = [f'<h2 id="{filled["name"]}">{escape(filled["title"])}</h2>']
    text.append(f"<p>{escape(filled['caption'])}.{unit} <span class='note'>{escape(filled['label'])}</span></p>")
    text.append(_grid(filled))
    text.append(f"<p class='note'>{escape(origin(filled))}</p>" if filled["sets"] else "")
    if filled["claims"]:
        items = "".join(f"<li>{_claim(claim)}</li>" for claim in filled["claims"])
        text.append(f"<p>What the paper says, and what was found:</p><ul>{items}</ul>")
    text += [f'<p><img src="{escape(name)}" alt="{escape(filled["title"])}"></p>' for name in pictures]
    about = "".join(f"<li>{escape(line)}</li>" for line in [*data(filled), *footer(filled)])
    text.append(f"<details><summary>Data, cost and versions</summary><ul>{about}</ul></details>" if about else "")
    return "\n".join(text)


def _grid(filled: Filled) -> str:
    best = ranks(filled, "measured")
    axis = f"{filled['axis']} = " if filled["axis"] else ""
    head = "".join(f"<th>{escape(axis + name)}</th>" for name in filled["columns"])
    lines = []
    for i, row in enumerate(filled["rows"]):
        cells = "".join(_cell(cell, best.get((i, j))) for j, cell in enumerate(row["cells"]))
        lines.append(f"<tr><th>{escape(row['name'])}</th>{cells}</tr>")
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _cell(cell: dict[str, Any], rank: int | None) -> str:
    kind = "none" if "measured" not in cell else {0: "first", 1: "second"}.get(2 if rank is None else rank, "")
    told = []
    if cell.get("parameters"):
        told.append(f"{cell['parameters']:,} parameters")
    if cell.get("seconds") is not None:
        told.append(f"{seconds(cell['seconds'])} s of training")
    if "measured" in cell:
        told.append(count(cell["measured"]["seeds"], "seed"))
    below = ""
    if cell["published"] is not None:
        ratio = f" · x {number(cell['ratio'])}" if cell.get("ratio") is not None else ""
        below = f"<small>{number(cell['published'], cell['published_std'])}{ratio}</small>"
    shown = escape(measured(cell)) if "measured" in cell else "not run"
    return f'<td class="{kind}" title="{escape(", ".join(told))}">{shown}{below}</td>'


def _claim(claim: dict[str, Any]) -> str:
    found, paper = claim["measured"], claim["published"]
    published = f"published {paper['holds']} of {paper['lines']}" if paper["lines"] else "no published numbers"
    if not found["lines"]:
        return f"{escape(claim['text'])}: <span class='note'>nothing to compare ({published})</span>"
    kind = "fails" if found["not"] else "holds"
    but = f", not on {', '.join(found['not'])}" if found["not"] else ""
    here = f"{found['holds']} of {found['lines']}{but}"
    return f"{escape(claim['text'])}: <b class='{kind}'>{escape(here)}</b> <span class='note'>({published})</span>"
