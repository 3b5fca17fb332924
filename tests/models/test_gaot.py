"""GAOT: its pieces beside loops over all pairs."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.gaot import (
    GAOT,
    MAGNO,
    AttentionalIntegral,
    Block,
    GAOTSettings,
    PatchTransformer,
    neighborhood_statistics,
    neighborhoods,
)
from tests.models.tiny import close, cloud, parameters, tiny


def test_equal_weights_are_no_weights_and_doubled_points_are_doubled_weights() -> None:
    model = tiny("gaot")
    features, points = cloud(3, 40, 2), cloud(1, 40, 2, seed=1)
    queries, weights = cloud(1, 9, 2, seed=2), torch.ones(1, 40)
    assert close(model(features, points, queries, weights * 0.3), model(features, points, queries))
    for p in model.encoder.geometry.parameters():
        torch.nn.init.zeros_(p)  # the statistics count points, not weights
    twice = torch.cat([features, features[:, :10]], 1), torch.cat([points, points[:, :10]], 1)
    weights[:, :10] = 2
    assert close(model(features, points, queries, weights), model(*twice, queries))
    per_sample = weights.expand(3, -1)
    assert close(model(features, points, queries, per_sample), model(features, points, queries, weights))


@pytest.mark.parametrize("attention", ["cosine", "dot_product"])
def test_the_integral_is_the_sum_over_neighbors(attention: str) -> None:
    torch.manual_seed(0)
    layer = AttentionalIntegral(2, 4, (8, 8), 0.6, attention)
    values, x, y, weights = cloud(2, 20, 4), cloud(1, 20, 2, seed=1), cloud(1, 6, 2, seed=2), cloud(20, seed=3).abs()
    edges, _ = neighborhoods(x, y, 0.6)
    result = layer(values, x, y, edges, weights.log()[None, :, None])
    for i in range(6):
        near = [k for k in range(20) if (x[0, k] - y[0, i]).norm() <= 0.6]
        assert len(near) > 1
        scores = []
        for k in near:
            if layer.query is None or layer.key is None:
                cosine = (x[0, k] @ y[0, i]) / (x[0, k].norm() * y[0, i].norm())
                scores.append(weights[k] * torch.exp(cosine))
            else:
                scores.append(weights[k] * torch.exp(layer.query(y[0, i]) @ layer.key(x[0, k]) / 8))
        for b in range(2):
            terms = [
                s / sum(scores) * layer.kernel(torch.cat([y[0, i], (x[0, k] - y[0, i]) / 0.6])) * values[b, k]
                for s, k in zip(scores, near, strict=True)
            ]
            assert torch.allclose(result[b, i], sum(terms[1:], terms[0]), atol=1e-5)


def test_statistics_beside_their_definitions() -> None:
    x, y = cloud(1, 60, 2), cloud(1, 5, 2, seed=1)
    edges, counts = neighborhoods(x, y, 0.7)
    found = neighborhood_statistics(x, y, edges, counts[None] / 60, 0.7)
    for i in range(5):
        near = x[0][(x[0] - y[0, i]).norm(dim=1) <= 0.7]
        distance = (near - y[0, i]).norm(dim=1)
        eigenvalues = torch.linalg.eigvalsh(torch.cov(near.T, correction=0)).flip(0)
        expected = [
            torch.tensor([len(near) / 60 / (math.pi * 0.49 / 4) - 1]),
            torch.tensor([distance.mean() / 0.7 / (2 / 3) - 1]),
            torch.tensor([distance.var(correction=0) / 0.49 / (1 / 18) - 1]),
            (near.mean(0) - y[0, i]) / 0.7,
            eigenvalues / 0.49 / 0.25 - 1,
        ]
        assert torch.allclose(found[0, i], torch.cat(expected).clamp(-3, 3), atol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_an_evenly_filled_ball_has_no_statistics(dim: int) -> None:
    axis = torch.linspace(-1, 1, {1: 2001, 2: 201, 3: 61}[dim])
    x = torch.stack(torch.meshgrid(*(axis,) * dim, indexing="ij"), -1).view(1, -1, dim)
    edges, counts = neighborhoods(x, torch.zeros(1, 1, dim), 0.8)
    found = neighborhood_statistics(x, torch.zeros(1, 1, dim), edges, counts[None] / x.shape[1], 0.8)
    assert found.abs().max() < 0.06


def test_scales_are_averaged() -> None:
    torch.manual_seed(0)
    both = MAGNO(2, 4, (8,), GAOTSettings(radius=0.5, scales=(1.0, 2.0)))
    values, x, y = cloud(2, 20, 4), cloud(1, 20, 2, seed=1), cloud(1, 6, 2, seed=2)
    parts = [both._at_scale(r, values, x, y, None, None) for r in (0.5, 1.0)]
    assert close(both(values, x, y), (parts[0] + parts[1]) / 2)
    assert not close(parts[0], parts[1], 1e-2)


def test_patches_and_back() -> None:
    """With blocks that add nothing and maps that are the identity, the grid comes back; tokens are its patches."""
    settings = GAOTSettings(latent_tokens=(4, 6), patch_size=2, hidden_size=12, num_heads=2, num_layers=1)
    transformer = PatchTransformer((4, 6), 3, settings)
    for layer in (transformer.embedding, transformer.inward, transformer.outward):
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    seen = []
    transformer.first[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]) or inputs[0])
    x = torch.arange(2 * 24 * 3.0).view(2, 24, 3)
    assert torch.equal(transformer(x), x)
    grid = x.view(2, 4, 6, 3)
    assert torch.equal(seen[0][:, 4], grid[:, 2:4, 2:4].reshape(2, 12))  # second row of patches, second column


def test_a_block_beside_its_formula() -> None:
    torch.manual_seed(0)
    block = Block(8, 1, 2)
    x = torch.randn(1, 5, 8)

    def norm(v: Tensor) -> Tensor:
        return v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    q, k, v = (norm(x) @ w.T for w in block.qkv.weight.split(8))
    y = x + ((q @ k.mT / 8**0.5).softmax(-1) @ v) @ block.out.weight.T
    first, third = block.gates.weight.split(16)
    expected = y + (F.silu(norm(y) @ first.T) * (norm(y) @ third.T)) @ block.ffn_out.weight.T
    still = torch.stack([torch.ones(5, 4), torch.zeros(5, 4)])
    assert torch.allclose(block(x, still), expected, atol=1e-5)


def test_the_published_size() -> None:
    count = parameters(GAOT(1, 1, 2))
    assert count == 5_625_921
    assert abs(count / 5.6e6 - 1) < 0.05


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="latent_tokens"):
        GAOT(1, 1, 3, GAOTSettings(latent_tokens=(8, 8)))
    with pytest.raises(UserError, match="patch_size"):
        GAOT(1, 1, 2, GAOTSettings(latent_tokens=15))
    with pytest.raises(ValueError, match="num_heads"):
        GAOTSettings(hidden_size=22, num_heads=4)
    with pytest.raises(UserError, match="even number of channels per head"):
        GAOT(1, 1, 2, GAOTSettings(hidden_size=20, num_heads=4))
