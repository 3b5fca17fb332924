from functools import cache

import numpy as np
import pytest
from pydantic import ValidationError

from ikno.data.generators.elasticity import Elasticity, distance, hole, o_grid, place, solve, stress, von_mises

pytest.importorskip("skfem")


def drawn(seed):
    return hole(np.random.default_rng(seed).standard_normal((5, 2)))


def circle(size):
    return lambda theta: np.full_like(theta, size)


@cache
def refined(seed, plane, finer):
    """Von Mises stress on the grid of 27 cells per side and 8 layers, solved on one finer by a factor."""
    solution = solve(drawn(seed), 108 * finer, 8 * finer, traction=100.0, plane=plane)
    normal = -solution.pressure if plane == "strain" else np.zeros_like(solution.pressure)
    return von_mises(stress(solution), normal).reshape(108 * finer, -1)[::finer, ::finer]


@pytest.mark.parametrize("plane", ["strain", "stress"])
def test_kirsch_stress_concentration(plane):
    """A small circular hole under uniaxial tension triples the stress at its sides and compresses top and bottom."""
    size = 0.03
    solution = solve(circle(size), 64, 20, growth=20.0, plane=plane, bottom="roller")
    vertices = solution.bases[0].mesh.p.T[: 64 * 21]  # without the middles of edges
    xx, yy, xy = stress(solution).T
    at_side = np.isclose(vertices[:, 1], 0.5) & np.isclose(abs(vertices[:, 0] - 0.5), size)
    at_top = np.isclose(vertices[:, 0], 0.5) & np.isclose(abs(vertices[:, 1] - 0.5), size)
    assert at_side.sum() == at_top.sum() == 2
    np.testing.assert_allclose(yy[at_side], 3, rtol=0.01)
    np.testing.assert_allclose(xx[at_top], -1, rtol=0.03)
    assert yy.max() == yy[at_side].max()
    # Along the whole hole the hoop stress is 1 + 2 cos(2 theta), and its edge is free of stress.
    edge = vertices.reshape(64, 21, 2)[:, 0] - 0.5
    nx, ny = edge.T / size
    xx, yy, xy = (part.reshape(64, 21)[:, 0] for part in (xx, yy, xy))
    hoop = ny**2 * xx + nx**2 * yy - 2 * nx * ny * xy
    np.testing.assert_allclose(hoop, 1 + 2 * (nx**2 - ny**2), atol=0.04)
    assert abs(nx * xx + ny * xy).max() < 0.04
    assert abs(nx * xy + ny * yy).max() < 0.04


@pytest.mark.parametrize("plane", ["strain", "stress"])
def test_constant_stress_is_reproduced(plane):
    """Patch test: a linear displacement on the boundary (of trace 0 in plane strain) is exact inside."""
    gradient = np.array([[0.7, -0.4], [1.3, -0.7 if plane == "strain" else 0.5]])
    solution = solve(drawn(3), 32, 4, plane=plane, imposed=lambda x: gradient @ x)
    quadratic = solution.bases[0]
    expected = np.empty_like(solution.displacement)
    for dofs in (quadratic.nodal_dofs, quadratic.facet_dofs):
        expected[dofs] = gradient @ quadratic.doflocs[:, dofs[0]]
    np.testing.assert_allclose(solution.displacement, expected, atol=1e-11)
    # In plane stress with nu = 1/2: sigma = 2 mu (eps + tr(eps) 1).
    found = 2 * np.array([0.7, gradient[1, 1], 0.45]) + 2 * np.trace(gradient) * np.array([1, 1, 0])
    np.testing.assert_allclose(stress(solution), np.broadcast_to(found, (len(solution.pressure), 3)), atol=1e-9)


