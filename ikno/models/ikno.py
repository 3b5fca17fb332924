"""IKNO: tokens on a cloud -> latent grid -> transformer -> any query points, all through infinite-order kernels.

V_G  = K_inf K_GP V_P,   V'_G = TransformerEncoder(V_G),   u(x) = MLP_head(k(x)^T K_inf V'_G)
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.linalg import (
    RESOLVENTS,
    Cloud,
    Contraction,
    Grid,
    Team,
    contraction,
    density_weights,
    locate,
)
from ikno.models.kernels import BaseKernel, LinearWindow
from ikno.models.layers import MLP, CrossAttention, NerfFeatures, Transformer, Width, grid_rotation, recompute

# The transformer sees every latent point as a token: more than this is a slip of the hand, not a model.
MAX_GRID = 1_000_000

Affine = tuple[Float[Tensor, "outputs inputs"], Float[Tensor, "outputs"]]
ResolventName = Literal["tensor_product", "vanilla", "truncated", "dense"]


class IKNOSettings(Settings):
    """The paper's parameter table (first block) and what the paper leaves open (second block)."""

    d_model: Width = 256
    num_heads: PositiveInt = 8
    num_layers: Annotated[int, Field(ge=0, le=1000)] = 12
    ff_mult: Annotated[int, Field(ge=1, le=1000)] = 4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nerf_frequencies: Annotated[int, Field(ge=0, le=1000)] = 1
    nerf_include_input: bool = True
    nerf_log_sampling: bool = True
    nerf_scale: PositiveFloat = 1.0
    grid_size: PositiveInt | tuple[PositiveInt, ...] = 24
    grid_min: float | tuple[float, ...] = -1.0
    grid_max: float | tuple[float, ...] = 1.0
    num_kernels: Annotated[int, Field(ge=1, le=1000)] = 3
    kernel_alpha: tuple[float, ...] = (-1.0, -1.0, -1.0)
    kernel_alpha_grad: bool = True
    init_scales_l1: tuple[PositiveFloat, ...] = (1.0, 2.0, 4.0)
    init_scales_l2: tuple[PositiveFloat, ...] = (1.0, 2.0, 4.0)
    scales_grad: bool = True

    kernel: Literal["base", "linear_window"] = "base"
    window_radius: PositiveFloat = 0.2
    alpha_sign: Literal["keep", "free"] = "keep"
    encoder: Literal["kernel", "cross_attention"] = "kernel"
    resolvent: ResolventName = "tensor_product"
    decoder_resolvent: ResolventName | None = None
    order: Annotated[int, Field(ge=0)] = 1
    normalize_branches: bool = True
    positions: Literal["none", "rotary"] = "none"
    point_weights: Literal["uniform", "density", "sum"] = "uniform"
    contraction: Literal["auto", "dense", "local"] = "auto"
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    checkpointing: bool = False
    point_chunk: PositiveInt = 65536

    @model_validator(mode="after")
    def _consistent(self) -> "IKNOSettings":
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads})")
        if not self.nerf_include_input and self.nerf_frequencies == 0:
            raise ValueError("nerf_include_input=False needs nerf_frequencies of at least 1: no coordinates are left")
        for name, value in (("kernel_alpha", -1.0), ("init_scales_l1", 2.0), ("init_scales_l2", 2.0)):
            if name not in self.model_fields_set:
                filled = (value,) * self.num_kernels if value < 0 else tuple(value**q for q in range(self.num_kernels))
                object.__setattr__(self, name, filled)
            elif len(getattr(self, name)) != self.num_kernels:
                raise ValueError(f"{name} needs num_kernels = {self.num_kernels} values, found {getattr(self, name)}")
        if self.alpha_sign == "keep" and 0 in self.kernel_alpha:
            raise ValueError("an alpha of 0 has no sign to keep; use a nonzero kernel_alpha or alpha_sign='free'")
        return self

    def grid(self, dim: int) -> Grid:
        """Return the latent grid in ``dim`` dimensions; single numbers serve all axes."""
        axes = {}
        for name in ("grid_size", "grid_min", "grid_max"):
            value = getattr(self, name)
            axes[name] = value if isinstance(value, tuple) else (value,) * dim
            if len(axes[name]) != dim:
                raise UserError(f"model.{name}: one value or one for each of the {dim} axes is needed, found {value}")
        if prod(axes["grid_size"]) > MAX_GRID:
            raise UserError(f"model.grid_size: at most {MAX_GRID:,} latent points, found {prod(axes['grid_size']):,}")
        if any(a >= b for a, b in zip(axes["grid_min"], axes["grid_max"], strict=True)):
            raise UserError(f"model.grid_min: must lie below grid_max, found {self.grid_min} and {self.grid_max}")
        return Grid(*axes.values())


