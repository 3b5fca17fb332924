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

    def inputs(self, start: int | None) -> Float[np.ndarray, "points channels"]:
        """Return the inputs of a model: u at the snapshot ``start`` (None if steady), then the conditions there."""
        channels = [self.values[0, :, :0] if start is None else self.values[start]]
        if self.conditions is not None:
            channels.append(self.conditions[start or 0 if len(self.conditions) > 1 else 0])
        return np.concatenate(channels, 1)
