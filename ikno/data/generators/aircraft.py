"""Pressure and friction on an airliner in attached subsonic flow (kin of NASA-CRM).

Linearized compressible potential flow by panels, with the wakes of wing and tail, and turbulent friction along the
streamlines of the surface. No boundary layer acts back on the flow: no separation, no shocks.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from ikno.data.generators import Generator, Range
from ikno.data.generators.aircraft_grid import Airliner, Chart, Part, Setting
from ikno.data.generators.aircraft_shape import MEAN_CHORD
from ikno.data.generators.panels import joined, panels_of, solve
from ikno.data.generators.surface_flow import friction, interpolated, limited, pressure, run_length, tangents
from ikno.data.records import Trajectory

THIN = 0.6  # v = 1 - (1 - w)^.6 for even w
MIRROR = np.array([1.0, -1.0, 1.0])
SHORTEST = 1e-3 * MEAN_CHORD  # run length at an attachment line, where the boundary layer is thin but not zero


class Cloud(NamedTuple):
    """Points on a surface with their outward normals and the areas they stand for."""

    points: Float[np.ndarray, "points 3"]
    normals: Float[np.ndarray, "points 3"]
    areas: Float[np.ndarray, " points"]


def flow_on(
    part: Part, center: Float[np.ndarray, "rows columns 3"], phi: Float[np.ndarray, "rows columns"], onset: np.ndarray
) -> tuple[Float[np.ndarray, "rows columns 3"], Float[np.ndarray, "rows columns"]]:
    """Return the velocity along the surface, onset + grad phi less its normal part, and the run length at panels."""
    linked = part.linked
    if part.mirror:
        center, phi = (np.concatenate([a[:1] * s, a, a[-1:] * s]) for a, s in ((center, MIRROR), (phi, np.ones(1))))
        edge = np.ones_like(linked[:1])
        linked = np.concatenate([edge, linked, edge])
    gradient, up, across = tangents(center, linked, np.ones((len(center), center.shape[1] - 1), bool))
    normal = np.cross(up, across)
    normal /= np.linalg.norm(normal, axis=2)[..., None]
    velocity = gradient(phi) + onset - (normal @ onset)[..., None] * normal
    rows, columns = ((velocity * t).sum(2) for t in (up, across))
    steps = [np.linalg.norm(np.gradient(center, axis=k), axis=2) for k in (0, 1)]
    speed = np.linalg.norm(velocity, axis=2)
    if part.mirror:  # a body: column by column from the nose
        start = np.linalg.norm(center[:, 0] - center[:, 0].mean(0), axis=1)
        grids = (a.T for a in (steps[1], columns, rows / steps[0], speed))
        return velocity[1:-1], run_length(np.zeros(len(start), int), start, *grids).T[1:-1]
    # A wing: both ways from the attachment line, which is where the flow turns from the lower to the upper side.
    middle = len(rows) // 2
    near = slice(middle - middle // 3, middle + middle // 3)
    first = near.start + (rows[near] < 0).sum(0)
    index = np.arange(len(first))
    start = np.linalg.norm(center[first, index] - center[first - 1, index], axis=1) / 2
    drift = columns / steps[1]
    upper = run_length(first, start, steps[0], rows, drift, speed)
    turned = (a[::-1] for a in (steps[0], -rows, drift, speed))
    lower = run_length(len(rows) - first, start, *turned)[::-1]
    return velocity, np.where(np.arange(len(rows))[:, None] < first, lower, upper)


def widened(grid: Float[np.ndarray, "rows columns"], part: Part, sign: float = 1.0) -> list[np.ndarray]:
    """Return the values of each chart of a part with one more row and column beyond each edge.

    There they are those of the neighboring chart or of the mirror image (times ``sign``), or continue a straight line.
    """
    found, before = [], 0
    for chart in part.charts:
        end = before + chart.rows
        own = grid[before:end]
        rows = [2 * own[0] - own[1], 2 * own[-1] - own[-2]]
        for k, (place, beyond) in enumerate(((before, before - 1), (end - 1, end))):
            if 0 <= beyond < len(grid):
                rows[k] = np.where(part.linked[min(place, beyond)], grid[beyond], rows[k])
            elif part.mirror:
                rows[k] = sign * grid[place]
        own = np.concatenate([rows[0][None], own, rows[1][None]])
        found.append(np.concatenate([2 * own[:, :1] - own[:, 1:2], own, 2 * own[:, -1:] - own[:, -2:-1]], 1))
        before = end
    return found


def spread(count: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return points that fill the unit square evenly: (k / g, k / g^2) modulo 1, g^3 = g + 1 (Roberts, 2018)."""
    g = 1.324717957244746
    k = np.arange(1, count + 1)
    return (0.5 + k / g) % 1, (0.5 + k / g**2) % 1


