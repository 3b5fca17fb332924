import numpy as np
import pytest
from scipy.sparse.linalg import eigsh
from scipy.special import jn_zeros, jv

from ikno.data.generators.disc import (
    PoissonCSines,
    WaveCSines,
    harmonic,
    operators,
    poisson,
    ring_nodes,
    ring_points,
    ring_triangles,
    sines,
    wave,
)


def polar(points):
    x, y = (points - 0.5).T
    return np.hypot(x, y), np.arctan2(y, x)


def bessel(m, points):
    """The first mode J_m(j r) cos(m angle) and its zero j."""
    r, angle = polar(points)
    zero = jn_zeros(m, 1)[0]
    return jv(m, zero * r) * np.cos(m * angle), zero


@pytest.mark.parametrize("n", [1, 2, 10, 73])
def test_mesh_is_a_good_triangulation_of_the_disc(n):
    points, triangles = ring_points(n), ring_triangles(n)
    assert len(points) == 1 + 3 * n * (n + 1)
    assert len(triangles) == 6 * n * n
    r, _ = polar(points)
    assert r.max() < 1 + 1e-15
    np.testing.assert_allclose(r[-6 * n :], 1, rtol=0, atol=1e-15)
    assert (r[: -6 * n] < 1 - 0.5 / n).all()
    corners = points[triangles]
    sides = np.roll(corners, -1, axis=1) - corners
    back = -np.roll(sides, 1, axis=1)
    area = (sides[:, 0, 0] * back[:, 0, 1] - sides[:, 0, 1] * back[:, 0, 0]) / 2
    assert (area > 0).all()
    # The area of the polygon with 6 n corners: no overlap and no gap.
    assert area.sum() == pytest.approx(3 * n * np.sin(np.pi / (3 * n)), rel=1e-13)
    cosine = (sides * back).sum(-1) / np.linalg.norm(sides, axis=-1) / np.linalg.norm(back, axis=-1)
    angles = np.degrees(np.arccos(cosine))
    assert angles.min() > 43.6
    assert angles.max() < 90
    # Each inner edge has two triangles, each edge of the circle one.
    edges = np.sort(np.stack([triangles, np.roll(triangles, -1, axis=1)], -1).reshape(-1, 2), axis=1)
    _, count = np.unique(edges, axis=0, return_counts=True)
    assert count.max() <= 2
    assert (count == 1).sum() == 6 * n


def test_nodes_are_found_in_finer_meshes_even_in_single_precision():
    points = ring_points(73)
    np.testing.assert_array_equal(ring_nodes(points, 73), np.arange(len(points)))
    rough = points.astype(np.float32).astype(float)
    for refine in (2, 3):
        found = ring_points(73 * refine)[ring_nodes(rough, 73 * refine)]
        np.testing.assert_allclose(found, points, rtol=0, atol=1e-14)


@pytest.mark.parametrize("m", [0, 1, 5, 40])
def test_harmonic_continuation_of_powers_is_exact(m):
    points = ring_points(20)
    z = (points - 0.5) @ np.array([1, 1j])
    angle = 2 * np.pi * np.arange(100) / 100
    np.testing.assert_allclose(harmonic(np.cos(m * angle), points), (z**m).real, rtol=0, atol=1e-13)
    np.testing.assert_allclose(harmonic(np.sin(m * angle), points), (z**m).imag, rtol=0, atol=1e-13)


def test_poisson_vanishes_on_the_circle_and_solves_the_equation_inside():
    weights = PoissonCSines().weights(np.random.default_rng(0))
    u, _ = poisson(weights, ring_points(73))
    assert np.abs(u[-6 * 73 :]).max() < 1e-15
    assert np.abs(u).max() > 1e-3
    # -lap u by central differences of sixth order.
    points, h = ring_points(12)[: -6 * 12], 5e-3
    total = np.zeros(len(points))
    for offset, factor in zip(range(-3, 4), np.array([2, -27, 270, -490, 270, -27, 2]) / 180, strict=True):
        for axis in np.eye(2):
            total -= factor * poisson(weights, points + offset * h * axis)[0] / h**2
    f = poisson(weights, points)[1]
    assert np.abs(total - f).max() < 1e-6 * np.abs(f).max()


