import numpy as np
import pytest
from scipy.integrate import quad

from ikno.data.generators.navier_stokes import (
    NSSL,
    NSSVS,
    Flow,
    NSGauss,
    NSPwC,
    Start,
    curl,
    mollifier,
    sheet,
    solve,
    spectral_rate,
    to_field,
    to_modes,
    wavenumbers,
)

PROBLEMS = [NSGauss, NSPwC, NSSL, NSSVS]


def grid(n):
    return np.arange(n)[:, None] / n, np.arange(n) / n


def taylor_green(n, shift=(0.0, 0.0)):
    x, y = 2 * np.pi * (grid(n)[0] - shift[0]), 2 * np.pi * (grid(n)[1] - shift[1])
    return np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)]), 4 * np.pi * np.sin(x) * np.sin(y)


def smooth(n):
    """A flow with much transport in its few lowest modes."""
    x, y = 2 * np.pi * grid(n)[0], 2 * np.pi * grid(n)[1]
    return 8 * np.sin(x) * np.cos(2 * y) + 10 * np.cos(x - y) + 6 * np.sin(2 * x + y + 1)


def test_signs_of_derivatives():
    x, y = (2 * np.pi * z for z in grid(24))
    field = np.stack([np.sin(x + 2 * y), np.cos(3 * x - y)])
    np.testing.assert_allclose(
        curl(field), -6 * np.pi * np.sin(3 * x - y) - 4 * np.pi * np.cos(x + 2 * y), rtol=0, atol=1e-12
    )
    # A stream function sin(x + 2 y) / (2 pi): vx = its y derivative, vy = minus its x derivative.
    field = np.stack([2 * np.cos(x + 2 * y) + 0.3, -np.cos(x + 2 * y) - 0.2])
    found = solve(Start(curl(field), (0.3, -0.2)), [0.0])
    np.testing.assert_allclose(found[0], field, rtol=0, atol=1e-13)


