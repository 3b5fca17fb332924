"""Charts of the airliner's surface, the grids of panels on them, and the wakes behind wing and tail."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ikno.data.generators.aircraft_shape import (
    LENGTH,
    PIVOT,
    Control,
    Lifting,
    Numbers,
    Places,
    Root,
    body_normal,
    body_point,
)
from ikno.data.generators.panels import Wake

# y, leading edge, chord, height, twist, thickness, camber; roughly those published for the model, whose trailing edge
# has its break at 37 % of the half span.
WING = (
    (0.0, 20.6, 13.6, -1.55, 5.6, 0.145, 0.004),
    (3.1, 22.95, 11.8, -1.35, 4.5, 0.135, 0.010),
    (7.0, 25.91, 9.53, -1.05, 2.4, 0.118, 0.022),
    (10.87, 28.85, 7.27, -0.70, 0.9, 0.106, 0.028),
    (17.0, 33.50, 5.77, -0.10, -0.6, 0.098, 0.030),
    (23.2, 38.21, 4.25, 0.70, -2.2, 0.095, 0.030),
    (29.38, 42.9, 2.73, 1.70, -3.8, 0.095, 0.030),
)
STABILIZER = (
    (0.0, 52.0, 6.9, 1.75, 0.0, 0.10, 0.0),
    (3.5, 54.9, 5.42, 2.05, 0.0, 0.10, 0.0),
    (7.0, 57.8, 3.94, 2.36, 0.0, 0.10, 0.0),
    (10.65, 60.83, 2.4, 2.68, 0.0, 0.10, 0.0),
)
FAR = (3.0, 8.0, 20.0, 60.0, 200.0, 1000.0)  # lengths of the wakes behind the body


class Setting(NamedTuple):
    """Deflections in degrees: trailing edges down, and the nose of the tail up."""

    inboard: float = 0.0
    outboard: float = 0.0
    tail: float = 0.0
    elevator: float = 0.0


class Chart(NamedTuple):
    """A piece of surface: point and outward normal of (u, v) in the unit square, u along rows and v along columns.

    d/du x d/dv points outward. Rows and columns of panels have equal steps in u and v.
    """

    rows: int
    columns: int
    point: Callable[[Numbers, Numbers], Places]
    normal: Callable[[Numbers, Numbers], Places]

    def nodes(self) -> Float[np.ndarray, "rows columns 3"]:
        u, v = np.meshgrid(np.linspace(0, 1, self.rows + 1), np.linspace(0, 1, self.columns + 1), indexing="ij")
        return self.point(u.ravel(), v.ravel()).reshape(self.rows + 1, self.columns + 1, 3)


class Part(NamedTuple):
    """Charts stacked row upon row; ``linked``: the potential is smooth from a row to the next.

    ``mirror``: the first and last rows lie at the plane of symmetry.
    """

    charts: tuple[Chart, ...]
    linked: Bool[np.ndarray, "_ columns"]
    mirror: bool = False


def lifting_chart(surface: Lifting, root: Root, rows: int, columns: int) -> Chart:
    """Return the chart of a lifting surface outside the body: u once around the sections, v from root to tip."""

    def where(u: Numbers, v: Numbers) -> tuple[Numbers, Numbers]:
        a = 2 * u - 1
        share = (1 - np.cos(np.pi * v)) / 4 + np.sin(np.pi / 2 * v) / 2
        y = root.y(a)
        return a, y + (surface.end - y) * share

    return Chart(rows, columns, lambda u, v: surface.point(*where(u, v)), lambda u, v: surface.normal(*where(u, v)))


class Body:
    """The body in three bands from bottom to top, between lines that pass through the roots of wing and tail.

    Columns run from nose to end in five stretches: to the wing, along it, to the tail, along it, to the end. Along a
    root the line opens to let the surface through; behind it the line is where the wake leaves the body.
    """

    def __init__(self, wing: Root, tail: Root, columns: tuple[int, ...]) -> None:
        self.wing, self.tail, self.columns = wing, tail, columns
        self.breaks = np.cumsum((0, *columns)) / sum(columns)
        ends = [f(np.array([s]), True)[0][0] for f in (wing.side, tail.side) for s in (0.0, 1.0)]
        self.stops = np.array([0.0, *ends, LENGTH])

    def line(self, v: Numbers, root: Root, above: bool) -> tuple[Numbers, Numbers]:
        """Return x and angle along the wing's or tail's line, on its upper or lower side."""
        stretch = np.clip(np.searchsorted(self.breaks, v, side="right") - 1, 0, 4)
        t = np.clip((v - self.breaks[stretch]) / np.diff(self.breaks)[stretch], 0.0, 1.0)
        share = (1 - np.cos(np.pi * t)) / 2
        x = self.stops[stretch] + np.diff(self.stops)[stretch] * share
        for place, own in ((1, self.wing), (3, self.tail)):
            here = stretch == place
            both = [own.side(t[here], side)[0] for side in (False, True)]
            x[here] = both[above] if own is root else (both[0] + both[1]) / 2
        first, last = (root.side(np.array([s]), above)[1][0] for s in (0.0, 1.0))
        lead = self.stops[2:4]
        between = np.clip((x - lead[0]) / (lead[1] - lead[0]), 0, 1)
        between = between * between * (3 - 2 * between)
        if root is self.wing:
            angle = np.where(stretch == 0, first, last + (np.deg2rad(-60) - last) * between)
        else:
            angle = np.where(stretch == 4, last, np.deg2rad(20) + (first - np.deg2rad(20)) * between)
        here = stretch == (1 if root is self.wing else 3)
        angle[here] = root.side(t[here], above)[1]
        return x, angle

    def band(self, number: int, rows: int) -> Chart:
        """Return the chart of a band, 0 to 2: u upward, v from nose to end."""

        def where(u: Numbers, v: Numbers) -> tuple[Numbers, Numbers]:
            if number == 0:
                high = self.line(v, self.wing, False)
                low = high[0], np.full_like(v, -np.pi / 2)
            elif number == 1:
                low, high = self.line(v, self.wing, True), self.line(v, self.tail, False)
            else:
                low = self.line(v, self.tail, True)
                high = low[0], np.full_like(v, np.pi / 2)
            return low[0] + (high[0] - low[0]) * u, low[1] + (high[1] - low[1]) * u

        columns = sum(self.columns)
        return Chart(rows, columns, lambda u, v: body_point(*where(u, v)), lambda u, v: body_normal(*where(u, v)))

    def wake(
        self, root: Root, nodes: Float[np.ndarray, "rows columns 3"], reach: float
    ) -> Float[np.ndarray, "stations columns 3"]:
        """Return a sheet from the trailing edge of a grid of nodes; its inner edge follows the body and then y = 0.

        What is farther than ``reach`` from the body leaves halfway between both sides of the edge and turns along x:
        z = slope l (1 - exp(-x / l)), l = .4 chords.
        """
        first = sum(self.columns[: 2 if root is self.wing else 4])
        v = np.arange(first, sum(self.columns) + 1) / sum(self.columns)
        line = body_point(*self.line(v, root, True))
        shift = np.concatenate([line, line[-1] + np.array(FAR)[:, None] * [1, 0, 0]]) - line[0]
        edge, chord = nodes[-1], np.ptp(nodes[..., 0], axis=0)
        follow = (1 - np.clip((edge[:, 1] - edge[0, 1]) / reach, 0, 1)) ** 2
        sides = (edge - nodes[-2]) + (edge - nodes[1])
        slope, turn = sides[:, 2] / sides[:, 0], 0.4 * chord
        sheet = edge + shift[:, None] * np.stack([np.ones_like(follow), follow, follow], 1)
        sheet[..., 2] += (1 - follow) * slope * turn * (1 - np.exp(-shift[:, :1] / turn))
        return sheet


class Airliner:
    """Wing, tail and body as parts, their panels counted in this order, and the two wakes."""

    def __init__(self, setting: Setting, resolution: int) -> None:
        def count(share: float) -> int:
            return max(3, round(share * resolution))

        ailerons = (Control(0.75, 0.27, 0.40, setting.inboard), Control(0.75, 0.68, 0.92, setting.outboard))
        wing = Lifting(WING, ailerons, tip=1.2)
        elevator = Control(0.7, 0.22, 0.95, setting.elevator)
        tail = Lifting(STABILIZER, (elevator,), tip=0.8, turn=setting.tail, pivot=PIVOT)
        roots = Root(wing), Root(tail)
        body = Body(*roots, tuple(count(share) for share in (0.45, 0.75, 0.5, 0.5, 0.25)))
        charts = [
            lifting_chart(wing, roots[0], 2 * resolution, count(1.05)),
            lifting_chart(tail, roots[1], 2 * count(0.6), count(0.5)),
        ]
        rows = tuple(count(share) for share in (0.28, 0.2, 0.3))
        self.parts = [Part((chart,), np.ones((chart.rows - 1, chart.columns), bool)) for chart in charts]
        linked = np.ones((sum(rows) - 1, sum(body.columns)), bool)
        linked[rows[0] - 1, body.columns[0] :] = False
        linked[rows[0] + rows[1] - 1, sum(body.columns[:3]) :] = False
        bands = tuple(body.band(k, rows[k]) for k in range(3))
        self.parts.append(Part(bands, linked, mirror=True))
        self.wakes, before = [], 0
        for chart, root, reach in zip(charts, roots, (5.0, 2.0), strict=True):
            below = before + np.arange(chart.columns)
            nodes = body.wake(root, chart.nodes(), reach)
            self.wakes.append(Wake(nodes, below + (chart.rows - 1) * chart.columns, below))
            before += chart.rows * chart.columns
