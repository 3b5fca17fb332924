"""Flow on a surface from the potential on its panels: velocity, pressure, run length along streamlines, friction."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.interpolate import RectBivariateSpline

GAMMA = 1.4
RECOVERY = 0.89  # of a turbulent boundary layer, the cube root of the Prandtl number
SONIC, FASTEST = 1.4, 2.5  # limits of the local Mach number and of the speed
VISCOSITY = 0.76  # exponent of the temperature in the viscosity of air

Grid = Float[np.ndarray, "rows columns"]
Vectors = Float[np.ndarray, "rows columns 3"]


def along_rows(
    values: Float[np.ndarray, "rows columns *more"], places: Vectors, linked: Bool[np.ndarray, "_ columns"]
) -> Float[np.ndarray, "rows columns *more"]:
    """Return the derivative from row to row by the distance between places, of second order on uneven steps.

    Three-point formulas; one-sided next to a cut, that is where two rows are not ``linked``.
    """
    step = np.linalg.norm(np.diff(places, axis=0), axis=2)
    edge = np.zeros((1, step.shape[1]), bool)
    after, before = np.concatenate([linked, edge]), np.concatenate([edge, linked])
    more = (...,) + (None,) * (values.ndim - 2)
    slope = np.diff(values, axis=0) / step[more]
    pad = np.zeros_like(slope[:1])
    ahead, behind = np.concatenate([slope, pad]), np.concatenate([pad, slope])
    far, near = np.concatenate([ahead[1:], pad]), np.concatenate([pad, behind[:-1]])
    one = np.ones((1, step.shape[1]))
    h, k = np.concatenate([step, one]), np.concatenate([one, step])
    h2, k2 = np.concatenate([h[1:], one]), np.concatenate([one, k[:-1]])
    middle = (k[more] * ahead + h[more] * behind) / (h + k)[more]
    forward = ahead + (h / (h + h2))[more] * (ahead - far)
    backward = behind + (k / (k + k2))[more] * (behind - near)
    two_ahead = after & np.concatenate([after[1:], edge])
    two_behind = before & np.concatenate([edge, before[:-1]])
    found = np.where(after[more], np.where(two_ahead[more], forward, ahead), 0.0)
    found = np.where((before & ~after)[more], np.where(two_behind[more], backward, behind), found)
    return np.where((before & after)[more], middle, found)


def tangents(
    places: Vectors, rows: Bool[np.ndarray, "_ columns"], columns: Bool[np.ndarray, "rows _"]
) -> tuple[Callable[[Grid], Vectors], Vectors, Vectors]:
    """Return the surface gradient as a function of grid values, and the two vectors it is made with.

    grad f = f_1 t^1 + f_2 t^2, the derivatives from row to row and from column to column times the dual basis of the
    tangents: a velocity v moves v t^1 across rows and v t^2 across columns, in units of length.
    """
    turned = places.transpose(1, 0, 2)
    first = along_rows(places, places, rows)
    second = along_rows(turned, turned, columns.T).transpose(1, 0, 2)
    g11, g12, g22 = ((a * b).sum(2)[..., None] for a, b in ((first, first), (first, second), (second, second)))
    area = g11 * g22 - g12**2
    up, across = (g22 * first - g12 * second) / area, (g11 * second - g12 * first) / area

    def gradient(f: Grid) -> Vectors:
        one, two = along_rows(f, places, rows), along_rows(f.T, turned, columns.T).T
        return one[..., None] * up + two[..., None] * across

    return gradient, up, across


def temperature(square: Float[np.ndarray, "*n"], mach: float) -> Float[np.ndarray, "*n"]:
    """Return T / T0 = 1 + (gamma - 1) / 2 M^2 (1 - q^2) of the stream outside the boundary layer; ``square`` is q^2."""
    return 1 + (GAMMA - 1) / 2 * mach**2 * (1 - square)


def pressure(square: Float[np.ndarray, "*n"], mach: float) -> Float[np.ndarray, "*n"]:
    """Return the coefficient of pressure of a speed (squared, in that of the stream): isentropic, 1 - q^2 for M = 0.

    cp = 2 / (gamma M^2) (T^(gamma / (gamma - 1)) - 1).
    """
    if mach < 1e-3:
        return 1 - square
    return 2 / (GAMMA * mach**2) * (temperature(square, mach) ** (GAMMA / (GAMMA - 1)) - 1)


def fastest(mach: float) -> float:
    """Return the largest speed that is let pass: m^2 = 1.4^2 (1 + .2 M^2) / (M^2 (1 + .2 1.4^2)), and m <= 2.5.

    That is a local Mach number of 1.4. Potential flow is much faster around the edge of a wing tip, where a real flow
    rolls up, and linearized flow around a leading edge.
    """
    half = (GAMMA - 1) / 2
    return FASTEST if mach == 0 else min(FASTEST, SONIC / mach * np.sqrt((1 + half * mach**2) / (1 + half * SONIC**2)))


def limited(velocity: Float[np.ndarray, "*n 3"], mach: float, power: int = 16) -> Float[np.ndarray, "*n 3"]:
    """Return the velocity with its size q reduced to q / (1 + (q / m)^power)^(1 / power), which is below m."""
    size = np.linalg.norm(velocity, axis=-1)[..., None]
    return velocity / (1 + (size / fastest(mach)) ** power) ** (1 / power)


def run_length(
    first: Int[np.ndarray, " columns"],
    start: Float[np.ndarray, " columns"],
    step: Grid,
    rate: Grid,
    drift: Grid,
    speed: Grid,
    most: float = 3.0,
) -> Grid:
    """Return the distance along streamlines, row by row; in the ``first`` row of a column and before it is ``start``.

    Rows are ``step`` apart; ``rate`` is the speed across them and ``drift`` the columns that the flow moves in a unit
    of time. From each place a straight path goes upstream to the row before, and the length found there (between two
    columns) is added to that of the path, which is taken to be at most ``most`` times as long as straight across.
    """
    rows, columns = rate.shape
    length, index = np.empty_like(rate), np.arange(columns, dtype=float)
    length[0] = start
    for i in range(1, rows):
        forward = np.maximum(rate[i], speed[i] / most)
        time = step[i] / forward
        come = np.interp(index - drift[i] * time, index, length[i - 1])
        length[i] = np.where(i > first, come + speed[i] * time, start)
    return length


def friction(
    run: Float[np.ndarray, "*n"], square: Float[np.ndarray, "*n"], mach: float, reynolds: float
) -> Float[np.ndarray, "*n"]:
    """Return the coefficient of turbulent friction (by the stream's dynamic pressure) after a run of given length.

    cf = .455 (lg Re)^-2.58 (1 - 1.1205 / lg Re), whose mean on a plate is Prandtl and Schlichting's .455 (lg Re)^-2.58;
    compressible by the reference temperature T* / T = .5 + .5 Tw / T + .22 (Tr / T - 1) at an adiabatic wall,
    Tw = Tr = T (1 + .89 (gamma - 1) / 2 M^2) (Eckert, 1955), with the local Mach number. ``reynolds`` is that of the
    stream per unit of length. Re >= 1e4: before, the formula for a turbulent layer has no meaning.
    """
    local = temperature(square, mach)  # T / T0; the density is its power 1 / (gamma - 1)
    density = local ** (1 / (GAMMA - 1))
    rise = RECOVERY * (GAMMA - 1) / 2 * mach**2 * square / local
    reference = 1 + 0.72 * rise
    number = reynolds * run * np.sqrt(square) * density / local**VISCOSITY / reference ** (1 + VISCOSITY)
    decades = np.log10(np.maximum(number, 1e4))
    plate = 0.455 * decades**-2.58 * (1 - 2.58 / np.log(10) / decades)
    return plate / reference * density * square


def interpolated(
    values: Float[np.ndarray, "rows columns"],
    row: Float[np.ndarray, " n"],
    column: Float[np.ndarray, " n"],
    degree: int,
) -> Float[np.ndarray, " n"]:
    """Return a spline through values at the centers of cells, row and column counted in cells from the grid's edge.

    ``values`` has one more row or column beyond each edge, so the first center is at -.5.
    """
    rows, columns = (np.arange(n) - 0.5 for n in values.shape)
    return RectBivariateSpline(rows, columns, values, kx=degree, ky=degree).ev(row, column)
