"""All models of the registry behind one call, and in a surrogate."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ikno.errors import UserError
from ikno.models import MODELS, build, complete_model
from ikno.surrogate import Signature, Surrogate

ONLY_2D = {"geofno"}


def settings(name: str) -> dict:
    model = complete_model({"name": name}, "smoke")
    return {k: v for k, v in model.items() if k != "name"}


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 1.9 - 0.95


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dim", [2, 3])
def test_one_call_for_all(name: str, dim: int) -> None:
    """Shapes, shared clouds and those of each sample, other queries, the same bits for the same seed."""
    if dim == 3 and name in ONLY_2D:
        with pytest.raises(UserError, match="works in 2 dimensions"):
            build(name, in_channels=2, out_channels=1, dim=3, **settings(name))
        return
    given = settings(name) | ({"grid_size": 4} if name.startswith("ikno") else {})
    model = build(name, in_channels=2, out_channels=3, dim=dim, seed=1, **given).eval()
    features, shared, own, queries = cloud(2, 40, 2), cloud(1, 40, dim), cloud(2, 40, dim), cloud(1, 7, dim, seed=1)
    with torch.no_grad():
        at_points = model(features, shared)
        assert at_points.shape == (2, 40, 3)
        assert model(features, own).shape == (2, 40, 3)
        assert model(features, shared, queries).shape == (2, 7, 3)
        torch.testing.assert_close(model(features, shared.expand(2, -1, -1)), at_points, rtol=1e-3, atol=1e-4)
        again = build(name, in_channels=2, out_channels=3, dim=dim, seed=1, **given).eval()
        assert torch.equal(again(features, shared), at_points)


@pytest.mark.parametrize("name", MODELS)
def test_surrogates_of_all(name: str) -> None:
    """Physical in and out, at the points and elsewhere, whether the model has two halves or not."""
    made = Signature(
        dim=2, variables=("u",), conditions=("f",), box=((0.0, 2.0), (0.0, 1.0)), model={"name": name, **settings(name)}
    )
    surrogate = Surrogate(made, seed=0).eval()
    rng = np.random.default_rng(0)
    points, conditions = rng.random((50, 2)).astype(np.float32), rng.random((50, 1)).astype(np.float32)
    values = surrogate.predict(points, conditions)
    assert values.shape == (50, 1)
    x, c = torch.from_numpy(points)[None], torch.from_numpy(conditions)[None]
    with torch.no_grad():
        expected = surrogate.physical(c, surrogate(x, c))[0].numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    elsewhere = surrogate.predict(points, conditions, points[:4] + 0.01)
    assert elsewhere.shape == (4, 1)
    assert np.isfinite(elsewhere).all()
    state = surrogate.encode(points, conditions)
    np.testing.assert_array_equal(surrogate.decode(state, points[:4] + 0.01)[0].numpy(), elsewhere)
