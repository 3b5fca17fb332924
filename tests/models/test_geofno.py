"""GeoFNO: the deformation and the whole network step by step."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models import fourier
from ikno.models.geofno import GeoFNO, GeoFNOSettings
from tests.models.tiny import cloud, parameters, tiny


def moved(model: GeoFNO) -> GeoFNO:
    """Return the model with a deformation far from the identity."""
    torch.nn.init.normal_(model.deformation.shift.weight, std=0.3)
    torch.nn.init.normal_(model.deformation.shift.bias, std=0.3)
    return model


def test_deformation() -> None:
    """Against the formula of one point, in the units of the paper, [0, 1]^2."""
    deformation = moved(tiny("geofno", deformation_frequencies=2)).deformation.double()
    x = [0.9, 0.2]
    psi = [*x, math.atan2(x[1] - 0.5, x[0] - 0.5), math.hypot(x[0] - 0.5, x[1] - 0.5)]
    turns = [p * math.pi * 2**j for p in psi for j in range(2)]
    first = deformation.embedding(torch.tensor(psi, dtype=torch.float64)).tolist()
    y = torch.tensor([*first, *map(math.sin, turns), *map(math.cos, turns)], dtype=torch.float64)
    y = deformation.mix(y)
    for layer in deformation.hidden:
        y = torch.tanh(layer(y))
    shift = deformation.shift(y).tolist()
    expected = [x[0] * (1 + shift[0]), x[1] * (1 + shift[1])]
    found = deformation(torch.tensor([[x]], dtype=torch.float64))
    assert found.flatten().tolist() == pytest.approx(expected)
    assert max(map(abs, shift)) > 0.05


def test_a_new_deformation_is_next_to_the_identity() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 500, 2)
    assert (GeoFNO(1, 1, 2).deformation(x) - x).abs().max() < 0.03


@pytest.mark.parametrize("padding", [0.0, 0.5])
def test_the_network_step_by_step(padding: float) -> None:
    """Every transform as a sum over all frequencies and nodes, the grid with the FFT's nodes j / n."""
    model = moved(tiny("geofno", modes=(2, 3), fourier_grid=6, padding=padding)).double()
    features, points, queries = (cloud(1, n, 2, seed=n).double() for n in (7, 7, 11))
    weights = torch.rand(1, 7, dtype=torch.float64)
    ks = torch.tensor(list(itertools.product([0, 1, -2, -1], [0, 1, 2])), dtype=torch.float64)
    twice = torch.where(ks[:, 1] == 0, 1.0, 2.0).double()

    def wave(x: Tensor) -> Tensor:
        return torch.exp(2j * math.pi * (x @ ks.T))

    def spectral(v: Tensor, start: Tensor, share: Tensor, end: Tensor, weight: Tensor) -> Tensor:
        v_k = torch.einsum("n,nk,nw->kw", share.to(torch.complex128), wave(start).conj(), v.to(torch.complex128))
        w_k = torch.einsum("kw,kwo->ko", v_k, torch.view_as_complex(weight))
        return torch.einsum("nk,k,ko->no", wave(end), twice.to(torch.complex128), w_k).real

    x, q = (points[0] + 1) / 2, (queries[0] + 1) / 2
    xi, eta = (model.deformation(a[None])[0] / (1 + padding) for a in (x, q))
    nodes = torch.tensor(list(itertools.product(range(6), range(6))), dtype=torch.float64)
    mean = torch.full((36,), 1 / 36, dtype=torch.float64)
    v = model.lift(torch.cat([features[0], x], -1))
    v = spectral(v, xi, weights[0] / weights.sum(), nodes / 6, model.encoder.weight)
    v = F.gelu(v + model.positions[0](nodes / 5))
    convolution = model.convolutions[0]
    assert isinstance(convolution, fourier.SpectralConv)
    smooth = spectral(v, nodes / 6, mean, nodes / 6, convolution.weights.weight)
    v = F.gelu(smooth + model.pointwise[0](v) + model.positions[1](nodes / 5))
    v = spectral(v, nodes / 6, mean, eta, model.decoder.weight) + model.positions[2](q)
    torch.testing.assert_close(model(features, points, queries, weights)[0], model.project(v))


def test_parameters() -> None:
    """Five spectral layers of 24 x 12 complex 32 x 32 matrices, the pointwise ones, the deformation."""
    network = 5 * 2 * 24 * 12 * 32 * 32 + 3 * 32 * 33 + 5 * 3 * 32 + 3 * 32 + 33 * 128 + 129
    deformation = 5 * 32 + 97 * 128 + 3 * 129 * 128 + 2 * 129
    assert parameters(GeoFNO(0, 1, 2)) == network + deformation == 3_019_587
    complex_as_one = network + deformation - 5 * 24 * 12 * 32 * 32
    assert complex_as_one == 1_546_403 - 43 * 32  # the public code's, but for the layer of the geometry's code


def test_refusals() -> None:
    with pytest.raises(UserError, match="GeoFNO works in 2 dimensions, found 3"):
        GeoFNO(1, 1, 3)
    with pytest.raises(ValueError, match="fourier_grid must be at least twice the modes, 24"):
        GeoFNOSettings(fourier_grid=20)
