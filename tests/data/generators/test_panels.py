import numpy as np
import pytest

from ikno.data.generators.panels import Wake, _compiled, joined, panels_of, solve
from ikno.data.generators.surface_flow import along_rows, fastest, limited, pressure, tangents

pytest.importorskip("numba")

X = np.array([1.0, 0.0, 0.0])
ALPHA = np.deg2rad(3)


def sphere(around, along):
    """Half of the unit sphere, y > 0: rows upward, columns along x."""
    angle, place = np.linspace(-np.pi / 2, np.pi / 2, around + 1)[:, None], np.linspace(0, np.pi, along + 1)
    x, radius = -np.cos(place) + 0 * angle, np.sin(place)
    return np.stack([x, radius * np.cos(angle), radius * np.sin(angle)], -1)


def wing(chordwise, spanwise, half, lead, chord, thickness):
    """Half of a wing with sections t sqrt(X) (1 - X), from the plane of symmetry to the tip."""
    s = np.sin(1.2 * np.linspace(-1, 1, 2 * chordwise + 1))[:, None] / np.sin(1.2)
    y = half * np.sin(np.pi / 2 * np.linspace(0, 1, spanwise + 1))
    c = chord(y)
    z = c * thickness / 2 * s * (1 - s**2) * 1.5 * np.sqrt(3)
    return np.stack([lead(y) + c * s**2, np.broadcast_to(y, z.shape), z], -1)


def circulation(nodes, mach=0.0, alpha=ALPHA):
    """The jump of the potential across the wake, strip by strip."""
    onset = np.array([np.cos(alpha), 0.0, np.sin(alpha)])
    panels = panels_of(nodes)
    below = np.arange(nodes.shape[1] - 1)
    above = below + len(panels.area) - len(below)
    sheet = nodes[-1] + np.array([0, 0.05, 0.2, 0.6, 2, 6, 20, 100, 1000])[:, None, None] * X
    phi = solve(panels, [Wake(sheet, above, below)], onset, mach, symmetric=True)
    return phi[above] - phi[below] + (panels.center[above] - panels.center[below]) @ onset


def far_behind(gamma, y):
    """Lift and induced drag over the dynamic pressure of both halves, from vortices far behind (Trefftz's plane)."""
    edges, gamma = np.concatenate([-y[:0:-1], y]), np.concatenate([gamma[::-1], gamma])
    trailing = np.diff(gamma, prepend=0, append=0)
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    wash = (trailing / (middle[:, None] - edges)).sum(1) / (2 * np.pi)
    return 2 * (gamma * width).sum(), (gamma * wash * width).sum()


def lattice(half, lead, chord, chordwise=8, spanwise=30):
    """Lift coefficient of a flat wing by horseshoe vortices: at 1/4 of each cell, no flow through it at 3/4."""
    y = half * np.linspace(-1, 1, 2 * spanwise + 1)
    middle = (y[1:] + y[:-1]) / 2

    def place(y, share):
        return np.stack([lead(abs(y)) + chord(abs(y)) * share, y, 0 * y], -1)

    shares = np.arange(chordwise) / chordwise
    left, right, at = (
        np.concatenate([place(where, s + more / chordwise) for s in shares])
        for where, more in ((y[:-1], 0.25), (y[1:], 0.25), (middle, 0.75))
    )
    a, b = at[:, None] - left, at[:, None] - right
    ra, rb = np.linalg.norm(a, axis=2), np.linalg.norm(b, axis=2)
    cross = np.cross(a, b)
    down = cross[..., 2] * (ra + rb) / (ra * rb * (ra * rb + (a * b).sum(2)))  # the bound vortex
    for d, r, sign in ((a, ra, -1), (b, rb, 1)):  # those that leave along x
        down += sign * d[..., 1] / (r * (r - d[..., 0]))
    gamma = np.linalg.solve(down / (4 * np.pi), np.full(len(at), -np.sin(ALPHA)))
    area = 2 * np.trapezoid(chord(np.linspace(0, half, 400)), np.linspace(0, half, 400))
    return 2 * (gamma * np.tile(np.diff(y), chordwise)).sum() / area


