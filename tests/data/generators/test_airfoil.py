import sys
from functools import cache

import numpy as np
import pytest
from pydantic import ValidationError

pytest.importorskip("numba")

from ikno.data.catalog import CATALOG
from ikno.data.generators import GENERATORS, airfoil
from ikno.data.generators.airfoil import BOX, NACA0012, NACA2412, RAE2822, places
from ikno.data.generators.airfoil_shape import signed_distance
from ikno.errors import UserError

SETS = {"naca0012": NACA0012, "naca2412": NACA2412, "rae2822": RAE2822}
SMALL = {"resolution": 64, "points": 400, "tolerance": 1e-3}


@cache
def case(name):
    return SETS[name](**SMALL).solved(np.random.default_rng(1))


def test_names_and_domain():
    for name, kind in SETS.items():
        assert GENERATORS[name]() is kind
        assert CATALOG[name].domain == BOX


@pytest.mark.parametrize("name", SETS)
def test_samples_have_the_released_shapes_and_stay_outside_the_airfoil(name):
    problem = SETS[name](**SMALL)
    assert problem.times == (0.0,)
    assert problem.cloud(np.random.default_rng(0)) is None
    made = problem.sample(np.random.default_rng(1), None)
    assert made.points.shape == (400, 2)
    assert made.values.shape == (1, 400, 1)
    assert made.conditions is not None
    assert made.conditions.shape == (1, 400, 3)
    mach, angle, distance = made.conditions[0].T
    assert (mach == mach[0]).all()
    assert (angle == angle[0]).all()
    assert 0.7 <= mach[0] <= 0.88
    assert 0 <= angle[0] <= 4
    found = case(name)
    assert (found.flow.mach, found.angle) == (mach[0], angle[0])
    for axis, (low, high) in enumerate(BOX):
        assert (made.points[:, axis] > low).all()
        assert (made.points[:, axis] < high).all()
    assert (distance >= 0).all()
    at = made.points[:, 0] + 1j * made.points[:, 1]
    np.testing.assert_allclose(distance, signed_distance(found.curve, at), atol=1e-6)
    assert 4 < (distance < 1e-6).sum() < 64  # on the wall
    assert 0.3 < made.values.min() < 0.9 < 1.1 < made.values.max() < 1.5
    assert len(np.unique(made.points, axis=0)) == 400


def test_the_same_seed_gives_the_same_bytes():
    problem = NACA0012(**SMALL)
    first, again = (problem.sample(np.random.default_rng(5), None) for _ in range(2))
    assert first.points.tobytes() == again.points.tobytes()
    assert first.values.tobytes() == again.values.tobytes()
    assert first.conditions is not None
    assert again.conditions is not None
    assert first.conditions.tobytes() == again.conditions.tobytes()
    other = problem.sample(np.random.default_rng(6), None)
    assert (other.values != first.values).any()


def test_other_variables_are_those_of_the_same_flow():
    """Total enthalpy is constant, so each variable follows from the others."""
    names = ("pressure", "density", "vx", "vy")
    problem = RAE2822(**SMALL, variables=names)
    p, rho, vx, vy = problem.sample(np.random.default_rng(1), None).values[0].T
    mach = case("rae2822").flow.mach
    np.testing.assert_allclose(3.5 * p / rho + (vx**2 + vy**2) / 2, 2.5 + mach**2 / 2, rtol=1e-3)
    density = RAE2822(**SMALL).sample(np.random.default_rng(1), None).values[0, :, 0]
    np.testing.assert_array_equal(rho, density)


def test_places_hold_the_state_of_their_cells():
    found = case("naca2412")
    points, values = places(found)
    k = 333
    cell = np.argwhere(found.flow.center == points[k])
    np.testing.assert_array_equal(values[k], found.flow.values[tuple(cell[0])])
    wall = found.curve(found.flow.wall)
    np.testing.assert_array_equal(points[-len(wall) :], wall)
    np.testing.assert_array_equal(values[-len(wall) :], found.flow.surface)


def test_flows_that_do_not_converge_are_drawn_again_and_counted(monkeypatch):
    problem, calls = NACA0012(**SMALL), []
    original = airfoil.solve

    def failing(curve, mach, angle, *sizes, **options):
        calls.append(mach)
        return original(curve, mach, angle, *sizes, **options | {"cycles": 1 if len(calls) < 3 else 150})

    monkeypatch.setattr(airfoil, "solve", failing)
    found = problem.solved(np.random.default_rng(1))
    assert found.draws == 3
    assert found.flow.converged
    assert len(set(calls)) == 3
    assert found.flow.mach == calls[-1]
    assert case("naca0012").draws == 1
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"NACA0012: 20 random flows in a row did not converge; .*cycles"):
        NACA0012(resolution=32, points=64, cycles=1).solved(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"points": None}, "points must be at most 8192"),
        ({"points": 8193}, "points must be at most 8192"),
        ({"resolution": 64}, "points must be at most 512 at resolution 64"),
        ({"resolution": 100}, "multiple of 16"),
        ({"mach": (0.7, 1.1)}, "mach must be below 1"),
        ({"mach": (0.8, 0.7)}, "a range is"),
        ({"variables": ()}, "at least 1"),
        ({"variables": ("heat",)}, "density"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        NACA0012(**settings)


def test_without_numba_the_error_names_what_to_install(monkeypatch):
    for name in ("airfoil", "airfoil_flow", "airfoil_loops"):
        monkeypatch.delitem(sys.modules, f"ikno.data.generators.{name}")
    monkeypatch.setattr("ikno.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs numba.*pip install 'ikno\[solvers\]'"):
        GENERATORS["naca0012"]()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_random_flows_converge_and_have_enough_points(name):
    problem = SETS[name]()
    for seed in range(6):
        found = problem.solved(np.random.default_rng(seed))
        assert found.draws == 1
        assert found.flow.history[-1] < 1e-5
        points, values = places(found)
        assert len(points) > 10_000
        assert np.isfinite(values).all()
        assert found.flow.drag > -1e-4
