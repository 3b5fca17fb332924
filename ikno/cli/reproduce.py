"""The command that makes the tables of the paper again."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ikno.cli.options import Json, training_bar
from ikno.errors import UserError

if TYPE_CHECKING:
    from ikno.paper import Place, Scale, Table


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the paper (--list), or one of your own (.toml); all."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Scale: smoke, cpu or paper.")] = "cpu",
    cells: Annotated[
        str, typer.Option(help="Only these cells: patterns ROW/COLUMN, for instance 'poisson-*/ikno-*,elasticity'.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of results and report (default: reproduction/PRESET).")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of data and runs (default: work in --out).")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of released files; what is not there is generated.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0 or auto.")] = "cpu",
    report_only: Annotated[
        bool, typer.Option("--report", help="Train nothing: write the report of what is there.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the tables and how much of each is done.")] = False,
    as_json: Json = False,
) -> None:
    """Make the tables and figures of the paper again: measured beside published, with spread, cost and data.

    Every training is made once and its result kept in --out/cells. Ctrl-C saves, the same command goes on, and several
    processes or machines may share the folders. The report is index.html in --out, of all tables made there so far;
    each table is also .md, .tex and .json.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler announces itself otherwise
    from ikno.paper import NAMES, Place, fill, load_scale, load_table
    from ikno.paper import reproduce as run

    scale = load_scale(preset)
    chosen = [load_table(name) for name in tables or NAMES]
    folder = out or Path("reproduction") / preset
    place = Place(folder, work or folder / "work", data, device)
    if show_list:
        _list(chosen, scale, place, as_json)
        return
    patterns = [p for word in cells.split(",") if (p := word.strip())]
    missing = 0
    if not report_only:
        with training_bar(f"{folder}: stopped and saved; the same command goes on") as show:
            missing = run(
                chosen,
                scale,
                place,
                patterns,
                lambda name, report: show(f"{name}: ", report),
                lambda text: print(text, file=sys.stderr),
            )
    shown = _with_earlier(chosen, folder)
    filled = [fill(table, scale, folder, data) for table in shown]
    _write(shown, filled, scale, place)
    asked = [found for table, found in zip(shown, filled, strict=True) if table in chosen]
    if as_json:
        print(json.dumps(asked, indent=2))
        return
    for found in asked:
        _print(found)
    print(f"{folder}: index.html and, for each table, .md, .tex and .json")
    if missing:
        print(f"{missing} cells are missing; the reasons are above", file=sys.stderr)


def _with_earlier(chosen: list["Table"], out: Path) -> list["Table"]:
    """Return the chosen tables and those that the folder has already, in the order of the paper: one page shows all."""
    from ikno.paper import NAMES, load_table

    found = {table.name: table for table in chosen}
    for path in sorted(out.glob("*.json")):
        try:
            argument = json.loads(path.read_bytes())["argument"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not a table of this command; remove it, tables are made again") from None
        if path.stem not in found and (argument in NAMES or Path(argument).is_file()):
            found[path.stem] = load_table(argument)
    paper = [found.pop(name) for name in NAMES if name in found]
    return [*paper, *found.values()]


def _list(tables: list["Table"], scale: "Scale", place: "Place", as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from ikno.paper import fill

    rows = []
    for table in tables:
        found = fill(table, scale, place.out, place.released)
        cells = [cell for row in found["rows"] for cell in row["cells"]]
        done = sum("measured" in cell for cell in cells)
        rows.append({"table": table.name, "cells": len(cells), "done": done, "about": table.title})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    grid = Grid("table", "cells", f"done ({scale.name})", "about", box=None)
    for row in rows:
        grid.add_row(*(str(v) for v in row.values()))
    Console().print(grid)


def _write(tables: list["Table"], filled: list[dict[str, Any]], scale: "Scale", place: "Place") -> None:
    """Write each table as Markdown, LaTeX and JSON, its pictures, and the page of all."""
    from ikno.paper import latex, markdown, page

    place.out.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for table, found in zip(tables, filled, strict=True):
        _draw(table, found, scale, place)
        pictures[table.name] = [path.name for path in table.pictures(place.out) if path.exists()]
        (place.out / f"{table.name}.md").write_text(markdown(found, scale, pictures[table.name]))
        (place.out / f"{table.name}.tex").write_text(latex(found))
        (place.out / f"{table.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (place.out / "index.html").write_text(page(filled, scale, pictures))


def _draw(table: "Table", found: dict[str, Any], scale: "Scale", place: "Place") -> None:
    """Draw what the table asks for, from runs that are here; without them earlier pictures stay."""
    from ikno.paper import run_of, stored
    from ikno.plots import plot_comparison, plot_curves, plot_predictions

    paths = table.pictures(place.out)
    if table.picture == "curves":
        plot_curves(found, paths[0])
    if table.picture in (None, "curves"):
        return
    results = stored(table, scale, place.out, place.released)
    runs = {name.partition("/")[0]: run for name, r in results.items() if (run := run_of(r, place.work)) is not None}
    if table.picture == "errors" and runs:
        plot_comparison(runs, paths[0])
    if table.picture == "predictions":
        for row, path in zip(table.rows, paths, strict=True):
            if row.name in runs:
                plot_predictions(runs[row.name], path)


def _print(found: dict[str, Any]) -> None:
    """Print a table: measured, and the published numbers in parentheses."""
    from rich.console import Console
    from rich.table import Table as Grid

    from ikno.paper.report import measured, number

    unit = f", {found['unit']}" if found["unit"] else ""
    grid = Grid(box=None)
    grid.add_column("")
    for name in found["columns"]:
        grid.add_column(name, justify="right")
    for row in found["rows"]:
        cells = []
        for cell in row["cells"]:
            published = f" ({number(cell['published'])})" if cell["published"] is not None else ""
            cells.append(measured(cell) + published)
        grid.add_row(row["name"], *cells)
    console = Console()
    console = console if console.is_terminal else Console(width=max(console.width, 160))
    console.print(f"{found['title']}: measured (published){unit}", highlight=False)
    console.print(grid)
    console.print("")