@pytest.mark.parametrize("plane", ["strain", "stress"])
def test_supports_balance_the_traction(plane):
    solution = solve(drawn(1), 48, 4, traction=100.0, plane=plane)
    quadratic = solution.bases[0]
    across, up = (np.concatenate([quadratic.nodal_dofs[i], quadratic.facet_dofs[i]]) for i in (0, 1))
    below = quadratic.doflocs[1] < 1e-9
    force, at = solution.force, quadratic.doflocs
    assert abs(force[~below]).max() < 1e-9  # free elsewhere, the hole included
    assert abs(force[across].sum()) < 1e-8
    np.testing.assert_allclose(force[up].sum(), -100, atol=1e-8)
    moment = (at[0, up] * force[up]).sum() - (at[1, across] * force[across]).sum()
    np.testing.assert_allclose(moment, -50, atol=1e-8)


def test_displacement_is_divergence_free():
    """Weakly: the divergence is orthogonal to all pressures, and vanishes with the mesh width."""
    norms = []
    for finer in (1, 2):
        solution = solve(drawn(2), 64 * finer, 5 * finer)
        quadratic, linear = solution.bases
        gradient = quadratic.interpolate(solution.displacement).grad
        div = gradient[0, 0] + gradient[1, 1]
        hats = np.stack([np.asarray(linear.basis[k][0]) for k in range(3)])
        weak = np.bincount(linear.element_dofs.ravel(), (hats * div * linear.dx).sum(-1).ravel())
        assert abs(weak).max() < 1e-12
        norms.append(np.sqrt((div**2 * quadratic.dx).sum() / ((gradient**2).sum((0, 1)) * quadratic.dx).sum()))
    assert norms[1] < 0.55 * norms[0] < 0.0075


