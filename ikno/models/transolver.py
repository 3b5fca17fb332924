"""Transolver (arXiv 2402.02366): attention among a few soft slices of the cloud instead of among its points.

With tokens x_i, in every head: w_i = softmax(Linear(x_i) / temperature), one weight for each slice g,
    z_g = sum_i w_ig v_i / sum_i w_ig,   z' = softmax(q(z) k(z)^T / sqrt(d)) v(z),   x'_i = sum_g w_ig z'_g,
inside blocks x + attention(norm(x)), x + perceptron(norm(x)). The cost is linear in the points.

``docs/systems.md`` says what differs from the original.
"""

from functools import partial
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.models.layers import MLP, Count, HeadedSettings, Tokens, Width, keep_scale, merge_heads, split_heads
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, mean_weights, with_points
from ikno.models.variants import register

EMPTY = 1e-9  # added to the total weight of a slice, a share of all points, which may be nothing

DISTINCT = 4.0  # factor of the scores at the start, which tells slices apart


class TransolverSettings(HeadedSettings):
    """The paper's settings for most benchmarks. ``reference_grid`` 0: plain coordinates."""

    d_model: Width = 256
    num_heads: PositiveInt = 8
    num_layers: Count = 8
    num_slices: Width = 64
    mlp_ratio: Count = 1
    reference_grid: Annotated[int, Field(ge=0, le=64)] = 0


class PhysicsAttention(nn.Module):
    """Slice, attend among the slices, deslice."""

    def __init__(self, width: int, heads: int, slices: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_scores, self.to_values = nn.Linear(width, width), nn.Linear(width, width)
        self.scores = nn.Linear(width // heads, slices)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5))
        self.qkv = nn.Linear(width // heads, 3 * (width // heads), bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tokens, share: Float[Tensor, "#batch points"]) -> Tokens:
        """Return what the tokens read from the slices; the first tokens are the points, with their share of all."""
        count = share.shape[1]
        scores = self.scores(split_heads(self.to_scores(x), self.heads))
        weights = F.softmax(scores / self.temperature.clamp(0.1, 5), -1)
        given = weights[:, :, :count] * share[:, None, :, None]
        total = given.sum(2)[..., None] + EMPTY
        slices = given.mT @ split_heads(self.to_values(x[:, :count]), self.heads) / total
        mixed = F.scaled_dot_product_attention(*self.qkv(slices).chunk(3, -1))
        return self.out(merge_heads(weights @ mixed))


class TransolverBlock(nn.Module):
    """x + attention(norm(x)), then x + perceptron(norm(x))."""

    def __init__(self, s: TransolverSettings) -> None:
        super().__init__()
        width = s.d_model
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = PhysicsAttention(width, s.num_heads, s.num_slices)
        self.mlp = MLP(width, s.mlp_ratio * width, width)

    def forward(self, x: Tokens, share: Float[Tensor, "#batch points"]) -> Tokens:
        """Return the mixed tokens."""
        x = x + self.attention(self.attention_norm(x), share)
        return x + self.mlp(self.mlp_norm(x))


SMALL = {
    "d_model": 64,
    "num_heads": 4,
    "num_layers": 4,
    "num_slices": 32,
}


@register(
    "transolver",
    settings=TransolverSettings,
    summary="attention among learned slices, arXiv 2402.02366",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class Transolver(System):
    """Transolver on clouds of any dimension, called as ``model(features, points, queries)``.

    Queries read what the points have put into the slices and put in nothing: values at a query do not depend on the
    other queries. ``weights`` weigh the means over the points of a slice, by default all points count alike.
    """

    def __init__(
        self, in_channels: int, out_channels: int, dim: int, settings: TransolverSettings | None = None
    ) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or TransolverSettings()
        axes = [torch.linspace(-1, 1, s.reference_grid)] * dim
        self.reference: Tensor
        self.register_buffer("reference", torch.cartesian_prod(*axes).view(-1, dim), persistent=False)
        position = len(self.reference) or dim
        self.embedding = MLP(position + in_channels, 2 * s.d_model, s.d_model)
        self.placeholder = nn.Parameter(torch.rand(s.d_model) / s.d_model)
        self.blocks = nn.ModuleList(TransolverBlock(s) for _ in range(s.num_layers))
        self.norm = nn.LayerNorm(s.d_model)
        self.head = nn.Linear(s.d_model, out_channels)
        self.apply(partial(_initialize, layers=s.num_layers))

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        x = self._tokens(features, points)
        if queries is not None:
            nothing = features.new_zeros(len(features), queries.shape[1], self.in_channels)
            x = torch.cat([x, self._tokens(nothing, queries)], 1)
        share = mean_weights(points, weights, mask)
        for block in self.blocks:
            x = block(x, share)
        return self.head(self.norm(x if queries is None else x[:, points.shape[1] :]))

    def _tokens(self, features: Features, points: Points) -> Tokens:
        if len(self.reference):
            points = (points[:, :, None] - self.reference.to(points.dtype)).norm(dim=-1)
        return self.embedding(with_points(features, points)) + self.placeholder


def _initialize(module: nn.Module, layers: int) -> None:
    """Start linear maps so that they keep the size of their input, those of the slices orthogonal and large.

    What blocks add is made smaller, so that all blocks together add about as much as there was.
    """
    if isinstance(module, nn.Linear):
        keep_scale(module)
    elif isinstance(module, PhysicsAttention):  # comes after its own maps
        nn.init.orthogonal_(module.scores.weight, DISTINCT)
    elif isinstance(module, TransolverBlock):
        with torch.no_grad():
            for last in (module.attention.out, module.mlp.last):
                last.weight.mul_((2 * layers) ** -0.5)
