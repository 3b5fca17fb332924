"""The small parts that models share: positional features, perceptrons, rotations, cross-attention."""

from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ikno.errors import UserError
from ikno.linalg import Team

BASE = 100.0  # of the rotary frequencies: places count tens of latent points, not thousands of words

Width = Annotated[int, Field(ge=1, le=65536)]  # of a layer, as a setting


class NerfFeatures(nn.Module):
    """psi(x) = (x, cos(f_1 x), sin(f_1 x), ..., cos(f_l x), sin(f_l x)), element by element.

    The frequencies are scale * (1, 2, 4, ..., 2^(l-1)), or as many evenly spaced from scale to scale * 2^(l-1). The
    paper has l = 1 and scale 1: (x, cos x, sin x).
    """

    def __init__(
        self, frequencies: int = 1, include_input: bool = True, log_sampling: bool = True, scale: float = 1.0
    ) -> None:
        super().__init__()
        if log_sampling:
            values = scale * 2.0 ** torch.arange(frequencies)
        else:
            values = scale * torch.linspace(1, 2.0 ** max(frequencies - 1, 0), frequencies)
        self.include_input = include_input
        self.frequencies: Tensor
        self.register_buffer("frequencies", values, persistent=False)

    def width(self, dim: int) -> int:
        """Return the number of features of a point with ``dim`` coordinates."""
        return dim * (int(self.include_input) + 2 * len(self.frequencies))

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
        """Return the features of every point."""
        parts = [x] if self.include_input else []
        for f in self.frequencies.to(x.dtype):
            parts += [torch.cos(f * x), torch.sin(f * x)]
        return torch.cat(parts, -1)


class MLP(nn.Sequential):
    """Linear, GELU, ..., Linear between layers of these widths."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.GELU()]
        super().__init__(*layers[:-1])

    def hidden(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch hidden"]:
        """Return what the last linear map is applied to."""
        for layer in list(self)[:-1]:
            x = layer(x)
        return x

    @property
    def first(self) -> nn.Linear:
        """The first linear map."""
        return self._linear(0)

    @property
    def last(self) -> nn.Linear:
        """The last linear map."""
        return self._linear(-1)

    def _linear(self, index: int) -> nn.Linear:
        layer = self[index]
        assert isinstance(layer, nn.Linear)
        return layer


def grid_rotation(size: tuple[int, ...], width: int) -> Float[Tensor, "2 tokens pairs"]:
    """Return cosine and sine of the rotary angles of a grid's points, for heads of this width.

    The angles are place * BASE^(-i / n), i = 0 .. n-1, along each axis; zero where pairs of channels are left over.
    """
    dim, pairs = len(size), width // 2
    n = pairs // dim
    if width % 2 or n == 0:
        raise UserError(
            f"model: rotary positions need an even number of channels per head, at least {2 * dim} in {dim}-D, "
            f"found {width}; use fewer heads (model.num_heads) or, in IKNO, model.positions=none"
        )
    frequencies = BASE ** -(torch.arange(n) / n)
    places = torch.stack(torch.meshgrid(*(torch.arange(p) for p in size), indexing="ij"), -1).view(-1, dim)
    angles = F.pad((places[..., None] * frequencies).flatten(1), (0, pairs - n * dim))
    return torch.stack([angles.cos(), angles.sin()])


def rotated(
    x: Float[Tensor, "batch heads tokens channels"], rotation: Float[Tensor, "2 tokens pairs"]
) -> Float[Tensor, "batch heads tokens channels"]:
    """Return x with the pairs (i, pairs + i) of its channels turned by their angles."""
    a, b = x.chunk(2, -1)
    cos, sin = rotation.to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def recompute(function, *arguments):
    """Call the function keeping only its inputs; the backward pass runs it again."""
    return checkpoint(function, *arguments, use_reentrant=False)


class CrossAttention(nn.Module):
    """h(z) = sum_i softmax_i(phi_Q(x_i) . phi_K(z) / sqrt(d)) phi_V(v_i) with shallow perceptrons phi.

    The encoder of the paper's ablation. The softmax runs over the points i, so that each latent point z averages the
    cloud; the logarithm of the quadrature weights is added to the scores, which makes the average independent of how
    densely a region is sampled.
    """

    def __init__(self, dim: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.of_points, self.of_latent = MLP(dim, width, width), MLP(dim, width, width)
        self.of_values = MLP(width, width, width)

    def forward(
        self,
        values: Float[Tensor, "batch points width"],
        points: Float[Tensor, "#batch points dim"],
        latent: Float[Tensor, "count dim"],
        weights: Float[Tensor, "#batch points"],
        mask: Bool[Tensor, "#batch points"] | None,
        team: Team | None = None,
    ) -> Float[Tensor, "batch count width"]:
        """Return the averages at the latent points, over the points of the whole team if there is one."""
        batch, n, width = values.shape
        q = self._split(self.of_latent(latent)[None].expand(batch, -1, -1))
        k = self._split(self.of_points(points).expand(batch, -1, -1))
        v = self._split(self.of_values(values))
        bias = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        bias = bias.to(q.dtype)[:, None, None, :]
        if team is not None:
            mixed = _attention_in_team(q, k, v, bias, team)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(batch, 1, q.shape[2], n))
        return mixed.transpose(1, 2).reshape(batch, -1, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _attention_in_team(
    q: Float[Tensor, "batch heads latent width"],
    k: Float[Tensor, "batch heads points width"],
    v: Float[Tensor, "batch heads points width"],
    bias: Float[Tensor, "#batch 1 1 points"],
    team: Team,
) -> Float[Tensor, "batch heads latent width"]:
    """Return softmax(q k^T / sqrt(width) + bias) v with the sums of the softmax over the points of all processes.

    Scores exist for some latent points at a time and are formed again in the backward pass.
    """
    step = max((1 << 22) // (k.shape[0] * k.shape[1] * k.shape[2]), 1)

    def scores(rows: Tensor) -> Tensor:
        return rows @ k.mT / q.shape[-1] ** 0.5 + bias

    def sums(rows: Tensor, top: Tensor) -> Tensor:
        e = torch.exp(scores(rows) - top)
        return torch.cat([e @ v, e.sum(-1, keepdim=True)], -1)

    parts = q.split(step, 2)
    with torch.no_grad():  # the largest score is taken off for the sake of overflow and changes nothing else
        top = team.all_reduce_max(torch.cat([scores(rows).amax(-1, keepdim=True) for rows in parts], 2))
    pairs = zip(parts, top.split(step, 2), strict=True)
    total = team.all_reduce_sum(torch.cat([recompute(sums, *pair) for pair in pairs], 2))
    return total[..., :-1] / total[..., -1:]
