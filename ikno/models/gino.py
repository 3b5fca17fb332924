"""GINO, the geometry-informed neural operator (arXiv 2309.00583): a graph kernel integral to a grid, an FNO, and back.

v(y) = sum_k w_k k(x_k, y) f(x_k) / sum_k w_k,   |x_k - y| <= radius,   k a perceptron, one factor per channel

brings the lifted input to the latent grid, and the result of the Fourier blocks
u -> gelu(z M + g * u), z = gelu(u W + F^-1 R F u) (R on the lowest frequencies, M a perceptron, g one gate per channel)
to the queries.

Parameters at the defaults (2-D, one channel in and out): 4.99 M, of which 4.72 M are the matrices R of four layers. The
published counts belong to vehicles in 3-D, with a factorized R. What differs from the original:
- The radius is .066 in the box [-1, 1], which is .033 in the unit box of the original.
- The grid gets the distance to the nearest point instead of a signed distance: a cloud has no inside.
- The input is lifted before the first integral, as in graph neural operators, so that one kernel per channel serves any
  number of channels. The kernel also reads the offset (x - y) / radius, a linear function of its other inputs.
- The last integral is a mean like the first; the later versions of the library sum. Kernels start at 1, as plain means.
- Targets without neighbors take the nearest point; the original leaves zeros there. Time enters as features, not as
  a condition of the norms: there are none.
"""

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.linalg import Grid
from ikno.models.fourier import SpectralConv
from ikno.models.layers import MLP, NerfFeatures, Width
from ikno.models.neighbors import Edges, flat, nearest, neighborhoods
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, box_grid, pair_kernel

# The settings of a small version for two cores.
SMALL: dict[str, Any] = {
    "latent_grid": 16,
    "radius": 0.2,
    "n_modes": 8,
    "hidden_channels": 24,
    "n_layers": 4,
    "in_kernel": (32, 32),
    "out_kernel": (32, 32),
    "projection_channels": 64,
}


class GINOSettings(Settings):
    """The published settings.

    ``radius`` is in units of the box [-1, 1]; ``latent_grid`` is one number or one per axis; ``n_modes`` counts the
    frequencies of an axis, both signs together; ``domain_padding`` is the part by which the grid is prolonged with
    zeros before the Fourier blocks, whose convolutions are periodic.
    """

    latent_grid: Annotated[int, Field(ge=2, le=4096)] | tuple[Annotated[int, Field(ge=2, le=4096)], ...] = 32
    radius: PositiveFloat = 0.066
    n_modes: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] = 16
    hidden_channels: Width = 64
    n_layers: Annotated[int, Field(ge=1, le=1000)] = 4
    in_kernel: Annotated[tuple[Width, ...], Field(min_length=1)] = (80, 80, 80)
    out_kernel: Annotated[tuple[Width, ...], Field(min_length=1)] = (512, 256)
    embedding_frequencies: Annotated[int, Field(ge=0, le=32)] = 4
    lifting_ratio: Annotated[int, Field(ge=1, le=1000)] = 2
    projection_channels: Width = 256
    mlp_expansion: Annotated[float, Field(gt=0, le=1000)] = 0.5
    domain_padding: Annotated[float, Field(ge=0, le=10)] = 0.125

    def grid(self, dim: int) -> Grid:
        """Return the latent grid in the box [-1, 1]^dim."""
        grid = box_grid("latent_grid", self.latent_grid, dim)
        if min(grid.size) < self.n_modes:
            raise UserError(f"model.n_modes: at most the size of the latent grid, {grid.size}, found {self.n_modes}")
        return grid


