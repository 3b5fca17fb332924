from functools import cache

import numpy as np
import pytest
from pydantic import ValidationError

from ikno.data.catalog import CATALOG
from ikno.data.generators.aircraft import Aircraft, cloud_on, spread
from ikno.data.generators.aircraft_grid import Airliner, Setting
from ikno.data.generators.aircraft_shape import HALF_AREA, HALF_SPAN, LENGTH, RADIUS, body_profile
from ikno.data.generators.surface_flow import friction, run_length

pytest.importorskip("numba")

SETTING = Setting(inboard=6.0, outboard=-5.0, tail=2.0, elevator=-8.0)
FLIGHT = {"mach": 0.5, "alpha": 2.0, "inboard": 0.0, "outboard": 0.0, "tail": 0.0, "elevator": 0.0}


@cache
def flown(points=2000, resolution=8, **flight):
    """One sample with the given flight and deflections."""
    fixed = {k: (float(v), float(v)) for k, v in (FLIGHT | flight).items()}
    generator = Aircraft.model_validate({"points": points, "resolution": resolution, **fixed})
    made = generator.sample(np.random.default_rng(0), None)
    assert made.conditions is not None
    assert made.areas is not None
    return made.points, made.conditions[0, :, :3], made.values[0], made.areas, fixed["alpha"][0]


def forces(made, where=None):
    """Coefficients of lift, of drag by pressure and of drag by friction, of a part if asked for."""
    points, normals, values, areas, _ = made
    kept = slice(None) if where is None else where(points)
    weights = areas[kept, None] / HALF_AREA
    x, _, z = -(values[kept, :1] * normals[kept] * weights).sum(0)
    alpha = np.deg2rad(made[4])
    turned = z * np.cos(alpha) - x * np.sin(alpha), x * np.cos(alpha) + z * np.sin(alpha)
    return *turned, (values[kept, 1] * weights[:, 0]).sum()


@pytest.mark.parametrize("reynolds", [1e6, 1e7, 1e8])
def test_flat_plate(reynolds):
    """Friction along a plate adds up to .455 / (lg Re)^2.58 (Prandtl and Schlichting), within 3 %."""
    rows = 400
    edges = np.linspace(0, 1, rows + 1) ** 2
    middle, step = (edges[1:] + edges[:-1]) / 2, np.gradient((edges[1:] + edges[:-1]) / 2)
    step[1:] = np.diff(middle)
    ones = np.ones((rows, 3))
    steps = step[:, None] * ones
    run = run_length(np.zeros(3, int), np.full(3, middle[0]), steps, ones, 0 * ones, ones)
    np.testing.assert_allclose(run, middle[:, None] * ones, rtol=1e-9)
    drag = (friction(run, ones, 0.0, reynolds) * np.diff(edges)[:, None]).sum(0)
    np.testing.assert_allclose(drag, 0.455 / np.log10(reynolds) ** 2.58, rtol=0.03)


def test_friction_falls_with_the_mach_number_and_rises_with_the_speed():
    run, one = np.full(1, 2.0), np.ones(1)
    found = [friction(run, one, mach, 5e6)[0] for mach in (0.0, 0.4, 0.8)]
    assert found[0] > found[1] > found[2] > 0.93 * found[0]
    # 8 % less at M = 1 than without compressibility, as measured on insulated plates (within a hundredth).
    np.testing.assert_allclose(friction(run, one, 1.0, 5e6) / found[0], 0.92, atol=0.02)
    assert friction(run, 1.21 * one, 0.0, 5e6) > 1.15 * found[0]


def test_oblique_streamlines():
    """A uniform flow at 30 degrees across the rows runs dy / cos(30) from the first row on."""
    ones = np.ones((6, 40))
    angle = np.deg2rad(30)
    run = run_length(
        np.zeros(40, int), np.zeros(40), 0.1 * ones, np.cos(angle) * ones, np.sin(angle) * ones / 0.1, ones
    )
    np.testing.assert_allclose(run, np.arange(6)[:, None] * 0.1 / np.cos(angle) * ones, rtol=1e-12)


def test_normals_are_those_of_the_surface():
    airliner = Airliner(SETTING, 8)
    u, v = spread(500)
    for part in airliner.parts:
        for chart in part.charts:
            normal, h = chart.normal(u, v), 1e-6
            np.testing.assert_allclose(np.linalg.norm(normal, axis=1), 1)
            inside = (np.minimum(u, 1 - u) > 0.01) & (np.minimum(v, 1 - v) > 0.01)
            along, across = chart.point(u + h, v) - chart.point(u - h, v), chart.point(u, v + h) - chart.point(u, v - h)
            crossed = np.cross(along, across)
            crossed /= np.linalg.norm(crossed, axis=1)[:, None]
            np.testing.assert_allclose(crossed[inside], normal[inside], atol=2e-4)


def test_wing_and_tail_begin_on_the_body():
    airliner = Airliner(SETTING, 8)
    u = np.linspace(0, 1, 101)
    for part in airliner.parts[:2]:
        x, y, z = part.charts[0].point(u, np.zeros(101)).T
        radius, center = body_profile(x)
        np.testing.assert_allclose(np.hypot(y, z - center), radius, atol=1e-6)
        tip = part.charts[0].point(u, np.ones(101))
        np.testing.assert_allclose(tip[:50], tip[:50:-1], atol=1e-9)  # closed
    body = airliner.parts[2]
    lower, middle = (chart.nodes() for chart in body.charts[:2])
    before = 4  # columns in front of the wing
    np.testing.assert_allclose(lower[-1, : before + 1], middle[0, : before + 1], atol=1e-6)
    assert (lower[-1, before + 1 : before + 6, 2] < middle[0, before + 1 : before + 6, 2] - 0.05).all()


