"""Transolver: its contract as a model, physics attention typed out with loops, its size, and that it learns."""

import pytest
import torch
from torch import nn

from ikno.models.transolver import EMPTY, SMALL, PhysicsAttention, Transolver, TransolverSettings

TINY = TransolverSettings(d_model=16, num_heads=2, num_layers=2, num_slices=5)


def make(in_channels: int = 2, out_channels: int = 3, dim: int = 2, settings: TransolverSettings = TINY) -> Transolver:
    torch.manual_seed(0)
    return Transolver(in_channels, out_channels, dim, settings)


def sample(batch: int = 2, points: int = 30, channels: int = 2, dim: int = 2, clouds: int = 1):
    torch.manual_seed(1)
    return torch.randn(batch, points, channels), 2 * torch.rand(clouds, points, dim) - 1


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("channels", [0, 2])
@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("reference", [0, 3])
def test_shapes(dim: int, channels: int, clouds: int, reference: int) -> None:
    model = make(channels, 3, dim, TINY.model_copy(update={"reference_grid": reference}))
    features, points = sample(channels=channels, dim=dim, clouds=clouds)
    assert model(features, points).shape == (2, 30, 3)
    for queries in (torch.rand(1, 7, dim), torch.rand(2, 7, dim)):
        values = model(features, points, queries)
        assert values.shape == (2, 7, 3)
        assert values.isfinite().all()


@pytest.mark.parametrize("clouds", [1, 2])
def test_order_of_points_does_not_matter(clouds: int) -> None:
    model = make()
    features, points = sample(clouds=clouds)
    weights, queries, order = torch.rand(clouds, 30), torch.rand(1, 7, 2), torch.randperm(30)
    moved = features[:, order], points[:, order]
    assert close(model(*moved, weights=weights[:, order]), model(features, points, weights=weights)[:, order])
    assert close(model(*moved, queries), model(features, points, queries))


@pytest.mark.parametrize("clouds", [1, 2])
def test_sample_alone_equals_sample_in_batch(clouds: int) -> None:
    model = make()
    features, points = sample(clouds=clouds)
    queries = torch.rand(1, 7, 2)
    for b in range(2):
        cloud = points[b % clouds][None]
        assert close(model(features[b : b + 1], cloud)[0], model(features, points)[b])
        assert close(model(features[b : b + 1], cloud, queries)[0], model(features, points, queries)[b])


@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_changes_nothing(clouds: int, weighted: bool) -> None:
    model = make()
    features, points = sample(clouds=clouds)
    queries = torch.rand(1, 7, 2)
    mask = torch.arange(36) < 30
    weights = torch.rand(clouds, 30) if weighted else None
    more = torch.cat([features, torch.full((2, 6, 2), 9.0)], 1), torch.cat([points, torch.ones(clouds, 6, 2)], 1)
    padding = {"mask": mask[None], "weights": None if weights is None else torch.cat([weights, weights[:, :6]], 1)}
    padded = model(*more, **padding)
    assert close(padded[:, :30], model(features, points, weights=weights))
    assert (padded[:, 30:] == 0).all()
    assert close(model(*more, queries, **padding), model(features, points, queries, weights))


def test_cloud_without_points_gives_finite_values() -> None:
    model = make()
    features, points = sample()
    mask = torch.stack([torch.ones(30, dtype=torch.bool), torch.zeros(30, dtype=torch.bool)])
    values = model(features, points, torch.rand(1, 7, 2), torch.ones(1, 30), mask)
    values.sum().backward()
    assert values.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_queries_do_not_see_each_other() -> None:
    model = make()
    features, points = sample()
    queries = torch.rand(1, 9, 2)
    alone = torch.cat([model(features, points, q[None, None]) for q in queries[0]], 1)
    assert close(model(features, points, queries), alone)


def test_query_without_features_is_a_point_without_features() -> None:
    features, points = sample(channels=0)
    model = make(0)
    assert close(model(features, points, points), model(features, points))


