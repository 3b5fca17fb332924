"""Positional features in all four settings, the transformer, the cross-attention encoder."""

import math

import pytest
import torch

from ikno.errors import UserError
from ikno.models.layers import (
    CrossAttention,
    NerfFeatures,
    from_patches,
    grid_rotation,
    per_axis,
    rotated,
    to_patches,
)


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


def test_values_per_axis() -> None:
    assert per_axis("modes", 3, 2) == (3, 3)
    assert per_axis("modes", (3, 4), 2) == (3, 4)
    with pytest.raises(UserError, match=r"model\.modes: one value or one for each of the 2 axes"):
        per_axis("modes", (3, 4, 5), 2)


def test_patches_and_back() -> None:
    grid = torch.arange(2 * 24 * 3.0).view(2, 4, 6, 3)
    patches = to_patches(grid, 2)
    assert torch.equal(patches[:, 4], grid[:, 2:4, 2:4].reshape(2, 12))  # second row of patches, second column
    assert torch.equal(from_patches(patches, (4, 6), 2), grid)
