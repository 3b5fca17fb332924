"""Steady compressible flow around an airfoil: finite volumes, implicit Gauss-Seidel relaxation and multigrid.

Lengths are in chords, density and speed of sound in those of the free stream, so that its pressure is 1 / gamma.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float

from ikno.data.generators import airfoil_loops as loops
from ikno.data.generators.airfoil_grid import conformal, spaced
from ikno.data.generators.airfoil_loops import GAMMA
from ikno.data.generators.airfoil_shape import Curve

SOFTNESS = 8.0  # differences below (SOFTNESS h)^1.5 are not limited, h the size of a cell in chords
COURANT = 20.0
PATIENCE = 25  # cycles in which the residual must be halved, or steps become smaller
SWEEPS = 2  # symmetric ones, in each implicit step
CENTER = 0.25  # the far field is that of a vortex here

State = Float[np.ndarray, "layers around 4"]
Rim = Float[np.ndarray, "around 4"]
Rims = Float[np.ndarray, "_ 4"]


class Level(NamedTuple):
    """A grid with corners z [layer, around], its faces and cells, and room for what is computed on it."""

    z: Complex[np.ndarray, "_ around"]
    across: Float[np.ndarray, "layers around 3"]
    along: Float[np.ndarray, "_ around 3"]
    volume: Float[np.ndarray, "layers around 1"]
    center: Complex[np.ndarray, "layers around"]
    rim: Complex[np.ndarray, " around"]
    height: Float[np.ndarray, " around"]
    curvature: Float[np.ndarray, " around"]
    soft: Float[np.ndarray, "layers around"]
    w: Float[np.ndarray, "_ around 4"]
    r: State
    d: State
    rows: Float[np.ndarray, "5 around 4"]
    facei: Float[np.ndarray, "layers around 7"]
    facej: Float[np.ndarray, "_ around 7"]
    inverse: Float[np.ndarray, "layers around 4 4"]


class Flow(NamedTuple):
    """A solution: primitive variables (rho, u, v, p) in the cells and at the middles of the wall's faces.

    ``wall`` has the parameters t of these middles on the curve. ``history`` is the norm of the residual after each
    cycle on the finest grid, in that of the undisturbed stream.
    """

    z: Complex[np.ndarray, "_ around"]
    center: Complex[np.ndarray, "layers around"]
    values: State
    wall: Float[np.ndarray, " around"]
    surface: Rim
    mach: float
    lift: float
    drag: float
    history: tuple[float, ...]
    converged: bool

    @property
    def pressure_coefficient(self) -> Float[np.ndarray, " around"]:
        """The wall's (p - p_inf) / (rho_inf v_inf^2 / 2)."""
        return (self.surface[:, 3] - 1 / GAMMA) / (0.5 * self.mach**2)


def _faces(normal: Complex[np.ndarray, "n m"]) -> Float[np.ndarray, "n m 3"]:
    size = abs(normal)
    return np.stack([np.real(normal) / size, np.imag(normal) / size, size], -1)


def level(z: Complex[np.ndarray, "n m"], curvature: Float[np.ndarray, " m"]) -> Level:
    """Return the faces and cells of a grid; ``curvature`` is that of the wall at the middles of its faces."""
    after = np.roll(z, -1, 1)
    layers, around = z.shape[0] - 1, z.shape[1]
    along = _faces(-1j * (after - z))
    volume = abs(np.imag((after[1:] - z[:-1]).conj() * (after[:-1] - z[1:]))) / 2
    center = (z[1:] + z[:-1] + after[1:] + after[:-1]) / 4
    outward = along[0, :, 0] + 1j * along[0, :, 1]
    rings = (z + after) / 2
    return Level(
        z=z,
        across=_faces(1j * (z[1:] - z[:-1])),
        along=along,
        volume=volume[..., None],
        center=center,
        rim=1.5 * rings[-1] - 0.5 * rings[-2],
        height=2 * ((center[0] - rings[0]) * outward.conj()).real,
        curvature=curvature,
        soft=(SOFTNESS**2 * volume) ** 1.5,
        w=np.empty((layers + 2, around, 4)),
        r=np.empty((layers, around, 4)),
        d=np.empty((layers, around, 4)),
        rows=np.empty((5, around, 4)),
        facei=np.empty((layers, around, 7)),
        facej=np.empty((layers + 1, around, 7)),
        inverse=np.empty((layers, around, 4, 4)),
    )


