"""UPT beside slow formulas."""

from math import cos, sin

import pytest
import torch
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.neighbors import along_curve
from ikno.models.upt import UPT, PerceiverBlock, Places, UPTSettings
from tests.models.tiny import cloud, parameters, shaken, tiny


def test_dimensions() -> None:
    with pytest.raises(UserError, match="UPT works in 1, 2, 3 dimensions"):
        UPT(1, 1, 4)
    with pytest.raises(ValueError, match="multiple of latent_heads"):
        UPTSettings(latent_dim=10, latent_heads=4)


def test_supernodes_beside_loops_over_all_pairs() -> None:
    model, features, points = shaken(tiny("upt", max_neighbors=4)), cloud(1, 30, 2), cloud(1, 30, 2, seed=1)
    nodes, real = model.supernodes(features, points)
    assert real is None
    assert model.embedding is not None
    e = model.embedding(features[0]) + model.point_places(points)[0]
    order = along_curve(points)[0]
    for j in range(12):
        center = order[j * 30 // 12]
        distance = (points[0] - points[0, center]).norm(dim=-1)
        inside = [i for i in distance.argsort() if distance[i] <= 0.6][:4]
        messages = [model.message(torch.cat([e[i], e[center]])) for i in inside]
        assert torch.allclose(nodes[0, j], torch.stack(messages).mean(0), atol=1e-5)


def test_places() -> None:
    found = Places(width=10, dim=2, scale=100.0, longest=10000.0)(torch.tensor([[[0.5, -0.25]]]))
    x, y = 150.0, 75.0
    expected = [sin(x), sin(x / 100), cos(x), cos(x / 100), sin(y), sin(y / 100), cos(y), cos(y / 100), 0, 0]
    assert torch.allclose(found, torch.tensor([[expected]]), atol=1e-4)


def test_perceiver_attention_beside_a_loop() -> None:
    torch.manual_seed(0)
    block, q, v = PerceiverBlock(8, 2), cloud(1, 3, 8), cloud(1, 5, 8, seed=1)
    real = torch.tensor([[True, True, False, True, False]])
    queries, (keys, values) = block.q(block.query_norm(q))[0], block.kv(block.value_norm(v))[0].chunk(2, -1)
    mixed = torch.zeros(3, 8)
    for head in (slice(0, 4), slice(4, 8)):
        for i in range(3):
            scores = {j: (queries[i, head] @ keys[j, head] / 2).exp() for j in (0, 1, 3)}
            mixed[i, head] = sum(w * values[j, head] for j, w in scores.items()) / sum(scores.values())  # type: ignore
    x = q + block.out(mixed)
    expected = x + block.mlp[2](F.gelu(block.mlp[0](block.mlp_norm(x))))
    assert torch.allclose(block(q, v, real), expected, atol=1e-5)


def test_parameters() -> None:
    assert parameters(UPT(1, 1, 2)) == 5_003_233
