"""Linearized subsonic flow about closed bodies with wakes: panels of constant source and doublet strength.

The perturbation potential of Morino's form (AIAA Journal 12, 1974): one half phi(P) = D phi - S (d phi / d n), with
D = 1/4pi times the integral of n (P - Q) / r^3 and S = 1/4pi times that of 1 / r over the surface.
"""

from collections.abc import Callable, Sequence
from functools import cache
from inspect import unwrap
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ikno.errors import require

FAR = 6.0  # panels more than this many of their diagonals away act as points at their centroids
BLOCK, TILE = 64, 256  # of elimination


class Panels(NamedTuple):
    """Quadrilaterals: corners counterclockwise seen from the fluid, centroids, unit normals, areas, diagonals."""

    corners: Float[np.ndarray, "n 4 3"]
    center: Float[np.ndarray, "n 3"]
    normal: Float[np.ndarray, "n 3"]
    area: Float[np.ndarray, " n"]
    size: Float[np.ndarray, " n"]


class Wake(NamedTuple):
    """A sheet from a trailing edge downstream: nodes by station and strip, panels above and below each strip's edge."""

    nodes: Float[np.ndarray, "stations nodes 3"]
    above: Int[np.ndarray, " strips"]
    below: Int[np.ndarray, " strips"]


def panels_of(nodes: Float[np.ndarray, "rows columns 3"]) -> Panels:
    """Return the panels of a grid of nodes, row by row; the normal is that of (next row) x (next column)."""
    corners = np.stack([nodes[:-1, :-1], nodes[1:, :-1], nodes[1:, 1:], nodes[:-1, 1:]], 2).reshape(-1, 4, 3)
    return _measured(corners)


def _measured(corners: Float[np.ndarray, "n 4 3"]) -> Panels:
    a, b, c, d = corners.transpose(1, 0, 2)
    normal = np.cross(c - a, d - b) / 2
    area = np.linalg.norm(normal, axis=1)
    normal = normal / area[:, None]
    halves = [((np.cross(q - p, r - p) * normal).sum(1) / 2, (p + q + r) / 3) for p, q, r in ((a, b, c), (a, c, d))]
    center = sum(share[:, None] * middle for share, middle in halves) / area[:, None]
    size = np.maximum(np.linalg.norm(c - a, axis=1), np.linalg.norm(d - b, axis=1))
    return Panels(corners, center, normal, area, size)


