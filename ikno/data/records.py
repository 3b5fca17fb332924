"""One simulation in physical units."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Trajectory:
    """One simulation as stored: values (solution) and conditions (known coefficients) at points, at some times.

    Steady problems have one time. Conditions without a time of their own hold at all times. Points on a surface may
    have the areas they stand for, and the triangles between them for pictures. ``draws`` is how many random cases it
    took, where cases can fail and are drawn again.
    """

    points: Float[np.ndarray, "points dim"]
    values: Float[np.ndarray, "times points variables"]
    conditions: Float[np.ndarray, "_ points conditions"] | None = None
    areas: Float[np.ndarray, " points"] | None = None
    triangles: Int[np.ndarray, "triangles 3"] | None = None
    draws: int | None = None
