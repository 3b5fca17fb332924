"""Compiled loops of the steady Euler solver on O-grids; importing this file needs numba.

Arrays are [layer j, cell i around, component]; i is counterclockwise and periodic, j goes outward. The faces are three
numbers, unit normal and length: ``across[j, i]`` lies between the cells i - 1 and i, ``along[j, i]`` between the layers
j - 1 and j. Primitive variables w = (rho, u, v, p) have one more layer of ghosts on either side.
"""

from inspect import unwrap

import numpy as np

from ikno.errors import require

numba = require("numba", "solvers")
GAMMA = 1.4
KAPPA = 1 / 3
FIX = 0.1  # acoustic speeds below this share of the speed of sound are rounded up
FLOOR = 0.1  # in the Jacobian, the speed of the flow through a face is at least this share of the speed of sound
MOST = 0.2  # density and pressure change by this share at most in one step
CAUTION = 10.0  # Courant numbers are divided by 1 + CAUTION times the relative jump of pressure over a cell


def fast(loop):
    """Return a function as machine code."""
    return numba.njit(error_model="numpy")(unwrap(loop))


@fast
def speeds(qn, c, floor):
    """Return |qn|, (|qn + c| + |qn - c|) / 2 - |qn| and (|qn + c| - |qn - c|) / (2 c) with rounded acoustic speeds.

    Harten's correction: |s| < d is replaced by (s^2 + d^2) / (2 d), with d a tenth of c; |qn| is at least floor c.
    """
    d = FIX * c
    plus, minus = abs(qn + c), abs(qn - c)
    if plus < d:
        plus = 0.5 * (plus * plus + d * d) / d
    if minus < d:
        minus = 0.5 * (minus * minus + d * d) / d
    flat = max(abs(qn), floor * c)
    return flat, 0.5 * (plus + minus) - flat, 0.5 * (plus - minus) / c


@fast
def roe(a, ua, va, pa, b, ub, vb, pb, nx, ny):
    """Return Roe's flux of mass and momentum through a face of unit length (J. Comput. Phys. 43, 1981)."""
    qa, qb = ua * nx + va * ny, ub * nx + vb * ny
    ea = pa / (GAMMA - 1.0) + 0.5 * a * (ua * ua + va * va)
    eb = pb / (GAMMA - 1.0) + 0.5 * b * (ub * ub + vb * vb)
    share = 1.0 / (1.0 + np.sqrt(b / a))
    rest = 1.0 - share
    u, v = share * ua + rest * ub, share * va + rest * vb
    h = share * (ea + pa) / a + rest * (eb + pb) / b
    half = 0.5 * (u * u + v * v)
    square = (GAMMA - 1.0) * (h - half)
    qn = u * nx + v * ny
    flat, mean, gap = speeds(qn, np.sqrt(square), 0.0)
    d0, d1, d2, d3 = b - a, b * ub - a * ua, b * vb - a * va, eb - ea
    dp = (GAMMA - 1.0) * (half * d0 - u * d1 - v * d2 + d3)
    dq = nx * d1 + ny * d2 - qn * d0
    one = mean * dp / square + gap * dq
    two = mean * dq + gap * dp
    ma, mb = a * qa, b * qb
    return (
        0.5 * (ma + mb - flat * d0 - one),
        0.5 * (ma * ua + mb * ub + (pa + pb) * nx - flat * d1 - one * u - two * nx),
        0.5 * (ma * va + mb * vb + (pa + pb) * ny - flat * d2 - one * v - two * ny),
    )


@fast
def primitive(u, w, far, height, curvature, along):
    """Write the primitive variables of u to w with their ghosts; returns False where a pressure is not positive.

    Wall ghosts are mirrored with the pressure gradient of the curvature, dp/dn = rho q^2 / radius, and the entropy and
    total enthalpy of their image (Dadone and Grossman, AIAA J. 32, 1994). Beyond the far field the state is ``far``.
    """
    nj, ni = u.shape[0], u.shape[1]
    fine = True
    for j in range(nj):
        for i in range(ni):
            rho = u[j, i, 0]
            x, y = u[j, i, 1] / rho, u[j, i, 2] / rho
            p = (GAMMA - 1.0) * (u[j, i, 3] - 0.5 * rho * (x * x + y * y))
            if not (rho > 0.0 and p > 0.0):
                fine = False
            w[j + 1, i, 0], w[j + 1, i, 1], w[j + 1, i, 2], w[j + 1, i, 3] = rho, x, y, p
    for i in range(ni):
        rho, x, y, p = w[1, i, 0], w[1, i, 1], w[1, i, 2], w[1, i, 3]
        nx, ny = along[0, i, 0], along[0, i, 1]
        qn, qt = x * nx + y * ny, y * nx - x * ny
        ghost = p - rho * qt * qt * curvature[i] * height[i]
        ghost = max(ghost, 0.1 * p)
        density = rho * (ghost / p) ** (1.0 / GAMMA)
        heat = 2.0 * GAMMA / (GAMMA - 1.0) * (p / rho - ghost / density) + qt * qt
        slip = np.copysign(np.sqrt(max(heat, 0.0)), qt)
        w[0, i, 0], w[0, i, 3] = density, ghost
        w[0, i, 1], w[0, i, 2] = -qn * nx - slip * ny, -qn * ny + slip * nx
        for k in range(4):
            w[nj + 1, i, k] = far[i, k]
    return fine


