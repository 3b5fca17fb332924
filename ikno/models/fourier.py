"""Spectral convolutions of Fourier neural operators, on grids by FFT and at irregular points by direct sums.

Both keep the frequencies 0 .. m-1, -m .. -1 of every axis but the last, which has 0 .. m-1 alone: values are real, the
other half is the complex conjugate. u_k = mean of u(x) exp(-i k.x) and u(x) = Re sum_k c_k u_k exp(i k.x) with c_k = 1
where the last frequency is 0, else 2. Spectra are stored flat, the frequencies of the last axis running fastest.
"""

from itertools import pairwise
from math import pi, prod
from typing import Annotated

import torch
from jaxtyping import Complex, Float
from pydantic import Field
from torch import Tensor, nn

from ikno.models.layers import recompute

# Entries of the largest matrix of waves at points that is formed at once: 64 MB in single precision.
MAX_ENTRIES = 2**24

Modes = Annotated[int, Field(ge=1, le=512)]  # along an axis, as a setting
Spectrum = Complex[Tensor, "batch modes width"]


def frequencies(modes: tuple[int, ...]) -> list[list[int]]:
    """Return the kept frequencies of each axis, in the order of their coefficients."""
    return [*([*range(m), *range(-m, 0)] for m in modes[:-1]), list(range(modes[-1]))]


class SpectralWeights(nn.Module):
    """v_k = R_k u_k with a learned complex matrix for each kept frequency.

    As in the original they start small, so that the pointwise paths beside them carry the signal at first: weights that
    keep its size admit all frequencies at once with their sampling errors, and the test errors of short trials grow by
    half. Weights without a path beside them (``alone``) start with half the size of the signal.
    """

    def __init__(self, channels_in: int, channels_out: int, modes: tuple[int, ...], alone: bool = False) -> None:
        super().__init__()
        count = prod(map(len, frequencies(modes)))
        std = 0.5 / channels_in**0.5 if alone else 1 / (channels_in * channels_out)
        # Real and imaginary parts side by side: optimizers and file formats expect real parameters.
        self.weight = nn.Parameter(std * torch.randn(count, channels_in, channels_out, 2) / 2**0.5)

    def forward(self, u: Complex[Tensor, "batch modes channels_in"]) -> Complex[Tensor, "batch modes channels_out"]:
        """Return the products at each frequency."""
        return torch.bmm(u.transpose(0, 1), torch.view_as_complex(self.weight)).transpose(0, 1)