def levels_of(
    curve: Curve, around: int, layers: int, radius: float
) -> tuple[list[Level], Float[np.ndarray, " around"]]:
    """Return the grid of an airfoil and those with half the cells along each axis, and t at the wall's faces."""
    mapped = conformal(curve)
    theta, sigma = spaced(around, layers, radius)
    corners = np.append(mapped.wall(theta[1:]), 2 * np.pi)
    t = (corners + np.append(0, corners[:-1])) / 2
    h = 1e-3
    before, here, after = curve(t - h), curve(t), curve(t + h)
    first, twice = (after - before) / (2 * h), (after - 2 * here + before) / h**2
    levels = [level(mapped(theta, sigma).T.copy(), (first.conj() * twice).imag / abs(first) ** 3)]
    while around % 2 == 0 and layers % 2 == 0 and layers > 4:
        around, layers, last = around // 2, layers // 2, levels[-1]
        levels.append(level(last.z[::2, ::2].copy(), last.curvature.reshape(-1, 2).mean(1)))
    return levels, t


def far_field(z: Complex[np.ndarray, " n"], mach: float, angle: float, lift: float) -> Float[np.ndarray, "n 4"]:
    """Return the free stream with the compressible vortex of a lift (Thomas and Salas, AIAA J. 24, 1986).

    Its speed is lift v_inf beta / (4 pi r (1 - M^2 sin^2(phi - angle))), beta^2 = 1 - M^2, at (r, phi) from the
    quarter chord; density and pressure follow from constant entropy and total enthalpy.
    """
    r, phi = abs(z - CENTER), np.angle(z - CENTER)
    swirl = lift * mach * np.sqrt(1 - mach**2) / (4 * np.pi * r) / (1 - (mach * np.sin(phi - angle)) ** 2)
    u, v = mach * np.cos(angle) + swirl * np.sin(phi), mach * np.sin(angle) - swirl * np.cos(phi)
    heat = 1 + (GAMMA - 1) / 2 * (mach**2 - u**2 - v**2)
    return np.stack([heat ** (1 / (GAMMA - 1)), u, v, heat ** (GAMMA / (GAMMA - 1)) / GAMMA], -1)


def conserved(w: Float[np.ndarray, "*cells 4"]) -> Float[np.ndarray, "*cells 4"]:
    """Return (rho, rho u, rho v, E) of (rho, u, v, p), with E = p / (gamma - 1) + rho (u^2 + v^2) / 2."""
    rho, u, v, p = np.moveaxis(w, -1, 0)
    return np.stack([rho, rho * u, rho * v, p / (GAMMA - 1) + rho * (u * u + v * v) / 2], -1)


def residual(grid: Level, u: State, far: Rim, second: bool) -> State:
    """Return the fluxes out of the cells (in room of the level), which vanish in a steady flow."""
    if not loops.primitive(u, grid.w, far, grid.height, grid.curvature, grid.along):
        raise FloatingPointError("a density or pressure is not positive")
    loops.residual(grid.w, grid.across, grid.along, grid.soft, grid.height, grid.curvature, second, grid.rows, grid.r)
    return grid.r


def relax(grid: Level, u: State, far: Rim, second: bool, forcing: State | None, courant: float) -> None:
    """Change u by one implicit step towards residual + forcing = 0: the Jacobian is of first order, solved roughly."""
    r = residual(grid, u, far, second)
    if forcing is not None:
        r += forcing
    loops.prepare(grid.w, grid.across, grid.along, courant, grid.facei, grid.facej, grid.inverse)
    loops.sweep(r, grid.across, grid.along, grid.facei, grid.facej, grid.inverse, SWEEPS, grid.d)
    loops.step(u, grid.d, grid.w)


