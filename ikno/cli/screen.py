"""What commands show: remarks, JSON, tables, and progress bars."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ikno.training import Report

STOPPED = 3  # exit code: stopped by a signal, saved, can be resumed


def say(text: str) -> None:
    """Print a remark on standard error."""
    print(text, file=sys.stderr)


def show_json(content: Any) -> None:
    """Print plain values as JSON."""
    print(json.dumps(content, indent=2))


def show_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", words: Sequence[str] | None = None
) -> None:
    """Print a table below its title; the columns in ``words`` are aligned left, all by default.

    Text is never cut, since paths are there to be copied: it is folded, in a file or pipe beyond 160 characters.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    if title:
        console.print(title, soft_wrap=True)
    table = Table(box=None)
    for name in header:
        table.add_column(name, justify="left" if words is None or name in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def first_process() -> bool:
    """Tell whether this is the one of several processes (torchrun) that prints."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress_bar(text: str = "") -> Iterator[Callable[..., None]]:
    """Yield a function of what is done and of how much, which shows a bar on standard error.

    It also takes another ``text`` to the left of the bar and another ``note`` to its right.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[note]}"))
    clocks = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bar = Progress(*columns, *clocks, console=Console(stderr=True))

    def show(done: int, total: int, text: str = text, note: str | None = None) -> None:
        note = f"{done}/{total}" if note is None else note
        if not bar.task_ids:
            bar.start()  # not before: without a task it leaves an empty line, also above an error
            bar.add_task(text, total=total, note=note)
        bar.update(bar.task_ids[0], completed=done, total=total, description=text, note=note)

    try:
        yield show
    finally:
        if bar.task_ids:
            bar.stop()


@contextmanager
def training_bar(stopped: str | None = None) -> Iterator[Callable[[str, "Report"], None]]:
    """Yield a function of a name, or "", and a Report that shows error, speed and time left.

    Training that is stopped ends the command, with its own message or the one given here.
    """
    from ikno.training import TrainingInterrupted

    try:
        with progress_bar() as update:

            def show(name: str, report: "Report") -> None:
                error = "" if report.validation is None else f", validation {report.validation:.2%}"
                text = (
                    f"{name}{': ' if name else ''}epoch {report.epoch}/{report.epochs}, loss {report.loss:.4f}{error}"
                )
                if first_process():
                    update(report.step, report.steps, text, f"{report.seconds_per_step:.2f} s/step")

            yield show
    except TrainingInterrupted as reason:
        print(stopped or reason, file=sys.stderr)
        raise typer.Exit(STOPPED) from None
