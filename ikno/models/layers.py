"""What models share: settings, positional features, perceptrons, attention, patches, initialization."""

from itertools import pairwise
from typing import Annotated, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ikno.config import Settings
from ikno.errors import UserError
from ikno.linalg import Team

BASE = 100.0  # of the rotary frequencies: axes have tens of latent points, texts thousands of words

Width = Annotated[int, Field(ge=1, le=65536)]  # of a layer, as a setting
Count = Annotated[int, Field(ge=1, le=1000)]  # of layers and the like

Tokens = Float[Tensor, "batch tokens width"]
InHeads = Float[Tensor, "batch heads tokens channels"]
Rotation = Float[Tensor, "2 tokens pairs"]
OnGrid = Float[Tensor, "batch *grid width"]
Patches = Float[Tensor, "batch patches all_channels"]
T = TypeVar("T")


class HeadedSettings(Settings):
    """Settings of models with attention heads, which divide a width."""

    head_widths: ClassVar[dict[str, str]] = {"num_heads": "d_model"}

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> "HeadedSettings":
        for name, of in self.head_widths.items():
            heads, width = getattr(self, name), getattr(self, of)
            if width % heads:
                raise ValueError(f"{of} ({width}) must be a multiple of {name} ({heads})")
        return self


def per_axis(setting: str, value: T | tuple[T, ...], dim: int) -> tuple[T, ...]:
    """Return the values of a setting along each axis; a single one serves all axes."""
    values = value if isinstance(value, tuple) else (value,) * dim
    if len(values) != dim:
        raise UserError(f"model.{setting}: one value or one for each of the {dim} axes is needed, found {value}")
    return values


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
    """A perceptron with layers of these widths: Linear, GELU, ..., Linear."""

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


def grid_rotation(size: tuple[int, ...], width: int) -> Rotation:
    """Return cosine and sine of the rotary angles of the points of a grid, for heads of this width.

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


def rotated(x: InHeads, rotation: Rotation) -> InHeads:
    """Return x with the pairs (i, pairs + i) of its channels turned by their angles."""
    a, b = x.chunk(2, -1)
    cos, sin = rotation.to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def recompute(function, *arguments):
    """Call a function and keep only its inputs; the backward pass calls it again."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


def split_heads(x: Tokens, heads: int) -> InHeads:
    """Return the channels of each head."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def merge_heads(x: InHeads) -> Tokens:
    """Undo ``split_heads``."""
    return x.transpose(1, 2).flatten(2)


def attend(
    q: Float[Tensor, "batch queries width"],
    k: Tokens,
    v: Tokens,
    heads: int,
    rotation: Rotation | None = None,
    mask: Bool[Tensor, "_ 1 1 tokens"] | Float[Tensor, "_ 1 1 tokens"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch queries width"]:
    """Return softmax(q k^T / sqrt(channels) + mask) v in each head, with the tokens at the places of a rotation."""
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    if rotation is not None:
        q, k = rotated(q, rotation), rotated(k, rotation)
    if mask is not None:
        mask = mask.expand(len(q), 1, q.shape[2], -1)
    return merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout))


def to_patches(x: OnGrid, patch: int) -> Patches:
    """Return the values of each patch of ``patch`` x ... x ``patch`` grid points side by side."""
    dim = x.ndim - 2
    cut = [n for size in x.shape[1:-1] for n in (size // patch, patch)]
    order = [0, *range(1, 2 * dim, 2), *range(2, 2 * dim + 1, 2), 2 * dim + 1]
    return x.reshape(len(x), *cut, x.shape[-1]).permute(order).flatten(dim + 1).flatten(1, dim)


def from_patches(patches: Patches, size: tuple[int, ...], patch: int) -> OnGrid:
    """Undo ``to_patches`` on a grid of this size."""
    dim = len(size)
    x = patches.reshape(len(patches), *(n // patch for n in size), *(patch,) * dim, -1)
    order = [0, *(axis for j in range(1, dim + 1) for axis in (j, dim + j)), 2 * dim + 1]
    return x.permute(order).reshape(len(patches), *size, -1)


def keep_scale(layer: nn.Linear) -> None:
    """Initialize a linear map so that its outputs are as large as its inputs, without bias."""
    nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


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
        q = self.of_latent(latent).expand(len(values), -1, -1)
        k, v = self.of_points(points).expand(len(values), -1, -1), self.of_values(values)
        bias = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        bias = bias.to(q.dtype)[:, None, None, :]
        if team is None:
            return attend(q, k, v, self.heads, mask=bias)
        q, k, v = (split_heads(x, self.heads) for x in (q, k, v))
        return merge_heads(_attention_in_team(q, k, v, bias, team))


def _attention_in_team(
    q: Float[Tensor, "batch heads latent _"], k: InHeads, v: InHeads, bias: Float[Tensor, "_ 1 1 tokens"], team: Team
) -> Float[Tensor, "batch heads latent _"]:
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
    with torch.no_grad():  # subtracting the largest score avoids overflow and changes nothing else
        top = team.all_reduce_max(torch.cat([scores(rows).amax(-1, keepdim=True) for rows in parts], 2))
    pairs = zip(parts, top.split(step, 2), strict=True)
    total = team.all_reduce_sum(torch.cat([recompute(sums, *pair) for pair in pairs], 2))
    return total[..., :-1] / total[..., -1:]
