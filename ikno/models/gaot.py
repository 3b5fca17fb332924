"""GAOT, the geometry-aware operator transformer (arXiv 2505.18781): cloud -> latent grid -> U-ViT -> any query points.

v(y) = mean over scales s of  W [ sum_k a_k K(x_k, y) f(x_k),  E(statistics of the x_k) ],   |x_k - y| <= s radius

is the multiscale attentional graph neural operator (MAGNO) of encoder and decoder: K is a perceptron that gives one
factor per channel, a = softmax_k of the cosine of x_k and y (or of a learned dot product), E embeds how the neighbors
lie. The processor is a vision transformer on patches of the grid, its later half with skips from the earlier one.

``docs/systems.md`` says what differs from the original.
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.linalg import Grid
from ikno.models.layers import (
    MLP,
    Count,
    HeadedSettings,
    Rotation,
    Tokens,
    Width,
    attend,
    from_patches,
    grid_rotation,
    to_patches,
)
from ikno.models.neighbors import Edges, Targets, neighborhoods
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, box_grid, pair_kernel
from ikno.models.variants import register

KEY_WIDTH = 64  # of the dot-product attention


GridSize = Annotated[int, Field(ge=1, le=4096)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1)]


class GAOTSettings(HeadedSettings):
    """The published settings; ``radius`` in units of the box [-1, 1], ``latent_tokens`` one number or one per axis."""

    latent_tokens: GridSize | tuple[GridSize, ...] = 64
    radius: PositiveFloat = 0.033
    scales: Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=100)] = (1.0,)
    lifting_channels: Width = 32
    projection_channels: Width = 256
    encoder_kernel: Widths = (64, 64, 64)
    decoder_kernel: Widths = (64, 64)
    attention: Literal["cosine", "dot_product"] = "cosine"
    patch_size: PositiveInt = 2
    hidden_size: Width = 256
    num_heads: PositiveInt = 8
    num_layers: Count = 5
    ffn_multiplier: Count = 4

    head_widths: ClassVar = {"num_heads": "hidden_size"}

    def grid(self, dim: int) -> Grid:
        """Return the latent grid in the box [-1, 1]^dim."""
        grid = box_grid("latent_tokens", self.latent_tokens, dim)
        if any(n % self.patch_size for n in grid.size):
            raise UserError(
                f"model.latent_tokens: must be multiples of patch_size, {self.patch_size}, found {grid.size}"
            )
        return grid


SMALL = {
    "latent_tokens": 16,
    "radius": 0.27,
    "lifting_channels": 32,
    "projection_channels": 64,
    "encoder_kernel": (32, 32),
    "decoder_kernel": (64, 64),
    "hidden_size": 64,
    "num_heads": 4,
    "num_layers": 3,
    "ffn_multiplier": 2,
}


@register(
    "gaot",
    settings=GAOTSettings,
    summary="geometry-aware operator transformer, arXiv 2505.18781",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class GAOT(System):
    """Geometry-aware operator transformer, in any number of dimensions.

    Quadrature weights multiply the attention of the encoder; without them all neighbors count alike. A value depends on
    its own query only.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: GAOTSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or GAOTSettings()
        self.grid = s.grid(dim)
        width = s.lifting_channels
        self.lifting = nn.Linear(in_channels or dim, width)
        self.encoder = MAGNO(dim, width, s.encoder_kernel, s)
        self.processor = PatchTransformer(self.grid.size, width, s)
        self.decoder = MAGNO(dim, width, s.decoder_kernel, s)
        self.projection = MLP(width, s.projection_channels, out_channels)

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        inputs = features if self.in_channels else points.expand(len(features), -1, -1)
        grid = self.grid.points(points)[None]
        latent = self.processor(self.encoder(self.lifting(inputs), points, grid, weights, mask))
        return self.projection(self.decoder(latent, grid, points if queries is None else queries))


class MAGNO(nn.Module):
    """The attentional kernel integral from sources to targets, with the statistics of each neighborhood, per scale."""

    def __init__(self, dim: int, width: int, hidden: tuple[int, ...], s: GAOTSettings) -> None:
        super().__init__()
        self.radii = tuple(s.radius * scale for scale in s.scales)
        self.integral = AttentionalIntegral(dim, width, hidden, s.radius, s.attention)
        self.geometry = nn.Sequential(nn.Linear(3 + 2 * dim, 64), nn.ReLU(), nn.Linear(64, width))
        self.recovery = nn.Linear(2 * width, width)

    def forward(
        self, values: Features, sources: Points, targets: Targets, weights: Weights = None, mask: Mask = None
    ) -> Float[Tensor, "batch targets width"]:
        """Return the features at the targets."""
        parts = [self._at_scale(radius, values, sources, targets, weights, mask) for radius in self.radii]
        return torch.stack(parts).mean(0)

    def _at_scale(
        self, radius: float, values: Features, sources: Points, targets: Targets, weights: Weights, mask: Mask
    ) -> Tensor:
        edges, counts = neighborhoods(sources, targets, radius, mask)
        logs = None if weights is None else weights.clamp(min=torch.finfo(weights.dtype).tiny).log()[..., None]
        integral = self.integral(values, sources, targets, edges, logs)
        real = sources.new_tensor([sources.shape[1]]) if mask is None else mask.sum(1).to(sources.dtype)
        share = counts.view(edges.clouds, -1) / real.clamp(min=1)[:, None]
        embedding = self.geometry(neighborhood_statistics(sources, targets, edges, share, radius))
        return self.recovery(torch.cat([integral, embedding.expand(len(integral), -1, -1)], -1))


