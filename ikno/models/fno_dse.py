"""FNO-DSE: a Fourier neural operator whose transforms are direct sums at irregular points (arXiv 2305.19663).

v_(l+1)(x) = gelu(W_l v_l(x) + Re sum_k c_k R_l,k v_l,k exp(i k.x)),   v_l,k = sum_i w_i v_l(x_i) exp(-i k.x_i)

A linear lift of (features, coordinates), such layers (no gelu after the last), a pointwise perceptron.

What differs from the original:
- The sums are means with quadrature weights (equal ones by default), so that they tend to integrals as a cloud is
  refined; the original divides by the number of points. One spectrum of real signals is kept where the original stores
  both halves. The products of the waves of each axis are formed for some points at a time, never stored for all.
- The box [-1, 1]^dim has a fixed period of 2 (1 + padding) along each axis; the original stretches the bounding box of
  each cloud to one period (padding 0, the default), which makes the opposite sides of the domain neighbors.
- Values at other queries than the points: the query takes part in all layers as a point of weight 0. Its features are
  interpolated from the nearest points, so that a query on a point gets that point's value.
  Values at a query do not depend on the other queries.
- 1-D and 3-D beside the original's 2-D.

Parameters at the defaults, 2-D, geometry only and one output (the elasticity problem): 2,367,969, or
1,188,321 if a complex number counts as one: what the layers of the public code add up to.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.models.fourier import SpectralWeights, Waves, modes_per_axis
from ikno.models.layers import MLP, Width
from ikno.models.neighbors import interpolated
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, mean_weights

Modes = Annotated[int, Field(ge=1, le=512)]


class FNODSESettings(Settings):
    """The published configuration of the elasticity problem; ``padding`` widens the period beyond the domain."""

    modes: Modes | tuple[Modes, ...] = 12
    width: Width = 32
    num_layers: Annotated[int, Field(ge=1, le=1000)] = 4
    projection: Width = 128
    padding: Annotated[float, Field(ge=0, le=10)] = 0.0


SMALL: dict[str, Any] = {"modes": 5, "width": 20, "num_layers": 4, "projection": 64, "padding": 0.5}


class FNODSE(System):
    """Fourier neural operator with direct spectral evaluations at the points."""

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: FNODSESettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or FNODSESettings()
        self.modes = modes_per_axis(s.modes, dim)
        self.lift = nn.Linear(in_channels + dim, s.width)
        self.spectral = nn.ModuleList(SpectralWeights(s.width, s.width, self.modes) for _ in range(s.num_layers))
        self.pointwise = nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(s.num_layers))
        self.project = MLP(s.width, s.projection, out_channels)

    def values(
        self, features: Features, points: Points, queries: Queries | None, weights: Weights | None, mask: Mask | None
    ) -> Values:
        """Return the values at the queries, or at the points if there are none."""
        weights = mean_weights(points, weights, mask)
        tokens, waves = [self._lifted(features, points)], [self._waves(points)]
        if queries is not None:
            tokens.append(self._lifted(interpolated(features, points, queries, mask), queries))
            waves.append(self._waves(queries))
        return self.project(self._layers(tokens, waves, weights))

    def _lifted(self, features: Tensor, points: Tensor) -> Tensor:
        return self.lift(torch.cat([points.expand(features.shape[0], -1, -1), features], -1))

    def _waves(self, points: Tensor) -> Waves:
        return Waves((points + 1) / (2 * (1 + self.settings.padding)), self.modes)

    def _layers(self, tokens: list[Tensor], waves: list[Waves], weights: Tensor) -> Tensor:
        """Return the last layer's tokens at the last set of points; the first set alone decides the spectra."""
        for number, (spectral, pointwise) in enumerate(zip(self.spectral, self.pointwise, strict=True), 1):
            spectrum = spectral(waves[0].to_spectrum(tokens[0], weights))
            if number == len(self.spectral):  # the values at the points are of no more use if there are queries
                return pointwise(tokens[-1]) + waves[-1].to_points(spectrum)
            tokens = [F.gelu(pointwise(v) + w.to_points(spectrum)) for v, w in zip(tokens, waves, strict=True)]
        raise AssertionError("the settings ask for at least one layer")
