"""A table with its results: measured beside published, the spread, the cost, and whether the paper's claims hold."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from ikno.errors import UserError
from ikno.metrics import IN_CARDS, find_metric, mean_and_std
from ikno.paper.presets import Preset
from ikno.paper.results import costs_file, load_result, result_of, wanted
from ikno.paper.tables import Claim, Column, Entry, Table, entries

Filled = dict[str, Any]
Kind = Literal["published", "measured"]
SHOWN = ("name", "argument", "title", "caption", "label", "kind", "compare", "axis")
OF_SET = ("set", "source", "label", "samples", "points", "epochs", "metric", "guesses")


def fill(table: Table, preset: Preset, out: Path, released: Path | None = None) -> Filled:
    """Return a table with the results that are stored, as plain values; nothing is trained.

    Numbers are in the unit of the table. A cell without result has no ``measured``; the mean is None where a training
    did not give finite numbers.

    Args:
        table: The table.
        preset: The preset it was run with.
        out: The folder of results.
        released: The folder of files that others released, if there is one.
    """
    cells = [(entry, _results(entry, preset, out, released)) for entry in entries(table)]
    results = _different([r for _, stored in cells for r in stored])
    metrics = [find_metric(r["metric"]) for r in results if "metric" in r]
    sets = {r["set"]: {key: r[key] for key in OF_SET} for r in reversed(results) if "set" in r}
    filled: Filled = {
        **{key: getattr(table, key) for key in SHOWN},
        "unit": (metrics[0] if metrics else IN_CARDS["relative L1"]).unit if table.unit is None else table.unit,
        "scale": preset.name,
        "columns": [column.name for column in table.columns],
        "rows": [{"name": r.name, "cells": [_cell(e, s) for e, s in cells if e.row is r]} for r in table.rows],
        "sets": list(reversed(sets.values())),
        "machines": _different([r["machine"] for r in results]),
        "seconds": sum(r.get("seconds") or 0.0 for r in results),
        "trainings": len(results) if table.kind == "errors" else 0,
    }
    filled["claims"] = [judge(claim, filled) for claim in table.claims]
    return filled


def _results(entry: Entry, preset: Preset, out: Path, released: Path | None) -> list[dict[str, Any]]:
    """Return what is stored of a cell, one result for each seed, or the row of a measurement of costs."""
    if entry.table.kind == "costs":
        measurement = load_result(out, costs_file(entry.table, preset)) or {"rows": ()}
        same = [r for r in measurement["rows"] if r["model"] == entry.settings.get("model", "ikno-tp")]
        return [{**r, "machine": measurement["machine"]} for r in same]
    try:
        jobs = wanted(entry, preset, released)
    except UserError:  # no data for this set
        return []
    return [r for job in jobs if (r := result_of(job, out)) is not None]


def _cell(entry: Entry, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a cell: measured over seeds, published, their ratio, and what it took."""
    published = entry.published()
    cell: dict[str, Any] = {"published": published, "published_std": entry.published("spread")}
    if not results:
        return cell
    mean, std = mean_and_std([_value(r, entry.column) for r in results])
    finite = math.isfinite(mean)
    cell["measured"] = {"mean": mean if finite else None, "std": std, "seeds": len(results)}
    cell["ratio"] = mean / published if published and finite else None
    cell["parameters"] = results[0].get("parameters")
    if entry.table.kind == "errors":
        cell |= {"strategy": results[0]["strategy"], "run": results[0]["run"]}
        seconds = [r["seconds"] for r in results if r["seconds"] is not None]
        cell["seconds"] = sum(seconds) / len(seconds) if seconds else None
    return cell


def _value(result: dict[str, Any], column: Column) -> float:
    """Return what the column shows of a result; null in a file is infinite."""
    value = result[column.value] if column.value in result else result["metrics"][column.value]
    factor = column.factor
    if factor is None:
        factor = find_metric(result["metric"] if column.value == "error" else column.value).factor
    return math.inf if value is None else factor * value


def _different(values: Sequence[Any]) -> list[Any]:
    return [v for i, v in enumerate(values) if v not in values[:i]]


def judge(claim: Claim, filled: Filled) -> dict[str, Any]:
    """Return in how many lines a claim holds, by the published numbers and by ours, and where it does not."""
    judged: dict[str, Any] = {"text": claim.text}
    needed = {*claim.better, *claim.than, *claim.falls}
    for kind in ("published", "measured"):
        lines = {name: values for name, values in lines_of(filled, kind).items() if needed <= values.keys()}
        failed = [name for name, values in lines.items() if not _holds(claim, values)]
        judged[kind] = {"lines": len(lines), "holds": len(lines) - len(failed), "not": failed}
    return judged


def lines_of(filled: Filled, kind: Kind) -> dict[str, dict[str, float]]:
    """Return the numbers that compete by line and name: columns in each row, or rows in each column.

    What diverged is infinite.
    """
    lines: dict[str, dict[str, float]] = {}
    for row in filled["rows"]:
        for column, cell in zip(filled["columns"], row["cells"], strict=True):
            number = cell["published"]
            if kind == "measured" and (number := cell.get("measured")) is not None:
                number = math.inf if number["mean"] is None else number["mean"]
            line, name = (row["name"], column) if filled["compare"] == "columns" else (column, row["name"])
            if number is not None:
                lines.setdefault(line, {})[name] = number
    return lines


def _holds(claim: Claim, values: dict[str, float]) -> bool:
    falling, best, others = ([values[name] for name in names] for names in (claim.falls, claim.better, claim.than))
    return all(a > b for a, b in pairwise(falling)) and all(b < o for b in best for o in others)
