"""Transolver: physics attention typed out with loops, its size."""

import pytest
import torch

from ikno.models.transolver import EMPTY, PhysicsAttention, Transolver, TransolverSettings
from tests.models.tiny import close, cloud, parameters, tiny


def test_query_without_features_is_a_point_without_features() -> None:
    features, points, model = torch.zeros(2, 30, 0), cloud(1, 30, 2), tiny("transolver", 0)
    assert close(model(features, points, points), model(features, points))


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
    model = tiny("transolver", 0, reference_grid=2)
    seen = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.zeros(1, 1, 0), torch.tensor([[[-1.0, 0.0]]]))
    assert seen[0][0, 0].tolist() == pytest.approx([1, 1, 5**0.5, 5**0.5])


def test_size_is_the_published_one() -> None:
    count = parameters(Transolver(1, 1, 2))
    assert count == 2_815_809
    assert abs(count / 2.8e6 - 1) < 0.05


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of num_heads"):
        TransolverSettings(d_model=10, num_heads=4)
