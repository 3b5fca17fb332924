"""Positional features in all four settings, the transformer, the cross-attention encoder."""

import math

import pytest
import torch
from torch.nn import functional as F

from ikno.models.layers import CrossAttention, NerfFeatures, Transformer, grid_rotation, rotated


def test_nerf_default_is_the_papers() -> None:
    x = torch.tensor([[0.3, -0.7]])
    expected = [0.3, -0.7, math.cos(0.3), math.cos(-0.7), math.sin(0.3), math.sin(-0.7)]
    assert NerfFeatures()(x)[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("log_sampling", [True, False])
@pytest.mark.parametrize("include_input", [True, False])
def test_nerf_settings(log_sampling: bool, include_input: bool) -> None:
    features = NerfFeatures(4, include_input, log_sampling, scale=0.5)
    frequencies = [0.5, 1, 2, 4] if log_sampling else [0.5, 0.5 + 3.5 / 3, 0.5 + 7 / 3, 4]
    x = 0.9
    expected = [x] if include_input else []
    for f in frequencies:
        expected += [math.cos(f * x), math.sin(f * x)]
    assert features(torch.tensor([x])).tolist() == pytest.approx(expected, abs=1e-6)
    assert features.width(3) == 3 * len(expected)


@pytest.mark.parametrize("rotary", [False, True])
def test_transformer_is_prenorm_attention_typed_out(rotary: bool) -> None:
    torch.manual_seed(0)
    model = Transformer(width=8, heads=2, layers=1, ff_mult=3).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    rotation = torch.stack([(a := torch.randn(5, 2, dtype=torch.float64)).cos(), a.sin()]) if rotary else None

    def turned(v: torch.Tensor) -> torch.Tensor:
        if rotation is None:
            return v
        c = torch.complex(v[..., :2], v[..., 2:]) * torch.complex(*rotation)
        return torch.cat([c.real, c.imag], -1)

    block = model.blocks[0]
    parameters = dict(block.named_parameters())

    def norm(v: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(v, (8,), parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    def linear(v: torch.Tensor, name: str) -> torch.Tensor:
        return v @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    q, k, v = linear(norm(x, "attention_norm"), "qkv").split(8, -1)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        scores = torch.softmax(turned(q[..., h]) @ turned(k[..., h]).mT / 2, -1)
        heads.append(scores @ v[..., h])
    y = x + linear(torch.cat(heads, -1), "out")
    y = y + linear(F.gelu(linear(norm(y, "mlp_norm"), "mlp.0")), "mlp.2")
    y = F.layer_norm(y, (8,), model.norm.weight, model.norm.bias)
    assert torch.allclose(model(x, rotation), y, atol=1e-12)


def test_the_attention_of_rotated_tokens_depends_on_offsets_only() -> None:
    cos, sin = rotation = grid_rotation((5, 6), 14)  # seven pairs: three frequencies per axis, one pair without
    angles = torch.complex(cos, sin)
    assert (angles[:, 6] == 1).all()
    assert torch.allclose(angles[2 * 6 + 3, :3], angles[6, :3] ** 2)
    assert torch.allclose(angles[2 * 6 + 3, 3:6], angles[1, 3:6] ** 3, atol=1e-6)
    q, k = (rotated(torch.randn(1, 1, 1, 14).expand(-1, -1, 30, -1), rotation)[0, 0] for _ in range(2))
    scores = (q @ k.T).view(5, 6, 5, 6)
    assert torch.allclose(scores[0, 1, 2, 4], scores[2, 2, 4, 5], atol=1e-4)
    assert not torch.allclose(scores[0, 1, 2, 4], scores[0, 1, 4, 2], atol=1e-2)


def test_checkpointing_and_dropout() -> None:
    torch.manual_seed(0)
    plain = Transformer(8, 2, 2, dropout=0.3)
    saving = Transformer(8, 2, 2, dropout=0.3, checkpointing=True)
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(1, 6, 8)
    grads = []
    for model in (plain, saving):
        torch.manual_seed(1)
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        assert torch.equal(a, b)
    assert not torch.equal(plain(x), plain(x))
    plain.eval()
    assert torch.equal(plain(x), plain(x))


def test_cross_attention_is_a_weighted_average() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(dim=2, width=6, heads=1).double()
    points, latent = torch.rand(1, 5, 2).double(), torch.rand(3, 2).double()
    values = torch.randn(2, 5, 6).double()
    weights = torch.tensor([[1.0, 2.0, 0.5, 1.0, 3.0]]).double()
    mask = torch.tensor([[True, True, True, True, False]])
    scores = layer.of_latent(latent) @ layer.of_points(points[0]).T / math.sqrt(6)
    kernel = scores.exp() * (weights * mask)
    expected = (kernel / kernel.sum(1, keepdim=True)) @ layer.of_values(values)
    assert torch.allclose(layer(values, points, latent, weights, mask), expected, atol=1e-12)
