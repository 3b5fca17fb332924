"""UPT: supernodes by message passing, pooling to latent tokens, a transformer, and a decoder that any point may query.

Universal physics transformers, arXiv 2402.12365. With e(x) the features of a point plus sines and cosines of its place,

    s_j = mean over |x_i - x_j| <= r of message(e(x_i), e(x_j)),   z = pool(tokens, blocks(s)),   z' = blocks(z),
    u(x) = linear(norm(perceiver(query(x), z'))),   perceiver(q, z) = p + MLP(norm(p)),   p = q + attention(q, z).

``docs/systems.md`` says what differs from the original.
"""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.models.layers import MLP, HeadedSettings, Tokens, Width, attend
from ikno.models.neighbors import along_curve, taken, within
from ikno.models.processors import Block, SelfAttention
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights
from ikno.models.variants import register

Heads = Annotated[int, Field(ge=1, le=1024)]
Depth = Annotated[int, Field(ge=0, le=1000)]

SHARP = 3.0  # factor of queries and keys at the start


class UPTSettings(HeadedSettings):
    """Sizes of the supernodes, the encoder, the latent transformer (approximator) and the decoder, in this order.

    ``radius`` is in units of the box [-1, 1], where the published 5 of 200 is 0.05.
    """

    num_supernodes: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    radius: PositiveFloat = 0.05
    max_neighbors: Annotated[int, Field(ge=1, le=100_000)] = 32
    gnn_dim: Width = 96
    enc_dim: Width = 96
    enc_depth: Depth = 4
    enc_heads: Heads = 2
    num_latent_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    latent_dim: Width = 192
    latent_depth: Depth = 4
    latent_heads: Heads = 3
    dec_depth: Depth = 4
    query_dim: Width = 96
    query_heads: Heads = 2
    position_scale: PositiveFloat = 100.0
    max_wavelength: Annotated[float, Field(gt=1)] = 10000.0

    head_widths: ClassVar = {f"{part}_heads": f"{part}_dim" for part in ("enc", "latent", "query")}


# Shorter and longer waves than the points resolve or the box holds only slow the training of a model this small.
SMALL = {
    "num_supernodes": 256,
    "radius": 0.15,
    "max_neighbors": 16,
    "gnn_dim": 48,
    "enc_dim": 48,
    "enc_depth": 1,
    "enc_heads": 4,
    "latent_dim": 48,
    "latent_depth": 2,
    "latent_heads": 4,
    "dec_depth": 1,
    "query_dim": 24,
    "query_heads": 4,
    "position_scale": 10.0,
    "max_wavelength": 100.0,
}