class AttentionalIntegral(nn.Module):
    """v(y) = sum_k a_k K(x_k, y) f(x_k) with weights a that add up to 1 over the neighbors x_k of y."""

    def __init__(self, dim: int, width: int, hidden: tuple[int, ...], radius: float, attention: str) -> None:
        super().__init__()
        self.radius = radius
        self.kernel = pair_kernel(2 * dim, *hidden, width)
        learned = attention == "dot_product"
        self.query = nn.Linear(dim, KEY_WIDTH) if learned else None
        self.key = nn.Linear(dim, KEY_WIDTH, bias=False) if learned else None  # a bias would not change the softmax

    def forward(
        self,
        values: Features,
        sources: Points,
        targets: Targets,
        edges: Edges,
        logs: Float[Tensor, "#batch points 1"] | None = None,
    ) -> Float[Tensor, "batch targets channels"]:
        """Return the integrals; ``logs`` are logarithms of the weights of the sources."""
        x, y = edges.gather(sources), edges.gather_targets(targets)
        if self.query is None or self.key is None:
            scores = F.cosine_similarity(x, y, dim=-1)[..., None]
        else:
            products = edges.gather_targets(self.query(targets)) * edges.gather(self.key(sources))
            scores = products.sum(-1, keepdim=True).to(x.dtype) / math.sqrt(KEY_WIDTH)
        if logs is not None:
            scores = scores + edges.gather(logs)
        kernel = self.kernel(torch.cat([y, (x - y) / self.radius], -1))
        return edges.sum(edges.softmax(scores) * kernel * edges.gather(values))


def neighborhood_statistics(
    sources: Points, targets: Targets, edges: Edges, share: Float[Tensor, "_ targets"], radius: float
) -> Float[Tensor, "_ targets features"]:
    """Return how the neighbors of each target lie, relative to a ball that is evenly filled, at most 3 in size.

    These are the share of all sources that is within the radius, mean and variance of the distance, the offset of the
    centroid, and the eigenvalues of the covariance, largest first. An evenly filled ball in the box has zeros.
    """
    dim = sources.shape[2]
    offset = edges.offsets(sources, targets) / radius
    distance = offset.norm(dim=-1, keepdim=True)
    products = (offset[..., :, None] * offset[..., None, :]).flatten(-2)
    means = edges.mean(torch.cat([distance, distance**2, offset, products], -1))
    mean, square, centroid, second = means.split([1, 1, dim, dim * dim], -1)
    covariance = second.unflatten(-1, (dim, dim)) - centroid[..., :, None] * centroid[..., None, :]
    ball = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1) * (radius / 2) ** dim  # its share of the box
    relative = [
        share[..., None] / ball - 1,
        mean * (dim + 1) / dim - 1,
        (square - mean**2) * (dim + 1) ** 2 * (dim + 2) / dim - 1,
        centroid,
        torch.linalg.eigvalsh(covariance).flip(-1) * (dim + 2) - 1,
    ]
    return torch.cat(relative, -1).clamp(-3, 3)


class PatchTransformer(nn.Module):
    """The U-ViT on patches of the grid: x -> patches -> blocks with skips from the first half to the second -> grid."""

    def __init__(self, grid: tuple[int, ...], width: int, s: GAOTSettings) -> None:
        super().__init__()
        patch, hidden, half = s.patch_size, s.hidden_size, s.num_layers // 2
        self.grid, self.patch = grid, patch
        inside = width * patch ** len(grid)
        self.embedding = nn.Linear(inside, inside)
        self.inward, self.outward = nn.Linear(inside, hidden), nn.Linear(hidden, inside)
        self.first = nn.ModuleList(Block(hidden, s.num_heads, s.ffn_multiplier) for _ in range(s.num_layers - half))
        self.second = nn.ModuleList(Block(hidden, s.num_heads, s.ffn_multiplier) for _ in range(half))
        self.skips = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(half))
        rotation = grid_rotation(tuple(n // patch for n in grid), hidden // s.num_heads)
        self.rotation: Tensor
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, x: Float[Tensor, "batch count width"]) -> Float[Tensor, "batch count width"]:
        """Return the processed grid."""
        tokens = self.inward(self.embedding(to_patches(x.unflatten(1, self.grid), self.patch)))
        kept = []
        for block in self.first:
            tokens = block(tokens, self.rotation)
            kept.append(tokens)
        kept = kept[: len(self.second)]  # the one in the middle, if there is one, has no partner
        for block, skip in zip(self.second, self.skips, strict=True):
            tokens = block(skip(torch.cat([tokens, kept.pop()], -1)), self.rotation)
        return from_patches(self.outward(tokens), self.grid, self.patch).flatten(1, -2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + W_2 (silu(W_1 z) * W_3 z) with z = norm(x); norms by the mean square."""

    def __init__(self, width: int, heads: int, ffn_multiplier: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gates = nn.Linear(width, 2 * ffn_multiplier * width, bias=False)  # W_1 and W_3
        self.ffn_out = nn.Linear(ffn_multiplier * width, width, bias=False)

    def forward(self, x: Tokens, rotation: Rotation) -> Tokens:
        """Return the mixed tokens."""
        x = x.to(self.out.weight.dtype)  # under autocast the sums and norms stay in full precision
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, -1)
        x = x + self.out(attend(q, k, v, self.heads, rotation))
        a, b = self.gates(self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn_out(F.silu(a) * b)
