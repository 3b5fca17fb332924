"""Settings: typed, validated, frozen, and strict about names."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ikno.errors import UserError


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown keys, no NaN or infinite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def parse(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Return validated settings, or raise a one-line UserError with the dotted path and the nearest valid key."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join([where, *map(str, first["loc"])] if where else [str(p) for p in first["loc"]])
        if first["type"] == "extra_forbidden":
            raise UserError(f"{path}: no such setting; {suggest(str(first['loc'][-1]), kind.model_fields)}") from None
        message = first["msg"].removeprefix("Value error, ")
        found = "" if first["type"] == "missing" or isinstance(first["input"], dict) else f", found {first['input']!r}"
        raise UserError(f"{path + ': ' if path else ''}{message}{found}") from None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a phrase that names the nearest of the known names, or all of them."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