def merged(a: Float[np.ndarray, "n m k"]) -> Float[np.ndarray, "_ _ k"]:
    """Return sums over blocks of two by two cells."""
    n, m, k = a.shape
    return a.reshape(n // 2, 2, m // 2, 2, k).sum((1, 3))


def refined(a: Float[np.ndarray, "n m k"]) -> Float[np.ndarray, "_ _ k"]:
    """Return values on a grid of twice the cells along each axis, bilinear in the indices."""
    n, m, k = a.shape
    below, above = np.concatenate([a[:1], a[:-1]]), np.concatenate([a[1:], a[-1:]])
    a = np.stack([0.75 * a + 0.25 * below, 0.75 * a + 0.25 * above], 1).reshape(2 * n, m, k)
    before, after = np.roll(a, 1, 1), np.roll(a, -1, 1)
    return np.stack([0.75 * a + 0.25 * before, 0.75 * a + 0.25 * after], 2).reshape(2 * n, 2 * m, k)


def cycle(
    levels: list[Level], fars: list[Rims], u: State, forcing: State | None, courant: float, finest: bool = True
) -> None:
    """Change u by one W-cycle of the full approximation scheme: of second order on the finest grid, first below."""
    grid = levels[0]
    relax(grid, u, fars[0], finest, forcing, courant)
    if len(levels) > 1:
        r = residual(grid, u, fars[0], finest)
        if forcing is not None:
            r += forcing
        start = merged(u * grid.volume) / merged(grid.volume)
        coarse = start.copy()
        rest = merged(r) - residual(levels[1], coarse, fars[1], False)
        for _ in range(2):
            cycle(levels[1:], fars[1:], coarse, rest, courant, False)
        loops.step(u, refined(coarse - start), grid.w)
    relax(grid, u, fars[0], finest, forcing, courant)


def forces(grid: Level, mach: float, angle: float) -> tuple[float, float]:
    """Return the coefficients of lift and drag, from the pressure on the wall after a residual was computed."""
    p = loops.surface(grid.w, grid.height, grid.curvature, grid.along, True)
    normal = (grid.along[0, :, 0] + 1j * grid.along[0, :, 1]) * grid.along[0, :, 2]
    force = -((p - 1 / GAMMA) * normal).sum() / (0.5 * mach**2) * np.exp(-1j * angle)
    return float(force.imag), float(force.real)


def solve(
    curve: Curve,
    mach: float,
    angle: float,
    around: int = 256,
    layers: int = 64,
    *,
    radius: float = 50.0,
    tolerance: float = 1e-5,
    cycles: int = 150,
) -> Flow:
    """Return the steady flow at a Mach number (below 1) and angle of attack in degrees.

    Coarse grids are solved first, to a residual of 1 %, and the finest until its residual is ``tolerance`` of that of
    the undisturbed stream; ``converged`` says whether that took at most ``cycles`` cycles. A flow in which a pressure
    becomes negative is lost: it has an infinite residual and no values.
    """
    levels, t = levels_of(curve, around, layers, radius)
    alpha = np.radians(angle)
    free = conserved(far_field(np.array([1e30 + 0j]), mach, alpha, 0.0))
    first = max([k for k, grid in enumerate(levels[:4]) if grid.w.shape[0] >= 10] or [0])
    u = np.broadcast_to(free, levels[first].r.shape).copy()
    lift = drag = 0.0
    history: list[float] = []
    for top in range(first, -1, -1):
        grids = levels[top:]
        still = np.broadcast_to(free, grids[0].r.shape)
        start = _size(residual(grids[0], still, far_field(grids[0].rim, mach, alpha, 0.0), True))
        history, courant, changed = [], COURANT, 0
        try:
            for k in range(cycles):
                fars = [far_field(grid.rim, mach, alpha, lift) for grid in grids]
                cycle(grids, fars, u, None, courant)
                history.append(_size(residual(grids[0], u, fars[0], True)) / start)
                lift, drag = forces(grids[0], mach, alpha)
                if history[-1] < (tolerance if top == 0 else 0.01):
                    break
                if k - changed >= PATIENCE and history[-1] > 0.5 * history[-PATIENCE]:
                    courant, changed = max(courant / 2, 2.5), k
        except FloatingPointError:
            history.append(np.inf)
            break
        if top:
            u = refined(u)
    grid, done = levels[0], history[-1] < tolerance
    lost = np.isinf(history[-1])
    values, surface = (np.full_like(a, np.nan) for a in (grid.r, grid.r[0])) if lost else (grid.w[1:-1], _surface(grid))
    return Flow(grid.z, grid.center, values, t, surface, mach, lift, drag, tuple(history), done)


def _size(r: State) -> float:
    return float(np.sqrt((r**2).sum()))


def _surface(grid: Level) -> Rim:
    """Return the state at the wall: its pressure, and the entropy and total enthalpy of the cell above."""
    rho, u, v, p = grid.w[1].T
    pressure = loops.surface(grid.w, grid.height, grid.curvature, grid.along, True)
    pressure = np.maximum(pressure, 0.1 * p)  # as for the ghosts
    density = rho * (pressure / p) ** (1 / GAMMA)
    tangent = grid.along[0, :, 0] * 1j - grid.along[0, :, 1]
    along = ((u + 1j * v) * tangent.conj()).real
    square = u**2 + v**2 + 2 * GAMMA / (GAMMA - 1) * (p / rho - pressure / density)
    slip = tangent * np.copysign(np.sqrt(np.maximum(square, 0)), along)
    return np.stack([density, slip.real, slip.imag, pressure], -1)