def cloud_on(
    chart: Chart, u: Float[np.ndarray, " n"], v: Float[np.ndarray, " n"], width: Float[np.ndarray, "_"]
) -> Cloud:
    """Return the points of a chart; the area of one is |d/du x d/dv| width / n, ``width`` that of v at a point."""
    h = 1e-6
    sides = [(np.clip(w - h, 0, 1), np.clip(w + h, 0, 1)) for w in (u, v)]
    along = chart.point(sides[0][1], v) - chart.point(sides[0][0], v)
    across = chart.point(u, sides[1][1]) - chart.point(u, sides[1][0])
    steps = np.prod([high - low for low, high in sides], axis=0)
    areas = np.linalg.norm(np.cross(along, across), axis=1) / steps * width / len(u)
    return Cloud(chart.point(u, v), chart.normal(u, v), areas)


class Aircraft(Generator):
    """Coefficients of pressure and friction (x, y, z) on the half y > 0 of an airliner; flow and deflections vary.

    ``resolution`` counts the panels along the upper side of the wing; all parts together have some 4 resolution^2.
    Points lie on the exact surface, spread evenly over the steps of the panels (but for the tips): they are denser at
    leading and trailing edges and roots. They stay at their places on each part when its control surfaces move.
    Angles in degrees; deflections have the trailing edge down, ``tail`` the nose up. ``reynolds`` is that of the mean
    chord.
    """

    resolution: PositiveInt = Field(default=34, ge=8)
    points: PositiveInt | None = 440_000
    mach: Range = (0.3, 0.7)
    alpha: Range = (-1.5, 3.5)
    inboard: Range = (-10.0, 10.0)
    outboard: Range = (-10.0, 10.0)
    tail: Range = (-3.0, 3.0)
    elevator: Range = (-10.0, 10.0)
    reynolds: PositiveFloat = 4e7

    @field_validator("mach")
    @classmethod
    def _subsonic(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] < 0 or value[1] > 0.85:
            raise ValueError("the flow is subsonic without shocks: mach is within [0, .85]")
        return value

    @field_validator("alpha", "inboard", "outboard", "elevator")
    @classmethod
    def _moderate(cls, value: tuple[float, float]) -> tuple[float, float]:
        if max(-value[0], value[1]) > 15:
            raise ValueError("the flow is attached: this angle is within [-15, 15] degrees")
        return value

    @field_validator("tail")
    @classmethod
    def _on_body(cls, value: tuple[float, float]) -> tuple[float, float]:
        if max(-value[0], value[1]) > 5:
            raise ValueError("the root of the tail stays on the body: this angle is within [-5, 5] degrees")
        return value

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        ranges = (self.mach, self.alpha, self.inboard, self.outboard, self.tail, self.elevator)
        flight = np.array([rng.uniform(*between) for between in ranges])
        mach, alpha = float(flight[0]), np.deg2rad(flight[1])
        airliner = Airliner(Setting(*flight[2:]), self.resolution)
        charts = [chart for part in airliner.parts for chart in part.charts]
        panels = joined([panels_of(chart.nodes()) for chart in charts])
        onset = np.array([np.cos(alpha), 0.0, np.sin(alpha)])
        phi = solve(panels, airliner.wakes, onset, mach, symmetric=True)
        total = self.points or 440_000
        ends = np.cumsum([chart.rows * chart.columns for chart in charts])
        counts = np.diff(np.rint(total * ends / ends[-1]).astype(int), prepend=0)
        found, before, number = [], 0, 0
        for part in airliner.parts:
            shape = (len(part.linked) + 1, part.linked.shape[1])
            here = slice(before, before + shape[0] * shape[1])
            velocity, run = flow_on(part, panels.center[here].reshape(*shape, 3), phi[here].reshape(shape), onset)
            velocity = limited(velocity, mach)
            grids = [widened(velocity[..., k], part, MIRROR[k]) for k in range(3)]
            lengths = widened(run, part)
            for k, chart in enumerate(part.charts):
                u, v = spread(int(counts[number]))
                width = np.ones(1)
                if not part.mirror:  # the panels at a tip are tiny: fewer points there
                    width = THIN * (1 - v) ** (THIN - 1)
                    v = 1 - (1 - v) ** THIN
                made = cloud_on(chart, u, v, width)
                places = u * chart.rows, v * chart.columns
                local = np.stack([interpolated(grid[k], *places, 3) for grid in grids], 1)
                local -= (local * made.normals).sum(1)[:, None] * made.normals
                local = limited(local, mach, 32)  # splines swing beyond what they pass through
                square = (local**2).sum(1)
                length = np.maximum(interpolated(lengths[k], *places, 1), SHORTEST)
                drag = friction(length, square, mach, self.reynolds / MEAN_CHORD)
                along = local / np.sqrt(np.maximum(square, 1e-12))[:, None] * drag[:, None]
                found.append(np.column_stack([*made, pressure(square, mach), along]))
                number += 1
            before = here.stop
        # One random order for all samples: any few points are everywhere, and the k-th is at one place of its part.
        table = np.random.default_rng(0).permutation(np.concatenate(found))
        conditions = np.column_stack([table[:, 3:6], np.tile(flight, (len(table), 1))])
        return Trajectory(table[:, :3], table[None, :, 7:], conditions[None], table[:, 6])