class IKNO(nn.Module):
    """Infinite-order kernel neural operator, and through its settings the finite and ablated relatives in the paper.

    Called as ``model(features, points, queries)`` in coordinates of the latent grid's box; values at points outside the
    box are defined too. ``encode`` and ``decode`` are its two halves. With a ``team`` of processes each calls it
    with its own part of the points, and the values are those of the whole cloud: sums over points are exchanged.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: IKNOSettings | None = None) -> None:
        super().__init__()
        s = self.settings = settings or IKNOSettings()
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, dim
        self.team: Team | None = None
        self.grid = s.grid(dim)
        width = s.d_model
        self.nerf = NerfFeatures(s.nerf_frequencies, s.nerf_include_input, s.nerf_log_sampling, s.nerf_scale)
        self.embedding = MLP(self.nerf.width(dim) + in_channels, width, width)
        self.kernels = nn.ModuleList(_kernels(s, dim))
        branches = len(self.kernels) * width
        self.attention = CrossAttention(dim, width, s.num_heads) if s.encoder == "cross_attention" else None
        self.encoder_fusion = _fusion(branches if self.attention is None else width, width, s.normalize_branches)
        self.transformer = Transformer(width, s.num_heads, s.num_layers, s.ff_mult, s.dropout, s.checkpointing)
        rotation = grid_rotation(self.grid.size, width // s.num_heads) if s.positions == "rotary" else None
        self.rotation: Tensor | None
        self.register_buffer("rotation", rotation, persistent=False)
        self.decoder_fusion = _fusion(branches, width, s.normalize_branches)
        self.head = MLP(width, width, out_channels)

    def forward(
        self,
        features: Float[Tensor, "batch points channels"],
        points: Float[Tensor, "#batch points dim"] | Cloud,
        queries: Float[Tensor, "#batch queries dim"] | Cloud | None = None,
        weights: Float[Tensor, "#batch points"] | None = None,
        mask: Bool[Tensor, "#batch points"] | None = None,
    ) -> Float[Tensor, "batch queries out_channels"]:
        """Return the values at the queries, by default at the points themselves (zero where these are masked)."""
        cloud = self.locate(points, mask)
        state = self.encode(features, cloud, weights, mask)
        values = self.decode(state, cloud if queries is None else queries)
        return values if queries is not None or mask is None else values * mask[..., None]

    def locate(
        self, points: Float[Tensor, "clouds points dim"] | Cloud, mask: Bool[Tensor, "_ points"] | None = None
    ) -> Cloud:
        """Return the points sorted into the cells of the latent grid: worth keeping if the same cloud comes again."""
        if isinstance(points, Cloud):
            return points
        own = mask is not None and mask.shape[0] == points.shape[0]
        return locate(points.to(self._dtype), self.grid, mask if own else None, self.team)

    def encode(
        self,
        features: Float[Tensor, "batch points channels"],
        points: Float[Tensor, "#batch points dim"] | Cloud,
        weights: Float[Tensor, "#batch points"] | None = None,
        mask: Bool[Tensor, "#batch points"] | None = None,
    ) -> Float[Tensor, "batch *grid width"]:
        """Return the processed latent grid V'_G, all that is needed to decode at any number of query points.

        ``weights`` are quadrature weights of the points in any unit (cell volumes, for instance); they are scaled to
        sum to the number of grid points, so that refining a cloud leaves the sums unchanged.
        """
        cloud = self.locate(points, mask)
        self._check(features, cloud)
        if mask is not None:
            features = features.masked_fill(~mask[..., None], 0)
        weights = self._weights(cloud, weights, mask)
        latent = self._to_latent(features, cloud, weights, mask)
        tokens = self.transformer(latent.flatten(1, -2), self.rotation)
        return tokens.view(latent.shape)

    def decode(
        self, state: Float[Tensor, "batch *grid width"], queries: Float[Tensor, "#batch queries dim"] | Cloud
    ) -> Float[Tensor, "batch queries out_channels"]:
        """Return the values at the queries."""
        form = self._contraction(self.locate(queries))
        with torch.autocast(state.device.type, enabled=False):
            state = state.to(self._dtype)[:, None].expand(-1, len(self.kernels), *state.shape[1:])
            grids = self._resolve(state, self.settings.decoder_resolvent)
            if self._fuses_on_grid:
                weights = self._decoder_mlp.first.weight.unflatten(1, (len(self.kernels), -1))
                grids = torch.einsum("bq...c,dqc->bq...d", grids, weights)
            branches = form.to_points(grids, summed=self._fuses_on_grid).flatten(2)
        read = partial(self._read, _composed(self._decoder_mlp.last, self.head.first))
        return self._in_chunks(read, branches)

    def _to_latent(self, features: Tensor, cloud: Cloud, weights: Tensor, mask: Tensor | None) -> Tensor:
        """Return the fused latent features V_G before the transformer."""
        inputs = self._inputs(features, cloud)
        if self.attention is not None:
            everywhere = weights.expand(-1, cloud.shape[1])
            tokens, latent = self.embedding(inputs), self.grid.points(cloud.points)
            mixed = self.attention(tokens, cloud.points, latent, everywhere, mask, cloud.team)
            return self.encoder_fusion(mixed).view(mixed.shape[0], *self.grid.size, -1)
        # Tokens are v = W h + b: the sums are taken of (h, 1), and (W, b) waits for the grid, which is smaller.
        hidden = self._in_chunks(self.embedding.hidden, inputs)
        with torch.autocast(features.device.type, enabled=False):
            hidden = F.pad(hidden.to(self._dtype), (0, 1), value=1.0)
            equal = weights.shape[1] == 1  # a factor on the grid
            sums = self._contraction(cloud).to_grid(hidden if equal else hidden * weights[..., None])
            if equal:
                sums = sums * weights.view(-1, *(1,) * (self.dim + 2))
            resolved = self._resolve(sums, self.settings.resolvent)
            if cloud.team is not None:  # all before is linear in the sums over points, so their parts may be added here
                resolved = cloud.team.total(resolved)
        last = self.embedding.last
        branches = F.linear(resolved.movedim(1, -2), torch.cat([last.weight, last.bias[:, None]], 1))
        return self.encoder_fusion(branches.flatten(-2))

    def _inputs(self, features: Tensor, cloud: Cloud) -> Tensor:
        """Return (psi(x), a(x)), of which tokens are made: v(x) = MLP(psi(x), a(x))."""
        psi = self.nerf(cloud.points).expand(features.shape[0], -1, -1)
        return torch.cat([psi, features.to(psi.dtype)], -1)

    def _read(self, to_head: Affine, branches: Tensor) -> Tensor:
        """Return the values for what has arrived at the queries."""
        if self._fuses_on_grid:
            hidden = F.gelu(branches + self._decoder_mlp.first.bias)
        else:
            hidden = self._decoder_mlp.hidden(self.decoder_fusion[0](branches))
        return self.head.last(F.gelu(F.linear(hidden, *to_head)))

    def _in_chunks(self, function: Callable[[Tensor], Tensor], x: Float[Tensor, "batch points width"]) -> Tensor:
        """Return a function of each point, ``point_chunk`` of them at a time, which bounds the memory."""
        again = self.settings.checkpointing and torch.is_grad_enabled()
        parts = [recompute(function, p) if again else function(p) for p in x.split(self.settings.point_chunk, 1)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _contraction(self, cloud: Cloud) -> Contraction:
        return contraction(self.branches, cloud, self.settings.contraction, self.settings.tolerance)

    @property
    def _fuses_on_grid(self) -> bool:
        """Whether the decoder's fusion begins with a linear map of all branches.

        It then acts on the grid, where there are fewer points, and a single sum over the branches goes to the queries.
        """
        return not self.settings.normalize_branches

    @property
    def _decoder_mlp(self) -> MLP:
        mlp = self.decoder_fusion if self._fuses_on_grid else self.decoder_fusion[1]
        assert isinstance(mlp, MLP)
        return mlp

    def _resolve(
        self, v: Float[Tensor, "batch kernels *grid width"], name: ResolventName | None
    ) -> Float[Tensor, "batch kernels *grid width"]:
        """Apply the resolvent of each kernel to its own grid values."""
        name = name or self.settings.resolvent
        factors = [k.factors(self.grid) for k in self.branches]
        alphas = [k.alpha for k in self.branches]
        by_factor = v.reshape(*v.shape[:2], *(k.shape[0] for k in factors[0]), v.shape[-1])
        if name == "tensor_product":  # of all kernels at once
            stacked = [torch.stack(axis) for axis in zip(*factors, strict=True)]
            return RESOLVENTS[name](stacked, torch.stack(alphas))(by_factor).view(v.shape)
        resolvent = partial(RESOLVENTS[name], order=self.settings.order) if name == "truncated" else RESOLVENTS[name]
        pairs = zip(factors, alphas, strict=True)
        resolved = [resolvent(k, alpha)(by_factor[:, q]) for q, (k, alpha) in enumerate(pairs)]
        return torch.stack(resolved, 1).view(v.shape)

    def _weights(self, cloud: Cloud, weights: Tensor | None, mask: Tensor | None) -> Float[Tensor, "clouds _"]:
        """Return the weights of the sum over points, which add up to the number M of grid points, except for ``sum``.

        A single column where all points have the same weight.
        """
        rule = self.settings.point_weights
        if weights is None and mask is None and rule != "density":
            weights = cloud.points.new_ones(cloud.shape[0], 1)
            sums = weights * cloud.shape[1]
        else:
            weights = self._given_weights(cloud, weights, mask)
            sums = weights.sum(1, keepdim=True)
        if rule == "sum":
            return weights
        if cloud.team is not None:
            sums = cloud.team.total(sums)
        return weights * (self.grid.count / sums.clamp(min=torch.finfo(weights.dtype).tiny))

    def _given_weights(self, cloud: Cloud, weights: Tensor | None, mask: Tensor | None) -> Float[Tensor, "clouds _"]:
        """Return the weights of each point in any unit, 0 where it is masked."""
        if weights is not None:
            weights = weights.to(self._dtype)
        elif self.settings.point_weights != "density":
            weights = torch.ones_like(cloud.points[..., 0])
        elif cloud.cells is None:
            raise UserError(
                "points: they lie so far outside the domain that their density cannot be told; remove those far away, "
                "or train with model.point_weights=uniform"
            )
        else:
            weights = density_weights(cloud)
        return weights if mask is None else weights * mask

    def _check(self, features: Tensor, cloud: Cloud) -> None:
        if features.shape[2] != self.in_channels:
            raise ValueError(f"the model takes {self.in_channels} feature channels, found {features.shape[2]}")
        if features.shape[1] != cloud.shape[1] or cloud.shape[0] not in (1, features.shape[0]):
            raise ValueError(f"features {tuple(features.shape)} and points {tuple(cloud.shape)} do not belong together")

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def branches(self) -> list[BaseKernel | LinearWindow]:
        """The kernels, one per branch, with their learned scales and decay coefficients."""
        return [k for k in self.kernels if isinstance(k, BaseKernel | LinearWindow)]


def _kernels(s: IKNOSettings, dim: int) -> list[BaseKernel | LinearWindow]:
    if s.kernel == "linear_window":
        return [LinearWindow(s.window_radius, alpha) for alpha in s.kernel_alpha]
    parameters = zip(s.kernel_alpha, s.init_scales_l1, s.init_scales_l2, strict=True)
    options = {"alpha_grad": s.kernel_alpha_grad, "scales_grad": s.scales_grad, "alpha_sign": s.alpha_sign}
    return [BaseKernel(dim, alpha, l1, l2, **options) for alpha, l1, l2 in parameters]


def _composed(first: nn.Linear, second: nn.Linear) -> Affine:
    """Return weight and bias of the second map after the first: one product per point instead of two."""
    return second.weight @ first.weight, second.weight @ first.bias + second.bias


def _fusion(inputs: int, width: int, normalize: bool) -> nn.Sequential:
    mlp = MLP(inputs, width, width)
    return nn.Sequential(nn.LayerNorm(inputs), mlp) if normalize else mlp
