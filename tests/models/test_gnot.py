"""GNOT: its attention and gating typed out with loops, its size."""

import pytest
import torch
from torch import nn

from ikno.models.gnot import GNOT, Experts, GNOTBlock, GNOTSettings, NormalizedAttention, ResidualMLP
from tests.models.tiny import TINY, parameters


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
    block = GNOTBlock(2, GNOTSettings(**TINY["gnot"])).double()
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
    assert parameters(model) == 4_956_685
    # By hand, from the released layers: width 128, inner width 512, 3 experts.
    linear, norm = 128 * 128 + 128, 2 * 128
    expert = 128 * 512 + 512 + 512 * 128 + 128
    gate = (2 * 512 + 512) + (512 * 512 + 512) + (512 * 3 + 3)
    block = 8 * linear + 6 * expert + 5 * norm + gate
    assert parameters(model.blocks) == 4 * block


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of num_heads"):
        GNOTSettings(d_model=10, num_heads=4)
