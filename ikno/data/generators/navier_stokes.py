"""Incompressible Navier-Stokes on the periodic unit square: dw/dt + u . grad w = eps lap_Q w, from four kinds of start.

Fields are on the grid i / n, first axis x. The vorticity w = d(vy)/dx - d(vx)/dy and the mean velocity give u.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Complex, Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from scipy.fft import fftfreq, irfft2, rfft2

from ikno.data.generators import CountRange, Generator, PositiveRange, at_cloud, grid_cloud
from ikno.data.records import Trajectory


class Start(NamedTuple):
    """An initial flow: its vorticity, of mean zero, and its mean velocity."""

    vorticity: Float[np.ndarray, "n n"]
    mean: tuple[float, float] = (0.0, 0.0)


def wavenumbers(n: int) -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, " m"]]:
    """Return kx and ky (integers) of the modes exp(2 pi i (kx x + ky y)) that rfft2 gives."""
    return fftfreq(n, 1 / n)[:, None], np.arange(n // 2 + 1.0)


def to_modes(field: Float[np.ndarray, "*lead n n"]) -> Complex[np.ndarray, "*lead n m"]:
    """Return the Fourier coefficients of real fields (n^2 times those of the series), on one thread."""
    return np.asarray(rfft2(field, workers=1))


def to_field(modes: Complex[np.ndarray, "*lead n m"]) -> Float[np.ndarray, "*lead n n"]:
    """Return the real fields of these coefficients."""
    n = modes.shape[-2]
    return np.asarray(irfft2(modes, s=(n, n), workers=1))


def inner(n: int) -> Bool[np.ndarray, "n m"]:
    """Tell which modes have a derivative: all but the highest of an even grid."""
    kx, ky = wavenumbers(n)
    return (2 * np.abs(kx) < n) & (2 * ky < n)


def of_vorticity(n: int) -> Complex[np.ndarray, "2 n m"]:
    """Return the factors from modes of w to those of (dy psi, -dx psi), -lap psi = w; the mean of w is left out."""
    kx, ky = wavenumbers(n)
    square = kx**2 + ky**2
    square[0, 0] = np.inf
    return np.stack([1j * ky / square, -1j * kx / square]) / (2 * np.pi)


def curl(velocity: Float[np.ndarray, "2 n n"]) -> Float[np.ndarray, "n n"]:
    """Return d(vy)/dx - d(vx)/dy."""
    n = velocity.shape[-1]
    kx, ky = wavenumbers(n)
    vx, vy = to_modes(velocity)
    return to_field(2j * np.pi * inner(n) * (kx * vy - ky * vx))


def spectral_rate(n: int, viscosity: float, cutoff: float, sharpness: float) -> Float[np.ndarray, "n m"]:
    """Return the damping rate of each mode, viscosity (2 pi |k|)^2 Q(|k|), Q = 1 - exp(-(|k| / cutoff)^sharpness)."""
    kx, ky = wavenumbers(n)
    square = kx**2 + ky**2
    return -4 * np.pi**2 * viscosity * square * np.expm1(-((square / cutoff**2) ** (sharpness / 2)))


class Flow:
    """The right-hand side of the vorticity equation in Fourier modes, without those with |kx| or |ky| >= n / 3.

    Leaving these out (the 2/3 rule) makes the products of two fields exact in the modes that are kept. The transport is
    u . grad w = (dxx - dyy)(vx vy) + dxy (vy^2 - vx^2), which takes two transforms each way.
    """

    def __init__(self, n: int, mean: tuple[float, float]) -> None:
        kx, ky = wavenumbers(n)
        self.mean = np.array(mean)[:, None, None]
        self.kept = (3 * np.abs(kx) < n) & (3 * ky < n)
        self._to_velocity = self.kept * of_vorticity(n)
        self._transport = 4 * np.pi**2 * self.kept * np.stack([kx**2 - ky**2, kx * ky])

    def velocity(self, modes: Complex[np.ndarray, "n m"]) -> Float[np.ndarray, "2 n n"]:
        """Return u = (dy psi, -dx psi) + mean with -lap psi = w."""
        return to_field(self._to_velocity * modes) + self.mean

    def change(self, velocity: Float[np.ndarray, "2 n n"]) -> Complex[np.ndarray, "n m"]:
        """Return -u . grad w."""
        vx, vy = velocity
        products = np.stack([vx * vy, (vy - vx) * (vy + vx)])
        return (self._transport * to_modes(products)).sum(0)

    def step(
        self,
        modes: Complex[np.ndarray, "n m"],
        first: Complex[np.ndarray, "n m"],
        dt: float,
        rate: Float[np.ndarray, "n m"],
    ) -> Complex[np.ndarray, "n m"]:
        """Return w a time dt later: fourth-order Runge-Kutta for exp(rate t) w, exact for the damping alone."""
        half = np.exp(-rate * dt / 2)
        mid = half * modes
        second = self.change(self.velocity(mid + dt / 2 * half * first))
        third = self.change(self.velocity(mid + dt / 2 * second))
        fourth = self.change(self.velocity(half * (mid + dt * third)))
        return half * (mid + dt / 6 * (half * first + 2 * (second + third))) + dt / 6 * fourth


def solve(
    start: Start,
    times: Sequence[float],
    rate: Float[np.ndarray, "n m"] | None = None,
    viscosity: float = 0.0,
    cfl: float = 0.75,
    longest: float = math.inf,
) -> Float[np.ndarray, "times 2 n n"]:
    """Return the velocity at the given times; the start, less the modes that Flow leaves out, belongs to the first.

    ``rate`` is the damping of each mode, to which ``viscosity`` adds that of an ordinary one, viscosity (2 pi |k|)^2.
    The steps hit all times and have max(|vx| + |vy|) n dt <= cfl (stable up to 1.35) and dt <= longest.
    """
    n = start.vorticity.shape[0]
    flow = Flow(n, start.mean)
    kx, ky = wavenumbers(n)
    damping = 4 * np.pi**2 * viscosity * (kx**2 + ky**2) + (0 if rate is None else rate)
    modes = flow.kept * to_modes(start.vorticity)
    velocity = flow.velocity(modes)
    snapshots = [velocity]
    for left in np.diff(times):
        while left > 0:
            speed = np.abs(velocity).sum(0).max()
            count = max(1, math.ceil(left * max(speed * n / cfl, 1 / longest) - 1e-9))
            modes = flow.step(modes, flow.change(velocity), left / count, damping)
            velocity = flow.velocity(modes)
            left = left - left / count if count > 1 else 0.0
        snapshots.append(velocity)
    return np.stack(snapshots)


class NavierStokes(Generator):
    """The velocity (vx, vy) at ``snapshots`` times from 0 to ``end``, with a viscosity that acts on high modes only.

    The rate is eps (2 pi |k|)^2 (1 - exp(-(|k| / k0)^a)) with eps = ``viscosity`` / resolution, k0 = ``cutoff`` times
    resolution and a = ``sharpness``.
    """

    resolution: PositiveInt = Field(default=128, ge=8)
    points: PositiveInt | None = 9216
    end: PositiveFloat = 1.0
    snapshots: int = Field(default=21, ge=2)
    viscosity: NonNegativeFloat = 0.05
    cutoff: PositiveFloat = 1 / 3
    sharpness: PositiveFloat = 18.0
    cfl: float = Field(default=0.75, gt=0, le=1.2)

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(self.end * i / (self.snapshots - 1) for i in range(self.snapshots))

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"]:
        return grid_cloud(self.resolution, self.points, rng, periodic=True)

    @abstractmethod
    def start(self, rng: np.random.Generator) -> Start:
        """Return a random initial flow on the grid of the solver."""

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        n = self.resolution
        rate = spectral_rate(n, self.viscosity / n, self.cutoff * n, self.sharpness)
        fields = solve(self.start(rng), self.times, rate, cfl=self.cfl)
        return Trajectory(cloud, at_cloud(fields, cloud, periodic=True).swapaxes(1, 2))


def gaussians(
    rng: np.random.Generator, count: int, width: tuple[float, float], x: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    """Return the sum of ``count`` Gaussians a / s exp(-|x - c|^2 / (2 s^2)) with their periodic images.

    a ~ U[-1,1], s ~ U[width], c ~ U[0,1]^2; x are the coordinates along both axes.
    """
    centers = rng.uniform(0, 1, (2, count, 1))
    strengths, widths = rng.uniform(-1, 1, (count, 1)), rng.uniform(*width, (count, 1))
    images = np.arange(-2, 3)[:, None, None]
    along_x, along_y = np.exp(-((x - centers[:, None] + images) ** 2) / (2 * widths**2)).sum(1)
    return (strengths / widths * along_x).T @ along_y


class NSGauss(NavierStokes):
    """The vorticity is a sum of ``count`` Gaussians (``gaussians``), less its mean."""

    count: PositiveInt = 100
    width: PositiveRange = (0.01, 0.1)

    def start(self, rng: np.random.Generator) -> Start:
        w = gaussians(rng, self.count, self.width, np.arange(self.resolution) / self.resolution)
        return Start(w - w.mean())


class NSPwC(NavierStokes):
    """w is constant on squares of a ``squares`` x ``squares`` grid, ``amplitude`` times U[-1,1], less its mean."""

    squares: PositiveInt = 10
    amplitude: PositiveFloat = 1.0

    def start(self, rng: np.random.Generator) -> Start:
        levels = self.amplitude * rng.uniform(-1, 1, (self.squares, self.squares))
        square = self.squares * np.arange(self.resolution) // self.resolution
        w = levels[square][:, square]
        return Start(w - w.mean())


class NSSL(NavierStokes):
    """Two shear layers: vx = tanh(2 pi (z - .25) / rho) for z <= .5, else tanh(2 pi (.75 - z) / rho), and vy = 0.

    z = y + shift + .025 sum_{k=1..p} a_k sin(2 pi k x - b_k), modulo 1; p ~ U{7..12}, a ~ U[0,1], b ~ U[0,2 pi],
    rho ~ U[.08,.12], shift ~ U[-.0625,.0625]. The start is the divergence-free part of this field.
    """

    modes: CountRange = (7, 12)
    ripple: NonNegativeFloat = 0.025
    thickness: PositiveRange = (0.08, 0.12)
    shift: NonNegativeFloat = 0.0625

    def start(self, rng: np.random.Generator) -> Start:
        k = np.arange(1, rng.integers(*self.modes, endpoint=True) + 1)
        heights, phases = rng.uniform(0, 1, len(k)), rng.uniform(0, 2 * np.pi, len(k))
        thickness, shift = rng.uniform(*self.thickness), rng.uniform(-self.shift, self.shift)
        steps = np.arange(self.resolution) / self.resolution
        waves = np.sin(2 * np.pi * np.outer(steps, k) - phases) @ heights
        z = (steps + shift + self.ripple * waves[:, None]) % 1
        # Both formulas at once: the distance from .5 is .25 at either layer.
        vx = np.tanh(2 * np.pi / thickness * (0.25 - np.abs(z - 0.5)))
        return Start(curl(np.stack([vx, np.zeros_like(vx)])), (float(vx.mean()), 0.0))


def mollifier(r: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return the cubic B-spline 80 / (7 pi) [(1 - r)+^3 - 4 (1/2 - r)+^3], of integral 1 over the disc r < 1."""
    outer, inner = np.maximum(1 - r, 0), np.maximum(0.5 - r, 0)
    return 80 / (7 * np.pi) * (outer * outer * outer - 4 * inner * inner * inner)


