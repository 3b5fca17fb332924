"""Stretched coordinates: a smooth increasing map, and the latent grid that is regular in them."""

import copy

import numpy as np
import pytest
import torch
from scipy.interpolate import PchipInterpolator

from ikno.errors import UserError
from ikno.models import IKNO, build
from ikno.models.stretching import Stretching

KNOTS = ((-1.0, -0.4, -0.1, 0.0, 0.5, 1.0), (-1.0, -0.6, -0.2, 0.2, 0.6, 1.0))


def test_knots_are_evenly_spaced_in_the_new_coordinates() -> None:
    x = torch.tensor(KNOTS).T[None].double()
    even = torch.linspace(-1, 1, 6).double()
    torch.testing.assert_close(Stretching(KNOTS, 2).double()(x), torch.stack([even, even], 1)[None], atol=1e-6, rtol=0)


def test_it_is_the_monotone_cubic_of_scipy() -> None:
    x = np.linspace(KNOTS[0][1], KNOTS[0][-2], 500)  # scipy has another slope at the ends
    wanted = PchipInterpolator(KNOTS[0], np.linspace(-1, 1, 6))(x)
    found = Stretching(KNOTS[:1], 1).double()(torch.tensor(x)[None, :, None])[0, :, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_it_increases_smoothly_everywhere() -> None:
    x = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    y = Stretching(KNOTS, 2).double()(torch.stack([x, x], 1)[None])[0]
    slopes = y.diff(dim=0) / x.diff()[:, None]
    assert bool((slopes > 0.1).all())
    assert bool((slopes.diff(dim=0).abs() < 0.05).all())  # a kink would be a jump of 0.5 and more
    torch.testing.assert_close(y[:, 1], x, atol=1e-6, rtol=0)  # evenly spaced knots change nothing, outside neither


def test_gradients_in_the_points() -> None:
    """At the ends of the box too, where points on its boundary are."""
    x = torch.tensor([[[-1.3, -1.0], [-1.0, 1.0], [0.05, 0.3], [0.7, 0.1], [1.0, 0.6], [1.7, -0.2]]]).double()
    stretching = Stretching(KNOTS, 2).double()
    (slope,) = torch.autograd.grad(stretching(x.requires_grad_()).sum(), x)
    h = 1e-6
    torch.testing.assert_close(slope, (stretching(x + h) - stretching(x - h)) / (2 * h), atol=1e-4, rtol=0)


def model(**settings: object) -> IKNO:
    made = build("ikno-tp", in_channels=1, out_channels=1, dim=2, seed=0, d_model=8, num_heads=2, grid_size=6,
                 num_layers=1, point_width=4, processor="kernels", **settings)  # fmt: skip
    assert isinstance(made, IKNO)
    return made.double().eval()


def test_the_model_is_the_regular_one_in_stretched_coordinates() -> None:
    g = torch.Generator().manual_seed(0)
    features, points, queries = (torch.rand(2, n, c, generator=g).double() for n, c in ((30, 1), (30, 2), (7, 2)))
    stretched, regular = model(stretching=KNOTS, point_weights="density"), model(point_weights="density")
    move = Stretching(KNOTS, 2).double()
    found = stretched(features, points, queries)
    torch.testing.assert_close(found, regular(features, move(points), move(queries)))
    assert not torch.allclose(found, regular(features, points, queries), rtol=1e-2)
    folded = copy.deepcopy(stretched)
    folded.fold()
    torch.testing.assert_close(folded(features, points, queries), found)


@pytest.mark.parametrize(
    ("knots", "message"),
    [
        ([[-1.0, 1.0]], "model.stretching: 2 axes need as many lists of positions, found 1"),
        ([[-1.0, 0.5, 0.5, 1.0]] * 2, "model.stretching: the positions must increase"),
        ([[-1.0, 1.0], [-1.0, 0.0, 1.0]], "model.stretching: each axis needs the same number"),
        ([[1.0], [1.0]], "model.stretching: .* at least two"),
    ],
)
def test_knots_that_are_none(knots: list[list[float]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model(stretching=knots)
