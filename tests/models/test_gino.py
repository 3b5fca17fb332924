"""GINO: the contract of all models, and its pieces beside loops over all pairs and explicit Fourier sums."""

import cmath

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.gino import GINO, SMALL, FourierBlock, GINOSettings, KernelIntegral

TINY = {
    "latent_grid": 6,
    "radius": 0.5,
    "n_modes": 4,
    "hidden_channels": 6,
    "n_layers": 2,
    "in_kernel": (8,),
    "out_kernel": (8, 8),
    "projection_channels": 8,
}


def tiny(in_channels: int = 2, dim: int = 2, **settings) -> GINO:
    torch.manual_seed(0)
    return GINO(in_channels, 3, dim, GINOSettings.model_validate({**TINY, **settings}))


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("clouds", [1, 3])
@pytest.mark.parametrize("channels", [0, 2])
def test_shapes_and_gradients(dim: int, clouds: int, channels: int) -> None:
    model = tiny(channels, dim)
    features, points = cloud(3, 30, channels), cloud(clouds, 30, dim, seed=1)
    assert model(features, points, cloud(1, 7, dim)).shape == (3, 7, 3)
    assert model(features, points, cloud(3, 7, dim)).shape == (3, 7, 3)
    values = model(features, points)
    assert values.shape == (3, 30, 3)
    values.square().sum().backward()
    for label, p in model.named_parameters():
        assert p.grad is not None, label
        assert p.grad.isfinite().all(), label
        assert p.grad.any(), label


@pytest.mark.parametrize("clouds", [1, 3])
def test_permutations_batches_and_queries(clouds: int) -> None:
    model = tiny()
    features, points, queries = cloud(3, 40, 2), cloud(clouds, 40, 2, seed=1), cloud(clouds, 9, 2, seed=2)
    weights = cloud(clouds, 40, seed=4).abs() + 0.1
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    values = model(features, points, weights=weights)
    assert close(model(features[:, order], points[:, order], weights=weights[:, order]), values[:, order])
    at = model(features, points, queries)
    assert close(model(features[:, order], points[:, order], queries), at)
    assert close(model(features, points, queries[:, 4:6]), at[:, 4:6])
    last = slice(-1, None)
    assert close(model(features[2:], points[last], queries[last]), at[2:])


@pytest.mark.parametrize("own", ["points", "mask", "both"])
def test_padding_changes_nothing(own: str) -> None:
    model = tiny()
    features, points = cloud(2, 40, 2), cloud(2 if own != "mask" else 1, 40, 2, seed=1)
    mask = torch.ones(1 if own == "points" else 2, 40, dtype=torch.bool)
    mask[:, 25:] = False
    if own != "points":
        mask[1, 20:] = False
    features = features.masked_fill(~mask[..., None], 1e3)
    values, at = model(features, points, mask=mask), model(features, points, points[:, :5], mask=mask)
    assert not values[~mask.expand(2, -1)].any()
    for b in range(2):
        n = int(mask[b % len(mask)].sum())
        alone = features[b : b + 1, :n], points[b % len(points)][None, :n]
        assert close(values[b : b + 1, :n], model(*alone))
        assert close(at[b : b + 1], model(*alone, points[b % len(points)][None, :5]))


def test_a_call_in_between_and_a_round_trip_change_nothing() -> None:
    model, other = tiny(), GINO(2, 3, 2, GINOSettings.model_validate(TINY))
    features, points = cloud(3, 40, 2), cloud(1, 40, 2, seed=1)
    first = model(features, points)
    assert not torch.equal(model(features, cloud(1, 40, 2, seed=5)), first)
    assert torch.equal(model(features, points), first)
    assert not torch.equal(other(features, points), first)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(features, points), first)


def test_equal_weights_are_no_weights_and_doubled_points_are_doubled_weights() -> None:
    model = tiny()
    features, points = cloud(3, 40, 2), cloud(1, 40, 2, seed=1)
    queries, weights = cloud(1, 9, 2, seed=2), torch.ones(1, 40)
    assert close(model(features, points, queries, weights * 0.3), model(features, points, queries))
    twice = torch.cat([features, features[:, :10]], 1), torch.cat([points, points[:, :10]], 1)
    weights[:, :10] = 2
    assert close(model(features, points, queries, weights), model(*twice, queries))
    per_sample = weights.expand(3, -1)
    assert close(model(features, points, queries, per_sample), model(features, points, queries, weights))


