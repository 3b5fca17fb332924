"""What several commands share: options, the words of a command line, printed tables, and progress bars."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
Checkpoint = Annotated[str, typer.Option(help="The checkpoint: best or last.")]
Data = Annotated[str | None, typer.Option(help="Other data than the run's: a name, card or file.")]
Points = Annotated[int | None, typer.Option(min=1, help="Another number of points.")]

SETTING = "a setting; write key=value, for instance grid_size=32"
STOPPED = 3  # exit code: stopped by a signal, saved, can be resumed


def parse_overrides(words: list[str], remedy: str = SETTING) -> dict[str, Any]:
    """Return ``key=value`` words as a dictionary; values are JSON where they parse as such (32, true, [24,32])."""
    values: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise UserError(f"{word!r} is not {remedy}")
        with suppress(json.JSONDecodeError):
            text = json.loads(text)
        values[key] = text
    return values


def parse_inputs(words: list[str]) -> dict[str, float]:
    """Return ``name=number`` words as a dictionary."""
    remedy = "an input; write name=number, for instance Mach=0.82"
    values = {}
    for name, value in parse_overrides(words, remedy).items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"'{name}={value}' is not {remedy}") from None
    return values


def split(text: str) -> list[str]:
    """Return the words of a text that commas separate."""
    return [name for word in text.split(",") if (name := word.strip())]


def split_numbers(text: str, option: str) -> list[float]:
    """Return the numbers that are the value of an option, separated by commas."""
    try:
        return [float(word) for word in split(text)]
    except ValueError:
        raise UserError(f"{option}: numbers separated by commas are needed, found {text!r}") from None


def read_words(words: list[str] | None, device: str | None = None) -> tuple[str | None, dict[str, Any]]:
    """Return the name, if the first word is one, and the settings that follow; ``--device`` is one of them."""
    words = list(words or [])
    name = words.pop(0) if words and "=" not in words[0] else None
    settings = parse_overrides(words) | ({} if device is None else {"device": device})
    if isinstance(settings.get("model"), str):
        settings["model"] = model_name(settings["model"])
    return name, settings


def read_target(words: list[str] | None, purpose: str, device: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a command that needs a name."""
    name, settings = read_words(words, device)
    if name is None:
        raise UserError(f"what to {purpose} is missing; name a benchmark (`ikno data list`), a card or a data file")
    return name, settings


def model_name(text: str) -> str:
    """Return the name of a model, also of one of your own that is given as ``package.module:Class``."""
    if ":" not in text:
        return text
    from ikno.models import name_of

    return name_of(text)


def say(text: str) -> None:
    """Print a remark on standard error."""
    print(text, file=sys.stderr)


def print_json(content: Any) -> None:
    """Print plain values as JSON."""
    print(json.dumps(content, indent=2))


def print_table(
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
    """Yield a function of a prefix and a Report that shows error, speed and time left.

    Training that is stopped ends the command, with its own message or the one given here.
    """
    from ikno.training import Stopped

    try:
        with progress_bar() as update:

            def show(prefix: str, report: "Report") -> None:
                error = "" if report.validation is None else f", validation {report.validation:.2%}"
                text = f"{prefix}epoch {report.epoch}/{report.epochs}, loss {report.loss:.4f}{error}"
                if first_process():
                    update(report.step, report.steps, text, f"{report.seconds_per_step:.2f} s/step")

            yield show
    except Stopped as reason:
        print(stopped or reason, file=sys.stderr)
        raise typer.Exit(STOPPED) from None