def test_transport_of_two_modes():
    """w = cos x + 4 cos 2y (in units of 2 pi) has -u . grad w = 6 sin x sin 2y."""
    x, y = (2 * np.pi * z for z in grid(16))
    flow = Flow(16, (0.0, 0.0))
    w = np.cos(x) + 4 * np.cos(2 * y)
    velocity = flow.velocity(to_modes(w))
    exact = np.stack(np.broadcast_arrays(-2 * np.sin(2 * y), np.sin(x))) / (2 * np.pi)
    np.testing.assert_allclose(velocity, exact, rtol=0, atol=1e-14)
    np.testing.assert_allclose(to_field(flow.change(velocity)), 6 * np.sin(x) * np.sin(2 * y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("viscosity", [0.0, 0.01])
def test_taylor_green_vortex_decays_in_place(viscosity):
    u, w = taylor_green(32)
    times = [0.0, 0.1, 0.35, 1.0]
    found = solve(Start(w), times, viscosity=viscosity)
    for t, field in zip(times, found, strict=True):
        np.testing.assert_allclose(field, np.exp(-8 * np.pi**2 * viscosity * t) * u, rtol=0, atol=1e-12)


def test_taylor_green_vortex_is_carried_by_the_mean():
    mean, n, times = (0.7, -0.4), 16, [0.0, 0.3, 1.0]
    found = solve(Start(taylor_green(n)[1], mean), times, viscosity=0.01, longest=1 / 500)
    for t, field in zip(times, found, strict=True):
        u = taylor_green(n, (0.7 * t, -0.4 * t))[0]
        exact = np.exp(-0.08 * np.pi**2 * t) * u + np.reshape(mean, (2, 1, 1))
        np.testing.assert_allclose(field, exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [2, 7, 10])
def test_spectral_viscosity_damps_high_modes(k):
    """A parallel flow is carried nowhere: its one mode decays at exactly its rate."""
    n, eps = 32, 0.05 / 32
    y = grid(n)[0] * np.ones(n)
    w = np.cos(2 * np.pi * k * y)
    found = solve(Start(w), [0.0, 0.7], spectral_rate(n, eps, n / 3, 18.0))
    share = 1 - np.exp(-((3 * k / n) ** 18))
    decay = np.exp(-eps * (2 * np.pi * k) ** 2 * share * 0.7)
    np.testing.assert_allclose(found[1], decay * found[0], rtol=0, atol=1e-14)
    assert (decay > 1 - 1e-12) if k == 2 else (decay < 1 - 1e-5)


def test_energy_and_enstrophy_are_kept_without_viscosity():
    found = solve(Start(smooth(32)), [0.0, 0.25], longest=1 / 1000)
    energy = (found**2).sum((1, 2, 3))
    enstrophy = np.array([(curl(u) ** 2).sum() for u in found])
    assert np.abs(found[1] - found[0]).max() > 0.9
    np.testing.assert_allclose(energy[1] / energy[0], 1, rtol=0, atol=1e-11)
    np.testing.assert_allclose(enstrophy[1] / enstrophy[0], 1, rtol=0, atol=1e-11)


def test_fourth_order_in_the_time_step():
    def final(steps):
        return solve(Start(smooth(24), (0.5, 0.2)), [0.0, 0.5], viscosity=0.005, cfl=10.0, longest=0.5 / steps)[-1]

    reference = final(800)
    errors = np.array([np.abs(final(steps) - reference).max() for steps in (25, 50, 100)])
    orders = np.log2(errors[:-1] / errors[1:])
    assert errors[0] > 1e-5
    assert (np.abs(orders - 4) < 0.1).all(), orders


def test_steps_follow_the_flow_and_hit_the_snapshots():
    start = Start(smooth(24))
    many = solve(start, np.linspace(0, 0.5, 8).tolist())
    fine = solve(start, [0.0, 0.5], longest=1e-3)
    assert np.abs(many[-1] - fine[-1]).max() < 2e-4 * np.abs(fine).max()


def test_mollifier_is_the_published_spline_of_integral_one():
    r = np.linspace(0, 1.5, 301)
    spline = sum(c * np.maximum(r - a, 0) ** 3 for c, a in zip([1, -4, 6, -4, 1], [-1, -0.5, 0, 0.5, 1], strict=True))
    np.testing.assert_allclose(mollifier(r), 80 / (7 * np.pi) * spline, rtol=0, atol=1e-13)
    total = quad(lambda r: 2 * np.pi * r * mollifier(np.array([r]))[0], 0, 1, points=[0.5])[0]
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-13)


def test_total_vorticity_of_the_sheet_is_the_length_of_the_curve():
    rng = np.random.default_rng(0)
    heights, shifts = rng.uniform(0, 0.01, 10), rng.uniform(0, 1, 10)

    def speed(x):
        slope = 0.4 * np.pi * np.cos(2 * np.pi * x) + 2 * np.pi * heights @ np.cos(2 * np.pi * (x + shifts))
        return np.hypot(1, slope)

    length = quad(speed, 0, 1)[0]
    for n, bound in (64, 2e-4), (256, 2e-7):
        assert abs(sheet(heights, shifts, 5 / 128, n).mean() / length - 1) < bound


def test_velocity_jumps_by_one_across_a_flat_sheet():
    """Without the sine: w = 1 in total around y = .5, less its mean 1, so that vx falls by 1 and rises with slope 1."""
    w = sheet(np.array([0.2]), np.array([0.5]), 5 / 64, 96)
    np.testing.assert_allclose(w.mean(), 1, rtol=0, atol=5e-5)
    u = solve(Start(w - w.mean()), [0.0])[0]
    np.testing.assert_allclose(u[0, :, 36] - u[0, :, 60], 1 - 24 / 96, rtol=0, atol=5e-5)
    assert np.abs(u[1]).max() < 1e-7


@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (NSGauss(resolution=32, width=(0.08, 0.1)), 1e-12),
        (NSSVS(resolution=32, radius=0.2), 2e-6),
        (NSSL(resolution=96, modes=(1, 2), thickness=(0.3, 0.4)), 1e-3),
    ],
)
def test_same_seed_is_the_same_flow_at_any_resolution(problem, bound):
    coarse = problem.start(np.random.default_rng(3))
    fine = problem.model_copy(update={"resolution": 2 * problem.resolution}).start(np.random.default_rng(3))
    error = np.abs(fine.vorticity[::2, ::2] - coarse.vorticity).max()
    assert error < bound * np.abs(fine.vorticity).max()