@fast
def wall_pressure(w, i, height, curvature, along, second):
    """Return the pressure at the wall: of the parabola through two cells with the slope rho q^2 / radius there."""
    nx, ny = along[0, i, 0], along[0, i, 1]
    qt = w[1, i, 2] * nx - w[1, i, 1] * ny
    slope = w[1, i, 0] * qt * qt * curvature[i]
    if second:
        return (9.0 * w[1, i, 3] - w[2, i, 3] - 3.0 * slope * height[i]) / 8.0
    return w[1, i, 3] - 0.5 * slope * height[i]


@fast
def surface(w, height, curvature, along, second):
    """Return the pressures at the wall."""
    out = np.empty(w.shape[1])
    for i in range(len(out)):
        out[i] = wall_pressure(w, i, height, curvature, along, second)
    return out


@fast
def ends(before, here, after, e):
    """Return the values at the low and the high end of a cell from the means of three.

    Third order where smooth (kappa = 1/3), with van Albada's limiter (Anderson, Thomas and Van Leer, AIAA J. 24, 1986).
    """
    a, b = here - before, after - here
    s = max((2.0 * a * b + e) / (a * a + b * b + e), 0.0)
    return (
        here - 0.25 * s * ((1.0 - KAPPA * s) * b + (1.0 + KAPPA * s) * a),
        here + 0.25 * s * ((1.0 - KAPPA * s) * a + (1.0 + KAPPA * s) * b),
    )


@fast
def enthalpy(w, j, i):
    """Return the total enthalpy gamma / (gamma - 1) p / rho + (u^2 + v^2) / 2."""
    rho, u, v, p = w[j, i, 0], w[j, i, 1], w[j, i, 2], w[j, i, 3]
    return GAMMA / (GAMMA - 1.0) * p / rho + 0.5 * (u * u + v * v)


@fast
def residual(w, across, along, soft, height, curvature, second, rows, r):
    """Write the sum of the fluxes out of each cell to r; with ``second`` of second order, else of first.

    The flux of energy is that of mass times the total enthalpy of the cell it comes from. A steady flow with the same
    total enthalpy everywhere upstream then keeps it exactly, also within shocks.
    """
    nj, ni = r.shape[0], r.shape[1]
    low, high, lower, upper = rows[0], rows[1], rows[2], rows[3]
    for j in range(nj):
        for i in range(ni):
            e = soft[j, i]
            before, after = i - 1 if i > 0 else ni - 1, i + 1 if i < ni - 1 else 0
            for k in range(4):
                here = w[j + 1, i, k]
                if second:
                    low[i, k], high[i, k] = ends(w[j + 1, before, k], here, w[j + 1, after, k], e)
                    lower[i, k], rows[4, i, k] = ends(w[j, i, k], here, w[j + 2, i, k], e)
                else:
                    low[i, k] = high[i, k] = lower[i, k] = rows[4, i, k] = here
                r[j, i, k] = 0.0
        for i in range(ni):
            m = i - 1 if i > 0 else ni - 1
            nx, ny, size = across[j, i, 0], across[j, i, 1], across[j, i, 2]
            f0, f1, f2 = roe(
                high[m, 0], high[m, 1], high[m, 2], high[m, 3], low[i, 0], low[i, 1], low[i, 2], low[i, 3], nx, ny
            )
            r[j, m, 0] += size * f0
            r[j, m, 1] += size * f1
            r[j, m, 2] += size * f2
            f3 = f0 * enthalpy(w, j + 1, m if f0 > 0.0 else i)
            r[j, m, 3] += size * f3
            r[j, i, 0] -= size * f0
            r[j, i, 1] -= size * f1
            r[j, i, 2] -= size * f2
            r[j, i, 3] -= size * f3
        for i in range(ni):
            nx, ny, size = along[j, i, 0], along[j, i, 1], along[j, i, 2]
            if j == 0:
                p = wall_pressure(w, i, height, curvature, along, second)
                r[0, i, 1] -= size * nx * p
                r[0, i, 2] -= size * ny * p
            else:
                f0, f1, f2 = roe(
                    upper[i, 0], upper[i, 1], upper[i, 2], upper[i, 3],
                    lower[i, 0], lower[i, 1], lower[i, 2], lower[i, 3], nx, ny,
                )  # fmt: skip
                r[j - 1, i, 0] += size * f0
                r[j - 1, i, 1] += size * f1
                r[j - 1, i, 2] += size * f2
                f3 = f0 * enthalpy(w, j if f0 > 0.0 else j + 1, i)
                r[j - 1, i, 3] += size * f3
                r[j, i, 0] -= size * f0
                r[j, i, 1] -= size * f1
                r[j, i, 2] -= size * f2
                r[j, i, 3] -= size * f3
            for k in range(4):
                upper[i, k] = rows[4, i, k]
    for i in range(ni):
        f0, f1, f2 = roe(
            upper[i, 0], upper[i, 1], upper[i, 2], upper[i, 3],
            w[nj + 1, i, 0], w[nj + 1, i, 1], w[nj + 1, i, 2], w[nj + 1, i, 3], along[nj, i, 0], along[nj, i, 1],
        )  # fmt: skip
        size = along[nj, i, 2]
        r[nj - 1, i, 0] += size * f0
        r[nj - 1, i, 1] += size * f1
        r[nj - 1, i, 2] += size * f2
        f3 = f0 * enthalpy(w, nj if f0 > 0.0 else nj + 1, i)
        r[nj - 1, i, 3] += size * f3