@pytest.mark.parametrize(("plane", "error"), [("strain", 0.018), ("stress", 0.011)])
def test_stress_converges_under_refinement(plane, error):
    coarse, fine = refined(0, plane, 1), refined(0, plane, 2)
    away = np.ones(coarse.shape, bool)
    away[[0, 81], -1] = False  # singular: the clamped corners
    assert np.linalg.norm((coarse - fine)[away]) < error * np.linalg.norm(fine[away])
    np.testing.assert_allclose(coarse[away].max(), fine[away].max(), rtol=0.03)
    np.testing.assert_allclose(coarse[away].mean(), fine[away].mean(), rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("plane", ["strain", "stress"])
def test_error_falls_with_each_refinement(plane):
    first, second, third = (refined(0, plane, finer)[:, :-1] for finer in (1, 2, 4))
    assert np.linalg.norm(second - third) < 0.4 * np.linalg.norm(first - second)
    np.testing.assert_allclose(second.max(), third.max(), rtol=0.008)


def test_von_mises_of_known_states():
    tensor = np.array([[0.0, 2, 0], [0, 2, 0], [5, 5, 0], [0, 0, 1]])
    found = von_mises(tensor, np.array([0, 1, 5, 0.0]))
    np.testing.assert_allclose(found, [2, np.sqrt(3), 0, np.sqrt(3)])


def test_radius_has_the_stated_range_and_spectrum():
    rng = np.random.default_rng(0)
    theta = 2 * np.pi * np.arange(32) / 32
    r = np.array([hole(rng.standard_normal((5, 2)))(theta) for _ in range(2000)])
    assert r.min() > 0.2
    assert r.max() < 0.4
    field = np.log(0.2 / (r - 0.2) - 1)
    modes = np.fft.rfft(field) * np.sqrt(np.pi) / 16  # a_k - i b_k in the orthonormal basis
    k = np.arange(1, 6)
    for part in (modes.real, modes.imag):
        np.testing.assert_allclose((part[:, 1:6] ** 2).mean(0), 16 / (k**2 + 9), rtol=0.1)
    assert abs(modes[:, [0, *range(6, 16)]]).max() < 1e-10
    np.testing.assert_allclose(field.var(0), (16 / np.pi / (k**2 + 9)).sum(), rtol=0.1)


@pytest.mark.parametrize(("around", "layers"), [(108, 8), (216, 16)])
def test_triangles_are_well_shaped_and_fill_the_cell(around, layers):
    for seed in range(20):
        points, triangles = o_grid(drawn(seed), around, layers)
        edges = np.roll(points[triangles], -1, 1) - points[triangles]
        areas = (edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0]) / 2
        assert areas.min() > 0
        theta = np.linspace(0, 2 * np.pi, 4097)[:-1]
        np.testing.assert_allclose(areas.sum(), 1 - np.pi * (drawn(seed)(theta) ** 2).mean(), rtol=2e-3)
        units = edges / np.linalg.norm(edges, axis=2, keepdims=True)
        angles = np.degrees(np.arccos(-(units * np.roll(units, 1, 1)).sum(2)))
        assert angles.min() > 12
        assert angles.max() < 140
    corners = points.reshape(around, layers + 1, 2)[:: around // 4, -1]
    np.testing.assert_allclose(corners, [[1, 0], [1, 1], [0, 1], [0, 0]], atol=1e-15)


@pytest.mark.parametrize(("around", "layers", "least"), [(32, 4, 0.3), (108, 8, 0.7)])
def test_curved_elements_are_not_folded(around, layers, least):
    nodes = np.array([[0, 1, 0, 0.5, 0, 0.5], [0, 0, 1, 0, 0.5, 0.5]])
    for seed in range(3):
        stretch = solve(drawn(seed), around, layers).bases[0].mapping.detDF(nodes)
        assert stretch.min() > 0
        assert (stretch.min(1) / stretch.max(1)).min() > least


def test_distance_against_brute_force():
    radius = drawn(5)
    rng = np.random.default_rng(0)
    points = place(radius, rng.uniform(0, 4, 40), rng.uniform(0, 1, 40))
    theta = np.linspace(0, 2 * np.pi, 400_001)
    curve = 0.5 + radius(theta) * np.stack([np.cos(theta), np.sin(theta)])
    brute = [np.hypot(*(curve - point[:, None])).min() for point in points]
    np.testing.assert_allclose(distance(radius, points), brute, atol=1e-6)
    np.testing.assert_allclose(distance(circle(0.3), points), abs(np.hypot(*(points - 0.5).T) - 0.3), atol=1e-7)


def test_samples_have_the_released_shapes_and_stay_in_the_material():
    problem = Elasticity()
    assert problem.cloud(np.random.default_rng(0)) is None
    made = problem.sample(np.random.default_rng(1), None)
    again = problem.sample(np.random.default_rng(1), None)
    assert made.conditions is not None
    assert made.points.shape == (972, 2)
    assert made.values.shape == made.conditions.shape == (1, 972, 1)
    np.testing.assert_array_equal(made.points, again.points)
    np.testing.assert_array_equal(made.values, again.values)
    assert len(np.unique(made.points, axis=0)) == 972
    assert (made.values > 0).all()
    assert (made.points >= -1e-15).all()
    assert (made.points <= 1 + 1e-15).all()
    x, y = (made.points - 0.5).T
    outside = np.hypot(x, y) - drawn(1)(np.arctan2(y, x))
    assert outside.min() > -1e-12
    np.testing.assert_array_equal(outside < 1e-12, made.conditions[0, :, 0] < 1e-6)
    assert (outside < 1e-12).sum() == 108


def test_the_same_seed_at_two_resolutions_is_the_same_problem():
    coarse, fine = (Elasticity(resolution=n, points=240).sample(np.random.default_rng(4), None) for n in (12, 24))
    np.testing.assert_allclose(coarse.points, fine.points, atol=1e-14)
    assert coarse.conditions is not None
    np.testing.assert_array_equal(coarse.conditions, fine.conditions)
    off = abs(coarse.values - fine.values)[0, :, 0]
    assert 0 < np.median(off) < 0.02 * np.median(fine.values)


def test_all_vertices_are_kept_without_a_point_count():
    assert Elasticity(resolution=27, points=None).grid == Elasticity(resolution=54).grid == (27, 8)
    made = Elasticity(resolution=8, points=None).sample(np.random.default_rng(0), None)
    assert made.points.shape == (4 * 8 * 3, 2)


@pytest.mark.parametrize(("resolution", "points"), [(27, 970), (27, 8), (28, 972)])
def test_point_counts_that_are_no_nested_grid_are_refused(resolution, points):
    with pytest.raises(ValidationError, match="points"):
        Elasticity(resolution=resolution, points=points)
