from itertools import pairwise

import numpy as np
import pytest

from ikno.data.generators import grid_cloud
from ikno.data.generators.wave_layer import WaveLayer, laplacian, mix, solve


def bump(x, s=0.05):
    return np.exp(-(x**2) / (2 * s**2))


def gaussian(x, a, b, s):
    return bump(x - a, s)[:, None] * bump(x - b, s)


def travel(n, courant):
    """Return the largest error of a plane pulse that starts at .3, moves to the right at speed 1.3, and ends at .69."""
    x, c, t = np.linspace(0, 1, n), 1.3, np.linspace(0, 0.3, 3)
    start = np.outer(bump(x - 0.3), np.ones(n))
    velocity = c * (x - 0.3)[:, None] / 0.05**2 * start
    u = solve(start, c * np.ones((n, n)), t, 1 / (n - 1), layer=0, velocity=velocity, courant=courant)
    return np.abs(u - bump(x[:, None] - 0.3 - c * t[:, None, None])).max()


def test_plane_wave_follows_dalembert_with_the_orders_of_the_scheme():
    """The time step shrinks with the grid: second order. A tiny time step leaves the fourth order of space."""
    assert travel(161, 0.4) < 1.2e-3
    assert travel(81, 0.6) / travel(161, 0.6) > 3.7
    assert travel(41, 0.03) / travel(81, 0.03) > 14


def test_pulse_at_rest_splits_into_two_halves():
    x = np.linspace(0, 1, 101)
    u = solve(np.outer(np.ones(101), bump(x - 0.5)), np.ones((101, 101)), np.array([0, 0.25]), 0.01, layer=0)
    np.testing.assert_allclose(u[1, 50], (bump(x - 0.25) + bump(x - 0.75)) / 2, atol=2e-3)


@pytest.mark.parametrize(("below", "above", "s"), [(1.0, 2.0, 0.03), (2.0, 1.0, 0.04)])
@pytest.mark.parametrize("place", [0.5, 0.5031])
def test_layer_reflects_and_transmits(below, above, s, place):
    """At normal incidence u and u_y are continuous: 1 + R = T and (1 - R) / c1 = T / c2.

    So R = (c2 - c1) / (c1 + c2) and T = 2 c2 / (c1 + c2); the transmitted pulse is stretched by c2 / c1.
    """
    n = 201
    y, one, far = np.linspace(0, 1, n), np.ones(n), 0.2 + 4 * s  # far enough for all of the pulse to pass the interface
    c = mix(place * np.ones((1, n)), np.array([below, above]), y, 1 / (n - 1))
    start = np.outer(one, bump(y - 0.3, s))
    velocity = below * (y - 0.3) / s**2 * start
    times = np.array([0, far / below])
    u = solve(start, c, times, 1 / (n - 1), layer=0, velocity=velocity, courant=0.3)[1, n // 2]
    reflected, transmitted = (above - below) / (above + below), 2 * above / (above + below)
    back = bump(2 * place - y - 0.3 - far, s)
    onward = bump(place + (y - place) * below / above - 0.3 - far, s)
    np.testing.assert_allclose(u, np.where(y < place, reflected * back, transmitted * onward), atol=0.004)
    peak = u[y < place][np.abs(u[y < place]).argmax()]
    assert abs(peak / reflected - 1) < 0.011
    assert abs(u[y > place].max() / transmitted - 1) < 0.003


def test_energy_is_conserved_without_absorbing_layer():
    """The energy of leap-frog, sum |u' - u|^2 / (c dt)^2 - u' lap u over two steps u, u', does not change at all."""
    n, dt = 49, 0.002
    x = np.linspace(0, 1, n)
    h = 1 / (n - 1)
    c = 2 + np.sin(9 * x)[:, None] * np.sign(x - 0.4)
    u = solve(gaussian(x, 0.4, 0.5, 0.07), c, np.arange(400) * dt, h, layer=0)
    energy = [(((b - a) / (c * dt)) ** 2 - b * laplacian(a, h)).sum() for a, b in pairwise(u)]
    np.testing.assert_allclose(energy, energy[0], rtol=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.2, 0.45), (0.15, 0.15)])
