import numpy as np
import pytest

from ikno.data.generators.airfoil_grid import conformal, spaced
from ikno.data.generators.airfoil_shape import RAE_LOWER, RAE_UPPER, bumped, is_sound, naca, rae2822, signed_distance

SHAPES = {"naca0012": naca(), "naca2412": naca(0.02, 0.4), "rae2822": rae2822()}


def at(x):
    """The parameters of the upper and the lower side at x."""
    t = np.arccos(2 * np.asarray(x) - 1)
    return t, 2 * np.pi - t


def drawn(seed, name, bumps=4, size=0.005):
    heights = np.random.default_rng(seed).uniform(-size, size, (2, bumps))
    return bumped(SHAPES[name], *heights)


def test_naca_0012_has_the_published_ordinates():
    """NACA report 460, in percent; closing the trailing edge takes .126 x^4 percent off."""
    x = np.array([0.0125, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8])
    y = np.array([1.894, 3.555, 4.683, 5.737, 6.002, 5.803, 4.563, 2.623])
    upper, lower = (SHAPES["naca0012"](t) for t in at(x))
    np.testing.assert_allclose(100 * upper.imag, y - 0.126 * x**4, atol=1.5e-3)
    np.testing.assert_allclose(upper, lower.conj(), atol=1e-16)


def test_naca_2412_has_its_thickness_square_to_the_mean_line():
    """The mean line is y = .02 / .4^2 (.8 x - x^2) up to x = .4, and .02 / .6^2 (.2 + .8 x - x^2) behind."""
    t = np.linspace(0, np.pi, 401)
    upper, lower = SHAPES["naca2412"](t), SHAPES["naca2412"](2 * np.pi - t)
    x = (1 + np.cos(t)) / 2
    line = np.where(x < 0.4, 0.125 * (0.8 * x - x**2), 0.02 / 0.36 * (0.2 + 0.8 * x - x**2))
    slope = np.where(x < 0.4, 0.125, 0.02 / 0.36) * (0.8 - 2 * x)
    np.testing.assert_allclose((upper + lower) / 2, x + 1j * line, atol=1e-15)
    np.testing.assert_allclose(abs(upper - lower), 2 * SHAPES["naca0012"](t).imag, atol=1e-15)
    np.testing.assert_allclose(((upper - lower) * (1 - 1j * slope)).real, 0, atol=1e-15)


