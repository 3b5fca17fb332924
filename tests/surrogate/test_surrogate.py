"""Physical in, physical out: the normalized problem in between against formulas written out."""

import io
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ikno.config import parse
from ikno.data.pairs import Mode, Moments, Statistics, statistics, time_pairs
from ikno.data.records import Trajectory
from ikno.errors import UserError
from ikno.linalg import Cloud
from ikno.surrogate import Signature, Surrogate
from ikno.surrogate.interpolation import interpolator

MODES: tuple[Mode, ...] = ("direct", "residual", "derivative")
TINY = {"name": "ikno-tp", "d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6}
BOX = ((-1.0, 3.0), (10.0, 12.0))
TIMES = (0.0, 0.1, 0.4, 1.0)
PAIRS = time_pairs(3, 1)
N = 20


def signature(mode: Mode = "direct", **more: Any) -> Signature:
    """Return what goes in and out of a problem in time with two variables and one condition."""
    given = {"dim": 2, "variables": ("a", "b"), "conditions": ("k",), "box": BOX, "times": (0.0, 1.0), "model": TINY}
    return Signature.model_validate({**given, "mode": mode, **more})


STEADY = {"variables": ("u",), "conditions": ("f", "g"), "times": None}


def trajectories(count: int = 5, seed: int = 0, steady: bool = False) -> list[Trajectory]:
    """Return made-up simulations in the box; a and b differ in size by a factor of 1e4."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        low, high = np.array(BOX).T
        x = rng.uniform(low, high, (N, 2))
        scale, shift = ([1.0], [-5.0]) if steady else ([1e-2, 1e2], [3.0, -700.0])
        u = rng.normal(size=(1 if steady else 4, N, len(scale))) * scale + shift
        c = rng.normal(size=(1, N, 2 if steady else 1)) * 7 + 2
        made.append(Trajectory(x.astype(np.float32), u.astype(np.float32), c.astype(np.float32)))
    return made


def measured(mode: Mode = "direct", steady: bool = False) -> Statistics:
    return statistics(trajectories(steady=steady), (0.0,) if steady else TIMES, () if steady else PAIRS, mode)


def fitted(mode: Mode = "direct", seed: int = 0, **more: Any) -> Surrogate:
    """Return a surrogate with random weights and the statistics of the trajectories, ready to be used."""
    made = signature(mode, **more)
    return Surrogate(made, measured(mode, made.steady), seed).eval()


def inputs_of(one: Trajectory, i: int) -> np.ndarray:
    assert one.conditions is not None
    return np.concatenate([one.values[i], one.conditions[0]], 1)


def single(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def case(batch: int = 3, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return points and the channels a, b, k of a batch."""
    made = trajectories(batch, seed)
    return np.stack([m.points for m in made]), np.stack([inputs_of(m, 1) for m in made])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize("mode", MODES)
def test_physical_is_the_inverse_of_targets(mode: Mode, dtype: torch.dtype, tolerance: float) -> None:
    surrogate = fitted(mode).to(dtype)
    generator = torch.Generator().manual_seed(0)
    inputs, values = torch.randn(2, 4, N, 3, generator=generator, dtype=torch.float64).to(dtype)
    values = values[..., :2] * torch.tensor([1e-2, 1e2]) + torch.tensor([3.0, -700.0])
    inputs[..., :2] = values + torch.tensor([1e-2, 1e2]) * inputs[..., :2]
    lead = torch.tensor([0.01, 0.1, 0.9, 1.0], dtype=dtype)
    back = surrogate.physical(inputs, surrogate.targets(inputs, values, lead), lead)
    assert back.dtype == dtype
    assert ((back - values).abs() <= tolerance * values.abs().amax((0, 1))).all()
    output = torch.randn(4, N, 2, generator=generator, dtype=torch.float64).to(dtype)
    again = surrogate.targets(inputs, surrogate.physical(inputs, output, lead), lead)
    if dtype == torch.float64:  # float32 cannot hold 3 + 1e-2 x to more digits
        assert (again - output).abs().max() < 1e-9


def test_targets_follow_their_formulas() -> None:
    """Two samples with different leads, mean 2 and std 4 of the target: by hand."""
    known = Moments(np.array([2.0]), np.array([4.0]))
    none, one = Moments(np.zeros(0), np.zeros(0)), Moments(np.zeros(1), np.ones(1))
    inputs, values = torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[[7.0]], [[4.0]]])
    lead = torch.tensor([0.5, 0.25])
    expected = {
        "direct": [(7 - 2) / 4, (4 - 2) / 4],
        "residual": [(6 - 2) / 4, (-1 - 2) / 4],
        "derivative": [(12 - 2) / 4, (-4 - 2) / 4],
    }
    for mode in MODES:
        made = signature(mode, variables=("u",), conditions=())
        surrogate = Surrogate(made, Statistics(one, none, one, one, known))
        assert surrogate.targets(inputs, values, lead).flatten().tolist() == expected[mode]
        found = surrogate.physical(inputs, torch.tensor(expected[mode]).view(2, 1, 1), lead)
        assert found.flatten().tolist() == [7, 4]


