"""The compressible Euler equations on the periodic unit square: CE-Gauss and CE-RP (four-quadrant Riemann problems)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from inspect import unwrap
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt

from ikno.data.generators import Generator, PositiveRange, Range, at_cloud, grid_cloud
from ikno.data.generators.navier_stokes import gaussians, inner, of_vorticity, to_field, to_modes
from ikno.data.records import Trajectory
from ikno.errors import require

GAMMA = 1.4
SLAB = 16


def conserved(w: Float[np.ndarray, "*lead 4 n m"]) -> Float[np.ndarray, "*lead 4 n m"]:
    """Return (rho, rho vx, rho vy, E) of (rho, vx, vy, p), with E = p / (gamma - 1) + rho (vx^2 + vy^2) / 2."""
    rho, vx, vy, p = np.moveaxis(w, -3, 0)
    return np.stack([rho, rho * vx, rho * vy, p / (GAMMA - 1) + 0.5 * rho * (vx**2 + vy**2)], -3)


def primitive(u: Float[np.ndarray, "*lead 4 n m"]) -> Float[np.ndarray, "*lead 4 n m"]:
    """Return (rho, vx, vy, p) of (rho, rho vx, rho vy, E), with p = (gamma - 1) (E - rho (vx^2 + vy^2) / 2)."""
    rho, mx, my, energy = np.moveaxis(u, -3, 0)
    return np.stack([rho, mx / rho, my / rho, (GAMMA - 1) * (energy - 0.5 * (mx**2 + my**2) / rho)], -3)


def block_mean(u: Float[np.ndarray, "*lead n m"], refine: int) -> Float[np.ndarray, "*lead _ _"]:
    """Return the means of blocks of refine x refine cells."""
    *lead, n, m = u.shape
    return u.reshape(*lead, n // refine, refine, m // refine, refine).mean((-3, -1))


def _read(u, rows, columns, w, bad):
    """Write the primitive variables with their ghost cells to w and the cells without a sound speed to bad.

    Returns the largest |vx| + |vy| + 2 c, or -1 if a cell is bad.
    """
    top, fine = 0.0, True
    for i in range(rows.size):
        for j in range(columns.size):
            a, b = rows[i], columns[j]
            rho = u[a, 0, b]
            inverse = 1.0 / rho if rho > 0.0 else 0.0
            vx, vy = u[a, 1, b] * inverse, u[a, 2, b] * inverse
            p = (GAMMA - 1.0) * (u[a, 3, b] - 0.5 * rho * (vx * vx + vy * vy))
            bad[i, j] = not (rho > 0.0 and p > 0.0)
            if bad[i, j]:
                fine = False
                continue
            w[i, 0, j], w[i, 1, j], w[i, 2, j], w[i, 3, j] = rho, vx, vy, p
            top = max(top, abs(vx) + abs(vy) + 2.0 * np.sqrt(GAMMA * p * inverse))
    return top if fine else -1.0


def _predict(w, flat, ratio, slopes, faces):
    """Write the values at the low and high x faces and the low and high y faces of each cell after half a step.

    With limited slopes d and e along x and y (monotonized central) and ratio = dt / h, the middle of a cell moves by
    -ratio / 2 (A d + B e), where A and B are the matrices of the primitive form. Cells that are flat, or would have a
    negative density or pressure at a face, keep their mean in all of the cell.
    """
    r = 0.5 * ratio
    for i in range(1, w.shape[0] - 1):
        for k in range(4):
            # Views of rows, not indices with offsets: this loop becomes vector instructions.
            here, before, after = w[i, k, 1:-1], w[i - 1, k, 1:-1], w[i + 1, k, 1:-1]
            below, above = w[i, k, :-2], w[i, k, 2:]
            dx, dy = slopes[0, k, 1:-1], slopes[1, k, 1:-1]
            for j in range(here.size):
                a, b = here[j] - before[j], after[j] - here[j]
                size = min(min(2.0 * abs(a), 2.0 * abs(b)), 0.5 * abs(a + b))
                dx[j] = np.copysign(size, a) if a * b > 0.0 else 0.0
                a, b = here[j] - below[j], above[j] - here[j]
                size = min(min(2.0 * abs(a), 2.0 * abs(b)), 0.5 * abs(a + b))
                dy[j] = np.copysign(size, a) if a * b > 0.0 else 0.0
        d, e = slopes[0], slopes[1]
        for j in range(1, w.shape[2] - 1):
            rho, vx, vy, p = w[i, 0, j], w[i, 1, j], w[i, 2, j], w[i, 3, j]
            # The sums are paired so that exchanging the axes gives the same bits.
            a = rho - r * ((vx * d[0, j] + rho * d[1, j]) + (vy * e[0, j] + rho * e[2, j]))
            b = vx - r * ((vx * d[1, j] + d[3, j] / rho) + vy * e[1, j])
            c = vy - r * ((vy * e[2, j] + e[3, j] / rho) + vx * d[2, j])
            f = p - r * ((vx * d[3, j] + GAMMA * p * d[1, j]) + (vy * e[3, j] + GAMMA * p * e[2, j]))
            density = a - 0.5 * max(abs(d[0, j]), abs(e[0, j]))
            pressure = f - 0.5 * max(abs(d[3, j]), abs(e[3, j]))
            keep = density > 0.0 and pressure > 0.0 and not flat[i, j]
            a, b, c, f, half = (a, b, c, f, 0.5) if keep else (rho, vx, vy, p, 0.0)
            for sign in range(2):
                s = half * (2 * sign - 1)
                faces[i, sign, 0, j], faces[i, 2 + sign, 0, j] = a + s * d[0, j], a + s * e[0, j]
                faces[i, sign, 1, j], faces[i, 2 + sign, 1, j] = b + s * d[1, j], b + s * e[1, j]
                faces[i, sign, 2, j], faces[i, 2 + sign, 2, j] = c + s * d[2, j], c + s * e[2, j]
                faces[i, sign, 3, j], faces[i, 2 + sign, 3, j] = f + s * d[3, j], f + s * e[3, j]


def _update(u, faces, ratio, flux, new):
    """Write u - dt / h (differences of the HLLC fluxes along x and y) to new.

    The speeds of the outer waves are min(v - c) and max(v + c) over both sides, which keeps the states between the
    waves positive.
    """
    n, m = u.shape[0], u.shape[2]
    for axis in range(2):
        along, across, di, dj = 1 + axis, 2 - axis, 1 - axis, axis
        for i in range(n + di):
            high, low = faces[i + 2 - di, 2 * axis + 1], faces[i + 2, 2 * axis]
            for j in range(m + dj):
                a, b = j + 2 - dj, j + 2
                r1, v1, t1, p1 = high[0, a], high[along, a], high[across, a], high[3, a]
                r2, v2, t2, p2 = low[0, b], low[along, b], low[across, b], low[3, b]
                c1, c2 = np.sqrt(GAMMA * p1 / r1), np.sqrt(GAMMA * p2 / r2)
                s1, s2 = min(v1 - c1, v2 - c2), max(v1 + c1, v2 + c2)
                q1, q2 = r1 * (s1 - v1), r2 * (s2 - v2)
                s = ((p2 - p1) + (q1 * v1 - q2 * v2)) / (q1 - q2)
                left = s >= 0.0
                r, v, t, p, q, edge = (r1, v1, t1, p1, q1, s1) if left else (r2, v2, t2, p2, q2, s2)
                specific = p / ((GAMMA - 1.0) * r) + 0.5 * (v * v + t * t)
                # The flux of the state between the waves, s U + p (0, 1, 0, s), is exact at a resting contact.
                if s1 < 0.0 < s2:
                    specific += (s - v) * (s + p / q)
                    p += q * (s - v)
                    r = q / (edge - s)
                    v = s
                mass = r * v
                f0, f1, f2, f3 = mass, mass * v + p, mass * t, mass * specific + v * p
                flux[i, axis, 0, j], flux[i, axis, along, j] = f0, f1
                flux[i, axis, across, j], flux[i, axis, 3, j] = f2, f3
    for i in range(n):
        for k in range(4):
            for j in range(m):
                x = flux[i + 1, 0, k, j] - flux[i, 0, k, j]
                y = flux[i, 1, k, j + 1] - flux[i, 1, k, j]
                new[i, k, j] = u[i, k, j] - ratio * (x + y)


@cache
def _compiled() -> tuple[Callable, ...]:
    """Return the three loops above as machine code."""
    numba = require("numba", "solvers")
    return tuple(numba.njit(error_model="numpy")(unwrap(loop)) for loop in (_read, _predict, _update))


def solve(
    u: Float[np.ndarray, "4 n m"], times: Sequence[float], h: float, outflow: bool = False, courant: float = 0.8
) -> Float[np.ndarray, "times 4 n m"]:
    """Return the cell means of the conserved variables at times, the first of which is that of u; cells have size h.

    Finite volumes of second order (MUSCL-Hancock): dt (|vx| + |vy| + 2 c) <= courant h in all cells, and the steps are
    evened out to end at each of the times. Periodic, or with zero gradients across the boundary (outflow).
    """
    read, predict, update = _compiled()
    n, m = u.shape[1:]
    rows, columns = (np.clip(np.arange(-2, k + 2), 0, k - 1) if outflow else np.arange(-2, k + 2) % k for k in (n, m))
    # Rows first: a slab of rows is then one piece of memory, and what is computed for it stays in the cache.
    slabs = [slice(a, min(a + SLAB, n)) for a in range(0, n, SLAB)]
    u, new = np.array(u.transpose(1, 0, 2), order="C"), np.empty((n, 4, m))
    w, trial = np.ones((2, n + 4, 4, m + 4))
    slopes, faces, flux = np.empty((2, 4, m + 4)), np.empty((SLAB + 4, 4, 4, m + 4)), np.empty((SLAB + 1, 2, 4, m + 1))
    bad = np.zeros((n + 4, m + 4), dtype=bool)
    speed = read(u, rows, columns, w, bad)
    if speed < 0:
        raise ValueError("density and pressure must be positive")
    out = [u.copy()]
    for start, stop in pairwise(times):
        left = stop - start
        while left > 0:
            steps = int(np.ceil(left * speed / (courant * h)))
            dt = left / max(steps, 1)
            flat = np.zeros((n, m), dtype=bool)
            first = np.zeros((n + 4, m + 4), dtype=bool)
            while True:
                for k in slabs:
                    wide = slice(k.start, k.stop + 4)
                    predict(w[wide], first[wide], dt / h, slopes, faces)
                    update(u[k], faces, dt / h, flux, new[k])
                speed = read(new, rows, columns, trial, bad)
                if speed > 0:
                    break
                # Rare: the step is done again, shorter and of first order around the cells that became negative,
                # which is sure to be positive in the end.
                flat |= bad[2:-2, 2:-2]
                for axis in (0, 1):
                    flat |= np.roll(flat, 1, axis) | np.roll(flat, -1, axis)
                first, dt = flat[rows[:, None], columns], dt / 2
            left = 0.0 if dt == left else left - dt
            u, new, w, trial = new, u, trial, w
        out.append(u.copy())
    return np.stack(out).transpose(0, 2, 1, 3)


def velocity(vorticity: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "2 n n"]:
    """Return (d psi / dy, -d psi / dx) with -lap psi = vorticity (its mean removed), periodic on the unit square."""
    n = vorticity.shape[0]
    return to_field(inner(n) * of_vorticity(n) * to_modes(vorticity))


class Euler(Generator):
    """Gas of gamma 1.4 on the periodic unit square: density, velocity (2), pressure and energy density at 21 times.

    Solved on ``refine`` x ``resolution`` cells per axis; mass, momentum and energy are then averaged over blocks of
    refine x refine cells. The mean of a cell is given as the value at i / resolution, its corner: a shift of the whole
    periodic problem by half a cell.
    """

    resolution: PositiveInt = Field(default=128, ge=8)
    points: PositiveInt | None = 9216
    refine: PositiveInt = 2
    end: float = Field(default=1.0, gt=0)
    snapshots: PositiveInt = Field(default=21, ge=2)

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(k * self.end / (self.snapshots - 1) for k in range(self.snapshots))

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"]:
        return grid_cloud(self.resolution, self.points, rng, periodic=True)

    @abstractmethod
    def initial(self, rng: np.random.Generator, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "4 n n"]:
        """Return (rho, vx, vy, p) at the centers of the cells, which are at x along both axes."""

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        n = self.resolution * self.refine
        start = conserved(self.initial(rng, (np.arange(n) + 0.5) / n))
        u = block_mean(solve(start, self.times, 1 / n), self.refine)
        fields = at_cloud(np.concatenate([primitive(u), u[:, 3:]], 1), cloud, periodic=True)
        return Trajectory(cloud, fields.transpose(0, 2, 1))


class CEGauss(Euler):
    """Gas of constant density and pressure with the vorticity of NS-Gauss."""

    count: PositiveInt = 100
    width: PositiveRange = (0.01, 0.1)
    density: PositiveFloat = 0.1
    pressure: PositiveFloat = 2.5

    def initial(self, rng: np.random.Generator, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "4 n n"]:
        vx, vy = velocity(gaussians(rng, self.count, self.width, x))
        return np.stack([np.full_like(vx, self.density), vx, vy, np.full_like(vx, self.pressure)])


class CERP(Euler):
    """Riemann problems: the four quadrants have constant states, rho, p ~ U[.1,1] and vx, vy ~ U[-1,1]."""

    density: PositiveRange = (0.1, 1.0)
    speed: Range = (-1.0, 1.0)
    pressure: PositiveRange = (0.1, 1.0)

    def initial(self, rng: np.random.Generator, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "4 n n"]:
        ranges = (self.density, self.speed, self.speed, self.pressure)
        states = np.stack([rng.uniform(*between, (2, 2)) for between in ranges])
        half = (x >= 0.5).astype(int)
        return states[:, half[:, None], half]
