"""RIGNO beside slow formulas."""

from math import sqrt

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.neighbors import Edges, along_curve
from ikno.models.rigno import RIGNO, Perceptron, RIGNOSettings, Step
from tests.models.tiny import cloud, parameters, shaken, tiny


def everywhere(points: Tensor) -> Tensor:
    return torch.ones(points.shape[:2], dtype=torch.bool)


def test_dimensions() -> None:
    with pytest.raises(UserError, match="RIGNO works in 1, 2, 3 dimensions"):
        RIGNO(1, 1, 4)
    with pytest.raises(UserError, match="lead time"):
        RIGNO(0, 1, 2, RIGNOSettings(conditioned_normalization=True))


def test_regions_beside_loops_over_all_pairs() -> None:
    model, points = shaken(tiny("rigno", mesh_subsample_factor=2, rmesh_levels=3)), cloud(1, 80, 2)
    regions = model.regions(points, everywhere(points))
    x = points[0, along_curve(points, everywhere(points))[0, ::2]]
    assert torch.equal(regions.centers[0], x)
    links, radii = set(), []
    for stride in (1, 2, 4):
        level = list(range(0, 40, stride))
        for t in level:
            near = sorted((s for s in level if s != t), key=lambda s: float((x[s] - x[t]).norm()))[:6]
            links |= {(s, t) for s in near} | {(t, s) for s in near}
            if stride == 1:
                radii.append(float((x[near[-1]] - x[t]).norm()) / sqrt(3))
    assert set(zip(regions.links.source.tolist(), regions.links.target.tolist(), strict=True)) == links
    assert len(regions.links.source) == len(links)
    assert torch.allclose(regions.radii[0], torch.tensor(radii), atol=1e-5)
    found = regions.of(points, overlap=0.7, limit=40)
    expected = set()
    for i in range(80):
        apart = (x - points[0, i]).norm(dim=-1)
        inside = [s for s in range(40) if apart[s] <= 0.7 * radii[s]] or [int(apart.argmin())]
        expected |= {(s, i) for s in inside}
    assert set(zip(found.source.tolist(), found.target.tolist(), strict=True)) == expected
    assert regions.of(points, 100.0, 3).counts.tolist() == [3] * 80


def test_a_step_beside_loops() -> None:
    torch.manual_seed(0)
    step, e, sources, targets = Step(6, 4), cloud(1, 5, 6), cloud(2, 3, 6, seed=1), cloud(2, 4, 6, seed=2)
    edges = Edges(torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 0, 1, 3, 3]), 4)
    condition = torch.tensor([0.5, -2.0])[:, None, None]

    def mlp(p: Perceptron, x: Tensor, c: Tensor) -> Tensor:
        assert p.condition is not None
        y = F.layer_norm(p.last(F.silu(p.first(x))), (6,), p.norm.weight, p.norm.bias, 1e-6)
        hidden = p.condition(c).sigmoid()
        return y * (1 + c * p.scale(hidden[:4])) + c * p.shift(hidden[4:])

    new, new_edges = step(edges, e, sources, targets, condition)
    for b in range(2):
        messages: list[list[Tensor]] = [[] for _ in range(4)]
        for k in range(5):
            s, t = edges.source[k], edges.target[k]
            m = mlp(step.edge, torch.cat([e[0, k], sources[b, s], targets[b, t]]), condition[b, 0])
            assert torch.allclose(new_edges[b, k], e[0, k] + m, atol=1e-5)
            messages[int(t)].append(m)
        for t in range(4):
            mean = torch.stack(messages[t]).mean(0) if messages[t] else torch.zeros(6)
            update = mlp(step.node, torch.cat([targets[b, t], mean]), condition[b, 0])
            assert torch.allclose(new[b, t], targets[b, t] + update, atol=1e-5)


def test_edges_are_masked_in_training_only() -> None:
    model, features, points = shaken(tiny("rigno", p_edge_masking=0.5)), cloud(1, 60, 2), cloud(1, 60, 2, seed=1)
    assert torch.equal(model(features, points), model(features, points))
    model.train()
    assert not torch.equal(model(features, points), model(features, points))


def test_parameters() -> None:
    def count(channels: int, **settings) -> int:
        return parameters(RIGNO(channels, 1, 2, RIGNOSettings(**settings)))

    assert count(1) == 2_454_657
    assert count(3, conditioned_normalization=True) == 2_635_969
    assert abs(count(3, conditioned_normalization=True) / 2.7e6 - 1) < 0.05
