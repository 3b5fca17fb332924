"""GINO: its pieces beside loops over all pairs and explicit Fourier sums."""

import cmath

import pytest
import torch
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.gino import GINO, FourierBlock, GINOSettings, KernelIntegral
from tests.models.tiny import cloud, parameters, tiny


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
    model = tiny("gino")
    seen = []
    model.lifting.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    points = cloud(2, 10, 2, seed=1)
    model(cloud(2, 10, 2), points)
    axis = torch.linspace(-1, 1, 6)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
    assert torch.allclose(seen[0][0, :, -3:-1], grid, atol=1e-6)
    assert torch.allclose(seen[0][..., -1], torch.cdist(grid, points).min(-1).values, atol=1e-5)


def test_the_size_at_the_defaults() -> None:
    assert parameters(GINO(1, 1, 2)) == 4_991_761


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="latent_grid"):
        GINO(1, 1, 3, GINOSettings(latent_grid=(32, 32)))
    with pytest.raises(UserError, match="n_modes"):
        GINO(1, 1, 2, GINOSettings(latent_grid=12))
