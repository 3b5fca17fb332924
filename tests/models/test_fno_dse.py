"""FNO-DSE: the contract of all models, one layer as an explicit sum, features at queries."""

import cmath
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ikno.errors import UserError
from ikno.models import fourier
from ikno.models.fno_dse import FNODSE, SMALL, FNODSESettings, interpolated

TINY = {"modes": 3, "width": 8, "num_layers": 2, "projection": 16}
STEPS = 300


def model_of(in_channels: int = 2, dim: int = 2, **settings: Any) -> FNODSE:
    """Return a small model whose spectral weights are no longer next to nothing."""
    torch.manual_seed(0)
    model = FNODSE(in_channels, 3, dim, FNODSESettings(**{**TINY, **settings}))
    for part in model.modules():
        if isinstance(part, fourier.SpectralWeights):
            torch.nn.init.normal_(part.weight, std=0.2)
    return model


def data(batch: int = 3, points: int = 40, dim: int = 2, clouds: int = 1, channels: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(clouds, n, dim, generator=generator) * 2 - 1 for n in (points, 11))
    return torch.randn(batch, points, channels, generator=generator), x, y


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max())


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("clouds", [1, 3])
@pytest.mark.parametrize("channels", [0, 2])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_shapes_and_gradients(dim: int, channels: int, clouds: int) -> None:
    model = model_of(channels, dim)
    features, points, queries = data(dim=dim, clouds=clouds, channels=channels)
    assert model(features, points).shape == (3, 40, 3)
    values = model(features, points, queries)
    assert values.shape == (3, 11, 3)
    values.square().sum().backward()
    for label, p in model.named_parameters():
        assert p.grad is not None, label
        assert p.grad.isfinite().all(), label
        assert p.grad.abs().sum() > 0, label


@pytest.mark.parametrize("clouds", [1, 3])
def test_permutations_batches_and_other_queries(clouds: int) -> None:
    model = model_of()
    features, points, queries = data(clouds=clouds)
    own, at_queries = model(features, points), model(features, points, queries)
    order = torch.randperm(40)
    assert close(model(features[:, order], points[:, order]), own[:, order])
    assert close(model(features[:, order], points[:, order], queries), at_queries)
    assert close(model(features[1:2], points[1 % clouds : 1 % clouds + 1]), own[1:2])
    assert close(model(features, points, queries[:, 4:7]), at_queries[:, 4:7])
    assert close(model(features, points, points[:, :9]), own[:, :9])
    assert close(model(features, points.expand(3, -1, -1)), own)


@pytest.mark.parametrize("clouds", [1, 3])
def test_masked_points_count_for_nothing(clouds: int) -> None:
    model = model_of()
    features, points, queries = data(clouds=clouds)
    weights = torch.rand(clouds, 40) + 0.1
    padded = torch.cat([features, torch.full((3, 5, 2), torch.nan)], 1)
    cloud = torch.cat([points, torch.rand(clouds, 5, 2)], 1)
    heavier = torch.cat([weights, torch.ones(clouds, 5)], 1)
    mask = (torch.arange(45) < 40)[None]
    for m in (mask, mask.expand(3, -1)):
        for w, h in ((None, None), (weights, heavier)):
            values = model(padded, cloud, weights=h, mask=m)
            assert close(values[:, :40], model(features, points, weights=w))
            assert (values[:, 40:] == 0).all()
            assert close(model(padded, cloud, queries, h, m), model(features, points, queries, w))


def test_weights_stand_for_repeated_points() -> None:
    """A point of weight 2 counts like two points at one place, in any unit of the weights."""
    model = model_of()
    features, points, _ = data()
    twice = torch.cat([torch.arange(40), torch.arange(10)])
    weights = torch.where(torch.arange(40) < 10, 2.0, 1.0)[None] * 0.3
    values = model(features, points, weights=weights)
    assert close(values, model(features[:, twice], points[:, twice])[:, :40])
    assert not close(values, model(features, points))


def test_state_round_trip_and_no_memory_of_other_clouds() -> None:
    model = model_of()
    features, points, queries = data()
    values = model(features, points, queries)
    model(features, points.flip(1) * 0.7, queries * 0.9)
    assert torch.equal(model(features, points, queries), values)
    other = FNODSE(2, 3, 2, model.settings)
    assert not torch.equal(other(features, points, queries), values)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(features, points, queries), values)


def test_chunks_of_points_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    features, points, queries = data()
    values = model(features, points, queries)
    monkeypatch.setattr(fourier, "MAX_ENTRIES", 200)
    assert close(model(features, points, queries), values)


def test_autocast_keeps_the_transforms_in_full_precision() -> None:
    model = model_of()
    features, points, queries = data()
    values = model(features, points, queries)
    with torch.autocast("cpu", torch.bfloat16):
        lower = model(features, points, queries)
    assert 0 < (lower - values).norm() < 0.03 * values.norm()