def test_poisson_against_quadratic_finite_elements():
    """The straight sides of the mesh leave an error of second order."""
    skfem = pytest.importorskip("skfem")
    from skfem.models.poisson import laplace

    weights = PoissonCSines(terms=6).weights(np.random.default_rng(3))
    errors = []
    for n in (16, 32):
        points = ring_points(n)
        mesh = skfem.MeshTri(*(np.ascontiguousarray(a.T) for a in (points, ring_triangles(n))))
        basis = skfem.Basis(mesh, skfem.ElementTriP2(), intorder=6)
        where = np.moveaxis(np.asarray(basis.global_coordinates()), 0, -1)
        f = sines(weights, where.reshape(-1, 2)).reshape(where.shape[:-1])
        load = skfem.LinearForm(lambda v, w: w.f * v).assemble(basis, f=f)
        u = skfem.solve(*skfem.condense(laplace.assemble(basis), load, D=basis.get_dofs()))[basis.nodal_dofs[0]]
        expected, _ = poisson(weights, points)
        errors.append(np.abs(u - expected).max() / np.abs(expected).max())
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] > 3.8


@pytest.mark.parametrize("m", [0, 1])
def test_operators_have_the_bessel_modes(m):
    """-lap u = j^2 u: the least eigenvalues of K u = j^2 M u and, for m = 0, the solution for a load j^2 u."""
    errors = []
    for n in (16, 32):
        mass, stiffness = operators(n)
        inner = len(mass) - 6 * n
        scale = mass[:inner] ** -0.5
        scaled = stiffness[:inner, :inner].multiply(scale[:, None]).multiply(scale).tocsc()
        values = np.sort(eigsh(scaled, k=3, sigma=0, return_eigenvectors=False, v0=np.ones(inner)))
        u, zero = bessel(m, ring_points(n))
        errors.append(abs(values[m] / zero**2 - 1))
        assert abs(u @ stiffness @ u / (u**2 @ mass) / zero**2 - 1) < 2 / n**2
        if m:
            assert values[2] == pytest.approx(values[1], rel=1e-10)  # cos and sin
    assert errors[1] < 1.1e-3
    assert errors[0] / errors[1] > 3.8


@pytest.mark.parametrize("substeps", [None, 40])
@pytest.mark.parametrize("m", [0, 1])
def test_wave_keeps_bessel_modes_to_second_order(m, substeps):
    errors = []
    for n in (16, 32):
        u, zero = bessel(m, ring_points(n))
        found = wave(u, n, 2.0, 0.05, 20, substeps)
        expected = u * np.cos(2 * zero * 0.05 * np.arange(21))[:, None]
        errors.append(np.abs(found - expected).max())
    assert errors[1] < (2.4e-3 if substeps else 1.3e-3)
    assert errors[0] / errors[1] > 3.6


def test_wave_conserves_the_discrete_energy():
    n, step, speed = 24, 0.005, 2.0
    mass, stiffness = operators(n)
    u = wave(sines(WaveCSines().weights(np.random.default_rng(0)), ring_points(n)), n, speed, step, 2000, substeps=1)
    velocity = np.diff(u, axis=0) / step
    energy = velocity**2 @ mass + speed**2 * np.einsum("tn,nt->t", u[1:], stiffness @ u[:-1].T)
    np.testing.assert_allclose(energy, energy[0], rtol=1e-13)


def test_the_automatic_step_is_stable_and_near_the_limit():
    n, speed, step = 20, 2.0, 0.1
    mass, stiffness = operators(n)
    inner = len(mass) - 6 * n
    scale = mass[:inner] ** -0.5
    scaled = stiffness[:inner, :inner].multiply(scale[:, None]).multiply(scale).tocsr()
    largest = eigsh(scaled, k=1, return_eigenvectors=False, v0=np.sin(np.arange(inner) + 1.0))[0]
    fewest = step * speed * np.sqrt(largest) / 2
    rough = np.random.default_rng(0).normal(size=len(mass))
    auto = wave(rough, n, speed, step, 100)
    assert np.abs(auto).max() < 20
    used = next(k for k in range(1, 50) if np.array_equal(wave(rough, n, speed, step, 2, k), auto[:3]))
    assert fewest < used < 1.3 * fewest + 1


