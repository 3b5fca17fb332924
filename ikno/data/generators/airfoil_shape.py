"""Airfoil shapes: NACA four-digit sections, RAE 2822, Hicks-Henne bumps, and the distance to a shape."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Complex, Float
from scipy.interpolate import CubicSpline
from scipy.spatial import KDTree

# A shape is a closed curve z(t) = x + i y for t from 0 to 2 pi: from the trailing edge over the upper side to the
# leading edge (t near pi) and back along the lower side. The chord is from 0 to 1, and x is close to (1 + cos t) / 2.
Curve = Callable[[np.ndarray], Any]

# Heights in millionths of the chord at x = (1 - cos(pi k / 64)) / 2, k = 0 to 64. Source: P. H. Cook, M. A. McDonald
# and M. C. P. Firmin, Aerofoil RAE 2822, AGARD AR-138 (1979), by two public copies of
# the coordinates that agree; the report itself was not at hand.
RAE_UPPER = (
    *(0, 3165, 6306, 9416, 12480, 15489, 18441, 21348, 24219, 27062, 29874, 32644, 35360, 38011, 40585, 43071),
    *(45457, 47729, 49874, 51885, 53753, 55470, 57026, 58414, 59629, 60660, 61497, 62133, 62562, 62779, 62774, 62530),
    *(62029, 61254, 60194, 58845, 57218, 55344, 53258, 50993, 48575, 46029, 43377, 40641, 37847, 35017, 32176, 29347),
    *(26554, 23817, 21153, 18580, 16113, 13769, 11562, 9508, 7622, 5915, 4401, 3092, 2001, 1137, 510, 128, 0),
)
RAE_LOWER = (
    *(0, -3160, -6308, -9443, -12559, -15649, -18707, -21722, -24685, -27586, -30416, -33170, -35843, -38431, -40929),
    *(-43326, -45610, -47773, -49805, -51694, -53427, -54994, -56376, -57547, -58459, -59046, -59236, -58974, -58224),
    *(-56979, -55257, -53099, -50563, -47719, -44642, -41397, -38043, -34631, -31207, -27814, -24495, -21289, -18232),
    *(-15357, -12690, -10244, -8027, -6048, -4314, -2829, -1592, -600, 157, 694, 1033, 1197, 1212, 1112, 935, 719, 497),
    *(296, 137, 35, 0),
)


def naca(camber: float = 0.0, place: float = 0.4, thickness: float = 0.12) -> Curve:
    """Return the four-digit section of the largest camber at a place: 2412 is naca(.02, .4, .12).

    Half the thickness 5 t (.2969 sqrt(x) - .126 x - .3516 x^2 + .2843 x^3 - .1036 x^4) is set off square to the mean
    line of two parabolas (Jacobs, Ward and Pinkerton, NACA report 460, 1933). The original has .1015 and is open at the
    trailing edge; .1036 closes it and is the usual choice for inviscid flow.
    """

    def curve(t: np.ndarray) -> np.ndarray:
        root = np.cos(t / 2)  # sqrt(x), negative below
        x = root**2
        tail = -0.126 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4
        half = 5 * thickness * (0.2969 * root + np.where(root < 0, -1, 1) * tail)
        front = x < place
        scale = camber / np.where(front, place**2, (1 - place) ** 2)
        line = scale * (np.where(front, 0, 1 - 2 * place) + 2 * place * x - x**2)
        slope = 2 * scale * (place - x)
        return x + 1j * line + half * (1j - slope) / np.sqrt(1 + slope**2)

    return curve


def rae2822() -> Curve:
    """Return RAE 2822 as a cubic spline in t through the published points, which are equally spaced in t."""
    heights = np.concatenate([RAE_UPPER[:0:-1], RAE_LOWER]) * 1e-6
    spline = CubicSpline(np.pi * np.arange(129) / 64, heights, bc_type="clamped")
    return lambda t: (1 + np.cos(t)) / 2 + 1j * spline(t % (2 * np.pi))


def bumped(curve: Curve, upper: Float[np.ndarray, " n"], lower: Float[np.ndarray, " n"], width: float = 3.0) -> Curve:
    """Return a curve moved by a_k sin(pi x^m)^width, with m = ln .5 / ln x_k, so that the top is at x_k = k / (n + 1).

    Upward on both sides: ``upper`` and ``lower`` are the heights a_1 to a_n (Hicks and Henne, J. Aircraft 15, 1978).
    """
    tops = np.arange(1, len(upper) + 1) / (len(upper) + 1)
    powers = np.log(0.5) / np.log(tops)

    def moved(t: np.ndarray) -> np.ndarray:
        z = curve(t)
        x = np.clip(z.real, 0, 1)[..., None]
        bumps = np.maximum(np.sin(np.pi * x**powers), 0) ** width
        return z + 1j * np.where(np.cos(t / 2) < 0, (bumps * lower).sum(-1), (bumps * upper).sum(-1))

    return moved


def is_sound(curve: Curve, least: float = 0.3, count: int = 400) -> bool:
    """Return whether the thickness everywhere is more than ``least`` of x (1 - x) / 10, so that sides do not meet."""
    t = np.pi * (np.arange(count) + 0.5) / count
    upper, lower = curve(t), curve(2 * np.pi - t)
    x = (1 + np.cos(t)) / 2
    return bool(((upper - lower).imag > 0.1 * least * x * (1 - x)).all())


def pairs(z: Complex[np.ndarray, " n"]) -> Float[np.ndarray, "n 2"]:
    """Return the coordinates (x, y) of z = x + i y."""
    return np.stack([np.real(z), np.imag(z)], -1)


def signed_distance(curve: Curve, points: Complex[np.ndarray, " n"], count: int = 8192) -> Float[np.ndarray, " n"]:
    """Return the distance of points to the curve, taken as a polygon of ``count`` segments; negative inside."""
    corners = curve(2 * np.pi * np.arange(count) / count)
    near = KDTree(pairs(corners)).query(pairs(points))[1]
    sizes, sides = [], []
    for first in (near - 1, near):
        start, edge = corners[first], corners[(first + 1) % count] - corners[first]
        along = (points - start) * edge.conj()
        share = np.clip(along.real / abs(edge) ** 2, 0, 1)
        sizes.append(abs(points - start - share * edge))
        sides.append(along.imag > 0)  # counterclockwise: the inside is on the left
    # If a corner is nearest, both segments are equally far, and inside is what is on the left of both.
    same = abs(sizes[0] - sizes[1]) < 1e-12
    inside = np.where(same, sides[0] & sides[1], np.where(sizes[0] < sizes[1], *sides))
    return np.where(inside, -1, 1) * np.minimum(*sizes)