class GINO(System):
    """Geometry-informed neural operator, in any number of dimensions.

    Quadrature weights are those of the first integral; without them all neighbors count alike. A value depends on its
    own query only.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: GINOSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or GINOSettings()
        self.grid = s.grid(dim)
        width, lifted = s.hidden_channels, s.lifting_ratio * s.hidden_channels
        self.inputs = nn.Linear(in_channels or dim, width)
        self.to_grid = KernelIntegral(dim, width, s.in_kernel, s.radius, s.embedding_frequencies)
        self.lifting = MLP(width + dim + 1, lifted, lifted, width)
        modes = (*(s.n_modes // 2,) * (dim - 1), s.n_modes // 2 + 1)
        self.blocks = nn.ModuleList(
            FourierBlock(width, modes, s.mlp_expansion, last=i == s.n_layers - 1) for i in range(s.n_layers)
        )
        self.to_queries = KernelIntegral(dim, width, s.out_kernel, s.radius, s.embedding_frequencies)
        self.projection = MLP(width, s.projection_channels, out_channels)

    def values(
        self, features: Features, points: Points, queries: Queries | None, weights: Weights | None, mask: Mask | None
    ) -> Values:
        """Return the values at the queries, or at the points if there are none."""
        inputs = features if self.in_channels else points.expand(features.shape[0], -1, -1)
        grid = self.grid.points(points)[None]
        near = nearest(points, grid, 1, mask)
        latent = self.to_grid(self.inputs(inputs), points, grid, weights, mask)
        geometry = torch.cat([grid.expand(latent.shape[0], -1, -1), _distance(points, grid, near, latent)], -1)
        latent = self._process(self.lifting(torch.cat([latent, geometry], -1)))
        values = self.to_queries(latent, grid, points if queries is None else queries)
        return self.projection(values)

    def _process(self, latent: Float[Tensor, "batch count width"]) -> Float[Tensor, "batch count width"]:
        """Return the grid after the Fourier blocks."""
        u = latent.unflatten(1, self.grid.size)
        ends = [n for size in reversed(self.grid.size) for n in (0, round(self.settings.domain_padding * size))]
        u = F.pad(u, (0, 0, *ends))
        for block in self.blocks:
            u = block(u)
        for axis, size in enumerate(self.grid.size, 1):
            u = u.narrow(axis, 0, size)
        return u.flatten(1, -2)


class KernelIntegral(nn.Module):
    """v(y) = sum_k w_k k(x_k, y) f(x_k) / sum_k w_k over the sources x_k within the radius of y, or the nearest one."""

    def __init__(self, dim: int, width: int, hidden: tuple[int, ...], radius: float, frequencies: int) -> None:
        super().__init__()
        self.radius = radius
        self.embedding = NerfFeatures(frequencies, scale=torch.pi)
        self.kernel = pair_kernel(2 * self.embedding.width(dim) + dim, *hidden, width)

    def forward(
        self,
        values: Float[Tensor, "batch sources width"],
        sources: Float[Tensor, "#batch sources dim"],
        targets: Float[Tensor, "#batch targets dim"],
        weights: Float[Tensor, "#batch sources"] | None = None,
        mask: Bool[Tensor, "#batch sources"] | None = None,
    ) -> Float[Tensor, "batch targets width"]:
        """Return the integrals at the targets."""
        edges, _ = neighborhoods(sources, targets, self.radius, mask)
        clouds = edges.targets // targets.shape[1]
        x, y = flat(sources, clouds), flat(targets, clouds)
        near, here = edges.gather(x), edges.gather_targets(y)
        psi = [edges.gather(self.embedding(x)), edges.gather_targets(self.embedding(y)), (near - here) / self.radius]
        kernel = self.kernel(torch.cat(psi, -1)) * self._shares(edges, x, weights, clouds)
        result = edges.sum(kernel * edges.gather(flat(values, clouds)))
        return result.reshape(values.shape[0], -1, result.shape[2])

    def _shares(self, edges: Edges, x: Tensor, weights: Tensor | None, clouds: int) -> Tensor:
        """Return the weights of the edges, which add up to 1 at each target."""
        if weights is None:
            return 1 / edges.counts.to(x.dtype)[edges.target][None, :, None]
        weights = weights.to(x.dtype)[..., None].clamp(min=torch.finfo(x.dtype).tiny)
        weights = edges.gather(flat(weights, clouds))
        return weights / edges.gather_targets(edges.sum(weights))


class FourierBlock(nn.Module):
    """u -> gelu(z M + g * u) with z = gelu(u W + F^-1 R F u); the last block goes without the gelus."""

    def __init__(self, width: int, modes: tuple[int, ...], expansion: float, last: bool) -> None:
        super().__init__()
        self.convolution = SpectralConv(width, width, modes)
        self.skip = nn.Linear(width, width)
        self.mlp = MLP(width, max(1, round(expansion * width)), width)
        self.gate = nn.Parameter(torch.ones(width))
        self.activation = nn.Identity() if last else nn.GELU()

    def forward(self, u: Float[Tensor, "batch *grid width"]) -> Float[Tensor, "batch *grid width"]:
        """Return the new values on the grid."""
        z = self.activation(self.convolution(u) + self.skip(u))
        return self.activation(self.mlp(z) + self.gate * u)


def _distance(points: Tensor, grid: Tensor, near: Edges, like: Tensor) -> Tensor:
    """Return the distance of each grid point to the nearest point of the cloud, for every sample."""
    clouds = near.targets // grid.shape[1]
    x, y = flat(points, clouds), flat(grid, clouds)
    distance = (near.gather(x) - near.gather_targets(y)).norm(dim=-1, keepdim=True)
    return near.sum(distance).view(clouds, -1, 1).expand(like.shape[0], -1, -1)