def by_characteristics(weights, points, snapshots, speed, duration, steps):
    """The wave on the disc as that of the plane plus what the circle sends inwards, until that meets the center.

    In the plane each term is multiplied by cos(speed pi |(i, j)| t). The correction starts from 0 and is minus that on
    the circle. For each Fourier mode m, w = sqrt(r) v obeys w_tt = speed^2 (w_rr - (m^2 - 1/4) / r^2 w), solved on the
    net of the lines x +- speed t, x = 1 - r, where its jump travels along a line of the net without error.
    """
    k = np.arange(1, len(weights) + 1)
    frequency, h, modes = speed * np.pi * np.hypot(k[:, None], k), speed * duration / steps, 192

    def plane(where, t):
        return sines(weights * np.cos(frequency * t), where)

    angle = 2 * np.pi * np.arange(modes) / modes
    circle = 0.5 + np.stack([np.cos(angle), np.sin(angle)], 1)
    edge = -np.fft.fft([plane(circle, h * s / speed) for s in range(steps + 1)]) / modes
    m = np.fft.fftfreq(modes, 1 / modes)
    potential = (m**2 - 0.25) / (1 - h * np.arange(steps + 1)[:, None]) ** 2
    before, now = np.zeros((2, steps + 1, modes), complex)
    now[0] = edge[0]
    r, theta = polar(points)
    place, turn = np.rint((1 - r) / h).astype(int), np.exp(1j * theta[:, None] * m)
    found = [np.where(place == 0, 0, plane(points, 0))]
    for s in range(1, steps + 1):
        after, j = np.zeros_like(now), np.arange(s - 2, 0, -2)
        after[j] = (now[j + 1] + now[j - 1]) * (1 - h**2 * potential[j] / 2) - before[j]
        after[0], after[s] = edge[s], edge[0]
        before, now = now, after
        if s % (steps // (snapshots - 1)) == 0:
            reached = place <= s
            u = plane(points, h * s / speed)
            share = np.where(place == s, 0.5, 1)[reached]  # on the front, the mean of its sides
            u[reached] += share * (now[place[reached]] * turn[reached]).sum(1).real / np.sqrt(r[reached])
            found.append(u)
    return np.stack(found)


def test_wave_samples_against_characteristics():
    """Second order where the circle is not felt yet; slower behind the front, where the solution jumps."""
    errors, inside = [], []
    for refine in (1, 2):
        problem = WaveCSines(resolution=50, snapshots=11, refine=refine)
        cloud = problem.cloud(np.random.default_rng(0))
        expected = by_characteristics(problem.weights(np.random.default_rng(1)), cloud, 11, 2.0, 0.1, 200)
        error = np.abs(problem.sample(np.random.default_rng(1), cloud).values[..., 0] - expected)
        r, _ = polar(cloud)
        far = r < 0.7
        errors.append(error.sum() / np.abs(expected).sum())
        inside.append(error[:, far].sum() / np.abs(expected[:, far]).sum())
    assert errors[1] < 0.03
    assert errors[0] / errors[1] > 1.4
    assert inside[1] < 5e-3
    assert inside[0] / inside[1] > 3.5


@pytest.mark.parametrize("kind", [PoissonCSines, WaveCSines])
def test_samples(kind):
    problem = kind(resolution=12)
    cloud = problem.cloud(np.random.default_rng(0))
    nodes = ring_nodes(cloud, 12)
    assert (nodes != np.arange(len(nodes))).any()
    np.testing.assert_array_equal(np.sort(nodes), np.arange(469))
    few = kind(resolution=12, points=100).cloud(np.random.default_rng(0))
    np.testing.assert_array_equal(few, cloud[:100])

    made, again = (problem.sample(np.random.default_rng(1), cloud) for _ in range(2))
    assert made.values.shape == (len(problem.times), 469, 1)
    np.testing.assert_array_equal(made.values, again.values)
    part = problem.sample(np.random.default_rng(1), few)
    np.testing.assert_allclose(part.values, made.values[:, :100], atol=1e-15)
    assert np.abs(made.values[:, polar(cloud)[0] > 1 - 1e-9]).max() < 1e-15
    assert np.abs(problem.sample(np.random.default_rng(2), cloud).values - made.values).max() > 1e-4

    # The same seed describes the same field at another resolution.
    fine = kind(resolution=24)
    finer = fine.cloud(np.random.default_rng(5))
    other = fine.sample(np.random.default_rng(1), finer)
    back = np.argsort(ring_nodes(finer, 24))[ring_nodes(cloud, 24)]
    np.testing.assert_allclose(other.values[0, back], made.values[0], atol=1e-14)
    if made.conditions is not None and other.conditions is not None:
        np.testing.assert_allclose(other.conditions[0, back], made.conditions[0], atol=1e-12)


def test_published_settings():
    assert PoissonCSines().times == (0.0,)
    assert PoissonCSines().sample(np.random.default_rng(0), ring_points(4)).conditions is not None
    np.testing.assert_allclose(WaveCSines().times, 0.005 * np.arange(21), atol=1e-15)
    assert len(WaveCSines().cloud(np.random.default_rng(0))) == 16207
