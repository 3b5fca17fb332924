"""Options that several commands share, and the progress of training."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ikno.errors import UserError

if TYPE_CHECKING:
    from ikno.training import Report

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Target = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME|CARD|FILE|CONFIG|KEY=VALUE",
        help="A benchmark, a card or config (.toml) or a data file; then settings, for instance model=ikno-vanilla "
        "preset=paper train.epochs=40 model.grid_size=32.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0 or auto.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, for instance grid_size=32 d_model=64.")
]

STOPPED = 3  # exit code: stopped by a signal, saved, can be resumed


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Return ``key=value`` strings as a dictionary; values are JSON where they parse as such (32, true, [24,32])."""
    values: dict[str, Any] = {}
    for item in items:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise UserError(f"{item!r} is not a setting; write key=value, for instance grid_size=32")
        try:
            values[key] = json.loads(text)
        except json.JSONDecodeError:
            values[key] = text
    return values


def parse_numbers(items: list[str]) -> dict[str, float]:
    """Return ``name=number`` strings as a dictionary."""
    values = {}
    for item in items:
        name, separator, text = item.rpartition("=")
        try:
            values[name] = float(text)
        except ValueError:
            separator = ""
        if not separator or not name:
            raise UserError(f"{item!r} is not an input; write name=number, for instance Mach=0.82")
    return values


def target(what: list[str] | None) -> tuple[str | None, dict[str, Any]]:
    """Return the name, if the first word is one, and the settings that follow."""
    words = list(what or [])
    name = words.pop(0) if words and "=" not in words[0] else None
    settings = parse_overrides(words)
    if ":" in str(settings.get("model", "")):
        settings["model"] = model_name(settings["model"])
    return name, settings


def model_name(text: str) -> str:
    """Return the name of a model, also of one of your own that is given as ``package.module:Class``."""
    if ":" not in text:
        return text
    from ikno.models import name_of

    return name_of(text)


def first_process() -> bool:
    """Tell whether this is the one of several processes (torchrun) that speaks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def training_bar(stopped: str | None = None) -> Iterator[Any]:
    """Yield a function that shows a Report: error, speed and time left.

    Training that is stopped ends the command, with its own message or the one given here.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from ikno.training import TrainingInterrupted

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[speed]}"))
    bar = Progress(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True)
    )

    def show(prefix: str, report: "Report") -> None:
        error = "" if report.validation is None else f", validation {report.validation:.2%}"
        text = f"{prefix}epoch {report.epoch}/{report.epochs}, loss {report.loss:.4f}{error}"
        speed = f"{report.seconds_per_step:.2f} s/step"
        if not first_process():
            return
        if not bar.task_ids:
            bar.start()  # not before: without a task it leaves an empty line, also above an error
            bar.add_task(text, total=report.steps, speed=speed)
        bar.update(bar.task_ids[0], completed=report.step, total=report.steps, description=text, speed=speed)

    try:
        try:
            yield show
        finally:
            if bar.task_ids:
                bar.stop()
    except TrainingInterrupted as reason:
        print(stopped or reason, file=sys.stderr)
        raise typer.Exit(STOPPED) from None
