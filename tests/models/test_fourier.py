"""Spectral convolutions and Fourier sums at irregular points against explicit sums over all frequencies."""

import cmath
import itertools
import math

import pytest
import torch
from torch import Tensor

from ikno.models import fourier
from ikno.models.fourier import SpectralConv, Waves, frequencies
from ikno.models.system import mean_weights


def slow_convolution(u: Tensor, weight: Tensor, modes: tuple[int, ...]) -> Tensor:
    """Return Re sum_k c_k R_k u_k exp(2 pi i k.j/n) with u_k = mean_j u_j exp(-2 pi i k.j/n), in loops."""
    grid = u.shape[1:-1]
    result = torch.zeros(u.shape[0], *grid, weight.shape[2], dtype=torch.float64)
    ranges = [[*range(m), *range(-m, 0)] for m in modes[:-1]] + [list(range(modes[-1]))]
    for number, k in enumerate(itertools.product(*ranges)):
        r = torch.view_as_complex(weight.double())[number]
        waves = {
            j: cmath.exp(2j * math.pi * sum(a * b / n for a, b, n in zip(k, j, grid, strict=True)))
            for j in itertools.product(*map(range, grid))
        }
        terms = [u[:, *j].to(torch.complex128) * w.conjugate() for j, w in waves.items()]
        u_k = torch.stack(terms).mean(0)
        alone = k[-1] == 0 or 2 * k[-1] == grid[-1]
        for j, w in waves.items():
            result[:, *j] += (1 if alone else 2) * (u_k @ r * w).real
    return result


@pytest.mark.parametrize(
    ("grid", "modes"),
    [((9,), (3,)), ((8,), (5,)), ((6, 7), (2, 3)), ((4, 4), (2, 3)), ((5, 4, 6), (2, 1, 3)), ((1,), (1,))],
)
def test_convolution_is_the_explicit_sum(grid: tuple[int, ...], modes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = SpectralConv(3, 2, modes)
    u = torch.randn(2, *grid, 3)
    values = layer(u)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), slow_convolution(u, layer.weights.weight, modes), rtol=1e-5, atol=1e-5)


def test_kept_frequencies() -> None:
    assert frequencies((2, 3)) == [[0, 1, -2, -1], [0, 1, 2]]


def test_a_finer_grid_gives_the_same_function() -> None:
    torch.manual_seed(0)
    layer = SpectralConv(1, 1, (3, 3))

    def wave(n: int) -> Tensor:
        x = torch.arange(n) / n * 2 * math.pi
        return (torch.cos(x)[:, None] * torch.sin(2 * x)[None] + 0.5)[None, ..., None]

    torch.testing.assert_close(layer(wave(24))[:, ::2, ::2], layer(wave(12)), rtol=1e-5, atol=1e-5)


def test_a_grid_too_coarse_for_the_modes_is_refused() -> None:
    for grid in ((7, 8), (8, 5), (8, 8, 8)):
        with pytest.raises(ValueError, match="need a grid of at least"):
            SpectralConv(1, 1, (4, 4))(torch.zeros(1, *grid, 1))


def test_gradients_and_autocast() -> None:
    torch.manual_seed(0)
    layer = SpectralConv(2, 2, (3, 3))
    u = torch.randn(1, 8, 8, 2, requires_grad=True)
    plain = layer(u)
    plain.square().sum().backward()
    for grad in (u.grad, layer.weights.weight.grad):
        assert grad is not None
        assert grad.isfinite().all()
        assert grad.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(u), plain)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("modes", [(4,), (2, 3), (1, 2, 2)])
def test_sums_at_irregular_points(
    modes: tuple[int, ...], clouds: int, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = math.prod(map(len, frequencies(modes)))
    if chunked:
        monkeypatch.setattr(fourier, "MAX_ENTRIES", 4 * clouds * count * 2)  # four points at a time
    torch.manual_seed(0)
    x = torch.rand(clouds, 10, len(modes), dtype=torch.float64) * 1.2 - 0.1
    values, weights = torch.randn(2, 10, 3, dtype=torch.float64), torch.rand(clouds, 10, dtype=torch.float64)
    spectrum = torch.randn(2, count, 3, dtype=torch.complex128)
    waves = Waves(x, modes)
    assert (waves.whole is None) == chunked
    found, back = waves.to_spectrum(values, weights), waves.to_points(spectrum)
    for b in range(2):
        c = b % clouds
        synthesis = torch.zeros(10, 3, dtype=torch.float64)
        for number, k in enumerate(itertools.product(*frequencies(modes))):
            phases = [sum(f * y.item() for f, y in zip(k, x[c, i], strict=True)) for i in range(10)]
            terms = [weights[c, i] * values[b, i] * cmath.exp(-2j * math.pi * phases[i]) for i in range(10)]
            torch.testing.assert_close(found[b, number], torch.stack(terms).sum(0))
            for i in range(10):
                term = spectrum[b, number] * cmath.exp(2j * math.pi * phases[i])
                synthesis[i] += (1 if k[-1] == 0 else 2) * term.real
        torch.testing.assert_close(back[b], synthesis)


@pytest.mark.parametrize("chunked", [False, True])
def test_gradients_of_the_sums(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunked:
        monkeypatch.setattr(fourier, "MAX_ENTRIES", 70)
    torch.manual_seed(0)
    x = torch.rand(1, 5, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.full((1, 5), 0.2, dtype=torch.float64)

    def there_and_back(x: Tensor, values: Tensor) -> Tensor:
        waves = Waves(x, (2, 2))
        assert (waves.whole is None) == chunked
        return waves.to_points(waves.to_spectrum(values, weights))

    assert torch.autograd.gradcheck(there_and_back, (x, values))


def test_points_of_a_grid_agree_with_the_fft() -> None:
    torch.manual_seed(0)
    modes, n = (2, 3), 8
    u = torch.randn(2, n, n, 3)
    axis = torch.arange(n) / n
    x = torch.cartesian_prod(axis, axis)[None]
    spectrum = Waves(x, modes).to_spectrum(u.flatten(1, 2), mean_weights(x, None, None))
    torch.testing.assert_close(spectrum, fourier.grid_to_spectrum(u, modes))
    values = fourier.spectrum_to_grid(spectrum, modes, (n, n))
    torch.testing.assert_close(Waves(x, modes).to_points(spectrum), values.flatten(1, 2))


def test_means_count_the_real_points_only() -> None:
    x = torch.zeros(1, 4, 2)
    mask = torch.tensor([[True, True, True, False]])
    assert mean_weights(x, None, None).tolist() == [[0.25] * 4]
    torch.testing.assert_close(mean_weights(x, None, mask), torch.tensor([[1.0, 1, 1, 0]]) / 3)
    weighted = mean_weights(x, torch.tensor([[1.0, 2, 1, 9]]), mask)
    assert weighted.tolist() == [[0.25, 0.5, 0.25, 0]]