@fast
def face(a, ua, va, pa, b, ub, vb, pb, nx, ny, floor, out):
    """Write what the Jacobian of a face needs: u, v, c^2, qn and the three speeds, at the mean of two states."""
    u, v = 0.5 * (ua + ub), 0.5 * (va + vb)
    square = GAMMA * (pa + pb) / (a + b)
    out[0], out[1], out[2], out[3] = u, v, square, u * nx + v * ny
    out[4], out[5], out[6] = speeds(out[3], np.sqrt(square), floor)


@fast
def add_block(m, f, nx, ny, size, sign):
    """Add the Jacobian of the flux out of a cell through a face to its block: sign 1 if the normal points outward.

    The positive part of A = dF/dU is a I + r1 (b/c^2 s + d t) + r2 (b t + d s), with r1 = (1, u, v, H),
    r2 = (0, nx, ny, qn) and the rows s = dp/dU and t = (-qn, nx, ny, 0).
    """
    u, v, square, qn = f[0], f[1], f[2], f[3]
    half = 0.5 * (u * u + v * v)
    h = square / (GAMMA - 1.0) + half
    a = 0.5 * size * (sign * qn + f[4])
    b = 0.5 * size * f[5]
    d = 0.5 * size * (sign + f[6])
    g = GAMMA - 1.0
    for k in range(4):
        m[k, k] += a
        s = g * (half if k == 0 else (-u if k == 1 else (-v if k == 2 else 1.0)))
        t = -qn if k == 0 else (nx if k == 1 else (ny if k == 2 else 0.0))
        one, two = b / square * s + d * t, b * t + d * s
        m[0, k] += one
        m[1, k] += one * u + two * nx
        m[2, k] += one * v + two * ny
        m[3, k] += one * h + two * qn


@fast
def invert(m, out):
    """Write the inverse of a 4 x 4 matrix by elimination without pivots (it is dominated by its diagonal)."""
    for i in range(4):
        for k in range(4):
            out[i, k] = 1.0 if i == k else 0.0
    for i in range(4):
        pivot = 1.0 / m[i, i]
        for k in range(4):
            m[i, k] *= pivot
            out[i, k] *= pivot
        for n in range(4):
            if n != i:
                factor = m[n, i]
                for k in range(4):
                    m[n, k] -= factor * m[i, k]
                    out[n, k] -= factor * out[i, k]


