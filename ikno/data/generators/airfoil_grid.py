"""O-grids around airfoils by conformal mapping: orthogonal, smooth, and with a corner only at the trailing edge."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from ikno.data.generators.airfoil_shape import Curve


class Map(NamedTuple):
    """The outside of the unit circle |w| > 1 mapped to the outside of an airfoil, w = 1 to its trailing edge.

    zeta = center + w exp(sum over k of series_k w^-k) is a disc with small dents, and Karman and Trefftz's
    (z - z1) / (z - z0) = ((zeta - zeta1) / (zeta + zeta1))^power opens it to the airfoil's corner at z1.
    """

    series: Complex[np.ndarray, " modes"]
    center: complex
    zeta1: complex
    ends: tuple[complex, complex]
    power: float
    curve: Curve
    place: CubicSpline

    def wall(self, theta: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the curve's parameter t at points of the circle."""
        k = np.arange(len(self.series))
        turn = np.imag(np.exp(-1j * theta[:, None] * k) * self.series).sum(1)
        return self.place(theta + turn)

    def __call__(self, theta: Float[np.ndarray, " n"], sigma: Float[np.ndarray, " m"]) -> Complex[np.ndarray, "n m"]:
        """Return the points of w = exp(sigma + i theta); sigma increases, and those at sigma = 0 are on the curve."""
        k = np.arange(len(self.series))
        phases = np.exp(-1j * theta[:, None] * k)
        # Not a matrix product: its last bits may depend on the number of threads.
        bends = np.einsum("nk,km->nm", phases, self.series[:, None] * np.exp(-k[:, None] * sigma))
        zeta = self.center + np.exp(sigma + 1j * theta[:, None] + bends)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (zeta - self.zeta1) / (zeta + self.zeta1)
            size = np.log(abs(ratio))
        # The angle goes to zero at infinity and must not jump on the way inward.
        angle = np.unwrap(np.angle(ratio)[:, ::-1], axis=1)[:, ::-1]
        lifted = np.exp(self.power * (size + 1j * angle))
        z1, z0 = self.ends
        z = (z1 - z0 * lifted) / (1 - lifted)
        if sigma[0] == 0:
            z[:, 0] = self.curve(self.wall(theta))
        return z


def conformal(curve: Curve, modes: int = 512, samples: int = 4000, steps: int = 200) -> Map:
    """Return the conformal map of an airfoil (Theodorsen's integral equation by FFT, after opening the corner)."""
    t = 2 * np.pi * np.arange(samples) / samples
    z = curve(t)
    small = 1e-4
    out = curve(np.array([small, 2 * np.pi - small, 0.0, np.pi - 0.02, np.pi, np.pi + 0.02]))
    z1 = complex(out[2])
    power = 2 - float(np.angle((out[1] - z1) / (out[0] - z1)) / np.pi)
    # The other end is half the nose's radius behind it: the radius of the circle through three points.
    a, b, c = out[3:]
    area = abs(((b - a) * (c - a).conjugate()).imag)
    radius = abs(b - a) * abs(c - b) * abs(c - a) / (2 * area)
    inward = ((a + c) / 2 - b) / abs((a + c) / 2 - b)
    z0 = complex(b + radius / 2 * inward)
    zeta1 = (z1 - z0) / (2 * power)
    ratio = (z[1:] - z1) / (z[1:] - z0)
    angle = np.unwrap(np.angle(ratio))
    angle -= 2 * np.pi * np.round((angle.mean()) / (2 * np.pi))
    opened = np.exp((np.log(abs(ratio)) + 1j * angle) / power)
    zeta = np.concatenate([[zeta1], zeta1 * (1 + opened) / (1 - opened)])
    edges = np.roll(zeta, -1) - zeta
    center = complex((abs(edges) * (zeta + edges / 2)).sum() / abs(edges).sum())
    phi, size = np.unwrap(np.angle(zeta - center)), np.log(abs(zeta - center))
    phi, t, size = np.append(phi, phi[0] + 2 * np.pi), np.append(t, 2 * np.pi), np.append(size, size[0])
    radius_of = CubicSpline(phi, size, bc_type="periodic")
    theta = 2 * np.pi * np.arange(2 * modes) / (2 * modes)
    found = theta + phi[0]
    for _ in range(steps):
        spectrum = np.fft.rfft(radius_of(found)) / (2 * modes)
        spectrum[-1] = 0
        turn = np.fft.irfft(1j * spectrum * (2 * modes))
        new = theta + turn - turn[0] + phi[0]
        off = abs(new - found).max()
        found = new
        if off < 1e-13:
            break
    else:
        raise ValueError("the conformal map of the shape does not converge; it is too far from an airfoil")
    series = 2 * spectrum.conj()
    series[0] = spectrum[0].real + 1j * (phi[0] - turn[0])
    return Map(series, center, zeta1, (z1, z0), power, curve, CubicSpline(phi, t))


def spaced(around: int, layers: int, radius: float) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """Return theta and sigma of an O-grid: cells are square at the wall and grow outward to ``radius`` chords.

    theta = s + sin(s) / 4 + sin(2 s) / 8 for equal steps of s takes cells from the trailing edge, where the map has
    more than enough, to the middle of the chord.
    """
    s = 2 * np.pi * np.arange(around) / around
    total, first = np.log(4 * radius), 2 * np.pi / around  # the circle is about a quarter of the chord in radius

    def excess(growth: float) -> float:
        return first * ((growth**layers - 1) / (growth - 1) if growth > 1 else layers) - total

    growth = float(brentq(excess, 1.0, 3.0)) if excess(1.0) < 0 else 1.0  # pyright: ignore[reportArgumentType]
    sigma = np.append(0, np.cumsum(growth ** np.arange(layers)))
    return s + np.sin(s) / 4 + np.sin(2 * s) / 8, sigma * total / sigma[-1]