def test_one_panel_against_quadrature():
    """Source and doublet of a flat panel: 1 / r and n (P - Q) / r^3 summed over 400 x 400 parts; far ones as points."""
    corners = np.array([[0.0, 0, 0], [1, 0.1, 0], [1.2, 0.9, 0], [-0.1, 1, 0]])
    grid = corners[[0, 3, 1, 2]].reshape(2, 2, 3).transpose(1, 0, 2)
    panel = panels_of(np.stack([grid[:, 0], grid[:, 1]]))
    np.testing.assert_allclose(panel.normal, [[0, 0, 1]], atol=1e-15)
    u, v = np.meshgrid(*[(np.arange(400) + 0.5) / 400] * 2, indexing="ij")
    parts = ((1 - u) * (1 - v))[..., None] * corners[0] + (u * (1 - v))[..., None] * corners[1]
    parts = parts + (u * v)[..., None] * corners[2] + ((1 - u) * v)[..., None] * corners[3]
    sizes = np.cross(np.gradient(parts, axis=0), np.gradient(parts, axis=1))[..., 2]
    np.testing.assert_allclose(sizes.sum(), panel.area[0], rtol=1e-6)
    pair = _compiled()[0]
    for point in ([0.3, 0.4, 0.5], [0.3, 0.4, -0.2], [2.0, -1.0, 0.3], [5.0, 3.0, 2.0]):
        gap = np.array(point) - parts
        r = np.linalg.norm(gap, axis=2)
        expected = (sizes / r).sum(), (sizes * gap[..., 2] / r**3).sum()
        arguments = *point, panel.corners[0], panel.center[0], panel.normal[0], panel.area[0]
        np.testing.assert_allclose(pair(*arguments, 1e9), expected, rtol=1e-4)
        if r.min() > 3:
            np.testing.assert_allclose(pair(*arguments, 0.0), expected, rtol=0.02)


@pytest.mark.parametrize("n", [1, 7, 64, 150])
def test_elimination_is_a_linear_solve(n):
    rng = np.random.default_rng(n)
    matrix, right = rng.standard_normal((n, n)), rng.standard_normal(n)
    expected = np.linalg.solve(matrix, right)
    _compiled()[3](matrix.copy(), right)
    np.testing.assert_allclose(right, expected, rtol=1e-9)


def test_derivatives_on_uneven_steps():
    """Three-point formulas are exact for parabolas, also beside cuts, and do not see across them."""
    s = np.array([0.0, 0.1, 0.4, 0.5, 1.0, 1.1, 1.7])
    places = np.stack([np.stack([s, 0 * s + k, 0 * s], 1) for k in range(2)], 1)
    linked = np.ones((6, 2), bool)
    linked[2, 1] = False
    f = np.stack([3 + s - 2 * s**2] * 2, 1)
    f[3:, 1] += 100
    np.testing.assert_allclose(along_rows(f, places, linked), np.stack([1 - 4 * s] * 2, 1), atol=1e-12)
    linked[1, 1] = linked[0, 1] = False
    assert (along_rows(f, places, linked)[:3, 1] == 0).all()


def test_sphere():
    """The pressure on a sphere is 1 - 9/4 sin^2, within 1 % of the stagnation pressure everywhere."""
    nodes = sphere(24, 48)
    panels = panels_of(nodes)
    phi = solve(panels, [], X, symmetric=True)
    np.testing.assert_allclose(phi, panels.center[:, 0] / 2, atol=1e-3)
    center = panels.center.reshape(24, 48, 3)
    mirrored = np.concatenate([center[:1] * [1, -1, 1], center, center[-1:] * [1, -1, 1]])
    phi = phi.reshape(24, 48)
    gradient, *_ = tangents(mirrored, np.ones((25, 48), bool), np.ones((26, 47), bool))
    normal = center / np.linalg.norm(center, axis=2)[..., None]
    velocity = gradient(np.concatenate([phi[:1], phi, phi[-1:]]))[1:-1] + X - normal[..., :1] * normal
    found = pressure((velocity**2).sum(2), 0.0)
    assert abs(found - (1 - 9 / 4 * (1 - normal[..., 0] ** 2))).max() < 0.01


