"""GNOT (arXiv 2302.14376): tokens of the queries read the input functions by normalized linear attention.

With q~ = softmax(q), k~ = softmax(k) over the channels of a head, for query tokens x and tokens y_i of the input,
    attend(x, y) = q~ + sum_i (q~ . k~_i) v_i / sum_i (q~ . k~_i),
which is linear in the points, as sum_i k~_i v_i^T and sum_i k~_i are formed first. A block reads the input, lets the
tokens read each other, and after each of the two mixes experts by position (geometric gating, soft domains):
    x + attend(norm(x), norm(y)),  x + norm(sum_e p_e E_e(x)),  the same with y = x,   p = softmax(Gate(position)).

``docs/systems.md`` says what differs from the original.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.models.layers import MLP, Count, HeadedSettings, Tokens, Width, keep_scale, merge_heads, split_heads
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, mean_weights, with_points
from ikno.models.variants import register

SHARP = 2.0  # factor of queries and keys at the start, so that queries read different means
FIRST_VALUES = 0.1  # factor of the last map at the start; tokens have grown by then

AtPoints = Float[Tensor, "batch points width"]
Share = Float[Tensor, "#batch points"]


class GNOTSettings(HeadedSettings):
    """``ff_mult`` is the width of experts and gate over d_model, ``mlp_layers`` counts inner layers of perceptrons."""

    d_model: Width = 128
    num_heads: PositiveInt = 1
    num_layers: Count = 4
    num_experts: Count = 3
    ff_mult: Count = 4
    mlp_layers: Annotated[int, Field(ge=0, le=1000)] = 3


class ResidualMLP(nn.Module):
    """Linear and GELU, then h + GELU(Linear(h)) as often as there are inner layers, then Linear."""

    def __init__(self, inputs: int, hidden: int, outputs: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.inner = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Return the outputs."""
        h = F.gelu(self.first(x))
        for layer in self.inner:
            h = h + F.gelu(layer(h))
        return self.last(h)


class NormalizedAttention(nn.Module):
    """Linear attention whose weights add up to 1: q~ + sum_i s_i (q~ . k~_i) v_i / sum_i s_i (q~ . k~_i)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tokens, y: AtPoints, share: Share) -> Tokens:
        """Return what each token x reads from the tokens y, which count by their shares s."""
        q = F.softmax(split_heads(self.query(x), self.heads), -1)
        k = F.softmax(split_heads(self.key(y), self.heads), -1) * share[:, None, :, None]
        total = q @ k.sum(2)[..., None]  # in (0, 1] where the shares add up to 1, 0 where there are no points
        read = q @ (k.mT @ split_heads(self.value(y), self.heads))
        read = read / total.clamp(min=1e-20)
        return self.out(merge_heads(q + read))


class Experts(nn.Module):
    """norm(sum_e p_e E_e(x)) with perceptrons E_e and given p."""

    def __init__(self, width: int, experts: int, ff_mult: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(MLP(width, ff_mult * width, width) for _ in range(experts))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tokens, parts: Float[Tensor, "#batch tokens experts"]) -> Tokens:
        """Return the mixture."""
        mixed = [part * expert(x) for expert, part in zip(self.experts, parts.split(1, -1), strict=True)]
        return self.norm(sum(mixed[1:], mixed[0]))


class GNOTBlock(nn.Module):
    """Read the input, mix experts, read the tokens at the points, mix experts."""

    def __init__(self, dim: int, s: GNOTSettings) -> None:
        super().__init__()
        width, hidden = s.d_model, s.ff_mult * s.d_model
        self.cross_norm, self.input_norm, self.self_norm = (nn.LayerNorm(width) for _ in range(3))
        self.cross, self.own = (NormalizedAttention(width, s.num_heads) for _ in range(2))
        self.cross_experts, self.own_experts = (Experts(width, s.num_experts, s.ff_mult) for _ in range(2))
        self.gate = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), MLP(hidden, hidden, s.num_experts))

    def forward(self, x: Tokens, y: AtPoints, positions: Float[Tensor, "#batch tokens dim"], share: Share) -> Tokens:
        """Return the new tokens; the first of them are those at the points."""
        parts = F.softmax(self.gate(positions), -1)
        x = x + self.cross(self.cross_norm(x), self.input_norm(y), share)
        x = x + self.cross_experts(x, parts)
        normed = self.self_norm(x)
        x = x + self.own(normed, normed[:, : y.shape[1]], share)
        return x + self.own_experts(x, parts)


SMALL = {
    "d_model": 48,
    "num_layers": 2,
    "num_experts": 2,
    "ff_mult": 2,
}


@register(
    "gnot",
    settings=GNOTSettings,
    summary="normalized cross-attention and gated experts, arXiv 2302.14376",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class GNOT(System):
    """GNOT on clouds of any dimension, called as ``model(features, points, queries)``.

    Queries read the tokens at the points and are not read: values at a query do not depend on the other queries.
    ``weights`` weigh the means over the points, by default all count alike.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: GNOTSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or GNOTSettings()
        self.trunk = ResidualMLP(dim, s.d_model, s.d_model, s.mlp_layers)
        self.branch = ResidualMLP(dim + in_channels, s.d_model, s.d_model, s.mlp_layers)
        self.blocks = nn.ModuleList(GNOTBlock(dim, s) for _ in range(s.num_layers))
        self.head = ResidualMLP(s.d_model, s.d_model, out_channels, s.mlp_layers)
        self.apply(_initialize)
        with torch.no_grad():
            self.head.last.weight.mul_(FIRST_VALUES)

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        y, share = self.branch(with_points(features, points)), mean_weights(points, weights, mask)
        positions = points
        if queries is not None:
            clouds = max(len(points), len(queries))
            positions = torch.cat([p.expand(clouds, -1, -1) for p in (points, queries)], 1)
        x = self.trunk(positions).expand(len(features), -1, -1)
        for block in self.blocks:
            x = block(x, y, positions, share)
        return self.head(x if queries is None else x[:, points.shape[1] :])


def _initialize(module: nn.Module) -> None:
    """Start linear maps so that they keep the size of their input, those of queries and keys larger."""
    if isinstance(module, nn.Linear):
        keep_scale(module)
    elif isinstance(module, NormalizedAttention):  # comes after its own maps
        with torch.no_grad():
            module.query.weight.mul_(SHARP)
            module.key.weight.mul_(SHARP)