def sheet(
    heights: Float[np.ndarray, " sines"], shifts: Float[np.ndarray, " sines"], radius: float, n: int
) -> Float[np.ndarray, "n n"]:
    """Return w(p) = int psi(|p - q| / radius) / radius^2 ds(q), psi the mollifier with its periodic images.

    q runs along the curve y = .5 + .2 sin(2 pi x) + sum_i heights_i sin(2 pi (x + shifts_i)), s is its arc length.
    """
    # Equal steps in x: the trapezoidal rule on a closed curve, limited only by the smoothness of the mollifier.
    count = math.ceil(32 / radius)
    x = np.arange(count) / count
    heights, shifts = np.append(heights, 0.2), np.append(shifts, 0.0)
    angles = 2 * np.pi * (x[:, None] + shifts)
    y = 0.5 + np.sin(angles) @ heights
    lengths = np.hypot(1, 2 * np.pi * np.cos(angles) @ heights) / count
    # Around each point of the curve, the square block of the grid that holds the support of the mollifier.
    reach = math.ceil(radius * n)
    index = np.floor(np.stack([x, y]) * n).astype(int)[..., None] + np.arange(-reach, reach + 2)
    dx, dy = index / n - np.stack([x, y])[..., None]
    parts = lengths[:, None, None] * mollifier(np.hypot(dx[:, :, None], dy[:, None, :]) / radius) / radius**2
    cells = (index[0] % n)[:, :, None] * n + (index[1] % n)[:, None, :]
    return np.bincount(cells.ravel(), parts.ravel(), n * n).reshape(n, n)


class NSSVS(NavierStokes):
    """w is a vortex sheet of unit strength on y = .5 + .2 sin(2 pi x) + sum_{i=1..10} a_i sin(2 pi (x + b_i)).

    a ~ U[0,.003125], b ~ U[0,1]; the sheet is mollified with a radius 5 / 128 and the mean is taken off.
    """

    sines: PositiveInt = 10
    height: NonNegativeFloat = 0.003125
    radius: float = Field(default=5 / 128, gt=0, le=0.5)

    def start(self, rng: np.random.Generator) -> Start:
        heights, shifts = rng.uniform(0, self.height, self.sines), rng.uniform(0, 1, self.sines)
        w = sheet(heights, shifts, self.radius, self.resolution)
        return Start(w - w.mean())