@pytest.mark.parametrize("mode", MODES)
def test_normalized_training_targets_have_mean_zero_and_unit_spread(mode: Mode) -> None:
    """Over all pairs, with their unequal leads: the statistics are those of the very targets."""
    surrogate = fitted(mode).double()
    found = []
    for one, (i, j) in product(trajectories(), PAIRS):
        inputs, end = (torch.from_numpy(v).double()[None] for v in (inputs_of(one, i), one.values[j]))
        found.append(surrogate.targets(inputs, end, torch.tensor([TIMES[j] - TIMES[i]], dtype=torch.float64)))
    flat = torch.cat(found).flatten(0, 1)
    assert flat.shape == (5 * 6 * N, 2)
    assert flat.mean(0).abs().max() < 1e-4  # mean and scale are kept in float32: -700 has a spread of 100
    assert (flat.std(0, unbiased=False) - 1).abs().max() < 1e-4


def test_features_are_u_c_t_and_lead() -> None:
    surrogate = fitted("derivative")
    _, inputs = case(2)
    time, lead = torch.tensor([0.0, 0.4]), torch.tensor([0.4, 0.6])
    found = surrogate.features(torch.from_numpy(inputs), time, lead)
    assert found.shape == (2, N, 5)
    made = trajectories()
    u = np.concatenate([m.values for m in made]).reshape(-1, 2).astype(np.float64)
    c = np.concatenate([m.conditions for m in made if m.conditions is not None]).reshape(-1, 1).astype(np.float64)
    starts, leads = np.array([TIMES[i] for i, _ in PAIRS]), np.array([TIMES[j] - TIMES[i] for i, j in PAIRS])
    expected = [(inputs[..., k] - u[:, k].mean()) / u[:, k].std() for k in range(2)]
    expected.append((inputs[..., 2] - c.mean()) / c.std())
    for values, known in ((time, starts), (lead, leads)):
        expected.append(np.repeat((values.numpy()[:, None] - known.mean()) / known.std(), N, 1))
    np.testing.assert_allclose(found, np.stack(expected, -1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found[..., 2:], np.stack(expected[2:], -1), rtol=1e-5, atol=1e-5)


def test_features_of_a_steady_problem_are_the_conditions() -> None:
    surrogate = fitted(**STEADY)
    made = trajectories(steady=True)
    c = np.concatenate([m.conditions for m in made if m.conditions is not None]).astype(np.float64)
    one = single([[[2.0, -3.0]]])
    found = surrogate.features(torch.from_numpy(one), None, None)
    expected = (one[0, 0] - c.reshape(-1, 2).mean(0)) / c.reshape(-1, 2).std(0)
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-5)


