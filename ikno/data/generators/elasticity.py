"""Stress in an incompressible elastic unit cell with a random hole, clamped below and pulled at the top (Elasticity).

The published material is Rivlin-Saunders with C1 = 1.863e5 and C2 = 9.79e3. Under a traction of 100 strains are near
1e-4, so linear elasticity with shear modulus mu = 2 (C1 + C2) is enough, and its stress does not depend on mu.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy.sparse import block_array, csr_array
from scipy.sparse.linalg import splu
from scipy.spatial import KDTree

from ikno.data.generators import Generator
from ikno.data.records import Trajectory
from ikno.errors import require

Radius = Callable[[np.ndarray], np.ndarray]


def hole(coefficients: Float[np.ndarray, "modes 2"]) -> Radius:
    """Return r(theta) = .2 + .2 / (1 + exp(s(theta))), with s a Fourier series.

    s = sum over k of 4 (k^2 + 9)^-1/2 (a_k cos(k theta) + b_k sin(k theta)) / sqrt(pi), with the coefficients a and b.
    cos(k theta) / sqrt(pi) and sin(k theta) / sqrt(pi), k = 1, 2, ..., are orthonormal in L2(0, 2 pi), so standard
    normal a_k and b_k give s the covariance 4^2 (-lap + 3^2)^-1 on functions of mean zero.
    """
    k = np.arange(1, len(coefficients) + 1)
    a, b = (coefficients * (4 / np.sqrt(np.pi * (k**2 + 9)))[:, None]).T

    def radius(theta: np.ndarray) -> np.ndarray:
        phase = theta[..., None] * k
        return 0.2 + 0.2 / (1 + np.exp(np.cos(phase) @ a + np.sin(phase) @ b))

    return radius


def rays(side: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the angle of rays from the center; ``side`` is 0 to 4 once around from the lower right corner.

    Halfway between equal angles and equal steps along the square, which are too coarse and too fine in the corners.
    """
    t = 2 * (side % 1) - 1
    return np.pi / 2 * np.floor(side) + (t * np.pi / 4 + np.arctan(t)) / 2


def place(
    radius: Radius, side: Float[np.ndarray, " n"], depth: Float[np.ndarray, " n"], growth: float = 2.0
) -> Float[np.ndarray, "n 2"]:
    """Return points of the cell at ``side`` around and ``depth`` from the hole (0) to the square (1).

    Straight rays; cells of equal depth grow outward, the last over the first as ``growth``.
    """
    theta = rays(side)
    direction = np.stack([np.cos(theta), np.sin(theta)], -1)
    share = (growth**depth - 1) / (growth - 1)
    length = radius(theta) * (1 - share) + 0.5 / np.abs(direction).max(1) * share
    return 0.5 + direction * length[:, None]


