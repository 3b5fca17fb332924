"""Gradients in points, inputs and queries against central differences of the prediction itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ikno.data.pairs import Moments, Statistics
from ikno.errors import UserError
from ikno.models import MODELS, complete_model
from ikno.surrogate import Ensemble, Gradient, Signature, Surrogate

BOX = ((-1.0, 3.0), (10.0, 12.0))  # its axes are scaled differently
N, Q = 14, 9
SIZES = {"d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6, "nerf_frequencies": 2, "contraction": "dense"}


def moments(channels: int, scale: float) -> Moments:
    steps = np.arange(channels)
    return Moments(0.3 + steps * scale, scale * (1.0 + steps))


def surrogate(seed: int = 0, steady: bool = True, mode: str = "direct", **model: Any) -> Surrogate:
    """Return one in float64, with statistics that are not trivial."""
    given = {"dim": 2, "variables": ("a", "b"), "conditions": ("k",), "box": BOX, "mode": mode}
    given |= {"times": None if steady else (0.0, 1.0), "model": {"name": "ikno-tp", **SIZES, **model}}
    parts = (0 if steady else 2, 1, 0 if steady else 1, 0 if steady else 1, 2)
    known = Statistics(*(moments(n, s) for n, s in zip(parts, (2.0, 3.0, 0.2, 0.1, 5.0), strict=True)))
    return Surrogate(Signature.model_validate(given), known, seed).double().eval()


def draw(count: int, channels: int = 3, batch: int = 0, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return points in the box and inputs at them, of a single sample or a batch."""
    rng, lead = np.random.default_rng(seed), (batch,) * bool(batch)
    low, high = np.array(BOX).T
    return rng.uniform(low, high, (*lead, count, 2)), rng.normal(size=(*lead, count, channels))


def objective(values: Tensor, places: Tensor) -> Tensor:
    """Return something of all values and, explicitly, of the places."""
    weights = torch.linspace(1, 2, values.numel(), dtype=values.dtype).view(values.shape)
    return (weights * values.square()).mean().sqrt() + (values[..., 0] * places.to(values).sin().sum(-1)).mean()


