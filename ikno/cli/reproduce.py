"""The command that makes the tables of the paper again."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ikno.cli import options, screen
from ikno.errors import UserError

if TYPE_CHECKING:
    from ikno.paper import Place, Preset, Table


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the paper (--list), or one of your own (.toml); all."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Sizes of models, data and trainings: smoke, cpu or paper.")] = "cpu",
    cells: Annotated[
        str, typer.Option(help="Only these cells: patterns ROW/COLUMN, for instance 'poisson-*/ikno-*,elasticity'.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of results and report (default: reproduction/PRESET).")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of data and runs (default: work in --out).")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of released files; missing ones are generated.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0 or auto.")] = "cpu",
    report_only: Annotated[
        bool, typer.Option("--report", help="Train nothing; write the report from existing results.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the tables and how much of each is done.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make the tables and figures of the paper again: measured beside published, with spread, cost and data.

    Every training is done once and its result kept in --out/cells. Ctrl-C saves, the same command goes on, and several
    processes or machines can share the folders. The report of all tables made so far is index.html in --out; each table
    is also written as .md, .tex and .json.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler announces itself otherwise
    from ikno.paper import NAMES, Place, fill, load_preset, load_table, text_table
    from ikno.paper import reproduce as run

    known, chosen = load_preset(preset), [load_table(name) for name in tables or NAMES]
    folder = out or Path("reproduction") / preset
    place = Place(folder, work or folder / "work", data, device)
    if show_list:
        rows = []
        for table in chosen:
            results = [cell for row in fill(table, known, folder, data)["rows"] for cell in row["cells"]]
            done = sum("measured" in cell for cell in results)
            rows.append({"table": table.name, "cells": len(results), "done": done, "about": table.title})
        if as_json:
            return screen.show_json(rows)
        return screen.show_table(
            ("table", "cells", f"done ({preset})", "about"), [[str(v) for v in r.values()] for r in rows]
        )
    missing = 0
    if not report_only:
        with screen.training_bar(f"{folder}: stopped and saved; the same command goes on") as show:
            missing = run(chosen, known, place, options.split(cells), show, screen.say)
    every = _with_earlier(chosen, folder)
    filled = {table.name: fill(table, known, folder, data) for table in every}
    _write(every, filled, known, place)
    asked = [filled[table.name] for table in every if table in chosen]
    if as_json:
        return screen.show_json(asked)
    for one in asked:
        unit = f", {one['unit']}" if one["unit"] else ""
        screen.show_table(*text_table(one), title=f"{one['title']}: measured (published){unit}", words=[""])
        print()
    print(f"{folder}: index.html and, for each table, .md, .tex and .json")
    if missing:
        print(f"{missing} cells are missing; the reasons are above", file=sys.stderr)


def _with_earlier(chosen: list["Table"], out: Path) -> list["Table"]:
    """Return the chosen tables and those already in the folder, in the order of the paper: one page shows all."""
    from ikno.paper import NAMES, load_table

    tables = {table.name: table for table in chosen}
    for path in sorted(out.glob("*.json")):
        try:
            argument = json.loads(path.read_bytes())["argument"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not a table of this command; remove it, tables are made again") from None
        if path.stem not in tables and (argument in NAMES or Path(argument).is_file()):
            tables[path.stem] = load_table(argument)
    return [*(tables.pop(name) for name in NAMES if name in tables), *tables.values()]


def _write(tables: list["Table"], filled: dict[str, dict[str, Any]], preset: "Preset", place: "Place") -> None:
    """Write each table as Markdown, LaTeX and JSON, its pictures, and the page of all."""
    from ikno.paper import latex, markdown, page

    place.out.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for table in tables:
        name, content = table.name, filled[table.name]
        _draw(table, content, place)
        pictures[name] = [path.name for path in table.pictures(place.out) if path.exists()]
        texts = {"md": markdown(content, preset, pictures[name]), "tex": latex(content)}
        for suffix, text in {**texts, "json": json.dumps(content, indent=1) + "\n"}.items():
            (place.out / f"{name}.{suffix}").write_text(text)
    (place.out / "index.html").write_text(page(list(filled.values()), preset, pictures))


def _draw(table: "Table", content: dict[str, Any], place: "Place") -> None:
    """Draw what the table asks for from the runs that exist; without them earlier pictures stay."""
    from ikno.paper import run_of
    from ikno.plots import plot_comparison, plot_curves, plot_predictions

    paths, rows = table.pictures(place.out), content["rows"]
    if table.picture == "curves":
        plot_curves(content, paths[0])
    if table.picture in (None, "curves"):
        return
    runs = {r["name"]: run for r in rows for c in r["cells"] if (run := run_of(c, place.work)) is not None}
    if table.picture == "errors" and runs:
        plot_comparison(runs, paths[0])
    if table.picture == "predictions":
        for row, path in zip(rows, paths, strict=True):
            if row["name"] in runs:
                plot_predictions(runs[row["name"]], path)
