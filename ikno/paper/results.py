"""Making the cells: data, training, evaluation, and one result file for each that says all about it."""

import fcntl
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ikno.comparison import Cell, Shape, Shown, evaluated, measure_efficiency, measured
from ikno.config import Config
from ikno.data.generate import Job, generate
from ikno.data.library import file_name
from ikno.data.problem import open_problem
from ikno.device import find_device
from ikno.errors import UserError
from ikno.evaluation import as_json
from ikno.paper.scales import Scale, Source, as_published, config_of, fingerprint, key_of, searched, source_of
from ikno.paper.tables import Entry, Table, entries
from ikno.runs import BusyError, Run, write_atomic
from ikno.training import Report, complete, search


@dataclass(frozen=True)
class Place:
    """Folders: of results (small, to be kept), of data and runs (large), of files that others released; the device."""

    out: Path
    work: Path
    released: Path | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Wanted:
    """One training that a table needs: a cell with one seed."""

    scale: Scale
    source: Source
    settings: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        return key_of(self.config(self.source.card.name), self.scale, self.source)

    def config(self, name: str, device: str = "cpu") -> Config:
        return config_of(self.source.card, self.scale, {**self.settings, "device": device}, self.seed, name)

    @property
    def file(self) -> str:
        """The name of its result, for people and by all that decides it."""
        model = self.settings.get("model", "ikno-tp")
        return f"{self.source.card.name}-{model}-seed{self.seed}-{self.key[:12]}.json"


def wanted(entry: Entry, scale: Scale, released: Path | None) -> list[Wanted]:
    """Return the trainings of a cell, one for each seed; raise a UserError if there is no data for them."""
    if entry.set is None:
        raise UserError(f"{entry.table.name}: {entry.name}: the table does not say which set it is for")
    source = source_of(entry.set, scale, released)
    seeds = min(entry.table.seeds or scale.seeds, scale.most_seeds)
    return [Wanted(scale, source, entry.settings, seed) for seed in range(seeds)]


def result_of(one: Wanted, out: Path) -> dict[str, Any] | None:
    """Return the stored result of a training, None if there is none or it is of another version of its data file."""
    found = load_result(out, one.file)
    size = one.source.size
    return None if found is None or (size is not None and found["source"]["bytes"] != size) else found


def load_result(out: Path, file: str) -> dict[str, Any] | None:
    """Return what is stored under a name, None if there is nothing."""
    path = out / "cells" / file
    try:
        return json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}); remove it, it will be made again") from None


