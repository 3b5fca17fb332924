"""Poisson's equation -lap u = f on the unit square, u = 0 on the boundary, f a sum of Gaussians (Poisson-Gauss)."""

import numpy as np
from jaxtyping import Float
from pydantic import Field, PositiveInt
from scipy.fft import dstn, idstn

from ikno.data.generators import Generator, PositiveRange, at_cloud, grid_cloud
from ikno.data.records import Trajectory


def solve(f: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return u with -lap u = f and u = 0 on the boundary, both on the grid i / (n - 1) with its boundary.

    Spectral: f is expanded in sin(pi i x) sin(pi j y), the eigenfunctions, with eigenvalues pi^2 (i^2 + j^2).
    """
    n = f.shape[0] - 1
    k = np.arange(1, n)
    values = np.pi**2 * (k[:, None] ** 2 + k**2)
    u = np.zeros_like(f)
    u[1:-1, 1:-1] = idstn(dstn(f[1:-1, 1:-1], type=1) / values, type=1)
    return u


class PoissonGauss(Generator):
    """f = sum of N ~ Geometric(.4) unit Gaussians with centers U[0,1]^2 and widths s ~ U[.025,.1].

    The solver has ``resolution`` points per axis, boundary included.
    """

    resolution: PositiveInt = Field(default=129, ge=8)
    points: PositiveInt | None = 9216
    chance: float = Field(default=0.4, gt=0, le=1)
    width: PositiveRange = (0.025, 0.1)

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"]:
        return grid_cloud(self.resolution, self.points, rng, periodic=False)

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        count = rng.geometric(self.chance)
        centers, widths = rng.uniform(0, 1, (count, 2)), rng.uniform(*self.width, count)
        x = np.linspace(0, 1, self.resolution)
        f = np.zeros((self.resolution, self.resolution))
        for (a, b), s in zip(centers, widths, strict=True):
            f += np.exp(-((x - a) ** 2) / (2 * s**2))[:, None] * np.exp(-((x - b) ** 2) / (2 * s**2))
        fields = at_cloud(np.stack([solve(f), f]), cloud, periodic=False)
        return Trajectory(cloud, fields[0][None, :, None], fields[1][None, :, None])
