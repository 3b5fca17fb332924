"""A table with its results: measured beside published, the spread, the cost, and whether the paper's claims hold."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ikno.errors import UserError
from ikno.metrics import IN_CARDS, find_metric, mean_and_std
from ikno.paper.results import costs_file, load_result, result_of, wanted
from ikno.paper.scales import Scale
from ikno.paper.tables import Claim, Column, Entry, Table, entries

Filled = dict[str, Any]
SHOWN = ("name", "argument", "title", "caption", "label", "kind", "compare", "axis")


def fill(table: Table, scale: Scale, out: Path, released: Path | None = None) -> Filled:
    """Return a table with the results that are stored in ``out``, as plain values; nothing is trained.

    Numbers are in the unit of the table. A cell without result has no ``measured``; the mean is None where a training
    did not give finite numbers.
    """
    cells = [(entry, _results(entry, scale, out, released)) for entry in entries(table)]
    results = _different([r for _, found in cells for r in found])
    metrics = [find_metric(r["metric"]) for r in results if "metric" in r]
    unit = (metrics[0].unit if metrics else IN_CARDS["relative L1"].unit) if table.unit is None else table.unit
    filled: Filled = {
        **{key: getattr(table, key) for key in SHOWN},
        "unit": unit,
        "scale": scale.name,
        "columns": [column.name for column in table.columns],
        "rows": [{"name": r.name, "cells": [_cell(e, found) for e, found in cells if e.row is r]} for r in table.rows],
        "sets": _sets(results),
        "machines": _different([r["machine"] for r in results]),
        "seconds": sum(r.get("seconds") or 0.0 for r in results),
        "trainings": len(results) if table.kind == "errors" else 0,
    }
    filled["claims"] = [_judged(claim, filled) for claim in table.claims]
    return filled


def stored(table: Table, scale: Scale, out: Path, released: Path | None = None) -> dict[str, Any]:
    """Return the results of a table by the names of its cells, that of the first seed; those that exist."""
    return {e.name: found[0] for e in entries(table) if (found := _results(e, scale, out, released))}


def _results(entry: Entry, scale: Scale, out: Path, released: Path | None) -> list[dict[str, Any]]:
    """Return what is stored of a cell, one result for each seed, or the row of a measurement of costs."""
    if entry.table.kind == "costs":
        found = load_result(out, costs_file(entry.table, scale))
        if found is None:
            return []
        same = [r for r in found["rows"] if r["model"] == entry.settings["model"]]
        return [{**r, "machine": found["machine"]} for r in same]
    try:
        jobs = wanted(entry, scale, released)
    except UserError:  # no data for this set
        return []
    return [r for job in jobs if (r := result_of(job, out)) is not None]


def _cell(entry: Entry, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a cell: measured over seeds, published, their ratio, and what it took."""
    published, spread = entry.published(), entry.published("spread")
    cell: dict[str, Any] = {"published": published, "published_std": spread}
    if not found:
        return cell
    values = [_value(r, entry.column) for r in found]
    mean, std = mean_and_std(values)
    cell["measured"] = {"mean": _plain(mean), "std": std, "seeds": len(values)}
    cell["ratio"] = mean / published if published and math.isfinite(mean) else None
    cell["parameters"] = found[0].get("parameters")
    if entry.table.kind == "errors":
        cell["strategy"] = found[0]["strategy"]
        seconds = [r["seconds"] for r in found if r["seconds"] is not None]
        cell["seconds"] = sum(seconds) / len(seconds) if seconds else None
    return cell


def _value(result: dict[str, Any], column: Column) -> float:
    """Return what the column shows of a result; null in a file is infinite."""
    value = result[column.value] if column.value in result else result["metrics"][column.value]
    factor = column.factor
    if factor is None:
        factor = find_metric(result["metric"] if column.value == "error" else column.value).factor
    return math.inf if value is None else factor * value


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sets(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is to be said about each data set: where it comes from, how much of it, what guesses reach."""
    found: dict[str, dict[str, Any]] = {}
    for r in results:
        if "set" in r:
            keys = ("set", "source", "label", "samples", "points", "epochs", "metric", "guesses")
            found.setdefault(r["set"], {key: r[key] for key in keys})
    return list(found.values())


def _different(values: Sequence[Any]) -> list[Any]:
    return [v for i, v in enumerate(values) if v not in values[:i]]


def _judged(claim: Claim, filled: Filled) -> dict[str, Any]:
    """Return in how many lines a claim holds, by the published numbers and by ours, and where it does not."""
    judged: dict[str, Any] = {"text": claim.text}
    for kind in ("published", "measured"):
        needed = {*claim.better, *claim.than, *claim.falls}
        lines = {name: values for name, values in _lines(filled, kind).items() if needed <= values.keys()}
        failed = [name for name, values in lines.items() if not _holds(claim, values)]
        judged[kind] = {"lines": len(lines), "holds": len(lines) - len(failed), "not": failed}
    return judged


def _lines(filled: Filled, kind: str) -> dict[str, dict[str, float]]:
    """Return for each line across the compared ones the numbers by name: of each row by column, or the other way."""
    found: dict[str, dict[str, float]] = {}
    for row in filled["rows"]:
        for column, cell in zip(filled["columns"], row["cells"], strict=True):
            number = cell["published"] if kind == "published" else _measured(cell)
            line, name = (row["name"], column) if filled["compare"] == "columns" else (column, row["name"])
            if number is not None:
                found.setdefault(line, {})[name] = number
    return found


def _measured(cell: dict[str, Any]) -> float | None:
    if "measured" not in cell:
        return None
    return math.inf if cell["measured"]["mean"] is None else cell["measured"]["mean"]


def _holds(claim: Claim, values: dict[str, float]) -> bool:
    falling = [values[name] for name in claim.falls]
    best, others = ([values[name] for name in names] for names in (claim.better, claim.than))
    return all(a > b for a, b in pairwise(falling)) and all(b < o for b in best for o in others)