@register(
    "upt",
    settings=UPTSettings,
    summary="supernodes, latent tokens, perceiver decoder, arXiv 2402.12365",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class UPT(System):
    """Universal physics transformer, in 1, 2 and 3 dimensions.

    Quadrature weights are not used: messages are averaged, as in the original. Values at a query depend on no other
    query.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: UPTSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or UPTSettings()
        g = s.gnn_dim
        self.embedding = MLP(in_channels, g, g, g) if in_channels else None
        self.point_places = Places(g, dim, s.position_scale, s.max_wavelength)
        self.message = MLP(2 * g, 2 * g, g, g)
        self.to_encoder = nn.Linear(g, s.enc_dim)
        self.encoder = nn.ModuleList(PerceiverBlock(s.enc_dim, s.enc_heads) for _ in range(s.enc_depth))
        self.to_latent = nn.Linear(s.enc_dim, s.latent_dim)
        self.tokens = nn.Parameter(nn.init.trunc_normal_(torch.empty(s.num_latent_tokens, s.latent_dim)))
        self.pool = PerceiverBlock(s.latent_dim, s.latent_heads)
        self.approximator = _blocks(s.latent_dim, s.latent_heads, s.latent_depth)
        self.decoder = _blocks(s.latent_dim, s.latent_heads, s.dec_depth)
        q = s.query_dim
        self.to_queries = nn.Linear(s.latent_dim, q)
        self.query_places = Places(q, dim, s.position_scale, s.max_wavelength)
        self.query = MLP(q, 4 * q, 4 * q, q)
        self.perceiver = PerceiverBlock(q, s.query_heads)
        self.head = nn.Sequential(nn.LayerNorm(q), nn.Linear(q, out_channels))
        self.apply(_initialize)
        for mlp in (self.embedding, self.message, self.query):
            _keep_scale(mlp)
        for block in (self.pool, self.perceiver):
            block.sharpen()

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        nodes, real = self.supernodes(features, points, mask)
        x = self.to_encoder(nodes)
        for block in self.encoder:
            x = block(x, x, real)
        latent = self.pool(self.tokens.expand(len(x), -1, -1), self.to_latent(x), real)
        latent = self.to_queries(self.decoder(self.approximator(latent)))
        q = self.query(self.query_places(points if queries is None else queries)).expand(len(x), -1, -1)
        return self.head(self.perceiver(q, latent, None))

    def supernodes(
        self, features: Features, points: Points, mask: Mask = None
    ) -> tuple[Float[Tensor, "batch nodes width"], Bool[Tensor, "_ nodes"] | None]:
        """Return the mean message to each supernode, and which ones are real if some may not be (padded clouds)."""
        s, batch = self.settings, len(features)
        clouds = max(len(points), 1 if mask is None else len(mask))
        points = points.expand(clouds, -1, -1)
        mask = None if mask is None else mask.expand(clouds, -1)
        # Sorted first: which of several neighbors at one distance are kept must not depend on the order of the points.
        order = along_curve(points, mask)
        points, features = taken(points, order), taken(features, order.expand(batch, -1))
        count = torch.full((clouds, 1), points.shape[1], device=points.device) if mask is None else mask.sum(1, True)
        real = torch.arange(points.shape[1], device=points.device) < count
        i = torch.arange(min(s.num_supernodes, points.shape[1]), device=points.device)
        own = count.clamp(1, s.num_supernodes)  # a cloud without points has an empty supernode
        chosen = torch.where(i < own, i * count // own, 0)
        edges = within(points, taken(points, chosen), s.radius, None if mask is None else real, s.max_neighbors)

        e = self.point_places(points).expand(batch, -1, -1)
        if self.embedding is not None:
            e = e + self.embedding(features)
        # The first layer acts on nodes and the last on means: the same as on every edge, at a lower cost.
        first, last = self.message.first, self.message.last
        of_source, of_target = first.weight.chunk(2, 1)
        source = F.linear(e, of_source, first.bias)
        target = F.linear(taken(e, chosen.expand(batch, -1)), of_target)
        hidden = edges.gather(source) + edges.gather_targets(target)
        for layer in list(self.message)[1:-1]:
            hidden = layer(hidden)
        return last(edges.mean(hidden)), None if mask is None else i < own


class Places(nn.Module):
    """Sines and cosines of each coordinate, of wavelengths from 2 pi to ``longest`` times that, in units of the box.

    The box [-1, 1] is 2 ``scale`` units wide. Features that the axes cannot share evenly are zero.
    """

    def __init__(self, width: int, dim: int, scale: float, longest: float) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        count = width // (2 * dim)
        self.frequencies: Tensor
        self.register_buffer("frequencies", longest ** (-torch.arange(count) / max(count, 1)), persistent=False)

    def forward(self, x: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points width"]:
        """Return the features of every point."""
        angle = ((x + 1) * self.scale)[..., None] * self.frequencies.to(x.dtype)
        waves = torch.cat([torch.sin(angle), torch.cos(angle)], -1).flatten(-2)
        return F.pad(waves, (0, self.width - waves.shape[-1])).to(self.frequencies.dtype)


class PerceiverBlock(nn.Module):
    """Queries attend to values, then pass a perceptron; both steps are pre-normed and added to the queries."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_norm, self.value_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mlp = MLP(width, 4 * width, width)

    @torch.no_grad()
    def sharpen(self) -> None:
        """Make queries and keys larger, so that queries look at different values from the start."""
        self.q.weight.mul_(SHARP)
        self.kv.weight[: len(self.q.weight)].mul_(SHARP)

    def forward(
        self, queries: Float[Tensor, "batch queries width"], values: Tokens, real: Bool[Tensor, "_ tokens"] | None
    ) -> Float[Tensor, "batch queries width"]:
        """Return the updated queries; values that are not real are not looked at."""
        q = self.q(self.query_norm(queries))
        k, v = self.kv(self.value_norm(values)).chunk(2, -1)
        x = queries + self.out(attend(q, k, v, self.heads, mask=None if real is None else real[:, None, None]))
        return x + self.mlp(self.mlp_norm(x))


def _blocks(width: int, heads: int, depth: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, width), *(Block(width, 4, 0.0, SelfAttention(width, heads)) for _ in range(depth))
    )


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def _keep_scale(mlp: nn.Sequential | None) -> None:
    """Start perceptrons so that their results are as large as their inputs."""
    for layer in mlp or ():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
