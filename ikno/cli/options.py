"""Options that several commands share, and the words of a command line."""

import json
from contextlib import suppress
from typing import Annotated, Any

import typer

from ikno.errors import UserError

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
Points = Annotated[int | None, typer.Option(min=1, help="Another number of points per sample.")]

SETTING = "a setting; write key=value, for instance grid_size=32"


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