def difference(value: Callable[..., float], given: dict[str, np.ndarray], name: str, along: np.ndarray) -> float:
    """Return the central difference of a number along a direction of one of its inputs."""
    step = 1e-5
    ends = [value(**{**given, name: given[name] + sign * step * along}) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


def check(made: Surrogate | Ensemble, given: dict[str, np.ndarray], **more: Any) -> Gradient:
    """Assert that gradients equal central differences of what ``predict`` returns."""

    def value(**arrays: np.ndarray) -> float:
        x = arrays["points"]
        values = made.predict(**arrays, **more)
        return float(objective(torch.from_numpy(values), torch.from_numpy(arrays.get("queries", x))))

    found, rng = made.gradient(objective, **given, **more), np.random.default_rng(7)
    assert found.value == pytest.approx(value(**given), rel=1e-9)
    for name, array in given.items():
        slope = getattr(found, name)
        assert isinstance(slope, np.ndarray)
        assert slope.shape == array.shape
        size = np.linalg.norm(slope)
        assert size > 1e-4, name
        for _ in range(2):  # along random directions: an error in any entry shows
            along = rng.normal(size=array.shape)
            assert abs((slope * along).sum() - difference(value, given, name, along)) < 1e-3 * size, name
    return found


@pytest.mark.parametrize("name", ["ikno-tp", "ikno-vanilla"])
@pytest.mark.parametrize(("contraction", "weights"), [("dense", "uniform"), ("local", "uniform"), ("local", "density")])
def test_points_are_input_and_queries_at_once(name: str, contraction: str, weights: str) -> None:
    """The total derivative: points enter the encoder, the decoder, the quadrature weights and the objective."""
    points, inputs = draw(N, 1)
    made = surrogate(name=name, contraction=contraction, point_weights=weights, tolerance=1e-6)
    found = check(made, {"points": points, "inputs": inputs})
    assert found.queries is None
    assert found.start is None


def test_queries_of_their_own() -> None:
    points, inputs = draw(N, 1)
    queries, _ = draw(Q, seed=2)
    check(surrogate(point_weights="density"), {"points": points, "inputs": inputs, "queries": queries})


@pytest.mark.parametrize("shared", [True, False])
def test_batches_with_one_cloud_or_one_each(shared: bool) -> None:
    points, inputs = draw(8, 1, batch=2)
    found = check(surrogate(point_weights="density"), {"points": points[0] if shared else points, "inputs": inputs})
    assert found.points.shape == ((8, 2) if shared else (2, 8, 2))


def test_one_number_for_all_points() -> None:
    points, _ = draw(N)
    check(surrogate(), {"points": points, "inputs": np.array([0.7])})


def test_without_inputs() -> None:
    given = {"dim": 2, "variables": ("u",), "box": BOX, "model": {"name": "ikno-tp", **SIZES}}
    made = Surrogate(Signature.model_validate(given), None, 0).double().eval()
    assert check(made, {"points": draw(N)[0]}).inputs is None


@pytest.mark.parametrize(("mode", "steps"), [("direct", 2), ("residual", 1), ("derivative", 2)])
def test_problems_in_time(mode: str, steps: int) -> None:
    """In the state at the start too: it is among the inputs."""
    points, inputs = draw(8)
    check(surrogate(steady=False, mode=mode), {"points": points, "inputs": inputs}, lead=0.4, steps=steps)


def test_start_at_other_queries() -> None:
    points, inputs = draw(8)
    (queries, _), start = draw(6, seed=2), np.random.default_rng(3).normal(size=(6, 2))
    given: dict[str, Any] = {"points": points, "inputs": inputs, "queries": queries}
    made = surrogate(steady=False, mode="residual")
    check(made, {**given, "start": start}, time=0.1, lead=0.4)
    with pytest.raises(UserError, match=r"^start: u\(t\) at the queries is needed for gradients"):
        made.gradient(objective, **given, lead=0.4)
    check(surrogate(steady=False), given, lead=0.4)  # nothing is added to u(t) where u itself is predicted


def test_the_mean_of_an_ensemble() -> None:
    points, inputs = draw(N, 1)
    members = [surrogate(seed) for seed in range(2)]
    check(Ensemble(members), {"points": points, "inputs": inputs})
    linear: Any = lambda values, places: values.sum()  # noqa: E731
    each = [m.gradient(linear, points, inputs) for m in members]
    found = Ensemble(members).gradient(linear, points, inputs)
    np.testing.assert_allclose(found.points, np.mean([g.points for g in each], 0), rtol=1e-9)


def test_single_precision() -> None:
    """As surrogates are loaded: the gradient of float32 is that of float64 to 1e-3."""
    points, inputs = draw(200, 1)
    made = surrogate(point_weights="density")
    exact = made.gradient(objective, points, inputs)
    found = made.float().gradient(objective, points.astype(np.float32), inputs.astype(np.float32))
    for name in ("points", "inputs"):
        a, b = getattr(found, name), getattr(exact, name)
        assert np.linalg.norm(a - b) < 1e-3 * np.linalg.norm(b), name


def test_predict_is_differentiable_in_tensors() -> None:
    """A shape with a parameter: points and inputs follow from it, by the chain rule of torch."""
    made = surrogate(point_weights="density")
    base, _ = draw(N, 1)
    ring = torch.from_numpy(base)

    def value(radius: Tensor) -> Tensor:
        points = torch.tensor([1.0, 11.0]) + radius * (ring - torch.tensor([1.0, 11.0]))
        return made.predict(points, (points - 1).norm(dim=1, keepdim=True)).square().mean()

    radius = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    value(radius).backward()
    expected = (value(radius.detach() + 1e-5) - value(radius.detach() - 1e-5)) / 2e-5
    assert radius.grad is not None
    assert float(radius.grad) == pytest.approx(float(expected), rel=1e-3)


def test_gradients_only_where_they_are_wanted() -> None:
    made = surrogate()
    points, inputs = (torch.from_numpy(a) for a in draw(N, 1))
    assert not made.predict(points, inputs).requires_grad
    with torch.no_grad():
        assert not made.predict(points.clone().requires_grad_(), inputs).requires_grad
        found = made.gradient(objective, points, inputs)  # asks for gradients by itself
    assert isinstance(found.points, Tensor)
    assert not found.points.requires_grad
    assert made.predict(points, inputs.clone().requires_grad_()).requires_grad
    assert all(p.grad is None for p in made.parameters())
    wanted = inputs.clone().requires_grad_()
    assert isinstance(made.predict(points.numpy(), wanted), np.ndarray)


BAD = {
    "many numbers": (lambda values, places: values, "a tensor of shape [14, 2]"),
    "no tensor": (lambda values, places: float(values.detach().sum()), "float"),
    "not of the prediction": (lambda values, places: values.detach().sum(), "a tensor of shape []"),
    "a kink": (lambda values, places: (values - values.detach()).square().sum().sqrt(), "NaN or infinite"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_objectives(kind: str) -> None:
    made, words = BAD[kind]
    points, inputs = draw(N, 1)
    with pytest.raises(UserError, match=r"^objective: ") as caught:
        surrogate().gradient(made, points, inputs)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_system(name: str) -> None:
    """Points move too little for another neighbor."""
    signature = Signature(
        dim=2,
        variables=("u",),
        conditions=("f",),
        box=((0.0, 1.0), (0.0, 1.0)),
        model=complete_model({"name": name}, "smoke"),
    )
    surrogate = Surrogate(signature, seed=0).double().eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    x, c, direction = rng.random((60, 2)), rng.normal(size=(60, 1)), rng.normal(size=(60, 2))
    found = surrogate.gradient(lambda u, _: u.square().mean(), x, c)
    above, below = (np.square(surrogate.predict(x + step * direction, c)).mean() for step in (1e-6, -1e-6))
    assert (found.points * direction).sum() == pytest.approx((above - below) / 2e-6, rel=1e-3)
