"""GINO, the geometry-informed neural operator (arXiv 2309.00583): a graph kernel integral to a grid, an FNO, and back.

v(y) = sum_k w_k k(x_k, y) f(x_k) / sum_k w_k,   |x_k - y| <= radius,   k a perceptron, one factor per channel

brings the lifted input to the latent grid, and the result of the Fourier blocks
u -> gelu(z M + g * u), z = gelu(u W + F^-1 R F u) (R on the lowest frequencies, M a perceptron, g one gate per channel)
to the queries.

``docs/systems.md`` says what differs from the original.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.linalg import Grid
from ikno.models.fourier import SpectralConv
from ikno.models.layers import MLP, Count, NerfFeatures, Width
from ikno.models.neighbors import Targets, nearest, neighborhoods
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, box_grid, pair_kernel
from ikno.models.variants import register

GridSize = Annotated[int, Field(ge=2, le=4096)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1)]


class GINOSettings(Settings):
    """The published settings.

    ``radius`` is in units of the box [-1, 1]; ``latent_grid`` is one number or one per axis; ``n_modes`` counts the
    frequencies of an axis, both signs together; ``domain_padding`` is the part by which the grid is prolonged with
    zeros before the Fourier blocks, whose convolutions are periodic.
    """

    latent_grid: GridSize | tuple[GridSize, ...] = 32
    radius: PositiveFloat = 0.066
    n_modes: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] = 16
    hidden_channels: Width = 64
    n_layers: Count = 4
    in_kernel: Widths = (80, 80, 80)
    out_kernel: Widths = (512, 256)
    embedding_frequencies: Annotated[int, Field(ge=0, le=32)] = 4
    lifting_ratio: Count = 2
    projection_channels: Width = 256
    mlp_expansion: Annotated[float, Field(gt=0, le=1000)] = 0.5
    domain_padding: Annotated[float, Field(ge=0, le=10)] = 0.125

    def grid(self, dim: int) -> Grid:
        """Return the latent grid in the box [-1, 1]^dim."""
        grid = box_grid("latent_grid", self.latent_grid, dim)
        if min(grid.size) < self.n_modes:
            raise UserError(f"model.n_modes: at most the size of the latent grid, {grid.size}, found {self.n_modes}")
        return grid


SMALL = {
    "latent_grid": 16,
    "radius": 0.2,
    "n_modes": 8,
    "hidden_channels": 24,
    "n_layers": 4,
    "in_kernel": (32, 32),
    "out_kernel": (32, 32),
    "projection_channels": 64,
}


@register(
    "gino",
    settings=GINOSettings,
    summary="graph operators around a Fourier operator, arXiv 2309.00583",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
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

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        batch = len(features)
        inputs = features if self.in_channels else points.expand(batch, -1, -1)
        grid = self.grid.points(points)[None]
        latent = self.to_grid(self.inputs(inputs), points, grid, weights, mask)
        near = nearest(points, grid, 1, mask)
        distance = near.sum(near.offsets(points, grid).norm(dim=-1, keepdim=True))  # 0 if the cloud is empty
        parts = [latent, grid.expand(batch, -1, -1), distance.expand(batch, -1, -1)]
        latent = self._process(self.lifting(torch.cat(parts, -1)))
        return self.projection(self.to_queries(latent, grid, points if queries is None else queries))

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
        self, values: Features, sources: Points, targets: Targets, weights: Weights = None, mask: Mask = None
    ) -> Float[Tensor, "batch targets width"]:
        """Return the integrals at the targets."""
        edges, _ = neighborhoods(sources, targets, self.radius, mask)
        at_sources, at_targets = edges.gather(self.embedding(sources)), edges.gather_targets(self.embedding(targets))
        offset = edges.offsets(sources, targets) / self.radius
        kernel = self.kernel(torch.cat([at_sources, at_targets, offset], -1))
        weights = torch.ones_like(sources[..., 0]) if weights is None else weights
        parts = edges.gather(weights[..., None].clamp(min=torch.finfo(weights.dtype).tiny))
        shares = parts / edges.gather_targets(edges.sum(parts))
        return edges.sum(kernel * shares * edges.gather(values))


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