class SpectralConv(nn.Module):
    """A convolution over a whole periodic grid: R acts on the kept frequencies, the others are cut.

    The grid may have any size that resolves the modes: at least 2 m points along each axis (the last: 2 m - 2).
    """

    def __init__(self, channels_in: int, channels_out: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        self.modes = modes
        self.weights = SpectralWeights(channels_in, channels_out, modes)

    def forward(self, u: Float[Tensor, "batch *grid channels_in"]) -> Float[Tensor, "batch *grid channels_out"]:
        """Return the convolved values on the same grid."""
        with torch.autocast(u.device.type, enabled=False):
            spectrum = grid_to_spectrum(u.to(self.weights.weight.dtype), self.modes)
            return spectrum_to_grid(self.weights(spectrum), self.modes, tuple(u.shape[1:-1]))


def grid_to_spectrum(u: Float[Tensor, "batch *grid width"], modes: tuple[int, ...]) -> Spectrum:
    """Return the kept coefficients of values on a periodic grid."""
    grid = tuple(u.shape[1:-1])
    needed = (*(2 * m for m in modes[:-1]), 2 * modes[-1] - 2)
    if len(grid) != len(modes) or any(n < least for n, least in zip(grid, needed, strict=True)):
        raise ValueError(f"modes {modes} need a grid of at least {needed} points, found {grid}")
    axes = tuple(range(1, len(grid) + 1))
    spectrum = torch.fft.rfftn(u, dim=axes, norm="forward")
    for axis, k in zip(axes, frequencies(modes), strict=True):
        spectrum = spectrum.index_select(axis, torch.tensor(k, device=u.device) % spectrum.shape[axis])
    return spectrum.flatten(1, -2)


def spectrum_to_grid(
    spectrum: Spectrum, modes: tuple[int, ...], grid: tuple[int, ...]
) -> Float[Tensor, "batch *grid width"]:
    """Return the values on a periodic grid of a function given by its kept coefficients."""
    kept = frequencies(modes)
    full = spectrum.unflatten(1, [len(k) for k in kept])
    for axis, (k, n) in enumerate(zip(kept, (*grid[:-1], grid[-1] // 2 + 1), strict=True), 1):
        zeros = full.new_zeros(*full.shape[:axis], n, *full.shape[axis + 1 :])
        full = zeros.index_copy(axis, torch.tensor(k, device=full.device) % n, full)
    return torch.fft.irfftn(full, s=grid, dim=tuple(range(1, len(grid) + 1)), norm="forward")


class Waves:
    """The waves exp(2 pi i k.x) at the points x of one cloud or of one per sample, with period 1 along each axis.

    Only the small factors exp(2 pi i k_j x_j) of each axis are kept; their products, one per point and frequency, are
    formed for as many points at a time as fit into MAX_ENTRIES, and again in the backward pass.
    """

    def __init__(self, x: Float[Tensor, "clouds points dim"], modes: tuple[int, ...]) -> None:
        self.modes = modes
        kept = frequencies(modes)
        angles = [
            2 * pi * x[..., j, None] * torch.tensor(k, dtype=x.dtype, device=x.device) for j, k in enumerate(kept)
        ]
        self.factors = [torch.complex(a.cos(), a.sin()) for a in angles]
        count = prod(map(len, kept))
        size = max(1, MAX_ENTRIES // (2 * count * x.shape[0]))
        self.bounds = [*range(0, max(x.shape[1], 1), size), x.shape[1]]
        self.whole = self._products(*self.factors) if len(self.bounds) == 2 else None
        ones = torch.arange(count, device=x.device) % modes[-1] == 0
        self.multiplicity = torch.where(ones, 1.0, 2.0).to(x.dtype)

    def to_spectrum(self, values: Float[Tensor, "batch points width"], weights: Float[Tensor, "_ points"]) -> Spectrum:
        """Return u_k = sum_i w_i u(x_i) exp(-2 pi i k.x_i)."""
        with torch.autocast(values.device.type, enabled=False):
            weighted = values.to(self.multiplicity.dtype) * weights[..., None]
            if self.whole is not None:
                return _analyze(weighted, self.whole)
            parts = [self._chunked(_analyze, a, b, weighted[:, a:b]) for a, b in pairwise(self.bounds)]
            return torch.stack(parts).sum(0)

    def to_points(self, spectrum: Spectrum) -> Float[Tensor, "batch points width"]:
        """Return u(x_i) = Re sum_k c_k u_k exp(2 pi i k.x_i)."""
        with torch.autocast(spectrum.device.type, enabled=False):
            folded = spectrum * self.multiplicity[:, None]
            if self.whole is not None:
                return _synthesize(folded, self.whole)
            return torch.cat([self._chunked(_synthesize, a, b, folded) for a, b in pairwise(self.bounds)], 1)

    def _chunked(self, function, start: int, stop: int, values: Tensor) -> Tensor:
        def run(values: Tensor, *factors: Tensor) -> Tensor:
            return function(values, self._products(*factors))

        return recompute(run, values, *(f[:, start:stop] for f in self.factors))

    @staticmethod
    def _products(*factors: Tensor) -> Float[Tensor, "clouds points parts"]:
        """Return the cosines and sines of all frequencies side by side, so that real matrix products serve."""
        product = factors[0]
        for factor in factors[1:]:
            product = (product[..., None] * factor[..., None, :]).flatten(-2)
        return torch.view_as_real(product).flatten(-2)


def _analyze(values: Tensor, waves: Tensor) -> Spectrum:
    sums = values.mT @ (waves[0] if waves.shape[0] == 1 else waves)
    return torch.view_as_complex(sums.unflatten(-1, (-1, 2)).contiguous()).conj().mT


def _synthesize(spectrum: Tensor, waves: Tensor) -> Float[Tensor, "batch points width"]:
    parts = torch.view_as_real(spectrum.mT.conj().resolve_conj().contiguous()).flatten(-2)
    if waves.shape[0] == 1:
        return (parts @ waves[0].mT).mT
    return waves @ parts.mT
