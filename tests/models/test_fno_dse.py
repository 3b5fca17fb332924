"""FNO-DSE: one layer as an explicit sum."""

import cmath
import itertools
import math

import pytest
import torch

from ikno.errors import UserError
from ikno.models import fourier
from ikno.models.fno_dse import FNODSE, FNODSESettings
from tests.models.tiny import close, cloud, parameters, tiny


def test_chunks_of_points_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("fno-dse")
    features, points, queries = cloud(3, 40, 2), cloud(1, 40, 2, seed=1), cloud(1, 11, 2, seed=2)
    values = model(features, points, queries)
    monkeypatch.setattr(fourier, "MAX_ENTRIES", 200)
    assert close(model(features, points, queries), values)


@pytest.mark.parametrize("padding", [0.0, 0.25])
def test_one_layer_is_the_explicit_sum(padding: float) -> None:
    model = tiny("fno-dse", modes=(2, 3), num_layers=1, padding=padding).double()
    features, points = cloud(1, 6, 2).double(), cloud(1, 6, 2, seed=1).double()
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
    model = tiny("fno-dse", 0, dim=1)
    queries = torch.linspace(-0.9, 0.9, 11)[None, :, None]
    coarse, fine = (((torch.arange(n) + 0.5) / n * 2 - 1)[None, :, None] for n in (100, 1000))
    values = [model(torch.zeros(1, x.shape[1], 0), x, queries) for x in (coarse, fine)]
    assert (values[0] - values[1]).abs().max() < 1e-3 * values[1].abs().max()


def test_parameters() -> None:
    """Four layers of 24 x 12 complex 32 x 32 matrices and one real one, the lift, the perceptron."""
    layers = 4 * (2 * 24 * 12 * 32 * 32 + 32 * 33)
    assert parameters(FNODSE(0, 1, 2)) == layers + 3 * 32 + 33 * 128 + 129 == 2_367_969


def test_refusals() -> None:
    with pytest.raises(UserError, match="FNODSE works in 1, 2, 3 dimensions, found 4"):
        FNODSE(1, 1, 4)
    with pytest.raises(UserError, match="one for each of the 2 axes"):
        FNODSE(1, 1, 2, FNODSESettings(modes=(2, 2, 2)))
