"""Poisson's equation and the wave equation on a disc for sums of sines (Poisson-C-Sines, Wave-C-Sines).

The disc has center (.5, .5) and radius 1. Its points are the nodes of a mesh of concentric rings.
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from scipy.sparse import csr_matrix, diags

from ikno.data.generators import Generator
from ikno.data.records import Trajectory
from ikno.errors import require

CENTER = 0.5


def ring_points(n: int) -> Float[np.ndarray, "nodes 2"]:
    """Return the center and n rings of nodes, ring k = 1..n with radius k / n and 6 k equal steps: 1 + 3 n (n + 1)."""
    k = np.repeat(np.arange(1, n + 1), 6 * np.arange(1, n + 1))
    j = np.arange(len(k)) - 3 * k * (k - 1)
    angle = np.pi * j / (3 * k)
    rings = np.stack([np.cos(angle), np.sin(angle)], 1) * (k / n)[:, None]
    return np.concatenate([np.zeros((1, 2)), rings]) + CENTER


def ring_nodes(points: Float[np.ndarray, "points 2"], n: int) -> Int[np.ndarray, "points"]:
    """Return which of the nodes of n rings the points are: number 1 + 3 k (k - 1) + j is the j-th of ring k."""
    x, y = (points - CENTER).T
    k = np.rint(n * np.hypot(x, y)).astype(int)
    j = np.rint(np.arctan2(y, x) * 3 * k / np.pi).astype(int) % np.maximum(6 * k, 1)
    return np.where(k == 0, 0, 1 + 3 * k * (k - 1) + j)


def ring_triangles(n: int) -> Int[np.ndarray, "triangles 3"]:
    """Return the nodes of the triangles between the rings, 6 (2 k - 1) between the rings k - 1 and k.

    Each sixth of the disc is a bent equilateral triangle: step j of ring k faces node j of ring k - 1.
    """
    found = []
    for k in range(1, n + 1):
        sector, j = (a.ravel() for a in np.meshgrid(np.arange(6), np.arange(k), indexing="ij"))
        first = 1 + 3 * k * (k - 1)
        outer, after = first + sector * k + j, first + (sector * k + j + 1) % (6 * k)
        if k == 1:
            found.append(np.stack([outer, after, np.zeros_like(outer)], 1))
            continue
        size = 6 * (k - 1)
        inner = first - size + (sector * (k - 1) + j) % size
        follow = first - size + (sector * (k - 1) + j + 1) % size
        inside = j < k - 1
        found += [np.stack([outer, after, inner], 1), np.stack([inner, after, follow], 1)[inside]]
    return np.concatenate(found)


@lru_cache(maxsize=4)
def operators(n: int) -> tuple[Float[np.ndarray, "nodes"], csr_matrix]:
    """Return the lumped mass (its diagonal) and the stiffness of linear finite elements on n rings, all nodes."""
    skfem, models = require("skfem", "solvers"), require("skfem.models.poisson", "solvers")
    mesh = skfem.MeshTri(*(np.ascontiguousarray(a.T) for a in (ring_points(n), ring_triangles(n))))
    basis = skfem.Basis(mesh, skfem.ElementTriP1())
    mass = models.mass.assemble(basis) @ np.ones(mesh.nvertices)
    return mass, csr_matrix(models.laplace.assemble(basis))


def wave(
    u: Float[np.ndarray, "nodes"], n: int, speed: float, step: float, count: int, substeps: int | None = None
) -> Float[np.ndarray, "{count}+1 nodes"]:
    """Return u at the times 0, step, .., count step for u_tt = speed^2 lap u, at rest at first, u = 0 on the circle.

    Leap-frog for the lumped elements, M (u+ - 2 u + u-) = -(speed dt)^2 K u, with ``substeps`` per step. By default
    they are as few as 4 > (speed dt)^2 max_i sum_j |K_ij| / M_i allows, a bound on the eigenvalues: a longer step is
    not only faster but more accurate, since what leap-frog adds to the phase, the elements take off it.
    """
    mass, stiffness = operators(n)
    inner = len(mass) - 6 * n  # the last ring is the circle
    scaled = (diags(1 / mass[:inner]) @ stiffness[:inner, :inner]).tocsr()
    scaled.sort_indices()  # else some operations would, and change the order of the sums
    if substeps is None:
        substeps = int(step * speed * np.sqrt(abs(scaled).sum(1).max()) / 2) + 1
    scaled *= (speed * step / substeps) ** 2
    found = np.zeros((count + 1, len(mass)))
    now = u[:inner].copy()
    before = now - scaled @ now / 2  # u(-dt) = u(dt) for a start at rest
    found[0, :inner] = now
    for snapshot in found[1:]:
        for _ in range(substeps):
            now, before = 2 * now - before - scaled @ now, now
        snapshot[:inner] = now
    return found


def sines(
    weights: Float[np.ndarray, "*fields k k"], points: Float[np.ndarray, "points 2"]
) -> Float[np.ndarray, "*fields points"]:
    """Return sum_ij w_ij sin(pi i x) sin(pi j y), i and j from 1, at the points."""
    i = np.pi * np.arange(1, weights.shape[-1] + 1)
    x, y = np.sin(points[:, :1] * i), np.sin(points[:, 1:] * i)
    return ((x @ weights) * y).sum(-1)


def harmonic(circle: Float[np.ndarray, "m"], points: Float[np.ndarray, "points 2"]) -> Float[np.ndarray, "points"]:
    """Return the harmonic function in the disc with the given values at m equal steps on its circle.

    Re(c_0 + 2 sum_k c_k z^k) with the Fourier coefficients c_k on the circle, k < m / 2, by Horner's rule.
    """
    m = len(circle)
    c = np.fft.rfft(circle)[: (m + 1) // 2] / m
    c[1:] *= 2
    z = (points - CENTER) @ np.array([1, 1j])
    total = np.full(len(z), c[-1])
    for ck in c[-2::-1]:
        total *= z
        total += ck
    return np.real(total)


def poisson(
    weights: Float[np.ndarray, "k k"], points: Float[np.ndarray, "points 2"]
) -> tuple[Float[np.ndarray, "points"], Float[np.ndarray, "points"]]:
    """Return u and f at the points for -lap u = f = sum_ij w_ij sin(pi i x) sin(pi j y), u = 0 on the circle.

    u is sum_ij w_ij / (pi^2 (i^2 + j^2)) sin sin minus the harmonic function equal to it on the circle. The Fourier
    coefficients of a wave on the circle are Bessel functions J_m(|wave vector|), below rounding long before the last
    kept m = 2 |wave vector| + 32.
    """
    k = np.arange(1, len(weights) + 1)
    particular = weights / (np.pi**2 * (k[:, None] ** 2 + k**2))
    modes = int(2 * np.sqrt(2) * np.pi * len(k)) + 33
    angle = np.pi * np.arange(2 * modes) / modes
    circle = CENTER + np.stack([np.cos(angle), np.sin(angle)], 1)
    f, u = sines(np.stack([weights, particular]), points)
    return u - harmonic(sines(particular, circle), points), f


class DiscSines(Generator):
    """Random sums (pi / K^2) sum_ij a_ij (i^2 + j^2)^-r sin(pi i x) sin(pi j y), a_ij ~ U[-1,1], i and j to K = terms.

    ``resolution`` is the number of rings of the cloud, which has 1 + 3 n (n + 1) points.
    """

    resolution: PositiveInt = 73
    terms: PositiveInt
    decay: float

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"]:
        nodes = ring_points(self.resolution)
        return nodes[rng.permutation(len(nodes))[: self.points]]

    def weights(self, rng: np.random.Generator) -> Float[np.ndarray, "k k"]:
        """Return the factors of the sines."""
        k = np.arange(1.0, self.terms + 1)
        scale = np.pi / self.terms**2 * (k[:, None] ** 2 + k**2) ** -self.decay
        return scale * rng.uniform(-1, 1, scale.shape)


class PoissonCSines(DiscSines):
    """-lap u = f on the disc, u = 0 on the circle, f a sum of sines with K = 16 and r = -.5; the solution is exact."""

    terms: PositiveInt = 16
    decay: float = -0.5

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        u, f = poisson(self.weights(rng), cloud)
        return Trajectory(cloud, u[None, :, None], f[None, :, None])


class WaveCSines(DiscSines):
    """u_tt = speed^2 lap u on the disc, u = 0 on the circle, u_t = 0 at first, u(0) a sum of sines, K = 10 and r = .5.

    The sum is not 0 on the circle: there its values are replaced by 0 from the start. The mesh of the solver has
    ``refine`` times the rings of the cloud, whose points are among its nodes.
    """

    terms: PositiveInt = 10
    decay: float = 0.5
    refine: PositiveInt = 2
    speed: PositiveFloat = 2.0
    duration: PositiveFloat = 0.1
    snapshots: PositiveInt = Field(default=21, ge=2)

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(np.linspace(0, self.duration, self.snapshots).tolist())

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        n, count = self.refine * self.resolution, self.snapshots - 1
        u = wave(sines(self.weights(rng), ring_points(n)), n, self.speed, self.duration / count, count)
        return Trajectory(cloud, u[:, ring_nodes(cloud, n), None])
