"""Making the cells: data, training, evaluation, and one result file for each that says all about it."""

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ikno.comparison import Cell, Say, Schedule, Shape, Show, alone, measure_efficiency, usable
from ikno.data.generate import Job, generate
from ikno.data.library import file_name
from ikno.data.problem import open_problem
from ikno.device import find_device
from ikno.errors import UserError
from ikno.evaluation import as_json
from ikno.paper.presets import Preset, Wanted, find_source, fingerprint
from ikno.paper.tables import Entry, Table, entries
from ikno.runs import Run, write_atomic
from ikno.training import Report
from ikno.training.modes import PUBLISHED


@dataclass(frozen=True)
class Place:
    """Folders: of results (small, to be kept), of data and runs (large), of files that others released; the device."""

    out: Path
    work: Path
    released: Path | None = None
    device: str = "cpu"


def wanted(entry: Entry, preset: Preset, released: Path | None) -> list[Wanted]:
    """Return the trainings of a cell, one for each seed; raise a UserError if there is no data for them."""
    if entry.set is None:
        raise UserError(f"{entry.table.name}: {entry.name}: the table does not say which set it is for")
    card, file = find_source(entry.set, released)
    seeds = min(entry.table.seeds or preset.seeds, preset.most_seeds)
    return [Wanted(preset, entry.set, card, file, entry.settings, seed) for seed in range(seeds)]


def result_of(one: Wanted, out: Path) -> dict[str, Any] | None:
    """Return the stored result, None if there is none or it is of another version of its data file."""
    result, size = load_result(out, one.result), one.bytes
    return None if result is None or (size is not None and result["source"]["bytes"] != size) else result


def load_result(out: Path, file: str) -> dict[str, Any] | None:
    """Return what is stored under a name, None if there is nothing."""
    path = out / "cells" / file
    try:
        return json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}); remove it, it will be made again") from None


def reproduce(
    tables: Sequence[Table],
    preset: Preset,
    place: Place,
    cells: Sequence[str] = (),
    show: Show = lambda name, report: None,
    say: Say = lambda text: None,
) -> int:
    """Make all cells of the tables that have no result yet and return how many could not be made.

    A cell that another process is making is left to it, and looked at once more in the end. Interrupted training goes
    on with the next call.

    Args:
        tables: The tables.
        preset: The preset they are run with.
        place: Folders and device.
        cells: Patterns of the cells that are made, as in ``entries``. Default: all.
        show: Receives the name of a training and its reports.
        say: Receives one line on each thing that a user should know.
    """
    chosen = [entry for table in tables for entry in entries(table, cells)]
    if cells and not chosen:
        raise UserError(f"cells: {', '.join(cells)} fits none of the tables; write ROW/COLUMN as their rows are named")
    jobs: dict[str, Wanted] = {}
    without: Counter[str] = Counter()  # cells that have no data, by the reason
    for entry in chosen:
        if entry.table.kind == "costs":
            _measure(entry.table, preset, place, say)
            continue
        try:
            for one in wanted(entry, preset, place.released):
                jobs.setdefault(one.result, one)
        except UserError as error:
            without[str(error)] += 1
    for reason, count in without.items():
        say(f"{reason} ({count} cells)")
    left = [one for one in jobs.values() if result_of(one, place.out) is None]
    say(f"{len(jobs)} trainings, {len(jobs) - len(left)} of them done before")
    schedule = Schedule(len(left), show, say)
    for one in schedule.turns(left):
        if result_of(one, place.out) is None:  # else another process was quicker
            schedule.attempt(one.label, partial(make, one, place, say))
    return without.total() + sum(result_of(one, place.out) is None for one in left)


