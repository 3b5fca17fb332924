"""The z-score and its inverse."""

import torch

from ikno.surrogate import Normalizer


def fit(values: torch.Tensor) -> Normalizer:
    flat = values.flatten(0, -2).double()
    return Normalizer(flat.mean(0), flat.std(0, unbiased=False))


def test_normalized_channels_have_mean_zero_and_unit_spread() -> None:
    values = torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-6, 1.0, 1e6]) + 5
    normalized = fit(values)(values).flatten(0, 1)
    assert normalized.mean(0).abs().max() < 0.05
    assert (normalized.std(0)[1:] - 1).abs().max() < 0.01


def test_zero_variance_is_no_nan_and_the_inverse_is_the_identity() -> None:
    """F10."""
    values = torch.randn(4, 50, 4, generator=torch.Generator().manual_seed(0))
    values[..., 1] = 0.1
    values[..., 2] = 0.0
    values[..., 3] = -3e7
    normalizer = fit(values)
    normalized = normalizer(values)
    assert normalized.isfinite().all()
    assert normalized[..., 1:].abs().max() < 10
    assert torch.allclose(normalizer.inverse(normalized), values, rtol=1e-6, atol=1e-6)
    other = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(normalizer.inverse(normalizer(other))[..., :3], other[..., :3], rtol=1e-6, atol=1e-5)


def test_constants_travel_with_the_state() -> None:
    values = torch.randn(4, 50, 2, generator=torch.Generator().manual_seed(0)) * 3 + 1
    fitted, empty = fit(values), Normalizer(torch.zeros(2), torch.ones(2))
    empty.load_state_dict(fitted.state_dict())
    assert torch.equal(empty(values), fitted(values))


def test_scale_is_the_papers() -> None:
    normalizer = Normalizer(torch.tensor([2.0]), torch.tensor([3.0]))
    assert torch.allclose(normalizer(torch.tensor([[8.0]])), torch.tensor([[6.0 / (3.0 + 1e-10)]]))
