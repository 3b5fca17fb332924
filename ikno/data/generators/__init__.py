"""Makers of samples, one partial differential equation per file.

``GENERATORS`` names what can be made and loads it when it is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, PositiveFloat, PositiveInt

from ikno.config import Settings
from ikno.data.catalog import MADE_BY
from ikno.data.records import Trajectory
from ikno.registry import Registry


def _ordered(limits: tuple) -> tuple:
    if limits[0] > limits[1]:
        raise ValueError(f"a range is [lower, upper], found {list(limits)}")
    return limits


# What a random number is drawn from.
Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
PositiveRange = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_ordered)]
CountRange = Annotated[tuple[PositiveInt, PositiveInt], AfterValidator(_ordered)]


class Generator(Settings, ABC):
    """A problem to be solved for random data: its settings are its parameters, and are stored with what it makes.

    ``resolution`` is that of the solver (grid points along an axis, or what the docstring of the problem says) and
    ``points`` how many points are kept at most, None for all.
    """

    resolution: PositiveInt
    points: PositiveInt | None = None

    @property
    def times(self) -> tuple[float, ...]:
        """The times of the snapshots; a single 0 for steady problems."""
        return (0.0,)

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"] | None:
        """Return the points that all samples share, None if each has its own."""
        return None

    @abstractmethod
    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        """Return one simulation; all its randomness comes from ``rng``."""


def grid_cloud(
    resolution: int, points: int | None, rng: np.random.Generator, periodic: bool
) -> Float[np.ndarray, "points 2"]:
    """Return points of the regular grid on the unit square in random order, the first ``points`` of them.

    Periodic grids have their points at i / resolution, others at i / (resolution - 1).
    """
    steps = np.arange(resolution) / (resolution if periodic else resolution - 1)
    grid = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
    return grid[rng.permutation(len(grid))[:points]]


def at_cloud(
    field: Float[np.ndarray, "*lead n n"], cloud: Float[np.ndarray, "points 2"], periodic: bool
) -> Float[np.ndarray, "*lead points"]:
    """Return the values of a field on that grid (first axis x, second y) at points that belong to it."""
    n = field.shape[-1]
    index = np.rint(cloud * (n if periodic else n - 1)).astype(int)
    return field[..., index[:, 0], index[:, 1]]


def _class(place: str) -> Callable[[], type[Generator]]:
    module, _, name = place.partition(".")
    return lambda: getattr(import_module(f"{__name__}.{module}"), name)


# Functions () -> the class of a generator; that of a benchmark has its name.
GENERATORS: Registry[Callable[[], type[Generator]]] = Registry(
    "generator", "data", {name: _class(place) for name, place in MADE_BY.items()}
)