@fast
def prepare(w, across, along, courant, facei, facej, inverse):
    """Write the Jacobians of the faces and the inverse diagonal blocks of V / dt + dR/dU, R of first order.

    dt is the local step of a Courant number, which is smaller in shocks: large steps can lock them in a wrong place.
    """
    nj, ni = w.shape[0] - 2, w.shape[1]
    m = np.empty((4, 4))
    for j in range(nj + 1):
        for i in range(ni):
            before = i - 1 if i > 0 else ni - 1
            if j < nj:
                a, b, n = w[j + 1, before], w[j + 1, i], across[j, i]
                face(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], n[0], n[1], FLOOR, facei[j, i])
            a, b, n = w[j, i], w[j + 1, i], along[j, i]
            face(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], n[0], n[1], FLOOR, facej[j, i])
    for j in range(nj):
        for i in range(ni):
            after = i + 1 if i < ni - 1 else 0
            m[:] = 0.0
            f0, f1, f2, f3 = facei[j, i], facei[j, after], facej[j, i], facej[j + 1, i]
            n0, n1, n2, n3 = across[j, i], across[j, after], along[j, i], along[j + 1, i]
            add_block(m, f0, n0[0], n0[1], n0[2], -1.0)
            add_block(m, f1, n1[0], n1[1], n1[2], 1.0)
            if j > 0:
                add_block(m, f2, n2[0], n2[1], n2[2], -1.0)
            else:
                u, v = w[1, i, 1], w[1, i, 2]
                for k in range(4):
                    s = GAMMA - 1.0
                    s *= 0.5 * (u * u + v * v) if k == 0 else (-u if k == 1 else (-v if k == 2 else 1.0))
                    m[1, k] -= n2[2] * n2[0] * s
                    m[2, k] -= n2[2] * n2[1] * s
            add_block(m, f3, n3[0], n3[1], n3[2], 1.0)
            rate = 0.0
            c = np.sqrt(GAMMA * w[j + 1, i, 3] / w[j + 1, i, 0])
            for n in (n0, n1, n2, n3):
                rate += 0.5 * n[2] * (abs(w[j + 1, i, 1] * n[0] + w[j + 1, i, 2] * n[1]) + c)
            before = i - 1 if i > 0 else ni - 1
            jump = max(abs(w[j + 1, after, 3] - w[j + 1, before, 3]), abs(w[j + 2, i, 3] - w[j, i, 3]))
            rate *= (1.0 + CAUTION * jump / w[j + 1, i, 3]) / courant
            for k in range(4):
                m[k, k] += rate
            invert(m, inverse[j, i])


@fast
def carry(d, f, nx, ny, size, sign, out):
    """Subtract what a change d of the cell beyond a face adds to the flux: the negative part of A, as in add_block."""
    u, v, square, qn = f[0], f[1], f[2], f[3]
    half = 0.5 * (u * u + v * v)
    a = 0.5 * size * (sign * qn - f[4])
    b = -0.5 * size * f[5]
    e = 0.5 * size * (sign - f[6])
    s = (GAMMA - 1.0) * (half * d[0] - u * d[1] - v * d[2] + d[3])
    t = nx * d[1] + ny * d[2] - qn * d[0]
    one, two = b / square * s + e * t, b * t + e * s
    out[0] -= a * d[0] + one
    out[1] -= a * d[1] + one * u + two * nx
    out[2] -= a * d[2] + one * v + two * ny
    out[3] -= a * d[3] + one * (square / (GAMMA - 1.0) + half) + two * qn


@fast
def sweep(r, across, along, facei, facej, inverse, rounds, d):
    """Write the change d after symmetric Gauss-Seidel sweeps over (V / dt + dR/dU) d = -r, from d = 0."""
    nj, ni = r.shape[0], r.shape[1]
    b = np.empty(4)
    d[:] = 0.0
    for turn in range(2 * rounds):
        forward = turn % 2 == 0
        for jj in range(nj):
            j = jj if forward else nj - 1 - jj
            for ii in range(ni):
                i = ii if forward else ni - 1 - ii
                before, after = i - 1 if i > 0 else ni - 1, i + 1 if i < ni - 1 else 0
                for k in range(4):
                    b[k] = -r[j, i, k]
                n = across[j, i]
                carry(d[j, before], facei[j, i], n[0], n[1], n[2], -1.0, b)
                n = across[j, after]
                carry(d[j, after], facei[j, after], n[0], n[1], n[2], 1.0, b)
                if j > 0:
                    n = along[j, i]
                    carry(d[j - 1, i], facej[j, i], n[0], n[1], n[2], -1.0, b)
                if j < nj - 1:
                    n = along[j + 1, i]
                    carry(d[j + 1, i], facej[j + 1, i], n[0], n[1], n[2], 1.0, b)
                m = inverse[j, i]
                for k in range(4):
                    d[j, i, k] = m[k, 0] * b[0] + m[k, 1] * b[1] + m[k, 2] * b[2] + m[k, 3] * b[3]


@fast
def step(u, d, w):
    """Add d to u, in each cell shortened so that density and pressure change by a fifth at most."""
    for j in range(u.shape[0]):
        for i in range(u.shape[1]):
            rho, x, y, p = w[j + 1, i, 0], w[j + 1, i, 1], w[j + 1, i, 2], w[j + 1, i, 3]
            drho = d[j, i, 0]
            dp = (GAMMA - 1.0) * (0.5 * (x * x + y * y) * drho - x * d[j, i, 1] - y * d[j, i, 2] + d[j, i, 3])
            worst = max(abs(drho) / rho, abs(dp) / p)
            share = MOST / worst if worst > MOST else 1.0
            for k in range(4):
                u[j, i, k] += share * d[j, i, k]