def joined(parts: Sequence[Panels]) -> Panels:
    """Return all panels in one."""
    return Panels(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _pair(x, y, z, corners, center, normal, area, reach):
    """Return 4 pi S and 4 pi D of one panel at a point: exact for a flat panel, that of a point beyond ``reach``.

    The solid angle is that of two triangles (van Oosterom and Strackee, 1983); the potential of a flat polygon of
    sources is the sum over edges of (distance to the edge) ln((r1 + r2 + l) / (r1 + r2 - l)), less height times solid
    angle (Hess and Smith, 1967).
    """
    px, py, pz = x - center[0], y - center[1], z - center[2]
    height = px * normal[0] + py * normal[1] + pz * normal[2]
    square = px * px + py * py + pz * pz
    if square > reach * reach:
        source = area / np.sqrt(square)
        return source, source * height / square
    ax, ay, az = corners[0, 0] - x, corners[0, 1] - y, corners[0, 2] - z
    bx, by, bz = corners[1, 0] - x, corners[1, 1] - y, corners[1, 2] - z
    cx, cy, cz = corners[2, 0] - x, corners[2, 1] - y, corners[2, 2] - z
    dx, dy, dz = corners[3, 0] - x, corners[3, 1] - y, corners[3, 2] - z
    ra, rb = np.sqrt(ax * ax + ay * ay + az * az), np.sqrt(bx * bx + by * by + bz * bz)
    rc, rd = np.sqrt(cx * cx + cy * cy + cz * cz), np.sqrt(dx * dx + dy * dy + dz * dz)
    ux, uy, uz = ay * cz - az * cy, az * cx - ax * cz, ax * cy - ay * cx  # a x c, of both triangles
    ac = ax * cx + ay * cy + az * cz
    first = ra * rb * rc + (ax * bx + ay * by + az * bz) * rc + (bx * cx + by * cy + bz * cz) * ra + ac * rb
    second = ra * rc * rd + (cx * dx + cy * dy + cz * dz) * ra + (dx * ax + dy * ay + dz * az) * rc + ac * rd
    angle = np.arctan2(bx * ux + by * uy + bz * uz, first) - np.arctan2(dx * ux + dy * uy + dz * uz, second)
    doublet = 2.0 * angle
    source = -height * doublet
    for k in range(4):
        if k == 0:
            sx, sy, sz, tx, ty, tz, r = ax, ay, az, bx, by, bz, ra + rb
        elif k == 1:
            sx, sy, sz, tx, ty, tz, r = bx, by, bz, cx, cy, cz, rb + rc
        elif k == 2:
            sx, sy, sz, tx, ty, tz, r = cx, cy, cz, dx, dy, dz, rc + rd
        else:
            sx, sy, sz, tx, ty, tz, r = dx, dy, dz, ax, ay, az, rd + ra
        ex, ey, ez = tx - sx, ty - sy, tz - sz
        length = np.sqrt(ex * ex + ey * ey + ez * ez)
        if length > 1e-12 * r:
            outward = sx * (ey * normal[2] - ez * normal[1]) + sy * (ez * normal[0] - ex * normal[2])
            outward += sz * (ex * normal[1] - ey * normal[0])
            source += outward / length * np.log((r + length) / max(r - length, 1e-14 * r))
    return source, doublet


def _body(pair, points, mirror, corners, center, normal, area, reach, flow, matrix, right):
    """Write one half less D to the matrix and -S times the flow through the panels to the right side."""
    scale = 0.25 / np.pi
    for i in range(points.shape[0]):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        for j in range(area.size):
            source, doublet = pair(x, y, z, corners[j], center[j], normal[j], area[j], reach[j])
            if i == j:
                doublet = -2.0 * np.pi  # a flat panel has D = 0 at its center, and the equation has the one half there
            if mirror:
                more = pair(x, -y, z, corners[j], center[j], normal[j], area[j], reach[j])
                source += more[0]
                doublet += more[1]
            matrix[i, j] = -scale * doublet
            right[i] -= scale * source * flow[j]


def _sheet(pair, points, mirror, corners, center, normal, area, reach, above, below, given, matrix, right):
    """Bring in D times the jump of the potential, above less below and a given part, of each panel of a wake."""
    scale = 0.25 / np.pi
    for i in range(points.shape[0]):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        for j in range(area.size):
            doublet = pair(x, y, z, corners[j], center[j], normal[j], area[j], reach[j])[1]
            if mirror:
                doublet += pair(x, -y, z, corners[j], center[j], normal[j], area[j], reach[j])[1]
            matrix[i, above[j]] -= scale * doublet
            matrix[i, below[j]] += scale * doublet
            right[i] += scale * doublet * given[j]


def _eliminate(a, b):
    """Write the solution of a x = b to b: Gaussian elimination with row pivots, in blocks of columns; a is lost.

    In one thread and in a fixed order, so that the bits are the same wherever the same machine code runs: those of
    LAPACK depend on the number of its threads.
    """
    n = b.size
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        for k in range(start, stop):
            pivot = k
            for i in range(k + 1, n):
                if abs(a[i, k]) > abs(a[pivot, k]):
                    pivot = i
            if pivot != k:
                b[k], b[pivot] = b[pivot], b[k]
                for j in range(n):
                    a[k, j], a[pivot, j] = a[pivot, j], a[k, j]
            inverse = 1.0 / a[k, k]
            for i in range(k + 1, n):
                a[i, k] *= inverse
                factor = a[i, k]
                for j in range(k + 1, stop):
                    a[i, j] -= factor * a[k, j]
        for k in range(start, stop):
            for i in range(k + 1, stop):
                factor = a[i, k]
                for j in range(stop, n):
                    a[i, j] -= factor * a[k, j]
        # Only full blocks have columns to their right. Four rows at a time, and tiles that stay in the cache.
        for left in range(stop, n, TILE):
            right = min(left + TILE, n)
            for i in range(stop, n):
                row = a[i, left:right]
                for k in range(start, stop, 4):
                    f, g, p, q = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                    r, s, t, u = a[k, left:right], a[k + 1, left:right], a[k + 2, left:right], a[k + 3, left:right]
                    for j in range(row.size):
                        row[j] -= f * r[j] + g * s[j] + p * t[j] + q * u[j]
    for i in range(n):
        for j in range(i):
            b[i] -= a[i, j] * b[j]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            b[i] -= a[i, j] * b[j]
        b[i] /= a[i, i]


@cache
def _compiled() -> tuple[Callable, ...]:
    """Return the four loops above as machine code; elimination may fuse products and sums."""
    numba = require("numba", "solvers")
    quick = numba.njit(error_model="numpy", fastmath={"contract"})(unwrap(_eliminate))
    return *(numba.njit(error_model="numpy")(unwrap(loop)) for loop in (_pair, _body, _sheet)), quick


def solve(
    panels: Panels,
    wakes: Sequence[Wake],
    onset: Float[np.ndarray, "3"],
    mach: float = 0.0,
    symmetric: bool = False,
) -> Float[np.ndarray, " n"]:
    """Return the perturbation potential on the panels in a stream ``onset`` of speed 1.

    (1 - M^2) phi_xx + phi_yy + phi_zz = 0 becomes Laplace's equation in x / sqrt(1 - M^2), y, z (Goethert, 1940), where
    no linearized mass flux through the surface is d phi / d n = -(onset n dA) / (sqrt(1 - M^2) dA'), dA' the stretched
    area. Kutta: the jump across a wake is that of the whole potential between the last panels above and below its edge.
    ``symmetric``: the panels are the half y > 0 of what is symmetric about y = 0.
    """
    if not 0 <= mach < 1:
        raise ValueError(f"the flow is subsonic: 0 <= mach < 1, found {mach}")
    pair, body, sheet, eliminate = _compiled()
    beta = np.sqrt(1 - mach**2)
    stretch = np.array([1 / beta, 1.0, 1.0])
    flat = _measured(panels.corners * stretch)
    flow = -(panels.normal @ onset) * panels.area / (beta * flat.area)
    n = len(flow)
    matrix, right = np.empty((n, n)), np.zeros(n)
    points = np.ascontiguousarray(flat.center)
    body(pair, points, symmetric, *flat[:4], FAR * flat.size, flow, matrix, right)
    for wake in wakes:
        shed = panels_of(wake.nodes * stretch)
        above, below = (np.tile(index, len(wake.nodes) - 1) for index in (wake.above, wake.below))
        given = (panels.center[above] - panels.center[below]) @ onset
        sheet(pair, points, symmetric, *shed[:4], FAR * shed.size, above, below, given, matrix, right)
    eliminate(matrix, right)
    return right
