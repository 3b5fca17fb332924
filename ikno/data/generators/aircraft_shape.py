"""The half (y > 0) of an airliner in the proportions of NASA's Common Research Model, as a smooth map: lengths in m.

A body of circular sections, and a wing and a tail whose sections are sheared, not turned: twist, dihedral and control
surfaces move points along z only. Where wing and tail meet the body is found first, and all grids end there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline, PchipInterpolator

LENGTH, RADIUS = 62.8, 3.1
NOSE, TAIL = 11.0, 23.0  # the lengths over which the body grows and shrinks
MEAN_CHORD, HALF_SPAN, HALF_AREA = 7.005, 29.38, 191.84  # reference values of the model
BEND = 0.6  # share of the chord that the leading edge goes back at a tip
BUNCH = 1.2
PIVOT = 55.5  # of the horizontal tail

Numbers = Float[np.ndarray, " n"]
Places = Float[np.ndarray, "n 3"]


class Control(NamedTuple):
    """A control surface behind a hinge (in chords) between two places along the span; degrees, trailing edge down."""

    hinge: float
    inner: float
    outer: float
    angle: float


def _step(t: np.ndarray) -> np.ndarray:
    """Return 3 t^2 - 2 t^3, from 0 to 1 for t in [0, 1] and constant outside."""
    t = np.clip(t, 0.0, 1.0)
    return t * t * (3 - 2 * t)


def body_profile(x: Numbers) -> tuple[Numbers, Numbers]:
    """Return radius and height of the center at x.

    Nose: R sqrt(1 - (1 - x / l)^3). Tail: a cubic to 12 % of R, closed by sqrt(1 - s^10); the center rises with it.
    """
    front = np.clip(1 - x / NOSE, 0.0, 1.0) ** 3
    s = np.clip((x - (LENGTH - TAIL)) / TAIL, 0.0, 1.0)
    shrink = 0.88 * _step(s)
    radius = RADIUS * np.sqrt(1 - front) * (1 - shrink) * np.sqrt(1 - s**10)
    return radius, RADIUS * (0.72 * shrink - 0.22 * front)


def body_point(x: Numbers, angle: Numbers) -> Places:
    """Return the point of the body at x and an angle from the side (0) to the top (pi / 2) or bottom (-pi / 2)."""
    radius, center = body_profile(x)
    return np.stack([x, radius * np.cos(angle), center + radius * np.sin(angle)], 1)


def body_normal(x: Numbers, angle: Numbers) -> Places:
    """Return the outward unit normal there: that of y^2 + (z - center)^2 = radius^2."""
    f = np.clip(1 - x / NOSE, 0.0, 1.0)
    s = np.clip((x - (LENGTH - TAIL)) / TAIL, 0.0, 1.0)
    shrink, shrink_x = 0.88 * _step(s), 0.88 * 6 * s * (1 - s) / TAIL
    nose, closed = 1 - f**3, 1 - s**10
    radius, _ = body_profile(x)
    # radius times its derivative, which stays finite at both ends
    growth = RADIUS**2 * (1.5 * f**2 / NOSE) * (1 - shrink) ** 2 * closed
    growth -= RADIUS**2 * nose * ((1 - shrink) * shrink_x * closed + (1 - shrink) ** 2 * 5 * s**9 / TAIL)
    rise = RADIUS * (0.72 * shrink_x + 0.22 * 3 * f**2 / NOSE)
    normal = np.stack([-growth - rise * radius * np.sin(angle), radius * np.cos(angle), radius * np.sin(angle)], 1)
    return normal / np.linalg.norm(normal, axis=1)[:, None]


class Lifting:
    """A wing or tail: leading edge, chord, height, twist, thickness and camber along y, with control surfaces.

    Around a section runs ``a``, -1 to 0 below from the trailing to the leading edge and 0 to 1 above:
    x = lead + c X, z = height + c (T s (1 - X) (1 + X - 1.2 X^2) + m X (1 - X) (1 + 1.2 X^3) - (X - 1/4) tan(twist)
    - r(X) tan(angle) w(y)), s = sin(1.2 a) / sin(1.2), X = s^2, r a rounded ramp behind the hinge, w a window.
    Equal steps in a bunch at the leading edge, and less at the trailing edge: two sheets of flat panels that are much
    closer than they are wide spoil the flow where the circulation changes along y.
    Toward the tip the thickness goes to zero as sqrt(1 - u^6), and the leading edge bends back as a quarter of an
    ellipse. ``turn`` (degrees, nose up) shears all about ``pivot``. Columns of the table: y, lead, chord, height at the
    quarter chord, twist (degrees), thickness, camber.
    """

    def __init__(
        self,
        table: Sequence[Sequence[float]],
        controls: Sequence[Control],
        tip: float,
        turn: float = 0.0,
        pivot: float = 0.0,
    ) -> None:
        rows = np.array(table)
        rows[:, 4] = np.tan(np.deg2rad(rows[:, 4]))
        share = np.linspace(0, 1, 2001)
        rows[:, 5] /= 2 * (np.sqrt(share) * (1 - share) * (1 + share - 1.2 * share**2)).max()
        self._columns = PchipInterpolator(rows[:, 0], rows[:, 1:])
        self._slopes = self._columns.derivative()
        self.end, self.tip, self.controls = float(rows[-1, 0]), tip, controls
        self.turn, self.pivot = np.tan(np.deg2rad(turn)), pivot

    def _parts(self, a: Numbers, y: Numbers) -> tuple[Numbers, ...]:
        """Return x, z and their derivatives by a and by y."""
        lead, c, height, twist, thick, camber = self._columns(y).T
        lead_y, c_y, height_y, twist_y, thick_y, camber_y = self._slopes(y).T
        u = np.clip((y - self.end + self.tip) / self.tip, 0.0, 1.0)
        round_ = np.sqrt(1 - u * u)
        round_y = -u / (np.maximum(round_, 1e-12) * self.tip)
        cut, cut_y = BEND * (1 - round_), -BEND * round_y  # of the chord, in front
        lead, lead_y = lead + cut * c, lead_y + cut_y * c + cut * c_y
        c, c_y = (1 - cut) * c, (1 - cut) * c_y - cut_y * c
        s, s_a = np.sin(BUNCH * a) / np.sin(BUNCH), BUNCH * np.cos(BUNCH * a) / np.sin(BUNCH)
        X, X_a = s * s, 2 * s * s_a
        form = (1 - X) * (1 + X - 1.2 * X**2)
        shape, shape_a = s * form, s_a * form + s * (3.6 * X**2 - 4.4 * X) * X_a
        line, line_X = X * (1 - X) * (1 + 1.2 * X**3), 1 - 2 * X + 1.2 * (4 * X**3 - 5 * X**4)
        blunt = np.sqrt(1 - u**6)
        thick_y = thick_y * blunt - thick * 3 * u**5 / (np.maximum(blunt, 1e-12) * self.tip)
        thick = thick * blunt
        z = thick * shape + camber * line - (X - 0.25) * twist
        z_a = thick * shape_a + (camber * line_X - twist) * X_a
        z_y = thick_y * shape + camber_y * line - (X - 0.25) * twist_y
        for control in self.controls:
            lever = np.sqrt((X - control.hinge) ** 2 + 4e-4)
            ramp, ramp_X = (X - control.hinge + lever) / 2, (1 + (X - control.hinge) / lever) / 2
            slope, edge = np.tan(np.deg2rad(control.angle)), 0.04 * self.end
            window, window_y = np.zeros_like(y), np.zeros_like(y)
            for sign, place in ((1, control.inner), (-1, control.outer)):
                wave = np.tanh((y - place * self.end) / edge)
                window, window_y = window + sign * wave / 2, window_y + sign * (1 - wave**2) / (2 * edge)
            z, z_a, z_y = z - slope * ramp * window, z_a - slope * ramp_X * X_a * window, z_y - slope * ramp * window_y
        x, x_y = lead + c * X, lead_y + c_y * X
        z, z_a, z_y = height + c * z, c * z_a, height_y + c * z_y + c_y * z
        return x, z - (x - self.pivot) * self.turn, c * X_a, z_a - c * X_a * self.turn, x_y, z_y - x_y * self.turn

    def point(self, a: Numbers, y: Numbers) -> Places:
        x, z, *_ = self._parts(a, y)
        return np.stack([x, y, z], 1)

    def normal(self, a: Numbers, y: Numbers) -> Places:
        """Return the outward unit normal, that of d/da x d/dy."""
        _, _, x_a, z_a, x_y, z_y = self._parts(a, y)
        normal = np.stack([-z_a, z_a * x_y - x_a * z_y, x_a], 1)
        return normal / np.linalg.norm(normal, axis=1)[:, None]


class Root:
    """The curve where a lifting surface meets the body: y along ``a``, and x and angle on the body."""

    def __init__(self, surface: Lifting, nodes: int = 601) -> None:
        a = np.linspace(-1, 1, nodes)
        low, high = np.zeros(nodes), np.full(nodes, 1.5 * RADIUS)
        for _ in range(48):  # inside the body at low, outside at high
            y = (low + high) / 2
            x, _, z = surface.point(a, y).T
            radius, center = body_profile(x)
            inside = y**2 + (z - center) ** 2 < radius**2
            low, high = np.where(inside, y, low), np.where(inside, high, y)
        y = (low + high) / 2
        y[0] = y[-1] = (y[0] + y[-1]) / 2
        x, _, z = surface.point(a, y).T
        self.y = CubicSpline(a, y)
        self._curve = CubicSpline(a, np.stack([x, np.arctan2(z - body_profile(x)[1], y)], 1))
        fine = np.linspace(-0.4, 0.4, 8001)
        self.front = float(fine[self._curve(fine)[:, 0].argmin()])

    def side(self, share: Numbers, above: bool) -> tuple[Numbers, Numbers]:
        """Return x and angle from the foremost point (share 0) to the trailing edge (1); x starts as share^1.5."""
        found = self._curve(self.front + ((1 if above else -1) - self.front) * share**0.75)
        return found[:, 0], found[:, 1]