def o_grid(
    radius: Radius, around: int, layers: int, growth: float = 2.0
) -> tuple[Float[np.ndarray, "n 2"], Int[np.ndarray, "triangles 3"]]:
    """Return vertices (by ray, on each from the hole outward) and triangles: grid cells cut at the shorter diagonal."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(around), np.arange(layers + 1), indexing="ij"))
    points = place(radius, 4 * i / around, j / layers, growth)
    i, j = (a.ravel() for a in np.meshgrid(np.arange(around), np.arange(layers), indexing="ij"))
    a, b = i * (layers + 1) + j, (i + 1) % around * (layers + 1) + j
    first = np.linalg.norm(points[a + 1] - points[b], axis=1) < np.linalg.norm(points[a] - points[b + 1], axis=1)
    lower = np.where(first, [a, a + 1, b], [a, a + 1, b + 1])
    upper = np.where(first, [a + 1, b + 1, b], [a, b + 1, b])
    return points, np.concatenate([lower.T, upper.T])


class Solution(NamedTuple):
    """Displacement times mu (quadratic) and pressure (linear) with their bases; ``force`` is that of the supports."""

    displacement: Float[np.ndarray, " a"]
    pressure: Float[np.ndarray, " b"]
    force: Float[np.ndarray, " a"]
    bases: tuple[Any, Any]


def solve(
    radius: Radius,
    around: int,
    layers: int,
    *,
    growth: float = 2.0,
    traction: float = 1.0,
    plane: Literal["strain", "stress"] = "strain",
    bottom: Literal["clamped", "roller"] = "clamped",
    imposed: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Solution:
    """Return the equilibrium div(2 mu eps(u) - p) = 0 with div u = 0, or div u = -p / (2 mu) in plane stress.

    The latter is incompressible too: the strain out of the plane is -div u, and the stress out of it 0.
    Taylor-Hood elements (P2/P1) on the O-grid, with curved edges through the middles of its map. The top is pulled
    upward by ``traction``, or ``imposed`` gives the displacement times mu of the whole boundary instead.
    """
    skfem, helpers = require("skfem", "solvers"), require("skfem.helpers", "solvers")
    points, triangles = o_grid(radius, around, layers, growth)
    flat = skfem.MeshTri(points.T.copy(), triangles.T.copy(), sort_t=False, validate=False)
    mesh = skfem.MeshTri2.from_mesh(flat)
    places = mesh.doflocs.copy()
    ray, layer = np.divmod(flat.facets, layers + 1)
    ray = ray.sum(0) + around * (np.ptp(ray, axis=0) > 1)  # twice the middle, also of edges that close the ring
    places[:, len(points) :] = place(radius, 2 * ray / around, layer.sum(0) / 2 / layers, growth).T
    mesh = skfem.MeshTri2(places, mesh.t, sort_t=False, validate=False)

    quadratic: Any = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementTriP2()), intorder=4)
    linear = quadratic.with_element(skfem.ElementTriP1())
    a = skfem.BilinearForm(lambda u, v, w: 2 * helpers.ddot(helpers.sym_grad(u), helpers.sym_grad(v)))
    b = skfem.BilinearForm(lambda u, q, w: -helpers.div(u) * q)
    c = skfem.BilinearForm(lambda p, q, w: -0.5 * p * q)
    A, B = a.assemble(quadratic), b.assemble(quadratic, linear)
    C = c.assemble(linear) if plane == "stress" else None
    K = csr_array(block_array([[A, B.T], [B, C]]))
    load, x = np.zeros(sum(B.shape)), np.zeros(sum(B.shape))
    upward = np.zeros(A.shape[0], bool)
    upward[quadratic.nodal_dofs[1]] = upward[quadratic.facet_dofs[1]] = True
    at = quadratic.doflocs
    if imposed is None:
        top = mesh.facets_satisfying(lambda x: x[1] > 1 - 1e-9, boundaries_only=True)
        load[: len(upward)] = skfem.LinearForm(lambda v, w: traction * v[1]).assemble(quadratic.boundary(top))
        below = at[1] < 1e-9
        corner = (at[0] < 1e-9) & below
        held = np.flatnonzero(below if bottom == "clamped" else below & upward | corner)
    else:
        held = quadratic.get_dofs().all()
        x[held] = np.where(upward[held], *imposed(at[:, held])[::-1])
        if plane == "strain":  # the pressure is known up to a constant only
            held = np.append(held, len(upward))
    free = np.setdiff1d(np.arange(len(x)), held)
    # K is symmetric, so order it as such and keep pivots on the diagonal: about half the fill-in of the default.
    order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}
    x[free] = splu(K[free][:, free].tocsc(), **order).solve((load - K @ x)[free])
    force = (K @ x - load)[: len(upward)]
    return Solution(x[: len(upward)], x[len(upward) :], force, (quadratic, linear))


def stress(solution: Solution) -> Float[np.ndarray, "n 3"]:
    """Return xx, yy and xy of 2 mu eps(u) - p at the vertices: the mean over the elements around, weighted by area."""
    skfem = require("skfem", "solvers")
    quadratic = solution.bases[0]
    corners = np.array([[0.0, 1, 0], [0, 0, 1]]), np.full(3, 1 / 6)
    basis = skfem.Basis(quadratic.mesh, quadratic.elem, quadrature=corners)
    gradient = basis.interpolate(solution.displacement).grad
    weights = np.broadcast_to(quadratic.dx.sum(1)[:, None], basis.dx.shape).ravel()
    vertices = quadratic.mesh.t.T.ravel()
    total = np.bincount(vertices, weights)
    parts = (2 * gradient[0, 0], 2 * gradient[1, 1], gradient[0, 1] + gradient[1, 0])
    strain = np.stack([np.bincount(vertices, weights * part.ravel()) / total for part in parts], -1)
    return strain - np.outer(solution.pressure, [1, 1, 0])


def von_mises(tensor: Float[np.ndarray, "n 3"], normal: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return sqrt(3/2 s:s), s the deviator of the stress xx, yy, xy in the plane and ``normal`` (zz) out of it."""
    xx, yy, xy = tensor.T
    return np.sqrt(((xx - yy) ** 2 + (yy - normal) ** 2 + (normal - xx) ** 2) / 2 + 3 * xy**2)