def test_constant_channels_do_no_harm() -> None:
    """F10: a condition and a target that never change."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(3):
        u = np.full((4, N, 1), 0.1, np.float32)
        made.append(Trajectory(rng.random((N, 2)).astype(np.float32), u, np.full((1, N, 1), 3e7, np.float32)))
    for mode in MODES:
        found = statistics(made, TIMES, PAIRS, mode)
        surrogate = Surrogate(signature(mode, variables=("u",)), found, 0).eval()
        values = surrogate.predict(made[0].points, inputs_of(made[0], 0), lead=0.5)
        assert np.isfinite(values).all()
        u, lead = torch.full((1, N, 1), 0.1), torch.tensor([0.4])
        inputs = torch.cat([u, torch.full((1, N, 1), 3e7)], -1)
        assert surrogate.targets(inputs, u, lead).abs().max() < 1e-6
        assert (surrogate.physical(inputs, surrogate.targets(inputs, u, lead), lead) - 0.1).abs().max() < 1e-7


def located(surrogate: Surrogate, points: Any) -> Tensor:
    found = surrogate.locate(torch.tensor(points, dtype=torch.float32)[None])
    assert isinstance(found, Cloud)
    return found.points[0]


def test_each_axis_goes_to_the_box_of_the_grid() -> None:
    corners = [[-1, 10], [-1, 12], [3, 10], [3, 12], [1, 11], [2, 10.5], [7, 11]]
    expected = [[-1, -1], [-1, 1], [1, -1], [1, 1], [0, 0], [0.5, -0.5], [3, 0]]
    assert located(fitted(), corners).tolist() == expected


def test_one_scale_keeps_the_aspect_ratio() -> None:
    corners = [[-1, 10], [-1, 12], [3, 10], [3, 12], [1, 11], [2, 10.5], [7, 11]]
    expected = [[-1, -0.5], [-1, 0.5], [1, -0.5], [1, 0.5], [0, 0], [0.5, -0.25], [3, 0]]
    assert located(fitted(coordinates="one scale"), corners).tolist() == expected


def test_the_mapping_is_that_of_the_model() -> None:
    """Another box, the same mapped points: the same values."""
    one = fitted()
    two = fitted(box=((-2.0, 6.0), (0.0, 4.0)))
    points, inputs = case()
    moved = np.stack([points[..., 0] * 2, (points[..., 1] - 10) * 2], -1)
    a, b = one.predict(points, inputs, lead=0.5), two.predict(moved, inputs, lead=0.5)
    assert np.abs(a - b).max() < 1e-4 * np.abs(a).max()
    assert np.abs(a - two.predict(points, inputs, lead=0.5)).max() > 1e-4 * np.abs(a).max()


@pytest.mark.parametrize("mode", MODES)
def test_predict_at_the_points_is_the_trained_network(mode: Mode) -> None:
    """Bit for bit, numpy for numpy, tensors for tensors, with different times and leads in a batch."""
    surrogate = fitted(mode)
    points, inputs = case()
    x, c = torch.from_numpy(points), torch.from_numpy(inputs)
    time, lead = torch.tensor([0.0, 0.1, 0.4]), torch.tensor([0.4, 0.9, 0.1])
    with torch.no_grad():
        expected = surrogate.physical(c, surrogate(x, c, time, lead), lead)
    found = surrogate.predict(x, c, time=time, lead=lead)
    assert isinstance(found, Tensor)
    assert not found.requires_grad
    assert torch.equal(found, expected)
    as_numpy = surrogate.predict(points, inputs, time=time.numpy(), lead=lead.numpy())
    assert isinstance(as_numpy, np.ndarray)
    assert as_numpy.dtype == np.float32
    np.testing.assert_array_equal(as_numpy, expected)
    state = surrogate.encode(points, inputs, time, lead)
    assert torch.equal(surrogate.decode(state), expected)
    with torch.no_grad():
        cloud = surrogate.locate(x)
        assert torch.equal(surrogate.physical(c, surrogate(cloud, c, time, lead), lead), expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_sample_is_a_batch_of_one(mode: Mode) -> None:
    surrogate = fitted(mode)
    points, inputs = case()
    together = surrogate.predict(points, inputs, time=0.1, lead=0.5)
    assert together.shape == (3, N, 2)
    scale = np.abs(together).max((0, 1))
    for b in range(3):
        alone = surrogate.predict(points[b], inputs[b], time=0.1, lead=0.5)
        assert alone.shape == (N, 2)
        assert (np.abs(alone - together[b]) < 1e-5 * scale).all()
        np.testing.assert_array_equal(
            surrogate.predict(points[b : b + 1], inputs[b : b + 1], time=0.1, lead=0.5)[0], alone
        )
    np.testing.assert_array_equal(
        surrogate.predict(points, inputs, lead=0.5), surrogate.predict(points, inputs, time=0.0, lead=0.5)
    )


@pytest.mark.parametrize("mode", MODES)
def test_one_cloud_for_many_inputs(mode: Mode) -> None:
    """Points [points, dim] with inputs [batch, points, channels] give the whole batch."""
    surrogate = fitted(mode)
    points, inputs = case()
    found = surrogate.predict(points[0], inputs, lead=0.5)
    assert found.shape == (3, N, 2)
    repeated = surrogate.predict(np.repeat(points[:1], 3, 0), inputs, lead=0.5)
    assert (np.abs(found - repeated) < 1e-5 * np.abs(repeated).max((0, 1))).all()
    queries = points[1, :7]
    assert surrogate.predict(points[0], inputs, queries, lead=0.5).shape == (3, 7, 2)
    one = surrogate.predict(points, inputs[0], lead=0.5)  # and one input for many clouds
    assert one.shape == (3, N, 2)


def test_constant_inputs() -> None:
    surrogate = fitted(**STEADY)
    points, _ = case()
    for x in (points, points[0]):
        full = np.broadcast_to(single([0.3, -2.0]), (*x.shape[:-1], 2))
        found = surrogate.predict(x, np.array([0.3, -2.0]))
        np.testing.assert_array_equal(found, surrogate.predict(x, full))
        assert found.shape == (*x.shape[:-1], 1)
    assert torch.equal(
        surrogate.predict(torch.from_numpy(points), torch.tensor([0.3, -2.0])),
        torch.from_numpy(surrogate.predict(points, single([0.3, -2.0]))),
    )


def test_no_inputs_at_all() -> None:
    surrogate = Surrogate(signature(variables=("u",), conditions=(), times=None), None, 0).eval()
    points, _ = case()
    found = surrogate.predict(points)
    assert found.shape == (3, N, 1)
    assert np.abs(surrogate.predict(points[1]) - found[1]).max() < 1e-5


def test_arrays_of_every_kind() -> None:
    """Read-only, reversed, transposed, of other number types and byte orders."""
    surrogate = fitted("residual")
    points, inputs = case()
    expected = surrogate.predict(points, inputs, lead=0.5)
    locked = points.copy(), inputs.copy()
    for array in locked:
        array.flags.writeable = False
    kinds = [
        locked,
        (points[::-1, ::-1][::-1, ::-1], np.asfortranarray(inputs)),
        (points.astype(np.float64), inputs.astype(">f4")),
    ]
    for x, c in kinds:
        np.testing.assert_array_equal(surrogate.predict(x, c, lead=0.5), expected)
    before = points.copy(), inputs.copy()
    surrogate.predict(points, inputs, lead=0.5)
    np.testing.assert_array_equal(points, before[0])
    np.testing.assert_array_equal(inputs, before[1])


@pytest.mark.parametrize("mode", MODES)
def test_queries_elsewhere(mode: Mode) -> None:
    """Where the queries are points of the input, the values are those at the points."""
    surrogate = fitted(mode)
    points, inputs = case()
    everywhere = surrogate.predict(points, inputs, lead=0.5)
    some = surrogate.predict(points, inputs, points[:, 5:9], lead=0.5)
    scale = np.abs(everywhere).max((0, 1))
    assert some.shape == (3, 4, 2)
    assert (np.abs(some - everywhere[:, 5:9]) < 1e-5 * scale).all()
    alone = surrogate.predict(points[0], inputs[0], points[0, 5:9], lead=0.5)
    assert (np.abs(alone - some[0]) < 1e-5 * scale).all()
    state = surrogate.encode(points, inputs, lead=0.5)
    np.testing.assert_array_equal(surrogate.decode(state, points[:, 5:9]), some)
    for queries in (points[0, :6], points[:1, :6]):  # one cloud of queries for all
        found = surrogate.decode(state, queries)
        assert found.shape == (3, 6, 2)
        assert (np.abs(found[0].numpy() - everywhere[0, :6]) < 1e-5 * scale).all()
    given = inputs[:, 5:9, :2]
    assert (
        np.abs(surrogate.predict(points, inputs, points[:, 5:9], lead=0.5, start=given) - some) < 1e-5 * scale
    ).all()


@pytest.mark.parametrize("mode", MODES)
def test_steps_are_predictions_of_predictions(mode: Mode) -> None:
    """At the points and elsewhere; where the queries are points of the input, both are the same."""
    surrogate = fitted(mode)
    points, inputs = case()
    here, there = inputs, inputs[:, 5:9, :2]
    for i in range(3):
        time, lead = 0.1 + 0.2 * i, 0.2
        there = surrogate.predict(points, here, points[:, 5:9], time, lead, start=there)
        here = np.concatenate([surrogate.predict(points, here, time=time, lead=lead), inputs[..., 2:]], 2)
    found = surrogate.predict(points, inputs, time=0.1, lead=0.6, steps=3)
    scale = np.abs(found).max((0, 1))
    assert (np.abs(found - here[..., :2]) < 1e-5 * scale).all()
    elsewhere = surrogate.predict(points, inputs, points[:, 5:9], 0.1, 0.6, start=inputs[:, 5:9, :2], steps=3)
    assert (np.abs(elsewhere - there) < 1e-5 * scale).all()
    assert (np.abs(elsewhere - found[:, 5:9]) < 1e-4 * scale).all()
    at_once = surrogate.predict(points, inputs, time=0.1, lead=0.6)
    assert (np.abs(found - at_once) > 1e-3 * scale).any()
    alone = surrogate.predict(points[0], inputs[0], time=0.1, lead=0.6, steps=3)
    assert (np.abs(alone - found[0]) < 1e-5 * scale).all()
    assert message(lambda: surrogate.predict(points, inputs, lead=0.6, steps=0)).startswith("steps: ")


class Still(nn.Module):
    """A model whose normalized output is zero: it predicts the mean of the targets."""

    def encode(self, features: Tensor, points: Tensor) -> Tensor:
        return features.new_zeros(features.shape[0], 1)

    def decode(self, latent: Tensor, points: Tensor) -> Tensor:
        return latent.new_zeros(latent.shape[0], points.shape[1], 2)


def still(mode: Mode, **more: Any) -> Surrogate:
    surrogate = fitted(mode, **more)
    surrogate.model = Still()
    return surrogate


@pytest.mark.parametrize("mode", MODES)
def test_a_linear_start_is_interpolated_exactly(mode: Mode) -> None:
    """u(t) = A x + b at scattered points; queries inside their hull, and one far outside."""
    surrogate = still(mode)
    mean = measured(mode).target.mean
    points, _ = case(2)
    inside = np.stack(
        [(points[:, i] + 2 * points[:, j] + points[:, k]) / 4 for i, j, k in ((0, 1, 2), (3, 9, 4), (7, 8, 6))], 1
    )
    outside = single([[[60, 40]], [[-70, 11]]])
    queries = np.concatenate([inside, outside], 1)
    matrix, shift = single([[1, -2], [0.5, 3]]), single([4, -20])
    inputs = np.concatenate([points @ matrix + shift, np.ones((2, N, 1), np.float32)], 2)
    gaps = [np.linalg.norm(points[b] - outside[b], axis=1).argmin() for b in range(2)]
    start = inside @ matrix + shift
    start = np.concatenate([start, np.stack([inputs[b, g : g + 1, :2] for b, g in enumerate(gaps)])], 1)
    lead = single([0.25, 0.75])
    factor = {"residual": np.ones(2), "derivative": lead, "direct": np.zeros(2)}[mode][:, None, None]
    expected = mean + 0 * start if mode == "direct" else start + factor * mean
    found = surrogate.predict(points, inputs, queries, lead=lead)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3 if mode == "direct" else 1e-4)
    given = np.random.default_rng(0).normal(size=(2, 4, 2)).astype(np.float32)
    explicit = surrogate.predict(points, inputs, queries, lead=lead, start=given)
    expected = mean + 0 * start if mode == "direct" else given + factor * mean
    np.testing.assert_allclose(explicit, expected, rtol=1e-5, atol=1e-3 if mode == "direct" else 1e-4)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_queries_in_parts_are_queries_in_one_piece(mode: Mode, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """F7: also at the points themselves, and from a given start."""
    surrogate, (points, inputs) = fitted(mode), case(2)
    rng = np.random.default_rng(0)
    low, high = np.array(BOX).T
    queries, start = rng.uniform(low, high, (2, 23, 2)), rng.normal(size=(2, 23, 2))
    calls: list[dict[str, Any]] = [{}, {"queries": queries}, {"queries": queries[0], "start": start}]
    whole = [surrogate.predict(points, inputs, lead=0.3, steps=steps, **call) for call in calls]
    monkeypatch.setattr("ikno.surrogate.surrogate.QUERIES", 7)
    for call, expected in zip(calls, whole, strict=True):
        parts = list(surrogate.stream(points, inputs, lead=0.3, steps=steps, **call))
        assert [p.stop - p.start for p, _ in parts] == ([7, 7, 6] if not call else [7, 7, 7, 2])
        found = surrogate.predict(points, inputs, lead=0.3, steps=steps, **call)
        np.testing.assert_array_equal(found, np.concatenate([u for _, u in parts], 1))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    state = surrogate.encode(points, inputs, lead=0.3)
    if steps == 1:
        np.testing.assert_allclose(surrogate.decode(state, queries).numpy(), whole[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=r"^start: shape \[2, 24, 2\], expected \[23, 2\]: a, b at the queries$"):
        surrogate.predict(points, inputs, queries, lead=0.3, start=np.zeros((2, 24, 2)))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_interpolation_of_linear_fields(dim: int) -> None:
    rng = np.random.default_rng(dim)
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * dim)).reshape(dim, -1).T
    points = np.concatenate([corners, rng.random((40, dim))]).astype(np.float32)
    queries = rng.random((30, dim)).astype(np.float32)
    matrix = rng.normal(size=(dim, 2)).astype(np.float32)
    found = interpolator(points, points @ matrix + 3)(queries)
    np.testing.assert_allclose(found, queries @ matrix + 3, rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(interpolator(points, points @ matrix)(points), points @ matrix, rtol=1e-5, atol=1e-5)
    far = (5 * corners - 2).astype(np.float32)
    np.testing.assert_allclose(
        interpolator(points, points @ matrix)(far), corners.astype(np.float32) @ matrix, atol=1e-6
    )


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_interpolation_where_there_is_no_inside(dim: int, count: int) -> None:
    """Few points, or all on a line: the nearest point counts."""
    points = (np.arange(count)[:, None] * np.ones(dim)).astype(np.float32)
    values = np.arange(count, dtype=np.float32)[:, None]
    queries = (np.array([[-3.0], [0.0], [count + 4.0]]) * np.ones(dim)).astype(np.float32)
    assert interpolator(points, values)(queries).flatten().tolist() == [0, 0, count - 1]


def message(action: Any) -> str:
    with pytest.raises(UserError) as error:
        action()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    return str(error.value)


def test_errors_of_times() -> None:
    surrogate = fitted("derivative")
    points, inputs = case()

    def text(**clock: Any) -> str:
        return message(lambda: surrogate.predict(points, inputs, **clock))

    assert text().startswith("lead: how far ahead to predict is needed; the data spans 0 to 1")
    assert text(time=0.5).startswith("lead: how far")
    assert text(lead=0.0) == "lead: must be positive, found 0"
    assert text(lead=np.array([0.5, -0.25, 0.1])) == "lead: must be positive, found -0.25"
    assert text(lead=np.ones(2)) == "lead: expected one number or one for each of 3 inputs, found 2"
    assert text(lead=np.ones(5000)).endswith("found 5000")
    assert text(lead=0.5, time=np.ones(2)).startswith("time: expected one number")
    assert text(lead=float("nan")).startswith("lead: NaN")
    assert text(lead=0.5, time=float("inf")).startswith("time: NaN or infinite")
    steady = fitted(**STEADY)
    for clock in ({"time": 0.0}, {"lead": 0.5}):
        found = message(lambda clock=clock: steady.predict(points, np.ones(2), **clock))
        assert found.startswith("time: this surrogate is of a steady problem")


def test_errors_of_shapes() -> None:
    surrogate = fitted("residual")
    points, inputs = case()

    def text(x: Any, c: Any = None, q: Any = None, start: Any = None) -> str:
        return message(lambda: surrogate.predict(x, c, q, lead=0.5, start=start))

    assert text(points) == "inputs: a, b, k are needed at the points, found nothing"
    assert text(points, inputs[..., :2]) == ("inputs: shape [3, 20, 2], expected [points, 3] with the channels a, b, k")
    assert "with the channels a, b, k" in text(points, np.array(3.0))
    assert "does not go with points" in text(points, inputs[:, :5])
    assert "does not go with points" in text(points, inputs[:2])
    assert "does not go with points" in text(points, inputs[None])
    assert text(points[..., :1], inputs) == "points: shape [3, 20, 1], expected [points, 2]"
    assert text(points[0, 0], inputs).startswith("points: shape [2]")
    assert text(points[:, :0], inputs[:, :0]).startswith("points: shape [3, 0, 2]")
    assert text(points, inputs, np.zeros((4, 3))) == "queries: shape [4, 3], expected [points, 2]"
    assert text(points, inputs, np.zeros((2, 4, 2))).startswith("queries: 2 clouds for 3 inputs")
    for wrong in ((3, 4, 1), (3, 5, 2), (2, 4, 2), (4, 1), (2,), (1, 3, 4, 2)):
        found = text(points, inputs, points[:, :4], np.zeros(wrong))
        assert found == f"start: shape {list(wrong)}, expected [4, 2]: a, b at the queries"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(bad: float) -> None:
    surrogate = fitted()
    points, inputs = case()
    x, c, q = points.copy(), inputs.copy(), points[:, :3].copy()
    x[1, 3, 0] = c[2, 0, 1] = q[0, 0, 0] = bad
    assert message(lambda: surrogate.predict(x, inputs, lead=0.5)).startswith("points: NaN or infinite")
    assert message(lambda: surrogate.predict(points, c, lead=0.5)).startswith("inputs: NaN or infinite")
    assert message(lambda: surrogate.predict(points, inputs, q, lead=0.5)).startswith("queries: NaN or infinite")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"box": ((0.0, 1.0),)}, "the box needs lower < upper along each of 2 axes"),
        ({"box": ((0.0, 1.0), (1.0, 1.0))}, "the box needs lower < upper"),
        ({"box": ((0.0, 1.0), (0.0, float("nan")))}, "box.1.1: .*finite"),
        ({"times": None, "mode": "residual"}, "a steady problem has no residual target; use surrogate.mode=direct"),
        ({"variables": ()}, "at least one variable"),
        ({"model": {}}, "a model needs a name"),
        ({"model": {"name": 3}}, "a model needs a name"),
        ({"conditons": ()}, "conditons: no such setting; did you mean 'conditions'"),
    ],
)
def test_signatures_that_make_no_sense(change: dict[str, Any], expected: str) -> None:
    """F27: before a model is made."""
    with pytest.raises(UserError, match=expected):
        parse(Signature, {**signature("derivative").model_dump(), **change})


def test_signatures_come_back_from_json() -> None:
    for made in (signature("residual", coordinates="one scale"), signature(**STEADY)):
        assert Signature.model_validate_json(made.model_dump_json()) == made
    assert signature().inputs == ("a", "b", "k")
    assert signature(**STEADY).inputs == ("f", "g")


@pytest.mark.parametrize("mode", MODES)
def test_a_state_is_complete(mode: Mode) -> None:
    """F28: weights and normalizers; what is not in the state follows from the signature."""
    surrogate = fitted(mode)
    points, inputs = case()
    file = io.BytesIO()
    torch.save(surrogate.state_dict(), file)
    file.seek(0)
    fresh = Surrogate(Signature.model_validate_json(surrogate.signature.model_dump_json())).eval()
    queries = points[:, :5] + 0.01
    before = fresh.predict(points, inputs, queries, time=0.1, lead=0.3)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    expected = surrogate.predict(points, inputs, queries, time=0.1, lead=0.3)
    found = fresh.predict(points, inputs, queries, time=0.1, lead=0.3)
    np.testing.assert_array_equal(found, expected)
    assert (before != expected).any()
    buffers = dict(fresh.named_buffers())
    for part in ("values", "conditions", "time", "lead", "target"):
        for kind in ("mean", "scale"):
            assert torch.equal(buffers[f"{part}.{kind}"], dict(surrogate.named_buffers())[f"{part}.{kind}"])
            assert f"{part}.{kind}" in surrogate.state_dict()


def test_the_seed_decides_on_the_weights() -> None:
    one, two, other = fitted(seed=1), fitted(seed=1), fitted(seed=2)
    a, b, c = (torch.cat([p.flatten() for p in s.parameters()]) for s in (one, two, other))
    assert torch.equal(a, b)
    assert (a != c).any()


def test_double_precision_all_the_way() -> None:
    surrogate = fitted("derivative").double()
    points, inputs = case()
    found = surrogate.predict(points.astype(np.float64), inputs.astype(np.float64), lead=0.1)
    assert found.dtype == np.float64
    low = fitted("derivative").predict(points, inputs, lead=0.1)
    assert (np.abs(found - low) < 1e-4 * np.abs(low).max((0, 1))).all()
    still_one = still("derivative").double()
    moved = still_one.predict(points.astype(np.float64), inputs.astype(np.float64), lead=0.1) - inputs[..., :2]
    mean = still_one.target.mean.numpy()
    np.testing.assert_allclose(moved, np.broadcast_to(0.1 * mean, moved.shape), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("clouds", [1, 2])
def test_masked_points_count_for_nothing(clouds: int) -> None:
    surrogate = fitted()
    points, inputs = (torch.from_numpy(v) for v in case(2))
    points = points[:clouds]
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1, 12:] = False
    time, lead = torch.zeros(2), torch.ones(2)
    with torch.no_grad():
        found = surrogate(points, inputs, time, lead, mask)
        alone = surrogate(points[-1:, :12], inputs[1:, :12], time[1:], lead[1:])
    assert (found[1, :12] - alone[0]).abs().max() < 1e-5
    inputs[1, 12:] = 1e6
    with torch.no_grad():
        assert torch.equal(surrogate(points, inputs, time, lead, mask), found)


def test_prediction_has_no_dropout_and_never_switches_the_mode() -> None:
    surrogate = fitted(model={**TINY, "dropout": 0.5})
    points, inputs = case()
    first, second = (surrogate.predict(points, inputs, lead=0.3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not any(m.training for m in surrogate.modules())
    with pytest.raises(ValueError, match=r"training mode.*call eval\(\)"):
        surrogate.train().predict(points, inputs, lead=0.3)
    assert surrogate.training


def test_threads_share_a_surrogate() -> None:
    surrogate, cases = fitted(), [case() for _ in range(8)]
    alone = [surrogate.predict(*c, lead=0.3) for c in cases]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda c: surrogate.predict(*c, lead=0.3), cases))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
