"""The inputs and outputs of a surrogate, as plain settings that are stored with its weights."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from ikno.config import Settings


class Signature(Settings):
    """The inputs and outputs of a surrogate.

    Args:
        dim: The number of axes.
        variables: The names of the output channels.
        conditions: The names of the input channels beside u(t).
        box: Lower and upper end of each axis.
        coordinates: Whether each axis is mapped to [-1, 1] on its own, or all with one scale.
        times: The first and the last time of the data, None for steady problems.
        mode: Whether u(t + lead), its change or its rate of change is learned.
        model: The name and the settings of the model.
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