def test_wrong_channels() -> None:
    features, points, _ = data(channels=1)
    with pytest.raises(ValueError, match="2 feature channels, found 1"):
        model_of()(features, points)


@pytest.mark.slow
def test_it_overfits_eight_samples() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 192, 2) * 2 - 1
    a, b = torch.rand(2, 8, 1) * 2 - 1
    features = torch.stack([torch.sin(2 * x[..., 0] + a), torch.cos(3 * b * x[..., 1])], -1)
    target = (torch.sin(2 * x[..., 0] + a + 1) * torch.cos(b * x[..., 1]) + a * x[..., 0])[..., None]
    model = FNODSE(2, 1, 2, FNODSESettings(**SMALL))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss = ((model(features, x) - target).norm(dim=1) / target.norm(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        error = ((model(features, x) - target).norm(dim=1) / target.norm(dim=1)).mean().item()
    assert error < 0.02


@pytest.mark.parametrize("padding", [0.0, 0.25])
def test_one_layer_is_the_explicit_sum(padding: float) -> None:
    model = model_of(modes=(2, 3), num_layers=1, padding=padding).double()
    features, points, _ = (a.double() for a in data(batch=1, points=6))
    weights = torch.tensor([[1.0, 2, 1, 3, 1, 2]], dtype=torch.float64)
    lifted = model.lift(torch.cat([points, features], -1))
    layer = model.spectral[0]
    assert isinstance(layer, fourier.SpectralWeights)
    matrices = torch.view_as_complex(layer.weight)
    values = model.pointwise[0](lifted)[0]
    waves = itertools.product([0, 1, -2, -1], [0, 1, 2])
    for number, k in enumerate(waves):
        # The box of side 2 is one period, or 1 / (1 + padding) of one.
        phases = [math.pi / (1 + padding) * (k[0] * (p[0].item() + 1) + k[1] * (p[1].item() + 1)) for p in points[0]]
        terms = [weights[0, i] / 10 * lifted[0, i] * cmath.exp(-1j * phases[i]) for i in range(6)]
        v_k = torch.stack(terms).sum(0) @ matrices[number]
        parts = [(v_k * cmath.exp(1j * phases[i])).real * (1 if k[1] == 0 else 2) for i in range(6)]
        values = values + torch.stack(parts)
    torch.testing.assert_close(model(features, points, weights=weights)[0], model.project(values))


@pytest.mark.parametrize("clouds", [1, 2])
def test_features_at_queries(clouds: int) -> None:
    features, points, queries = data(batch=2, clouds=clouds)
    mask = torch.rand(2, 40) < 0.8
    for m in (None, mask):
        found = interpolated(features, points, queries, m)
        for b, q in itertools.product(range(2), range(11)):
            squares = [(p - queries[b % clouds, q]).square().sum().item() for p in points[b % clouds]]
            real = [i for i in range(40) if m is None or m[b, i]]
            four = sorted(real, key=lambda i: squares[i])[:4]
            total = sum(1 / squares[i] for i in four)
            expected = torch.stack([features[b, i] / squares[i] / total for i in four]).sum(0)
            torch.testing.assert_close(found[b, q], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(interpolated(features, points, points), features)


def test_the_sums_tend_to_integrals() -> None:
    """A cloud refined tenfold gives the same values up to the error of sampling."""
    model = model_of(0, dim=1)
    queries = torch.linspace(-0.9, 0.9, 11)[None, :, None]
    coarse, fine = (((torch.arange(n) + 0.5) / n * 2 - 1)[None, :, None] for n in (100, 1000))
    values = [model(torch.zeros(1, x.shape[1], 0), x, queries) for x in (coarse, fine)]
    assert (values[0] - values[1]).abs().max() < 1e-3 * values[1].abs().max()


def test_parameters() -> None:
    """Four layers of 24 x 12 complex 32 x 32 matrices and one real one, the lift, the perceptron."""
    layers = 4 * (2 * 24 * 12 * 32 * 32 + 32 * 33)
    assert parameters(FNODSE(0, 1, 2)) == layers + 3 * 32 + 33 * 128 + 129 == 2_367_969
    assert 50_000 < parameters(FNODSE(1, 1, 2, FNODSESettings(**SMALL))) < 200_000


def test_refusals() -> None:
    with pytest.raises(UserError, match="FNO-DSE works in 1, 2 and 3 dimensions, found 4"):
        FNODSE(1, 1, 4)
    with pytest.raises(UserError, match="one for each of the 2 axes"):
        FNODSE(1, 1, 2, FNODSESettings(modes=(2, 2, 2)))