def test_half_and_whole_are_the_same():
    half = sphere(6, 12) * [2, 1, 1]
    other = (half * [1, -1, 1])[::-1]
    onset = np.array([0.9, 0.0, 0.3])
    whole = solve(joined([panels_of(half), panels_of(other)]), [], onset, 0.5)
    once = solve(panels_of(half), [], onset, 0.5, symmetric=True)
    np.testing.assert_allclose(whole[: len(once)], once, atol=1e-12)
    np.testing.assert_allclose(whole[len(once) :].reshape(6, 12)[::-1].ravel(), once, atol=1e-12)


def test_elliptic_wing():
    """Lifting-line theory of an aspect ratio of 20: slope 2 pi / (1 + 2 / A), drag CL^2 / (pi A), within 3 %.

    With a Mach number: slope 2 pi / (sqrt(1 - M^2) + 2 / A).
    """
    aspect = 20
    half = aspect * np.pi / 8

    def chord(y):
        return np.sqrt(np.maximum(1 - (y / half) ** 2, 1e-6))

    nodes = wing(16, 30, half, lambda y: -chord(y) / 4, chord, 0.02)
    area = np.pi / 2 * half
    lift, drag = (part / area for part in far_behind(circulation(nodes), nodes[-1, :, 1]))
    np.testing.assert_allclose(lift, 2 * np.pi / (1 + 2 / aspect) * np.sin(ALPHA), rtol=0.03)
    np.testing.assert_allclose(drag, lift**2 / (np.pi * aspect), rtol=0.03)
    for mach in (0.4, 0.7):
        faster = far_behind(circulation(nodes, mach), nodes[-1, :, 1])[0] / area
        grown = (1 + 2 / aspect) / (np.sqrt(1 - mach**2) + 2 / aspect)
        np.testing.assert_allclose(faster / lift, grown, rtol=0.02)


@pytest.mark.parametrize("sweep", [0, 35, -20])
def test_swept_wing_against_a_vortex_lattice(sweep):
    half = 3.0

    def lead(y):
        return y * np.tan(np.deg2rad(sweep))

    def chord(y):
        return 1.3 - 0.6 * y / half

    nodes = wing(16, 24, half, lead, chord, 0.02)
    lift = far_behind(circulation(nodes), nodes[-1, :, 1])[0] / (2 * half)
    np.testing.assert_allclose(lift, lattice(half, lead, chord), rtol=0.05)


def test_pressure_is_that_of_prandtl_and_glauert_for_small_disturbances():
    """Isentropic: 1 - q^2 without compressibility, the stagnation pressure at rest, and -2 u for small u."""
    square = np.linspace(0, 2, 9)
    np.testing.assert_allclose(pressure(square, 0.0), 1 - square)
    np.testing.assert_allclose(pressure(square, 0.02), 1 - square, atol=1e-3)
    np.testing.assert_allclose(pressure(np.zeros(1), 0.7), (1.098**3.5 - 1) / (0.7 * 0.49), rtol=1e-12)
    small = np.array([1e-4, -1e-4])
    np.testing.assert_allclose(pressure((1 + small) ** 2, 0.7), -2 * small, rtol=1e-3)


def test_speeds_are_limited():
    slow, fast = limited(np.array([[1.0, 0, 0], [0, 30.0, 40.0]]), 0.5)
    np.testing.assert_allclose(slow, [1, 0, 0], rtol=1e-2)
    np.testing.assert_allclose(np.linalg.norm(fast), fastest(0.5), rtol=1e-6)
    np.testing.assert_allclose(fast[2] / fast[1], 4 / 3)
    q = fastest(0.7)
    np.testing.assert_allclose(0.7 * q / np.sqrt(1 + 0.2 * 0.49 * (1 - q**2)), 1.4)
    assert fastest(0.0) == fastest(0.1) == 2.5


def test_only_subsonic():
    with pytest.raises(ValueError, match="subsonic"):
        solve(panels_of(sphere(3, 4)), [], X, 1.0)