def test_surface_is_closed():
    """The integral of the normal over a closed surface is 0: that of the half is the area of its cut at y = 0."""
    airliner = Airliner(SETTING, 8)
    clouds = [cloud_on(chart, *spread(20_000), np.ones(1)) for part in airliner.parts for chart in part.charts]
    total = sum((c.normals * c.areas[:, None]).sum(0) for c in clouds)
    x = np.linspace(0, LENGTH, 20_001)
    cut = 2 * float(np.trapezoid(body_profile(x)[0], x))
    np.testing.assert_allclose(total, [0, cut, 0], atol=1e-3 * cut)
    points = np.concatenate([c.points for c in clouds])
    assert (points[:, 1] >= 0).all()
    assert points[:, 0].min() > -0.01
    assert abs(points[:, 1].max() - HALF_SPAN) < 0.05
    assert abs(points[:, 2]).max() < 2 * RADIUS


def test_few_points_are_everywhere():
    points, _, _, areas, _ = flown()
    few = points[:400]
    for part in (few[:, 0] < 15, (few[:, 1] > 15), (few[:, 0] > 50) & (few[:, 1] > 3)):
        assert part.sum() > 15
    np.testing.assert_allclose(areas.sum(), flown(points=1000)[3].sum(), rtol=0.02)


def test_lift_follows_angle_flaps_and_mach_number():
    def wing(points):
        return (points[:, 1] > 4) & (points[:, 0] < 50)

    def tail(points):
        return (points[:, 1] > 2) & (points[:, 0] > 52)

    plain = flown()
    lift, drag, rubbed = forces(plain)
    assert 0.2 < lift < 0.5
    assert -0.01 < drag < 0.02
    assert 0.008 < rubbed < 0.014  # wetted area over reference area is 4.8, times .0022
    slope = (forces(flown(alpha=1.0))[0] - forces(flown(alpha=0.0))[0]) / np.deg2rad(1)
    assert 4.0 < slope < 7.0
    faster = (forces(flown(alpha=1.0, mach=0.7))[0] - forces(flown(alpha=0.0, mach=0.7))[0]) / np.deg2rad(1)
    assert 1.03 < faster / slope < 1.21  # less than sqrt(1 - .25) / sqrt(1 - .49), that of a straight long wing
    assert forces(flown(inboard=5.0), wing)[0] > forces(plain, wing)[0] + 0.005
    assert forces(flown(outboard=5.0), wing)[0] > forces(plain, wing)[0] + 0.005
    assert forces(flown(tail=2.0), tail)[0] > forces(plain, tail)[0] + 0.005
    assert forces(flown(elevator=5.0), tail)[0] > forces(plain, tail)[0] + 0.005


def test_pressure_and_friction_are_sound():
    _, normals, values, *_ = flown()
    assert values[:, 0].max() <= (1.05**3.5 - 1) / (0.7 * 0.25)  # at rest
    assert values[:, 0].max() > 0.9
    along = values[:, 1:]
    assert abs((along * normals).sum(1)).max() < 1e-9  # friction lies in the surface
    size = np.linalg.norm(along, axis=1)
    assert np.quantile(size, 0.99) < 0.01
    assert (along[:, 0] > 0).mean() > 0.95  # downstream
    assert 0.0015 < np.median(size) < 0.004


def test_samples_differ_by_their_seed_alone():
    generator = Aircraft(points=200, resolution=8)
    first, again, other = (generator.sample(np.random.default_rng(seed), None) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.values, again.values)
    assert first.conditions is not None
    assert other.conditions is not None
    flight = first.conditions[0, 0, 3:]
    assert not np.array_equal(flight, other.conditions[0, 0, 3:])
    ranges = np.array([getattr(generator, k) for k in FLIGHT])
    assert ((flight >= ranges[:, 0]) & (flight <= ranges[:, 1])).all()


@pytest.mark.parametrize("points", [1, 7])
def test_very_few_points(points):
    made = Aircraft(points=points, resolution=8).sample(np.random.default_rng(0), None)
    assert made.points.shape == (points, 3)
    assert np.isfinite(made.values).all()


BAD = [{"mach": (0.3, 0.9)}, {"mach": (-0.1, 0.5)}, {"alpha": (2.0, 1.0)}, {"tail": (-6.0, 0.0)}, {"resolution": 4}]


@pytest.mark.parametrize("bad", BAD)
def test_bad_settings(bad):
    with pytest.raises(ValidationError):
        Aircraft(**bad)


@pytest.mark.slow
def test_finer_panels_change_little():
    """Lift within 2 % and friction drag within 1 % between two thirds of the resolution and the usual one."""
    coarse, usual = (forces(flown(points=100_000, resolution=r)) for r in (23, 34))
    np.testing.assert_allclose(coarse[0], usual[0], rtol=0.02)
    np.testing.assert_allclose(coarse[2], usual[2], rtol=0.01)


@pytest.mark.slow
def test_statistics_are_of_the_published_size():
    card = CATALOG["nasa-crm"]
    values = np.concatenate(
        [Aircraft(points=50_000).sample(np.random.default_rng(seed), None).values[0] for seed in range(4)]
    )
    assert values.shape == (200_000, 4)
    ratio = values.std(0) / np.array(card.metric_std)
    assert ((ratio > 0.6) & (ratio < 1.6)).all()
    assert abs(values[:, 0].mean()) < 0.15
    assert 0.5 < values[:, 1].mean() / card.metric_mean[1] < 2
