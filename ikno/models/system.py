"""What the compared systems share: one call with its checks and guarantees, and some of their parts."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ikno.errors import UserError
from ikno.linalg import Grid
from ikno.models.layers import MLP, per_axis

Features = Float[Tensor, "batch points channels"]
Points = Float[Tensor, "#batch points dim"]
Queries = Float[Tensor, "#batch queries dim"] | None
Weights = Float[Tensor, "#batch points"] | None
Mask = Bool[Tensor, "#batch points"] | None
Values = Float[Tensor, "batch queries out_channels"]


class System(nn.Module, ABC):
    """A model called as ``model(features, points, queries)``; subclasses compute the values."""

    dimensions: tuple[int, ...] = (1, 2, 3)

    def __init__(self, in_channels: int, out_channels: int, dim: int) -> None:
        super().__init__()
        if dim not in self.dimensions:
            possible = ", ".join(map(str, self.dimensions))
            raise UserError(f"{type(self).__name__} works in {possible} dimensions, found {dim}; choose another model")
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, dim

    def forward(
        self, features: Features, points: Points, queries: Queries = None, weights: Weights = None, mask: Mask = None
    ) -> Values:
        """Return the values at the queries, by default at the points themselves (zero where these are masked)."""
        if features.shape[2] != self.in_channels:
            raise ValueError(f"the model takes {self.in_channels} feature channels, found {features.shape[2]}")
        dtype = next(self.parameters()).dtype
        features, points = features.to(dtype), points.to(dtype)
        if mask is not None:
            features = features.masked_fill(~mask[..., None], 0)
        asked = None if queries is None else queries.to(dtype)
        values = self._values(features, points, asked, None if weights is None else weights.to(dtype), mask)
        return values if queries is not None or mask is None else values * mask[..., None]

    @abstractmethod
    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        """Return the values at the queries, or at the points if there are none.

        All tensors have the type of the parameters, and features of masked points are 0.
        """


def with_points(features: Features, points: Points) -> Float[Tensor, "batch points all_channels"]:
    """Return the coordinates and the features of each point."""
    return torch.cat([points.expand(len(features), -1, -1), features], -1)


def box_grid(setting: str, size: int | tuple[int, ...], dim: int) -> Grid:
    """Return a regular grid in the box [-1, 1]^dim, of one size or one for each axis."""
    return Grid(per_axis(setting, size, dim), (-1.0,) * dim, (1.0,) * dim)


def pair_kernel(*widths: int) -> MLP:
    """Return a perceptron k(x, y), one factor per channel, that starts near 1: small random factors leave no signal."""
    kernel = MLP(*widths)
    nn.init.ones_(kernel.last.bias)
    return kernel


def mean_weights(points: Points, weights: Weights, mask: Mask) -> Float[Tensor, "_ points"]:
    """Return weights that add up to 1 over the real points: sums with them are means over the cloud."""
    result = points.new_ones(1, points.shape[1]) if weights is None else weights
    if mask is not None:
        result = result * mask
    return result / result.sum(1, keepdim=True).clamp(min=torch.finfo(result.dtype).tiny)
