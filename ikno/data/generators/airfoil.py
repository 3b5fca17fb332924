"""Transonic inviscid flow around perturbed airfoils: NACA0012, NACA2412 and RAE2822."""

from abc import abstractmethod
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Complex, Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ikno.data.generators import Generator, PositiveRange, Range
from ikno.data.generators.airfoil_flow import Flow, solve
from ikno.data.generators.airfoil_shape import Curve, bumped, is_sound, naca, pairs, rae2822, signed_distance
from ikno.data.records import Trajectory
from ikno.errors import UserError

BOX = ((-1.0, 2.5), (-1.5, 2.0))
MOST_DRAWS = 20
NAMES = ("density", "vx", "vy", "pressure")


class Case(NamedTuple):
    """A flow that converged, its shape, its angle of attack in degrees, and how many draws it took."""

    curve: Curve
    angle: float
    flow: Flow
    draws: int


def places(case: Case) -> tuple[Complex[np.ndarray, " n"], Float[np.ndarray, "n 4"]]:
    """Return the centers of the cells within the box and the middles of the wall's faces, with the state there."""
    points = np.concatenate([case.flow.center.ravel(), case.curve(case.flow.wall)])
    values = np.concatenate([case.flow.values.reshape(-1, 4), case.flow.surface])
    low, high = np.transpose(BOX)
    kept = ((pairs(points) > low) & (pairs(points) < high)).all(1)
    return points[kept], values[kept]


class Airfoil(Generator):
    """Density (variable) around an airfoil, with Mach number, angle of attack and signed distance as conditions.

    Each side of the airfoil is moved by ``bumps`` Hicks-Henne bumps with random heights in ``amplitude`` chords. The
    solver has ``resolution`` cells around and a quarter as many layers. ``points`` random ones are kept of the centers
    of the cells in the card's domain and the middles of the wall's faces, so they are dense where the grid is. The
    number of points, ranges and heights of the released data are not known. Density and speed of sound of the free
    stream are 1; ``variables`` may name velocity and pressure too. A flow that does not converge, or a shape whose
    sides come too close, is drawn again.
    """

    resolution: PositiveInt = Field(default=256, ge=32, multiple_of=16)
    points: PositiveInt | None = 8192
    mach: PositiveRange = (0.7, 0.88)
    angle: Range = (0.0, 4.0)
    bumps: PositiveInt = 4
    amplitude: Range = (-0.005, 0.005)
    radius: PositiveFloat = Field(default=50.0, ge=10)
    tolerance: PositiveFloat = Field(default=1e-5, lt=1)
    cycles: PositiveInt = 150
    variables: tuple[Literal["density", "vx", "vy", "pressure"], ...] = Field(default=("density",), min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> "Airfoil":
        most = self.resolution**2 // 8
        if self.points is None or self.points > most:
            raise ValueError(
                f"points must be at most {most} at resolution {self.resolution} (all samples have equally many), "
                f"found {self.points}"
            )
        if self.mach[1] >= 1:
            raise ValueError(f"mach must be below 1, found {list(self.mach)}")
        return self

    @property
    @abstractmethod
    def base(self) -> Curve:
        """The airfoil without bumps."""

    def solved(self, rng: np.random.Generator) -> Case:
        """Return the first random case whose flow converges, with the number of draws."""
        for draw in range(1, MOST_DRAWS + 1):
            mach, angle = rng.uniform(*self.mach), rng.uniform(*self.angle)
            upper, lower = rng.uniform(*self.amplitude, (2, self.bumps))
            curve = bumped(self.base, upper, lower)
            if not is_sound(curve):
                continue
            options = {"radius": self.radius, "tolerance": self.tolerance, "cycles": self.cycles}
            flow = solve(curve, mach, angle, self.resolution, self.resolution // 4, **options)
            if flow.converged:
                return Case(curve, angle, flow, draw)
        raise UserError(
            f"{type(self).__name__}: {MOST_DRAWS} random flows in a row did not converge; "
            f"use smaller amplitude = {list(self.amplitude)} or mach = {list(self.mach)}, or more cycles"
        )

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        case = self.solved(rng)
        points, values = places(case)
        kept = rng.permutation(len(points))[: self.points]
        points, values = points[kept], values[kept]
        conditions = np.empty((1, len(points), 3))
        conditions[..., 0], conditions[..., 1] = case.flow.mach, case.angle
        conditions[0, :, 2] = np.maximum(signed_distance(case.curve, points), 0)  # the wall's are 0 to rounding
        columns = [NAMES.index(name) for name in self.variables]
        return Trajectory(pairs(points), values[None, :, columns], conditions, draws=case.draws)


class NACA0012(Airfoil):
    """The symmetric NACA section of 12 % thickness."""

    @property
    def base(self) -> Curve:
        return naca()


class NACA2412(Airfoil):
    """The NACA section of 12 % thickness and 2 % camber at 40 % of the chord."""

    @property
    def base(self) -> Curve:
        return naca(camber=0.02, place=0.4)


class RAE2822(Airfoil):
    """The supercritical section RAE 2822."""

    @property
    def base(self) -> Curve:
        return rae2822()