def test_little_comes_back_from_the_absorbing_layer(a, b):
    """The reference is a square so large that its walls are not seen; layers and oblique waves are included."""
    n, s, t = 65, 0.05, np.linspace(0, 0.7, 8)
    h = 1 / (n - 1)

    def run(outer, layer):
        x = np.arange(-outer, n + outer) * h
        c = mix(np.array([0.35 * np.ones(len(x)), 0.7 * np.ones(len(x))]), np.array([1.5, 1, 2.0]), x.clip(0, 1), h)
        u = solve(gaussian(x, a, b, s), c, t, h, layer)
        return u[:, outer - layer :, outer - layer :][:, :n, :n]

    small, large = run(20, 20), run(80, 0)
    arriving = np.abs(large[:, [0, -1]]).max()  # the largest amplitude that reaches two sides
    assert np.abs(small - large).max() < 0.004 * arriving


def test_everything_leaves_in_the_end():
    """Fast waves cross the square 15 times, and only the wake of two dimensions is left, which decays as 1 / t^2."""
    n = 33
    x = np.arange(-20, n + 20) / (n - 1)
    heights = np.array([0.3 + 0.05 * np.sin(6 * x), 0.6 * np.ones(len(x))])
    c = mix(heights, np.array([2.0, 5.0, 2.5]), x.clip(0, 1), 1 / (n - 1))
    u = solve(gaussian(x, 0.5, 0.5, 0.12), c, np.linspace(0, 3, 4), 1 / (n - 1))
    largest, mean = np.abs(u).max((1, 2)), u.mean((1, 2))
    assert (np.diff(largest) < 0).all()
    assert largest[-1] < 6e-4
    assert abs(9 * mean[3] / mean[1] - 1) < 0.07


def test_centered_gaussian_stays_symmetric():
    x = np.arange(-20, 61) / 40
    u = solve(gaussian(x, 0.5, 0.5, 0.08), np.ones((81, 81)), np.linspace(0, 1, 4), 1 / 40)
    np.testing.assert_allclose(u, u.swapaxes(1, 2), atol=1e-13)
    np.testing.assert_allclose(u, u[:, ::-1], atol=1e-13)


def test_times_must_be_equally_spaced():
    with pytest.raises(ValueError, match="equally spaced"):
        solve(np.zeros((50, 50)), np.ones((50, 50)), np.array([0, 0.1, 0.3]), 0.1)


def test_layers_are_as_many_as_asked_and_do_not_cross():
    problem, x = WaveLayer(waviness=0.49), np.linspace(0, 1, 200)
    counts = []
    for seed in range(200):
        heights, speeds = problem.draw_layers(np.random.default_rng(seed), x)
        counts.append(len(speeds))
        assert len(heights) == len(speeds) - 1
        assert (np.diff(heights, axis=0) > 0).all()
        assert heights.min() > 0
        assert heights.max() < 1
        c = mix(heights, speeds, x, 0.0)
        assert set(np.unique(c.round(6))) == set(speeds.round(6))
        assert speeds.min() >= 2000
        assert speeds.max() <= 5000
        assert np.ptp(heights, axis=1).max() > 1e-3  # wavy
    assert set(counts) == {3, 4, 5, 6}


def test_samples_have_the_released_shapes_and_repeat():
    problem = WaveLayer(resolution=33, points=500)
    cloud = problem.cloud(np.random.default_rng(0))
    made, again = (problem.sample(np.random.default_rng(1), cloud) for _ in range(2))
    other = problem.sample(np.random.default_rng(2), cloud)
    assert made.conditions is not None
    assert made.values.shape == (15, 500, 1)
    assert made.conditions.shape == (1, 500, 1)
    assert problem.times == tuple(np.linspace(0, 1, 15))
    np.testing.assert_array_equal(made.values, again.values)
    assert not np.allclose(made.values, other.values)
    start = problem.draw_start(np.random.default_rng(1), cloud[:, 0], cloud[:, 1])
    np.testing.assert_allclose(made.values[0, :, 0], np.diag(start), atol=1e-12)


@pytest.mark.parametrize(("seed", "most"), [(5, 0.004), (6, 0.08)])
def test_same_seed_is_the_same_problem_at_any_resolution(seed, most):
    """The second has Gaussians that are only 2.6 steps of the coarse grid wide."""
    cloud = grid_cloud(33, None, np.random.default_rng(0), periodic=False)
    coarse, fine = (WaveLayer(resolution=n).sample(np.random.default_rng(seed), cloud) for n in (65, 129))
    assert coarse.conditions is not None
    assert fine.conditions is not None
    np.testing.assert_array_equal(coarse.conditions, fine.conditions)
    difference = np.linalg.norm(coarse.values - fine.values, axis=1) / np.linalg.norm(fine.values, axis=1)
    assert difference.max() < most