def make(one: Wanted, place: Place, say: Say, report: Callable[[Report], None]) -> None:
    """Store the result: all that is known of the training as plain values."""
    config, card = one.config(_data(one, place.work, say), place.device), one.card
    if not card.steady and config.surrogate.mode is None:
        published = config.surrogate.model_copy(update={"mode": PUBLISHED})
        config = config.model_copy(update={"surrogate": published})
    problem = open_problem(config.data, config.seed)
    cell = Cell.of(config, problem, place.work / "runs" / card.name, one.searched(config))
    speed: list[float] = []

    def noted(progress: Report) -> None:
        speed.append(progress.seconds_per_step)
        report(progress)

    evaluation = cell.make(noted).evaluation
    best, metric = evaluation["best"]["strategy"], evaluation["main_metric"]
    result = {
        "set": evaluation["benchmark"],
        "scale": one.preset.name,  # what presets were called when the first results were stored
        "settings": one.settings,
        "seed": one.seed,
        "source": {**one.source(), "bytes": one.bytes},
        "label": evaluation["label"],
        "metric": metric,
        "error": cell.error,
        "validation": cell.validation,
        "strategy": best,
        "metrics": evaluation["metrics"][best],
        "rollouts": {s: m[metric] for s, m in evaluation["metrics"].items()},
        "guesses": {name: m[metric] for name, m in evaluation["baselines"].items()},
        "parameters": evaluation["parameters"],
        "samples": [len(s) for s in (problem.train, problem.validation, problem.test)],
        "points": evaluation["points"],
        "epochs": cell.run.config.train.epochs,
        "steps": cell.steps,
        "seconds": cell.steps * fmean(speed) if speed else None,
        "run": str(cell.run.path.relative_to(place.work)),
        "machine": _machine(config.device),
    }
    _store(place.out, one.result, as_json(result))


def _data(one: Wanted, work: Path, say: Say) -> str:
    """Return the card or file of the data; it is generated if it is not there yet, by one process at a time."""
    card, source = one.card, one.source()
    if one.file is not None:
        return one.set if card.file is not None else str(one.file)
    folder = work / "data" / fingerprint(source)[:8]
    path = folder / file_name(card)
    with alone(folder / "lock", "--work"):
        if not path.exists():
            say(f"{card.name}: making {one.samples} samples")
            job = Job(card.name, tuple(source["options"].items()), one.samples, source["seed"])
            generate(job, path, os.cpu_count() or 1)
    return str(path)


def run_of(result: dict[str, Any], work: Path) -> Run | None:
    """Return the run behind a result or a filled cell, None if there is none on this machine."""
    path = work / result.get("run", "")
    return Run.open(path) if (path / "run.json").is_file() else None


def _models(table: Table) -> list[str]:
    return [entry.settings.get("model", "ikno-tp") for entry in entries(table) if entry.column is table.columns[0]]


def costs_file(table: Table, preset: Preset) -> str:
    """Return the name of the result of a table of costs."""
    return f"{table.name}-{fingerprint([preset.efficiency.model_dump(), _models(table)])[:12]}.json"


def _measure(table: Table, preset: Preset, place: Place, say: Say) -> None:
    """Measure all rows of a table of costs in turns, once."""
    file, sizes = costs_file(table, preset), preset.efficiency
    if load_result(place.out, file) is not None:
        return
    shape = Shape(points=sizes.points, batch=sizes.batch, grid=sizes.grid, device=place.device)
    rows = measure_efficiency(_models(table), shape, sizes.repeats, sizes.preset or preset.name, say=say)
    for row in rows:
        row["epoch_seconds"] = row["seconds"] * math.ceil(sizes.samples / sizes.batch)
    content = {"scale": preset.name, "shape": asdict(shape), "rows": rows, "machine": _machine(shape.device)}
    _store(place.out, file, json.dumps(content, indent=1))


def _machine(device: str) -> dict[str, Any]:
    """Return where and with what a result was made."""
    hardware = find_device(device)
    return {
        "device": torch.cuda.get_device_name(hardware) if hardware.type == "cuda" else hardware.type,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("ikno", "torch", "numpy")},
    }


def _store(out: Path, file: str, text: str) -> None:
    """Write a result; the folder of the results is made if it is not there."""
    with usable(out / "cells"):
        write_atomic(out / "cells" / file, text.encode())
