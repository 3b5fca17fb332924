"""GNOT: its contract as a model, its attention and gating typed out with loops, its size, and that it learns."""

import pytest
import torch
from torch import nn

from ikno.models.gnot import GNOT, SMALL, Experts, GNOTBlock, GNOTSettings, NormalizedAttention, ResidualMLP

TINY = GNOTSettings(d_model=16, num_heads=2, num_layers=2, num_experts=3, ff_mult=2, mlp_layers=1)


def make(in_channels: int = 2, out_channels: int = 3, dim: int = 2, settings: GNOTSettings = TINY) -> GNOT:
    torch.manual_seed(0)
    return GNOT(in_channels, out_channels, dim, settings)


def sample(batch: int = 2, points: int = 30, channels: int = 2, dim: int = 2, clouds: int = 1):
    torch.manual_seed(1)
    return torch.randn(batch, points, channels), 2 * torch.rand(clouds, points, dim) - 1


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("channels", [0, 2])
@pytest.mark.parametrize("clouds", [1, 2])
def test_shapes(dim: int, channels: int, clouds: int) -> None:
    model = make(channels, 3, dim)
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


@pytest.mark.parametrize("channels", [0, 2])
def test_query_on_a_point_has_its_value(channels: int) -> None:
    features, points = sample(channels=channels)
    model = make(channels)
    order = torch.randperm(30)[:11]
    assert close(model(features, points, points[:, order]), model(features, points)[:, order])


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
    model, copy = make(), GNOT(2, 3, 2, TINY)
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


def test_normalized_attention_typed_out() -> None:
    torch.manual_seed(0)
    layer = NormalizedAttention(width=6, heads=2).double()
    x, y = torch.randn(1, 4, 6).double(), torch.randn(1, 5, 6).double()
    share = torch.tensor([[0.1, 0.3, 0.0, 0.2, 0.4]]).double()
    result = torch.zeros(4, 6).double()
    for part in (slice(0, 3), slice(3, 6)):
        q, k = (torch.softmax(f(v)[0, :, part], -1) for f, v in ((layer.query, x), (layer.key, y)))
        v = layer.value(y)[0, :, part]
        for i in range(4):
            scores = [share[0, j] * (q[i] @ k[j]) for j in range(5)]
            result[i, part] = q[i] + sum(s * v[j] for j, s in enumerate(scores)) / sum(scores)
    assert torch.allclose(layer(x, y, share)[0], layer.out(result), atol=1e-12)


def test_experts_are_mixed_by_position() -> None:
    torch.manual_seed(0)
    layer = Experts(width=4, experts=3, ff_mult=2).double()
    x = torch.randn(1, 2, 4).double()
    parts = torch.tensor([[[0.0, 1.0, 0.0], [0.5, 0.2, 0.3]]]).double()
    first, second, third = (e(x[0]) for e in layer.experts)
    expected = torch.stack([second[0], 0.5 * first[1] + 0.2 * second[1] + 0.3 * third[1]])
    expected = (expected - expected.mean(1, keepdim=True)) / (expected.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(layer(x, parts)[0], expected, atol=1e-12)


def test_block_typed_out() -> None:
    torch.manual_seed(0)
    block = GNOTBlock(2, TINY).double()
    x, y = torch.randn(1, 7, 16).double(), torch.randn(1, 5, 16).double()
    positions, share = torch.rand(1, 7, 2).double(), torch.full((1, 5), 0.2).double()
    hidden = torch.nn.functional.gelu(block.gate[0](positions))
    parts = torch.softmax(block.gate[2](hidden), -1)
    z = x + block.cross(block.cross_norm(x), block.input_norm(y), share)
    z = z + block.cross_experts(z, parts)
    n = block.self_norm(z)
    z = z + block.own(n, n[:, :5], share)
    z = z + block.own_experts(z, parts)
    assert torch.allclose(block(x, y, positions, share), z, atol=1e-12)


def test_residual_perceptron_typed_out() -> None:
    torch.manual_seed(0)
    mlp = ResidualMLP(2, 4, 3, layers=2)
    x = torch.randn(5, 2)
    gelu = nn.GELU()
    h = gelu(x @ mlp.first.weight.T + mlp.first.bias)
    for layer in mlp.inner:
        h = gelu(layer(h)) + h
    assert torch.allclose(mlp(x), mlp.last(h))


def test_size() -> None:
    model = GNOT(1, 1, 2)
    assert sum(p.numel() for p in model.parameters()) == 4_956_685
    # By hand, from the released layers: width 128, inner width 512, 3 experts.
    linear, norm = 128 * 128 + 128, 2 * 128
    expert = 128 * 512 + 512 + 512 * 128 + 128
    gate = (2 * 512 + 512) + (512 * 512 + 512) + (512 * 3 + 3)
    block = 8 * linear + 6 * expert + 5 * norm + gate
    assert sum(p.numel() for p in model.blocks.parameters()) == 4 * block


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of num_heads"):
        GNOTSettings(d_model=10, num_heads=4)


@pytest.mark.slow
def test_overfits_eight_samples() -> None:
    torch.manual_seed(0)
    model = GNOT(1, 1, 2, GNOTSettings(**SMALL))
    points = 2 * torch.rand(1, 128, 2) - 1
    a, b, c = torch.randn(3, 8, 1)
    x, y = points.unbind(-1)
    features = (a * torch.sin(2 * x) * torch.cos(y) + b * torch.cos(2 * y) + c)[..., None]
    target = (a * torch.cos(x + y) + b * torch.sin(2 * y) + c * x)[..., None]
    steps = 250
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
