"""Rollouts with models that are exact, so that whatever is not zero is a mistake."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ikno.data.pairs import Mode, Moments, Statistics, time_pairs
from ikno.errors import UserError
from ikno.evaluation import STRATEGIES, path, rollout
from ikno.surrogate import Signature, Surrogate

MODES: tuple[Mode, ...] = ("direct", "residual", "derivative")
TINY = {"name": "ikno-tp", "d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6}
TIMES = tuple(2 + 0.1 * i**1.2 for i in range(15))  # neither from 0 nor even


def test_the_published_paths() -> None:
    assert path("direct", 14, 2) == (0, 14)
    assert path("autoregressive", 14, 2) == (0, 2, 4, 6, 8, 10, 12, 14)
    assert path("star", 14, 2) == (0, 4, 8, 12, 14)


@pytest.mark.parametrize(
    ("final", "stride", "single", "double"),
    [
        (5, 2, (0, 2, 4, 5), (0, 4, 5)),
        (1, 1, (0, 1), (0, 1)),
        (2, 1, (0, 1, 2), (0, 2)),
        (3, 2, (0, 2, 3), (0, 3)),
        (4, 4, (0, 4), (0, 4)),
        (7, 3, (0, 3, 6, 7), (0, 6, 7)),
        (12, 2, (0, 2, 4, 6, 8, 10, 12), (0, 4, 8, 12)),
    ],
)
def test_odd_paths(final: int, stride: int, single: tuple[int, ...], double: tuple[int, ...]) -> None:
    assert path("direct", final, stride) == (0, final)
    assert path("autoregressive", final, stride) == single
    assert path("star", final, stride) == double


def test_every_step_was_trained() -> None:
    for final in range(1, 20):
        for stride in range(1, final + 1):
            known = set(time_pairs(final, stride))
            for strategy in STRATEGIES:
                visited = path(strategy, final, stride)
                assert set(pairwise(visited)) <= known, (strategy, final, stride)
                assert (visited[0], visited[-1]) == (0, final)


@pytest.mark.parametrize("strategy", ["autoregressive", "star"])
def test_a_stride_that_does_not_fit(strategy: Any) -> None:
    with pytest.raises(UserError, match="stride"):
        path(strategy, 3, 0)


class Exact(nn.Module):
    """A model that knows the flow u(t), c, x, t, lead -> u(t + lead), hidden behind the surrogate's normalization."""

    def __init__(self, surrogate: Surrogate, flow: Callable[..., Tensor]) -> None:
        super().__init__()
        self.surrogate = [surrogate]  # not a part of this module
        self.flow = flow
        self.clock: list[tuple[float, float]] = []

    def forward(self, features: Tensor, points: Tensor, mask: Tensor | None = None) -> Tensor:
        s = self.surrogate[0]
        variables = len(s.signature.variables)
        u = s.values.inverse(features[..., :variables])
        c = s.conditions.inverse(features[..., variables:-2])
        t, lead = s.time.inverse(features[..., -2:-1]), s.lead.inverse(features[..., -1:])
        self.clock.append((float(t[0, 0, 0]), float(lead[0, 0, 0])))
        end = self.flow(u, c, points * s.extent + s.center, t, lead)
        change = {"direct": end, "residual": end - u, "derivative": (end - u) / lead}[s.signature.mode]
        return s.target(change)


def exact(mode: Mode, flow: Callable[..., Tensor], conditions: int = 0) -> tuple[Surrogate, Exact]:
    """Return a surrogate in double precision around that flow, with statistics of no meaning."""
    rng = np.random.default_rng(0)

    def moments(channels: int) -> Moments:
        return Moments(rng.normal(size=channels), rng.random(channels) + 0.5)

    made = Signature(
        dim=2,
        variables=("a", "b"),
        conditions=tuple("klm"[:conditions]),
        box=((-1.0, 3.0), (10.0, 12.0)),
        times=(TIMES[0], TIMES[-1]),
        mode=mode,
        model=TINY,
    )
    found = Statistics(moments(2), moments(conditions), moments(1), moments(1), moments(2))
    surrogate = Surrogate(made, found, 0).double()
    surrogate.model = model = Exact(surrogate, flow)
    return surrogate, model


def start(batch: int = 3, points: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, points, 2, generator=generator, dtype=torch.float64) * torch.tensor([4, 2]) + torch.tensor(
        [-1, 10]
    )
    return x, torch.randn(batch, points, 2, generator=generator, dtype=torch.float64) + 3


