"""Processors map the latent grid to itself, between the sums from the points and those to the queries.

A processor is called as ``processor(latent, condition)``; the condition (time, lead, all that is constant over a cloud)
scales and shifts its norms. ``attention`` sees all latent points as tokens. ``kernels`` mixes along the axes of the
grid with resolvents of learned kernels, which costs less and has fewer parameters.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.models.layers import (
    MLP,
    Count,
    OnGrid,
    Rotation,
    Tokens,
    attend,
    from_patches,
    grid_rotation,
    recompute,
    to_patches,
)
from ikno.registry import Registry

Condition = Float[Tensor, "batch conditions"]


# Called as ``processor(size, width, settings, conditions)``: the latent grid, its channels, the settings of the model,
# and the number of conditions.
PROCESSORS: Registry[Callable[[tuple[int, ...], int, Any, int], nn.Module]] = Registry("processor", "model.processor")


class ProcessorSettings(Settings):
    """Sizes of a processor.

    ``free``: what the processor ``kernels`` adds to its kernels: nothing, a learned profile of the distance, a free
    matrix, or both; only: free matrices in place of kernels. ``free_decay`` is the weight decay of these matrices,
    times the learning rate; 0: that of all parameters.
    """

    num_layers: Annotated[int, Field(ge=0, le=1000)] = 12
    num_heads: PositiveInt = 8
    ff_mult: Count = 4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checkpointing: bool = False
    patch_size: PositiveInt = 1
    positions: Literal["none", "rotary"] = "none"
    free: Literal["none", "profile", "added", "both", "only"] = "profile"
    free_decay: NonNegativeFloat = 0.0
    head_scales: tuple[PositiveFloat, PositiveFloat] = (1.0, 16.0)
    head_alpha: PositiveFloat = 1.0


class Modulation(nn.Module):
    """Scales s and shifts b of all norms of a processor, a perceptron of the condition: norm(v) (1 + s) + b.

    The last map starts at zero, so that at first the condition changes nothing.
    """

    def __init__(self, conditions: int, norms: int, width: int, hidden: int = 64) -> None:
        super().__init__()
        self.norms, self.width = norms, width
        self.mlp = MLP(conditions, hidden, norms * 2 * width)
        nn.init.zeros_(self.mlp.last.weight)
        nn.init.zeros_(self.mlp.last.bias)

    def forward(self, condition: Condition) -> Float[Tensor, "norms 2 batch width"]:
        """Return scale and shift of every norm."""
        return self.mlp(condition).view(-1, self.norms, 2, self.width).permute(1, 2, 0, 3)


def modulated(
    v: Float[Tensor, "batch *space width"], modulation: Float[Tensor, "2 batch width"] | None
) -> Float[Tensor, "batch *space width"]:
    """Return v (1 + s) + b; v itself where there is no condition."""
    if modulation is None:
        return v
    scale, shift = modulation.view(2, v.shape[0], *(1,) * (v.ndim - 2), v.shape[-1])
    return torch.addcmul(v + shift, v, scale)


class Block(nn.Module):
    """Pre-norm block: v + mixer(norm(v), how), then v + perceptron(norm(v)). Processors differ in the mixer.

    ``how`` is what the processor computes once for this block (a rotation, matrices), or None.
    """

    def __init__(self, width: int, ff_mult: int, dropout: float, mixer: nn.Module) -> None:
        super().__init__()
        self.dropout = dropout
        self.mix_norm = nn.LayerNorm(width)
        self.mixer = mixer
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, ff_mult * width, width)

    def forward(self, v: Tensor, how: Any = None, modulation: Float[Tensor, "2 2 batch width"] | None = None) -> Tensor:
        """Return the mixed values."""
        first, second = (None, None) if modulation is None else modulation
        v = v + self._drop(self.mixer(modulated(self.mix_norm(v), first), how))
        return v + self._drop(self.mlp(modulated(self.mlp_norm(v), second)))

    def _drop(self, v: Tensor) -> Tensor:
        return F.dropout(v, self.dropout, self.training) if self.dropout else v


class Stack(nn.Module):
    """Blocks in a row, each with two norms that the condition modulates, and a closing norm: the base of processors.

    It takes care of conditions, dropout and checkpointing. ``kept`` is for the estimate of the memory: numbers per
    latent point and channel that a block keeps for the backward pass, beside those of its perceptron.
    """

    kept = 9

    def __init__(
        self, width: int, settings: ProcessorSettings, conditions: int, mixer: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        s = settings
        self.conditions, self.checkpointing = conditions, s.checkpointing
        self.blocks = nn.ModuleList(Block(width, s.ff_mult, s.dropout, mixer()) for _ in range(s.num_layers))
        self.norm = nn.LayerNorm(width)
        self.modulation = Modulation(conditions, 2 * s.num_layers, width) if conditions and s.num_layers else None

    def forward(self, latent: OnGrid, condition: Condition | None = None) -> OnGrid:
        """Return the processed grid."""
        return self.stacked(latent, condition)

    def stacked(self, v: Tensor, condition: Tensor | None, hows: Sequence[Any] | None = None) -> Tensor:
        """Return v after all blocks; ``hows`` has the second argument of the mixer of each block, by default None."""
        given = 0 if condition is None else condition.shape[-1]
        if given != self.conditions:
            raise ValueError(f"the processor was made for {self.conditions} conditions, found {given}")
        modulation: Sequence[Any] = [None] * len(self.blocks)
        if self.modulation is not None:
            modulation = self.modulation(condition).to(v.dtype).split(2)
        for block, how, m in zip(self.blocks, hows or [None] * len(self.blocks), modulation, strict=True):
            v = recompute(block, v, how, m) if self.checkpointing else block(v, how, m)
        return self.norm(v)


class SelfAttention(nn.Module):
    """out(softmax(q k^T / sqrt(channels)) v) in each head, over all tokens."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tokens, rotation: Rotation | None = None) -> Tokens:
        """Return the mixed tokens; a rotation gives attention the relative positions of the tokens."""
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(attend(q, k, v, self.heads, rotation, dropout=self.dropout if self.training else 0.0))


