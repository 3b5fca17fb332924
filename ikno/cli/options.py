"""Options that several commands share."""

import json
from typing import Annotated, Any

import typer

from ikno.errors import UserError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, for instance grid_size=32 d_model=64.")
]


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