def test_gaussians_have_images_in_all_directions():
    """One Gaussian near an edge or not depends on the distance on the torus only."""
    n, s = 32, 0.1
    w = NSGauss(resolution=n, count=1, width=(s, s)).start(np.random.default_rng(5)).vorticity
    rng = np.random.default_rng(5)
    (cx,), (cy,) = rng.uniform(0, 1, (2, 1))
    a = rng.uniform(-1, 1)
    x, y = grid(n)
    dx, dy = (x - cx + 0.5) % 1 - 0.5, (y - cy + 0.5) % 1 - 0.5
    near = a / s * np.exp(-(dx**2 + dy**2) / (2 * s**2))
    # The nearest image alone is the field but for the tails beyond half a period, exp(-12.5) = 4e-6.
    np.testing.assert_allclose(w, near - near.mean(), rtol=0, atol=5e-6 * abs(a) / s)


def test_squares_are_constant_with_mean_zero():
    w = NSPwC(resolution=40).start(np.random.default_rng(0)).vorticity
    blocks = w.reshape(10, 4, 10, 4)
    assert (blocks == blocks[:, :1, :, :1]).all()
    assert len(np.unique(w)) == 100
    assert abs(w.mean()) < 1e-15
    levels = np.random.default_rng(0).uniform(-1, 1, (10, 10))
    np.testing.assert_allclose(w[::4, ::4], levels - levels.mean(), atol=1e-15)


def test_flat_shear_layers():
    n = 96
    start = NSSL(resolution=n, ripple=0, shift=0, thickness=(0.3, 0.3)).start(np.random.default_rng(0))
    u = solve(start, [0.0])[0]
    y = grid(n)[1]
    profile = np.where(y <= 0.5, np.tanh(2 * np.pi * (y - 0.25) / 0.3), np.tanh(2 * np.pi * (0.75 - y) / 0.3))
    np.testing.assert_allclose(u[0], np.tile(profile, (n, 1)), rtol=0, atol=1e-4)
    assert np.abs(u[1]).max() < 1e-13


def test_shear_layers_are_projected():
    """The velocity keeps the curl of the field and its mean, and gains a second component."""
    problem = NSSL(resolution=64, thickness=(0.6, 0.6))
    start = problem.start(np.random.default_rng(0))
    u = solve(start, [0.0])[0]
    np.testing.assert_allclose(u.mean((1, 2)), start.mean, atol=1e-15)
    kept = Flow(64, (0.0, 0.0)).kept
    np.testing.assert_allclose(curl(u), to_field(kept * to_modes(start.vorticity)), rtol=0, atol=1e-11)
    assert u[1].std() > 0.03


@pytest.mark.parametrize("kind", PROBLEMS)
def test_samples(kind):
    problem = kind(resolution=32, points=None)
    assert problem.times == tuple(i / 20 for i in range(21))
    cloud = problem.cloud(np.random.default_rng(0))
    made = problem.sample(np.random.default_rng(1), cloud)
    again = problem.sample(np.random.default_rng(1), cloud)
    assert made.conditions is None
    assert made.values.shape == (21, 1024, 2)
    np.testing.assert_array_equal(made.values, again.values)
    assert (made.values[0] != problem.sample(np.random.default_rng(2), cloud).values[0]).any()
    # Back on the grid: no divergence, one mean velocity, and less and less energy.
    fields = np.empty((21, 2, 32, 32))
    fields[..., *np.rint(cloud * 32).astype(int).T] = made.values.swapaxes(1, 2)
    kx, ky = wavenumbers(32)
    modes = to_modes(fields)
    divergence = to_field(2j * np.pi * (kx * modes[:, 0] + ky * modes[:, 1]))
    assert np.abs(divergence).max() < 1e-14 * 32 * np.abs(fields).max()
    np.testing.assert_allclose(fields.mean((2, 3)), np.tile(fields[0].mean((1, 2)), (21, 1)), atol=1e-15)
    energy = (fields**2).mean((1, 2, 3))
    assert (np.diff(energy) < 0).all()
    part = kind(resolution=32, points=100)
    cloud = part.cloud(np.random.default_rng(0))
    np.testing.assert_array_equal(part.sample(np.random.default_rng(1), cloud).values, made.values[:, :100])


def test_published_settings():
    problem = NSGauss()
    assert (problem.resolution, problem.points, problem.viscosity, problem.sharpness) == (128, 9216, 0.05, 18)
    assert problem.cloud(np.random.default_rng(0)).shape == (9216, 2)