def test_rae_2822_goes_through_the_published_points():
    k = np.arange(65)
    upper, lower = (SHAPES["rae2822"](t) for t in at((1 - np.cos(np.pi * k / 64)) / 2))
    np.testing.assert_allclose(upper.imag, np.array(RAE_UPPER) * 1e-6, atol=1e-12)
    np.testing.assert_allclose(lower.imag, np.array(RAE_LOWER) * 1e-6, atol=1e-12)
    thickness = (upper - lower).imag
    np.testing.assert_allclose(thickness.max(), 0.121, atol=2e-4)
    np.testing.assert_allclose(upper.real[thickness.argmax()], 0.38, atol=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_closed_counterclockwise_and_one_chord_long(name):
    z = SHAPES[name](np.linspace(0, 2 * np.pi, 20001))
    assert abs(z[0] - 1) < 1e-9
    assert abs(z[-1] - z[0]) < 1e-9
    assert -1e-4 < z.real.min() <= 1e-9
    area = 0.5 * (z[:-1].conj() * z[1:]).imag.sum()
    assert 0.07 < area < 0.09


def test_bumps_have_their_tops_where_they_should():
    upper, lower = np.array([0.004, 0, -0.003]), np.array([0, 0.002, 0])
    curve = bumped(naca(), upper, lower)
    x = np.array([0.25, 0.5, 0.75])
    for t, heights in zip(at(x), (upper, lower), strict=True):
        moved = (curve(t) - naca()(t)).imag
        bumps = np.sin(np.pi * x[:, None] ** (np.log(0.5) / np.log(x))) ** 3
        np.testing.assert_allclose(np.diag(bumps), 1)
        np.testing.assert_allclose(moved, bumps @ heights, atol=1e-15)
    ends = np.array([0.0, np.pi])
    np.testing.assert_allclose(curve(ends), naca()(ends), atol=1e-15)


def test_sides_that_meet_are_noticed():
    assert all(is_sound(drawn(seed, name)) for seed in range(30) for name in SHAPES)
    assert not is_sound(bumped(naca(), np.array([0, 0, -0.05]), np.array([0, 0, 0.05])))


@pytest.mark.parametrize("name", SHAPES)
def test_signed_distance_against_brute_force(name):
    curve, rng = drawn(1, name), np.random.default_rng(0)
    near = rng.uniform(-0.1, 0.1, 100) * 1j + rng.uniform(-0.05, 1.05, 100)
    points = np.concatenate([near, rng.uniform(-1, 2.5, 40) + 1j * rng.uniform(-1.5, 2, 40), [1.5, 1 + 1e-3]])
    z = curve(2 * np.pi * np.arange(30_000) / 30_000)
    brute = np.array([abs(z - point).min() for point in points])
    turns = np.array([np.angle(np.roll(z - point, -1) / (z - point)).sum() for point in points])
    found = signed_distance(curve, points)
    np.testing.assert_allclose(abs(found), brute, atol=2e-5)
    sure = brute > 1e-5
    np.testing.assert_array_equal(found[sure] < 0, turns[sure] > np.pi)
    assert 15 < (found < 0).sum() < 90


def joukowski(offset):
    """An airfoil whose outside is that of a circle: z = zeta + 1 / zeta, stretched to the chord from 0 to 1."""

    def curve(t):
        middle = complex(*offset)
        radius, first = abs(1 - middle), np.angle(1 - middle)
        zeta = middle + radius * np.exp(1j * (t + first))
        return (zeta + 1 / zeta) / 4

    return curve, abs(1 - complex(*offset)) / 4, -np.angle(1 - complex(*offset))


@pytest.mark.parametrize("offset", [(-0.1, 0.0), (-0.08, 0.06)])
def test_the_map_of_a_joukowski_airfoil_is_that_of_a_circle(offset):
    """The radius of the circle and its turn against the stream are unique, and give the lift of the airfoil."""
    curve, radius, camber = joukowski(offset)
    mapped = conformal(curve)
    assert abs(mapped.power - 2) < 1e-3
    np.testing.assert_allclose(mapped.series[0], np.log(radius) - 1j * camber, atol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_grids_are_orthogonal_and_not_folded(name):
    theta, sigma = spaced(128, 32, 50.0)
    for seed in range(5):
        curve = drawn(seed, name)
        mapped = conformal(curve)
        z = mapped(theta, sigma)
        after = np.roll(z, -1, 0)
        volume = 0.5 * np.imag((z[:, 1:] - after[:, :-1]).conj() * (z[:, :-1] - after[:, 1:]))
        assert (volume < 0).all() or (volume > 0).all()
        # Grid lines cross at right angles; here as differences, away from the trailing edge's corner.
        around = np.roll(z, -1, 0) - np.roll(z, 1, 0)
        angles = np.angle(around[:, 1:-1] / (z[:, 2:] - z[:, :-2]))[3:-3]
        assert abs(abs(np.degrees(angles)) - 90).max() < 8
        np.testing.assert_allclose(z[:, 0], curve(mapped.wall(theta)))
        near = mapped(theta, np.array([1e-9, 1.0]))[:, 0]
        assert abs(near - z[:, 0]).max() < 1e-6
        assert abs(abs(z[:, -1]) - 50).max() < 10
        assert abs(z[0, 0] - 1) < 1e-9


def test_spacing_grows_smoothly_to_the_far_field():
    theta, sigma = spaced(256, 64, 50.0)
    steps = np.diff(sigma)
    np.testing.assert_allclose(steps[0], 2 * np.pi / 256, rtol=0.05)
    np.testing.assert_allclose(steps[1:] / steps[:-1], steps[1] / steps[0])
    np.testing.assert_allclose(sigma[-1], np.log(200))
    assert 1.02 < steps[1] / steps[0] < 1.05
    around = np.diff(theta)
    assert around[0] > around[127] > around[64]
    assert len(spaced(64, 128, 50.0)[1]) == 129
