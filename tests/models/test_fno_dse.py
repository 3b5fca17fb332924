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
from ikno.models.fno_dse import FNODSE, SMALL, FNODSESettings

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


def test_chunks_of_points_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    features, points, queries = data()
    values = model(features, points, queries)
    monkeypatch.setattr(fourier, "MAX_ENTRIES", 200)
    assert close(model(features, points, queries), values)


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
    with pytest.raises(UserError, match="FNODSE works in 1, 2, 3 dimensions, found 4"):
        FNODSE(1, 1, 4)
    with pytest.raises(UserError, match="one for each of the 2 axes"):
        FNODSE(1, 1, 2, FNODSESettings(modes=(2, 2, 2)))
