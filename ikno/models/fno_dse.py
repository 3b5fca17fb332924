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
  interpolated from the nearest points (weights 1 / distance^2), so that a query on a point gets that point's value.
  Values at a query do not depend on the other queries.
- 1-D and 3-D beside the original's 2-D.

Parameters at the defaults, 2-D, geometry only and one output (the elasticity problem): 2,367,969, or
1,188,321 if a complex number counts as one: what the layers of the public code add up to.
"""

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.models.fourier import SpectralWeights, Waves, mean_weights, modes_per_axis
from ikno.models.layers import MLP
from ikno.models.neighbors import flat, nearest

# Points from which the features at a query are interpolated.
NEIGHBORS = 4

Modes = Annotated[int, Field(ge=1, le=512)]


class FNODSESettings(Settings):
    """The published configuration of the elasticity problem; ``padding`` widens the period beyond the domain."""

    modes: Modes | tuple[Modes, ...] = 12
    width: Annotated[int, Field(ge=1, le=65536)] = 32
    num_layers: Annotated[int, Field(ge=1, le=1000)] = 4
    projection: Annotated[int, Field(ge=1, le=65536)] = 128
    padding: Annotated[float, Field(ge=0, le=10)] = 0.0


SMALL: dict[str, Any] = {"modes": 5, "width": 20, "num_layers": 4, "projection": 64, "padding": 0.5}


class FNODSE(nn.Module):
    """Fourier neural operator with direct spectral evaluations at the points."""

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: FNODSESettings | None = None) -> None:
        super().__init__()
        if dim not in (1, 2, 3):
            raise UserError(f"FNO-DSE works in 1, 2 and 3 dimensions, found {dim}; choose another model")
        s = self.settings = settings or FNODSESettings()
        self.in_channels, self.modes = in_channels, modes_per_axis(s.modes, dim)
        self.lift = nn.Linear(in_channels + dim, s.width)
        self.spectral = nn.ModuleList(SpectralWeights(s.width, s.width, self.modes) for _ in range(s.num_layers))
        self.pointwise = nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(s.num_layers))
        self.project = MLP(s.width, s.projection, out_channels)

    def forward(
        self,
        features: Float[Tensor, "batch points channels"],
        points: Float[Tensor, "#batch points dim"],
        queries: Float[Tensor, "#batch queries dim"] | None = None,
        weights: Float[Tensor, "#batch points"] | None = None,
        mask: Bool[Tensor, "#batch points"] | None = None,
    ) -> Float[Tensor, "batch queries out_channels"]:
        """Return the values at the queries, by default at the points themselves (zero where these are masked)."""
        if features.shape[2] != self.in_channels:
            raise ValueError(f"the model takes {self.in_channels} feature channels, found {features.shape[2]}")
        dtype = self.lift.weight.dtype
        features, points = features.to(dtype), points.to(dtype)
        if mask is not None:
            features = features.masked_fill(~mask[..., None], 0)
        weights = mean_weights(points, weights, mask)
        tokens, waves = [self._lifted(features, points)], [self._waves(points)]
        if queries is not None:
            queries = queries.to(dtype)
            tokens.append(self._lifted(interpolated(features, points, queries, mask), queries))
            waves.append(self._waves(queries))
        values = self.project(self._layers(tokens, waves, weights))
        return values if queries is not None or mask is None else values * mask[..., None]

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


def interpolated(
    features: Float[Tensor, "batch points channels"],
    points: Float[Tensor, "#batch points dim"],
    queries: Float[Tensor, "#batch queries dim"],
    mask: Bool[Tensor, "#batch points"] | None = None,
) -> Float[Tensor, "batch queries channels"]:
    """Return means over the nearest points with weights 1 / distance^2: at a point, that point's own features."""
    batch, count = features.shape[0], queries.shape[1]
    if features.shape[2] == 0:
        return features.new_zeros(batch, count, 0)
    edges = nearest(points, queries, NEIGHBORS, mask)
    clouds = edges.targets // count
    x, y = (flat(a.expand(clouds, -1, -1), clouds) for a in (points, queries))
    distance = (edges.gather(x) - edges.gather_targets(y)).square().sum(-1, keepdim=True)
    # A query this near (1e-9) to a point is that point.
    near = 1 / distance.clamp(min=1e-18)
    sums = edges.sum(edges.gather(flat(features.expand(max(batch, clouds), -1, -1), clouds)) * near)
    return (sums / edges.sum(near)).reshape(-1, count, features.shape[2])