def rate(x: Tensor) -> Tensor:
    """Return another decay at each point and for each variable."""
    return torch.stack([x[..., 0] + 2, x[..., 1] / 10], -1)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("final", "stride"), [(14, 2), (5, 2), (1, 1), (14, 3)])
def test_exact_propagators_make_no_error(mode: Mode, strategy: Any, final: int, stride: int) -> None:
    """u_t = -k(x) u: the error of any sequence of steps is rounding."""
    surrogate, model = exact(mode, lambda u, c, x, t, lead: u * torch.exp(-rate(x) * lead))
    x, u = start()
    visited = path(strategy, final, stride)
    found = rollout(surrogate, x, u, None, TIMES, visited)
    assert found.shape == (3, len(visited), 8, 2)
    assert torch.equal(found[:, 0], u)
    assert torch.equal(rollout(surrogate, surrogate.locate(x), u, None, TIMES, visited), found)  # mapped only once
    del model.clock[len(visited) - 1 :]
    for k, i in enumerate(visited):
        expected = u * torch.exp(-rate(x) * (TIMES[i] - TIMES[0]))
        assert (found[:, k] - expected).abs().max() < 1e-12
    steps = [(TIMES[i], TIMES[j] - TIMES[i]) for i, j in pairwise(visited)]
    np.testing.assert_allclose(model.clock, steps, atol=1e-12)


def test_own_clouds() -> None:
    surrogate, _ = exact("derivative", lambda u, c, x, t, lead: u * torch.exp(-rate(x) * lead))
    x, u = start()
    own = torch.cat([x, x.flip(1), x.roll(3, 1)])
    found = rollout(surrogate, own, u, None, TIMES, (0, 4, 8))
    assert (found[:, 2] - u * torch.exp(-rate(own) * (TIMES[8] - TIMES[0]))).abs().max() < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_conditions_are_those_at_the_start_of_a_step(mode: Mode) -> None:
    """u_t = c with c frozen over a step: what comes out tells which c went in."""
    surrogate, _ = exact(mode, lambda u, c, x, t, lead: u + lead * c, conditions=2)
    x, u = start()
    generator = torch.Generator().manual_seed(1)
    moving = torch.randn(3, 15, 8, 2, generator=generator, dtype=torch.float64)
    for strategy in STRATEGIES:
        visited = path(strategy, 14, 2)
        found = rollout(surrogate, x, u, moving, TIMES, visited)
        expected = u.clone()
        for k, (i, j) in enumerate(pairwise(visited)):
            expected = expected + (TIMES[j] - TIMES[i]) * moving[:, i]
            assert (found[:, k + 1] - expected).abs().max() < 1e-12
        fixed = rollout(surrogate, x, u, moving[:, :1], TIMES, visited)
        assert (fixed[:, -1] - u - (TIMES[14] - TIMES[0]) * moving[:, 0]).abs().max() < 1e-12


def test_the_time_reaches_the_model() -> None:
    """u_t = 2 t: u grows by the difference of the squares."""
    surrogate, _ = exact("residual", lambda u, c, x, t, lead: u + (t + lead) ** 2 - t**2)
    x, u = start()
    found = rollout(surrogate, x, u, None, TIMES, path("star", 14, 2))
    assert (found[:, -1] - u - TIMES[14] ** 2 + TIMES[0] ** 2).abs().max() < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_a_network_are_its_predictions(mode: Mode) -> None:
    """Two steps by ``predict``, with a cloud that is sorted once and one that is sorted in each step."""
    surrogate, _ = exact(mode, lambda u, c, x, t, lead: u, conditions=1)
    surrogate = Surrogate(surrogate.signature, None, 0).eval()
    x, u = (v.float() for v in start())
    c = torch.randn(3, 15, 8, 1, generator=torch.Generator().manual_seed(2))
    found = rollout(surrogate, x, u, c, TIMES, (0, 4, 10))
    state = u
    for k, (i, j) in enumerate(pairwise((0, 4, 10))):
        state = surrogate.predict(x, torch.cat([state, c[:, i]], -1), time=TIMES[i], lead=TIMES[j] - TIMES[i])
        assert torch.equal(found[:, k + 1], state)
    assert not found.requires_grad
    cloud = surrogate.locate(x)
    assert torch.equal(rollout(surrogate, cloud, u, c, TIMES, (0, 4, 10)), found)