def test_points_outside_the_box_and_far_from_all_others_get_values() -> None:
    model = tiny(radius=0.05)
    features, points = cloud(2, 5, 2), cloud(1, 5, 2, seed=1)
    values = model(features, points, torch.tensor([[[1.2, -1.1], [3.0, 3.0], [0.1, 0.1]]]))
    assert values.isfinite().all()
    assert not close(values[:1], values[1:], 1e-6)  # the signal of the samples arrives


def test_autocast() -> None:
    model = tiny()
    features, points = cloud(2, 40, 2), cloud(1, 40, 2, seed=1)
    exact = model(features, points)
    with torch.autocast("cpu", torch.bfloat16):
        assert close(model(features, points).float(), exact, 0.1)


def test_the_integral_is_the_weighted_mean_over_neighbors() -> None:
    torch.manual_seed(0)
    layer = KernelIntegral(2, 4, (8, 8), 0.4, 1)
    values, x, y, weights = cloud(2, 20, 4), cloud(1, 20, 2, seed=1), cloud(1, 8, 2, seed=2), cloud(20, seed=3).abs()
    for given in (None, weights[None]):
        result = layer(values, x, y, given)
        sizes = set()
        for i in range(8):
            distance = (x[0] - y[0, i]).norm(dim=1)
            near = [k for k in range(20) if distance[k] <= 0.4] or [int(distance.argmin())]
            sizes.add(len(near))
            total = sum(1.0 if given is None else float(weights[k]) for k in near)
            for b in range(2):
                expected = torch.zeros(4)
                for k in near:
                    p, q = x[0, k], y[0, i]
                    waves = [f(torch.pi * a) for a in (p, q) for f in (torch.cos, torch.sin)]
                    psi = torch.cat([p, *waves[:2], q, *waves[2:], (p - q) / 0.4])
                    share = (1.0 if given is None else weights[k]) / total
                    expected = expected + share * layer.kernel(psi) * values[b, k]
                assert torch.allclose(result[b, i], expected, atol=1e-5)
        assert len(sizes) > 1


def test_a_block_beside_explicit_fourier_sums() -> None:
    torch.manual_seed(0)
    block = FourierBlock(2, (2,), 1.0, last=False)  # frequencies 0 and 1 of a grid of 5
    u = cloud(1, 5, 2)
    matrices = torch.view_as_complex(block.convolution.weights.weight.detach())
    convolved = torch.zeros(5, 2)
    for j in range(5):
        for k, factor in ((0, 1), (1, 2)):
            coefficient = torch.stack([u[0, n] * cmath.exp(-2j * cmath.pi * k * n / 5) for n in range(5)]).mean(0)
            convolved[j] += factor * ((coefficient @ matrices[k]) * cmath.exp(2j * cmath.pi * k * j / 5)).real
    z = F.gelu(convolved + block.skip(u[0]))
    gate = torch.tensor([0.5, -2.0])
    block.gate.data = gate
    assert torch.allclose(block(u)[0], F.gelu(block.mlp(z) + gate * u[0]), atol=1e-5)


def test_the_grid_knows_its_distance_to_the_cloud() -> None:
    model = tiny()
    seen = []
    model.lifting.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    points = cloud(2, 10, 2, seed=1)
    model(cloud(2, 10, 2), points)
    axis = torch.linspace(-1, 1, 6)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
    assert torch.allclose(seen[0][0, :, -3:-1], grid, atol=1e-6)
    assert torch.allclose(seen[0][..., -1], torch.cdist(grid, points).min(-1).values, atol=1e-5)


def test_the_size_at_the_defaults() -> None:
    assert sum(p.numel() for p in GINO(1, 1, 2).parameters()) == 4_991_761
    assert 50_000 < sum(p.numel() for p in GINO(1, 1, 2, GINOSettings(**SMALL)).parameters()) < 210_000


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="latent_grid"):
        GINO(1, 1, 3, GINOSettings(latent_grid=(32, 32)))
    with pytest.raises(UserError, match="n_modes"):
        GINO(1, 1, 2, GINOSettings(latent_grid=12))
    with pytest.raises(ValueError, match="2 feature channels"):
        tiny()(cloud(1, 5, 1), cloud(1, 5, 2))


@pytest.mark.slow
def test_it_overfits_eight_samples() -> None:
    torch.manual_seed(0)
    model = GINO(1, 1, 2, GINOSettings(**SMALL))
    points = cloud(1, 192, 2)
    phase = torch.arange(8.0)[:, None, None]
    a = torch.sin(points[..., :1] + phase) + torch.cos(2 * points[..., 1:] - phase)
    u = torch.cos(points[..., 1:] + phase) * torch.sin(points[..., :1] - phase)
    steps = 300
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    error = torch.tensor(1.0)
    for _ in range(steps):
        error = ((model(a, points) - u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)).mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
    assert error < 0.02