def test_only_ratios_of_weights_count() -> None:
    model = make()
    features, points = sample()
    assert close(model(features, points, weights=torch.full((1, 30), 7.0)), model(features, points))
    # A point of weight 2 is two points.
    weights = torch.ones(1, 30)
    weights[0, 4] = 2
    twice = torch.cat([features, features[:, 4:5]], 1), torch.cat([points, points[:, 4:5]], 1)
    assert close(model(features, points, weights=weights), model(*twice)[:, :30])
    assert not close(model(features, points, weights=weights), model(features, points))


def test_state_and_earlier_calls() -> None:
    model, copy = make(), Transolver(2, 3, 2, TINY)
    features, points = sample()
    first = model(features, points)
    model(features, torch.rand(1, 30, 2))
    assert torch.equal(model(features, points), first)
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(features, points), first)


@pytest.mark.parametrize("asked", [False, True])
def test_gradients_reach_every_parameter(asked: bool) -> None:
    model = make()
    features, points = sample()
    model(features, points, torch.rand(1, 7, 2) if asked else None).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().sum() > 0, name


def test_autocast() -> None:
    model = make()
    features, points = sample()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(features, points)
    assert torch.allclose(low.float(), model(features, points), atol=0.1)


def test_physics_attention_typed_out() -> None:
    torch.manual_seed(0)
    heads, width, slices, count = 2, 6, 4, 5
    layer = PhysicsAttention(width, heads, slices).double()
    with torch.no_grad():
        layer.temperature.copy_(torch.tensor([0.3, 0.01]).view(2, 1, 1))  # the second one is held at 0.1
    x = torch.randn(1, count + 2, width).double()  # five points, two tokens that only read
    share = torch.tensor([[1.0, 0.5, 0.0, 1.5, 2.0]]).double()
    scored, valued = layer.to_scores(x)[0], layer.to_values(x)[0]
    result = torch.zeros(count + 2, width).double()
    for h, temperature in enumerate((0.3, 0.1)):
        part = slice(3 * h, 3 * h + 3)
        w = [torch.softmax(layer.scores(scored[i, part]) / temperature, -1) for i in range(count + 2)]
        z = []
        for g in range(slices):
            top = sum(share[0, i] * w[i][g] * valued[i, part] for i in range(count))
            bottom = sum(share[0, i] * w[i][g] for i in range(count))
            z.append(top / (bottom + EMPTY))
        q, k, v = layer.qkv(torch.stack(z)).split(3, -1)
        attention = torch.softmax(q @ k.T / 3**0.5, -1)
        for i in range(count + 2):
            result[i, part] = sum(w[i][g] * (attention[g] @ v) for g in range(slices))
    assert torch.allclose(layer(x, share)[0], layer.out(result), atol=1e-12)


def test_reference_grid_gives_distances() -> None:
    model = make(0, 1, 2, TINY.model_copy(update={"reference_grid": 2}))
    seen = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.zeros(1, 1, 0), torch.tensor([[[-1.0, 0.0]]]))
    assert seen[0][0, 0].tolist() == pytest.approx([1, 1, 5**0.5, 5**0.5])


def test_size_is_the_published_one() -> None:
    count = sum(p.numel() for p in Transolver(1, 1, 2).parameters())
    assert count == 2_815_809
    assert abs(count / 2.8e6 - 1) < 0.05


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of num_heads"):
        TransolverSettings(d_model=10, num_heads=4)


@pytest.mark.slow
def test_overfits_eight_samples() -> None:
    torch.manual_seed(0)
    model = Transolver(1, 1, 2, TransolverSettings(**SMALL))
    points = 2 * torch.rand(1, 128, 2) - 1
    a, b, c = torch.randn(3, 8, 1)
    x, y = points.unbind(-1)
    features = (a * torch.sin(2 * x) * torch.cos(y) + b * torch.cos(2 * y) + c)[..., None]
    target = (a * torch.cos(x + y) + b * torch.sin(2 * y) + c * x)[..., None]
    steps = 300
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(features, points) - target).norm() / target.norm()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    error = (model(features, points) - target).norm() / target.norm()
    assert error < 0.02