def distance(radius: Radius, points: Float[np.ndarray, "n 2"], count: int = 8192) -> Float[np.ndarray, " n"]:
    """Return the distance of points to the hole's curve, taken as a polygon of ``count`` segments."""
    theta = 2 * np.pi * np.arange(count) / count
    curve = 0.5 + radius(theta)[:, None] * np.stack([np.cos(theta), np.sin(theta)], -1)
    near = KDTree(curve).query(points)[1]
    found = []
    for end in (near - 1, (near + 1) % count):
        edge, gap = curve[end] - curve[near], points - curve[near]
        share = np.clip((gap * edge).sum(1) / (edge**2).sum(1), 0, 1)
        found.append(np.linalg.norm(gap - share[:, None] * edge, axis=1))
    return np.minimum(*found)


class Elasticity(Generator):
    """The von Mises stress (variable) and the distance to the hole (condition) at the vertices of each sample's O-grid.

    The solver has ``resolution`` grid cells along each side of the square. ``points`` = 4 m (l + 1) keeps an O-grid of
    m cells per side and l layers, the one with m / l closest to 27 / 8, and m must divide ``resolution``; 972 points
    (as released) are m = 27 and l = 8. The released data have ten coefficients per sample, so modes k = 1 to 5.

    Which stress: the published mean and standard deviation are 187.5 and 127.0. Over 24 samples, weighted by area,
    von Mises in plane stress has 184 and 122 and is taken; in plane strain (``plane`` = "strain") it has 157 and 106.
    Over the points of the O-grid, which are denser at the hole, they are 202 and 153, and 173 and 132;
    sigma_yy has 144 and 167 there. The stress is singular in the two clamped corners: at these two points it depends
    on the resolution.
    """

    resolution: PositiveInt = Field(default=27, ge=4)
    points: PositiveInt | None = 972
    modes: PositiveInt = 5
    traction: PositiveFloat = 100.0
    plane: Literal["strain", "stress"] = "stress"

    @model_validator(mode="after")
    def _kept_grid_is_nested(self) -> "Elasticity":
        m, _ = self.grid
        if self.resolution % m:
            raise ValueError(
                f"{self.points} points have {m} cells per side, which must divide the resolution, {self.resolution}"
            )
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """The cells per side and the layers of the O-grid that is kept."""
        if self.points is None:
            return self.resolution, max(2, round(self.resolution * 8 / 27))
        pairs = [(m, self.points // (4 * m) - 1) for m in range(1, self.points // 12 + 1) if self.points % (4 * m) == 0]
        if not pairs:
            raise ValueError(f"points must be 4 m (l + 1) with l > 1, found {self.points}; 972 is m = 27 and l = 8")
        return min(pairs, key=lambda pair: abs(np.log(pair[0] / pair[1] * 8 / 27)))

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        radius = hole(rng.standard_normal((self.modes, 2)))
        m, layers = self.grid
        finer = self.resolution // m
        solution = solve(radius, 4 * self.resolution, layers * finer, traction=self.traction, plane=self.plane)
        normal = -solution.pressure if self.plane == "strain" else np.zeros_like(solution.pressure)
        values = von_mises(stress(solution), normal)
        kept = np.arange(len(values)).reshape(4 * self.resolution, -1)[::finer, ::finer].ravel()
        kept = rng.permutation(kept)
        points = solution.bases[0].mesh.p.T[kept]
        return Trajectory(points, values[kept][None, :, None], distance(radius, points)[None, :, None])