def reproduce(
    tables: Sequence[Table],
    scale: Scale,
    place: Place,
    cells: Sequence[str] = (),
    show: Callable[[Shown], None] = lambda shown: None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Make all cells of the tables that have no result yet and return how many could not be made.

    A cell that another process is making is left to it. Interrupted training goes on with the next call.
    """
    jobs: dict[str, Wanted] = {}
    without: dict[str, int] = {}  # cells that have no data, by the reason
    measures = False
    for table in tables:
        chosen = list(entries(table, cells))
        if table.kind == "costs":
            if chosen:
                measures = True
                _measure(table, scale, place, say)
            continue
        for entry in chosen:
            try:
                for one in wanted(entry, scale, place.released):
                    jobs.setdefault(one.file, one)
            except UserError as error:
                without[str(error)] = without.get(str(error), 0) + 1
    if cells and not jobs and not without and not measures:
        raise UserError(f"cells: {', '.join(cells)} fits none of the tables; write ROW/COLUMN as their rows are named")
    for reason, count in without.items():
        say(f"{reason} ({count} cells)")
    missing = sum(without.values())
    left = {file: one for file, one in jobs.items() if result_of(one, place.out) is None}
    say(f"{len(jobs)} trainings, {len(jobs) - len(left)} of them done before")
    for number, (file, one) in enumerate(left.items(), 1):
        if result_of(one, place.out) is not None:  # another process was quicker
            continue
        label = f"{one.source.card.name}, {one.settings.get('model', 'ikno-tp')}, seed {one.seed}"
        try:
            made = make(one, place, lambda r, n=number, t=label: show(Shown(n, len(left), t, r)), say)
            write_atomic(_folder(place.out) / file, as_json(made).encode())
        except BusyError:
            missing += 1
            say(f"{label}: another process is training it")
        except UserError as error:
            missing += 1
            say(f"{label}: {error}")
    return missing


def make(
    one: Wanted,
    place: Place,
    report: Callable[[Report], None] = lambda report: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return the result of one training: all that is known of it as plain values."""
    config = as_published(one.config(data_name(one.source, place.work, say), place.device), one.source.card)
    problem = open_problem(config.data, config.seed)
    cell = Cell(complete(config, problem), problem.digest(), place.work / "runs" / one.source.card.name)
    speed: list[float] = []

    def noted(found: Report) -> None:
        speed.append(found.seconds_per_step)
        report(found)

    if searched(config, one.scale):
        done = evaluated(search(config, cell.path, report=lambda factor, found: noted(found)).run)
    else:
        done = measured(cell, noted)
    run, found = done.run, done.evaluation
    best = found["best"]["strategy"]
    return {
        "set": found["benchmark"],
        "scale": one.scale.name,
        "settings": one.settings,
        "seed": one.seed,
        "source": {**one.source.described(), "bytes": one.source.size},
        "label": found["label"],
        "metric": found["main_metric"],
        "error": found["best"]["value"],
        "validation": done.validation,
        "strategy": best,
        "metrics": found["metrics"][best],
        "rollouts": {s: m[found["main_metric"]] for s, m in found["metrics"].items()},
        "guesses": {name: m[found["main_metric"]] for name, m in found["baselines"].items()},
        "parameters": found["parameters"],
        "samples": [len(s) for s in (problem.train, problem.validation, problem.test)],
        "points": found["points"],
        "epochs": run.config.train.epochs,
        "steps": done.steps,
        "seconds": done.steps * fmean(speed) if speed else None,
        "run": str(run.path.relative_to(place.work)),
        "machine": _machine(config.device),
    }


def data_name(source: Source, work: Path, say: Callable[[str], None] = lambda text: None) -> str:
    """Return the card or file of a source; a generated one is made if it is not there yet, by one process at a time."""
    card = source.card
    if source.file is not None:
        return source.name if card.file is not None else str(source.file)
    folder = work / "data" / fingerprint(source.described())[:8]
    path = folder / file_name(card)
    with _alone(folder):
        if not path.exists():
            say(f"{card.name}: making {source.samples} samples")
            job = Job(card.name, tuple(source.options.items()), source.samples, 0)
            generate(job, path, os.cpu_count() or 1)
    return str(path)


def run_of(result: dict[str, Any], work: Path) -> Run | None:
    """Return the run behind a result, None if it is not on this machine."""
    path = work / result["run"]
    return Run.open(path) if (path / "run.json").is_file() else None


def costs_file(table: Table, scale: Scale) -> str:
    """Return the name of the result of a table of costs."""
    models = [row.settings["model"] for row in table.rows]
    return f"{table.name}-{fingerprint([scale.efficiency.model_dump(), models])[:12]}.json"


def _measure(table: Table, scale: Scale, place: Place, say: Callable[[str], None]) -> None:
    """Measure all rows of a table of costs in turns, once."""
    file, sizes = costs_file(table, scale), scale.efficiency
    if load_result(place.out, file) is not None:
        return
    shape = Shape(points=sizes.points, batch=sizes.batch, grid=sizes.grid, device=place.device)
    models = [row.settings["model"] for row in table.rows]
    rows = measure_efficiency(models, shape, sizes.repeats, sizes.preset or scale.name, say=say)
    for row in rows:
        row["epoch_seconds"] = row["seconds"] * math.ceil(sizes.samples / sizes.batch)
    content = {"scale": scale.name, "shape": asdict(shape), "rows": rows, "machine": _machine(shape.device)}
    write_atomic(_folder(place.out) / file, json.dumps(content, indent=1).encode())


def _machine(device: str) -> dict[str, Any]:
    """Return where and with what a result was made."""
    packages, found = {name: version(name) for name in ("ikno", "torch", "numpy")}, find_device(device)
    return {
        "device": torch.cuda.get_device_name(found) if found.type == "cuda" else found.type,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **packages,
    }


def _folder(out: Path) -> Path:
    """Return the folder of the results, which exists."""
    folder = out / "cells"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be used as a folder ({error.strerror}); choose another (--out)") from None
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is at work on a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another (--work)") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