@PROCESSORS.register("attention")
class Attention(Stack):
    """A transformer whose tokens are latent points, or patches of p x ... x p of them. Paper: TransformerEncoder."""

    def __init__(self, size: tuple[int, ...], width: int, settings: ProcessorSettings, conditions: int = 0) -> None:
        s = settings
        super().__init__(width, s, conditions, lambda: SelfAttention(width, s.num_heads, s.dropout))
        p = s.patch_size
        if any(n % p for n in size):
            raise UserError(f"model.patch_size: {p} does not divide the latent grid {size}; change one of the two")
        self.patch = p
        self.join = nn.Linear(p ** len(size) * width, width) if p > 1 else nn.Identity()
        self.part = nn.Linear(width, p ** len(size) * width) if p > 1 else nn.Identity()
        places = tuple(n // p for n in size)
        rotation = grid_rotation(places, width // s.num_heads) if s.positions == "rotary" else None
        self.rotation: Tensor | None
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, latent: OnGrid, condition: Condition | None = None) -> OnGrid:
        """Return the processed grid."""
        v = self.join(to_patches(latent, self.patch))
        v = self.part(self.stacked(v, condition, [self.rotation] * len(self.blocks)))
        return from_patches(v, tuple(latent.shape[1:-1]), self.patch)


class AxisKernels(nn.Module):
    """Resolvents of learned kernels along one axis, one for each head of each layer:

        R = (I + a K)^-1 K / g,   K_xy = c (exp(-(beta (x - y))^2) + exp(-gamma |x - y|)),

    x and y on ``count`` places from -1 to 1, g the mean of the row sums, so that constants keep their size. This is the
    infinite-order kernel K + (-a) K^2 + (-a)^2 K^3 + ... of a positive definite K, and a > 0: it always exists. The
    scales beta and gamma of the heads start in geometric progression; all parameters are kept positive by a softplus.

    ``free`` adds what a positive kernel cannot represent: a profile p(|x - y|) of either sign, one number per distance,
    any matrix, or both. They start at zero; a matrix with a decay stays there unless the data requires more. With
    ``only``, matrices replace the resolvents and start equal to them.
    """

    def __init__(self, count: int, layers: int, settings: ProcessorSettings) -> None:
        super().__init__()
        s, heads = settings, settings.num_heads
        low, high = s.head_scales
        scales = torch.tensor([low * (high / low) ** (h / max(heads - 1, 1)) for h in range(heads)])
        places, steps = torch.linspace(-1, 1, count), torch.arange(count)
        self.distance: Tensor
        self.steps: Tensor
        self.register_buffer("distance", (places[:, None] - places).abs(), persistent=False)
        self.register_buffer("steps", (steps[:, None] - steps).abs(), persistent=False)
        start, ones = scales.expand(layers, heads), torch.ones(layers, heads)
        self.raw_beta, self.raw_gamma = nn.Parameter(_softplus_inverse(start)), nn.Parameter(_softplus_inverse(start))
        self.raw_c, self.raw_alpha = (
            nn.Parameter(_softplus_inverse(ones)),
            nn.Parameter(_softplus_inverse(s.head_alpha * ones)),
        )
        self.only, self.decay = s.free == "only", s.free_decay
        self.profile = nn.Parameter(torch.zeros(layers, heads, count)) if s.free in ("profile", "both") else None
        self.matrix = nn.Parameter(torch.zeros(layers, heads, count, count)) if s.free in ("added", "both") else None
        if self.only:
            self.matrix = nn.Parameter(self.resolvents().detach())
            del self.raw_beta, self.raw_gamma, self.raw_c, self.raw_alpha

    def own_decay(self) -> list[tuple[nn.Parameter, float]]:
        """Return the parameters with a weight decay of their own, each with this decay."""
        return [(self.matrix, self.decay)] if self.matrix is not None and self.decay else []

    def resolvents(self) -> Float[Tensor, "layers heads count count"]:
        """Return R of all layers and heads, found in float64."""
        raw = torch.stack([self.raw_c, self.raw_beta, self.raw_gamma, self.raw_alpha])
        c, beta, gamma, alpha = F.softplus(raw.double())[..., None, None]
        distance = self.distance.double()
        kernel = c * (torch.exp(-((beta * distance) ** 2)) + torch.exp(-gamma * distance))
        resolvent = torch.linalg.solve(torch.eye(len(distance)).to(kernel) + alpha * kernel, kernel)
        return (resolvent / resolvent.sum(-1).mean(-1)[..., None, None]).to(raw.dtype)

    def forward(self) -> Float[Tensor, "layers heads count count"]:
        """Return the matrices that mix the values along this axis."""
        if self.only and self.matrix is not None:
            return self.matrix
        mixing = self.resolvents()
        if self.profile is not None:
            mixing = mixing + self.profile[..., self.steps]
        return mixing if self.matrix is None else mixing + self.matrix


class AxisMixing(nn.Module):
    """out(gelu((R_1 (x) ... (x) R_d) in(v))) with matrices of its own in each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, v: OnGrid, matrices: Sequence[Float[Tensor, "heads _ _"]]) -> OnGrid:
        """Return the mixture along all axes."""
        return self.out(F.gelu(along_axes(matrices, self.inner(v))))


@PROCESSORS.register("kernels")
class Kernels(Stack):
    """Layers of infinite-order kernels on the latent grid: v + out(gelu((R_1 (x) ... (x) R_d) in(norm(v)))), then
    v + perceptron(norm(v)).

    Kernels with few parameters generalize, free matrices learn fast; a profile and free matrices that decay do both.
    """

    def __init__(self, size: tuple[int, ...], width: int, settings: ProcessorSettings, conditions: int = 0) -> None:
        super().__init__(width, settings, conditions, lambda: AxisMixing(width))
        self.kept = 8 + 2 * len(size)
        self.axes = nn.ModuleList(AxisKernels(n, settings.num_layers, settings) for n in size)

    def forward(self, latent: OnGrid, condition: Condition | None = None) -> OnGrid:
        """Return the processed grid."""
        with torch.autocast(latent.device.type, enabled=False):
            matrices = [axis() for axis in self.axes]
        return self.stacked(latent, condition, list(zip(*matrices, strict=True)))


def along_axes(matrices: Sequence[Float[Tensor, "heads _ _"]], values: OnGrid) -> OnGrid:
    """Return (R_1 (x) ... (x) R_d) v in each head: the h-th of them is the h-th part of the channels."""
    batch, size, width = values.shape[0], values.shape[1:-1], values.shape[-1]
    heads, dim = matrices[0].shape[0], len(size)
    # [heads, axes, batch, channels]; the axis in front is mixed and goes behind the others
    v = values.reshape(batch, *size, heads, width // heads).permute(dim + 1, *range(1, dim + 1), 0, dim + 2)
    for matrix in matrices:
        shape = v.shape
        v = torch.bmm(matrix.to(v.dtype), v.reshape(heads, shape[1], -1)).view(shape)
        v = v.permute(0, *range(2, dim + 1), 1, dim + 1, dim + 2)
    return v.permute(dim + 1, *range(1, dim + 1), 0, dim + 2).reshape(values.shape)


def _softplus_inverse(values: Tensor) -> Tensor:
    return values + torch.log(-torch.expm1(-values))
