"""What a surrogate takes and gives, as plain settings that are kept with its weights."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from ikno.config import Settings


class Signature(Settings):
    """What a surrogate takes and gives: names of its channels, the box of its points, its times and mode.

    ``times`` are the first and the last time of the data, None for steady problems.
    """

    dim: PositiveInt
    variables: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    box: tuple[tuple[float, float], ...]
    coordinates: Literal["per axis", "one scale"] = "per axis"
    times: tuple[float, float] | None = None
    mode: Literal["direct", "residual", "derivative"] = "direct"
    model: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> "Signature":
        if len(self.box) != self.dim or any(a >= b for a, b in self.box):
            raise ValueError(f"the box needs lower < upper along each of {self.dim} axes, found {self.box}")
        if not self.variables:
            raise ValueError("a surrogate needs at least one variable")
        if self.steady and self.mode != "direct":
            raise ValueError(f"a steady problem has no {self.mode} target; use surrogate.mode=direct")
        if not isinstance(self.model.get("name"), str):
            raise ValueError("a model needs a name; `ikno models` lists them")
        return self

    @property
    def steady(self) -> bool:
        return self.times is None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input channels: u(t) of problems in time, then the conditions."""
        return self.conditions if self.steady else (*self.variables, *self.conditions)


def half_size(box: Sequence[tuple[float, float]], coordinates: str) -> tuple[float, ...]:
    """Return the length along each axis that becomes 1 in the coordinates of the model."""
    halves = tuple((high - low) / 2 for low, high in box)
    return (max(halves),) * len(halves) if coordinates == "one scale" else halves
