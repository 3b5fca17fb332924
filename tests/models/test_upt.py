"""UPT beside slow formulas."""

from math import cos, sin

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.neighbors import along_curve
from ikno.models.upt import SMALL, UPT, PerceiverBlock, Places, UPTSettings

TINY = {**SMALL, "num_supernodes": 12, "radius": 0.6, "gnn_dim": 12, "enc_dim": 8, "latent_dim": 8, "query_dim": 12}


def built(channels: int = 2, dim: int = 2, out: int = 3, **settings) -> UPT:
    torch.manual_seed(0)
    model = UPT(channels, out, dim, UPTSettings(**{**TINY, "num_latent_tokens": 5, **settings}))
    for p in model.parameters():  # biases too
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_dimensions() -> None:
    with pytest.raises(UserError, match="UPT works in 1, 2, 3 dimensions"):
        UPT(1, 1, 4)
    with pytest.raises(ValueError, match="multiple of latent_heads"):
        UPTSettings(latent_dim=10, latent_heads=4)


@pytest.mark.parametrize("regular", [False, True])
def test_the_order_of_the_points_does_not_matter(regular: bool) -> None:
    axis = torch.linspace(-1, 1, 6)
    # On a regular grid many neighbors are at the same distance, and only some of them are kept.
    points = torch.cartesian_prod(axis, axis)[None] if regular else cloud(1, 36, 2)
    model, features, queries = built(max_neighbors=5), cloud(2, 36, 2, seed=1), cloud(1, 9, 2, seed=2)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(model(features[:, order], points[:, order]), model(features, points)[:, order], atol=1e-4)
    shuffled = model(features[:, order], points[:, order], queries)
    assert torch.allclose(shuffled, model(features, points, queries), atol=1e-4)


@pytest.mark.parametrize("sizes", [(40, 25), (9, 30)])
def test_padding_changes_nothing(sizes: tuple[int, int]) -> None:
    # 9 points are fewer than the supernodes, so that some of these are missing too.
    model, features, points, queries = built(), cloud(2, 40, 2), cloud(2, 40, 2, seed=1), cloud(1, 5, 2, seed=2)
    mask = torch.arange(40) < torch.tensor(sizes)[:, None]
    mask = mask[:, (order := torch.randperm(40, generator=torch.Generator().manual_seed(1)))]
    features, points = features[:, order], points[:, order]
    here, elsewhere = model(features, points, mask=mask), model(features, points, queries, mask=mask)
    assert (here[~mask] == 0).all()
    for b in range(2):
        f, x = features[b, mask[b]][None], points[b, mask[b]][None]
        assert torch.allclose(here[b, mask[b]], model(f, x)[0], atol=1e-4)
        assert torch.allclose(elsewhere[b], model(f, x, queries)[0], atol=1e-4)
    one_cloud = model(features, points[:1], mask=mask)
    assert torch.allclose(one_cloud[1, mask[1]], model(features[1:, mask[1]], points[:1, mask[1]])[0], atol=1e-4)


def test_supernodes_beside_loops_over_all_pairs() -> None:
    model, features, points = built(max_neighbors=4), cloud(1, 30, 2), cloud(1, 30, 2, seed=1)
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
    assert sum(p.numel() for p in UPT(1, 1, 2).parameters()) == 5_003_233
    assert 50_000 < sum(p.numel() for p in UPT(1, 1, 2, UPTSettings(**SMALL)).parameters()) <= 200_000
