"""IKNO: tokens on a cloud -> latent grid -> processor -> any query points, all through infinite-order kernels.

V_G  = K_inf K_GP V_P,   V'_G = Processor(V_G),   u(x) = MLP_head(k(x)^T K_inf V'_G)
"""

from collections.abc import Callable
from math import prod
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.linalg import Cells, Cloud, Grid, Team, density_weights, locate
from ikno.models.kernels import KERNELS
from ikno.models.layers import MLP, Count, CrossAttention, HeadedSettings, NerfFeatures, Width, per_axis, recompute
from ikno.models.processors import PROCESSORS, ProcessorSettings
from ikno.models.propagation import Propagation, ResolventName, propagation
from ikno.models.stretching import Stretching
from ikno.models.system import Features, Mask, Values, Weights

# The processor sees every latent point: more than this is a typing error.
MAX_GRID = 1_000_000
MARGIN = 2  # cells around the grid in which a folded model is exact

Points = Float[Tensor, "#batch points dim"] | Cloud
Queries = Float[Tensor, "#batch queries dim"] | Cloud
Latent = Float[Tensor, "batch *grid width"]


class IKNOSettings(ProcessorSettings, HeadedSettings):
    """The parameter table of the paper (first block) and what the paper leaves open (second block).

    Kernels start with the scales ``first_scale`` times 1, 2, 4, ..., unless they are given. ``point_width``: channels
    that travel between points and grid; None: ``d_model``, as published. ``conditions``: how many of the last features
    (time, lead), or the indices of features, are constant over a cloud; they scale and shift the norms of the
    processor. ``stretching``: positions along each axis between which the latent grid has equally many lines; None: the
    grid is regular, as published; auto: training chooses it from the points, and without training it is regular.
    """

    d_model: Width = 256
    nerf_frequencies: Annotated[int, Field(ge=0, le=1000)] = 1
    nerf_include_input: bool = True
    nerf_log_sampling: bool = True
    nerf_scale: PositiveFloat = 1.0
    grid_size: PositiveInt | tuple[PositiveInt, ...] = 24
    grid_min: float | tuple[float, ...] = -1.0
    grid_max: float | tuple[float, ...] = 1.0
    num_kernels: Count = 3
    kernel_alpha: tuple[float, ...] = (-1.0, -1.0, -1.0)
    kernel_alpha_grad: bool = True
    init_scales_l1: tuple[PositiveFloat, ...] = (1.0, 2.0, 4.0)
    init_scales_l2: tuple[PositiveFloat, ...] = (1.0, 2.0, 4.0)
    scales_grad: bool = True

    kernel: str = "base"
    window_radius: PositiveFloat = 0.2
    alpha_sign: Literal["keep", "free"] = "keep"
    encoder: Literal["kernel", "cross_attention"] = "kernel"
    resolvent: ResolventName = "tensor_product"
    decoder_resolvent: ResolventName | None = None
    order: Annotated[int, Field(ge=0)] = 1
    normalize_branches: bool = True
    first_scale: PositiveFloat = 1.0
    point_width: Width | None = None
    processor: str = "attention"
    conditions: Annotated[int, Field(ge=0, le=1000)] | tuple[int, ...] = 0
    stretching: Literal["auto"] | tuple[tuple[float, ...], ...] | None = None
    point_weights: Literal["uniform", "density", "sum"] = "uniform"
    contraction: Literal["auto", "dense", "local"] = "auto"
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    point_chunk: PositiveInt = 65536

    @model_validator(mode="after")
    def _consistent(self) -> "IKNOSettings":
        if not self.nerf_include_input and self.nerf_frequencies == 0:
            raise ValueError("nerf_include_input=False needs nerf_frequencies of at least 1: no coordinates are left")
        powers = tuple(self.first_scale * 2.0**q for q in range(self.num_kernels))
        alphas = (-1.0,) * self.num_kernels
        for name, values in (("kernel_alpha", alphas), ("init_scales_l1", powers), ("init_scales_l2", powers)):
            if name not in self.model_fields_set:
                object.__setattr__(self, name, values)
            elif len(getattr(self, name)) != self.num_kernels:
                raise ValueError(f"{name} needs num_kernels = {self.num_kernels} values, found {getattr(self, name)}")
        if self.point_width is not None and (self.encoder != "kernel" or not self.normalize_branches):
            raise ValueError("point_width needs encoder=kernel and normalize_branches=true; or model.point_width=null")
        if self.alpha_sign == "keep" and 0 in self.kernel_alpha:
            raise ValueError("an alpha of 0 has no sign to keep; use a nonzero kernel_alpha or alpha_sign='free'")
        return self

    def grid(self, dim: int) -> Grid:
        """Return the latent grid in ``dim`` dimensions; single numbers serve all axes."""
        size, lower, upper = (per_axis(n, getattr(self, n), dim) for n in ("grid_size", "grid_min", "grid_max"))
        if prod(size) > MAX_GRID:
            raise UserError(f"model.grid_size: at most {MAX_GRID:,} latent points, found {prod(size):,}")
        if any(a >= b for a, b in zip(lower, upper, strict=True)):
            raise UserError(f"model.grid_min: must lie below grid_max, found {self.grid_min} and {self.grid_max}")
        return Grid(size, lower, upper)


class IKNO(nn.Module):
    """Infinite-order kernel neural operator, and through its settings the finite and ablated relatives in the paper.

    Called as ``model(features, points, queries)`` in coordinates of the box of the latent grid; points may lie outside.
    ``encode`` and ``decode`` are its two halves. With a ``team`` of processes each calls it with its own part of the
    points, and the values are those of the whole cloud: sums over points are exchanged.

    Args:
        in_channels: Feature channels at each point; 0 for none.
        out_channels: Variables to predict.
        dim: Dimensions of the points.
        settings: Sizes and options; by default those of the paper.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: IKNOSettings | None = None) -> None:
        super().__init__()
        s = self.settings = settings or IKNOSettings()
        self.in_channels, self.out_channels, self.dim = in_channels, out_channels, dim
        self.team: Team | None = None
        self._folded: dict[str, Propagation] = {}
        self.grid = s.grid(dim)
        self.stretching = None if s.stretching in (None, "auto") else Stretching(s.stretching, dim)
        width, narrow = s.d_model, s.point_width or s.d_model
        self.nerf = NerfFeatures(s.nerf_frequencies, s.nerf_include_input, s.nerf_log_sampling, s.nerf_scale)
        self.embedding = MLP(self.nerf.width(dim) + in_channels, width, narrow)
        self.kernels = nn.ModuleList(KERNELS.find(s.kernel)(s, dim))
        branches = len(self.kernels)
        self.attention = CrossAttention(dim, width, s.num_heads) if s.encoder == "cross_attention" else None
        chosen = tuple(range(-s.conditions, 0)) if isinstance(s.conditions, int) else s.conditions
        if any(not -in_channels <= i < in_channels for i in chosen):
            raise UserError(f"model.conditions: {s.conditions} names features beyond the {in_channels} of the model")
        self.condition_features = sorted({i % in_channels for i in chosen})
        plain = s.point_width is None
        if plain:
            self.encoder_fusion = _fusion(width if self.attention else branches * width, width, s.normalize_branches)
        else:
            self.encoder_fusion = nn.Sequential(nn.LayerNorm(branches * narrow), nn.Linear(branches * narrow, width))
        self.processor = PROCESSORS.find(s.processor)(self.grid.size, width, s, len(self.condition_features))
        wide = branches * width
        self.decoder_fusion = _fusion(wide, width, s.normalize_branches) if plain else nn.Linear(wide, narrow)
        self.head = MLP(narrow, width, out_channels)
        self.register_load_state_dict_pre_hook(lambda module, *_: module._folded.clear())

    def forward(
        self,
        features: Features,
        points: Points,
        queries: Queries | None = None,
        weights: Weights = None,
        mask: Mask = None,
    ) -> Values:
        """Return the values at the queries, by default at the points themselves (zero where these are masked).

        Arguments are those of ``encode`` and ``decode``.
        """
        cloud = self.locate(points, mask)
        there = None if self.attention else self._propagation(cloud, self.settings.resolvent)
        state = self.encode(features, cloud, weights, mask, there)
        if queries is not None:
            return self.decode(state, queries)
        values = self.decode(state, cloud, there if self._decoder_resolvent == self.settings.resolvent else None)
        return values if mask is None else values * mask[..., None]

    def locate(
        self, points: Float[Tensor, "clouds points dim"] | Cloud, mask: Bool[Tensor, "_ points"] | None = None
    ) -> Cloud:
        """Return the points with their cells of the latent grid; keep the result if the cloud is used again."""
        if isinstance(points, Cloud):
            if points.points.dtype != self._dtype or points.fixed != bool(self._folded):
                raise ValueError("the cloud was located by a model of another precision, or before or after `fold`")
            return points
        points = points if self.stretching is None else self.stretching.forward(points)
        if mask is not None and mask.shape[0] > points.shape[0] and self.settings.point_weights == "density":
            points = points.expand(mask.shape[0], -1, -1)  # each sample has a density of its own
        own = mask if mask is not None and mask.shape[0] == points.shape[0] else None
        if self._folded:
            return Cloud(points.to(self._dtype), own, self.grid, self._range, fixed=True)
        return locate(points.to(self._dtype), self.grid, own, self.team)

    def fold(self) -> None:
        """Compute once what depends on the weights alone: tables, resolvents, and the number of nodes of the tables.

        After that the forward pass reads no number from a tensor and has no custom gradient, so it can be exported.
        Points more than ``MARGIN`` cells outside the box are treated as if they were at this distance. ``train`` and
        loading weights undo the folding.

        Raises:
            ValueError: Several processes hold the points, or a resolvent is singular.
        """
        if self.team is not None:
            raise ValueError("a model whose points are held by several processes cannot be folded")
        cloud = Cloud(torch.zeros(1, 1, self.dim).to(self.head.last.weight), None, self.grid, self._range, fixed=True)
        s = self.settings
        with torch.no_grad():
            for name in dict.fromkeys((s.resolvent, self._decoder_resolvent)):
                product = self.branches[0].nodes(self.branches, self.grid, s.tolerance, False) is not None
                method = "local" if product else "dense"
                self._folded[name] = propagation(self.branches, cloud, name, s.order, method, s.tolerance)

    @property
    def _range(self) -> Cells:
        """The cells of the grid and some more on either side."""
        return Cells((-MARGIN,) * self.dim, tuple(max(n - 1, 1) + 2 * MARGIN for n in self.grid.size))

    def train(self, mode: bool = True) -> "IKNO":
        """Set the mode of all parts; training mode undoes ``fold``."""
        if mode:
            self._folded = {}
        return super().train(mode)

    def encode(
        self,
        features: Features,
        points: Points,
        weights: Weights = None,
        mask: Mask = None,
        there: Propagation | None = None,
    ) -> Latent:
        """Return the processed latent grid V'_G, all that is needed to decode at any number of query points.

        Args:
            features: Input functions at the points.
            points: Their coordinates, or a cloud from ``locate``.
            weights: Quadrature weights of the points in any unit (cell volumes, for instance). They are scaled to sum
                to the number of grid points, so that refining a cloud leaves the sums unchanged.
            mask: False at points that only pad a batch.
            there: The sums to the grid, if already computed.
        """
        cloud = self.locate(points, mask)
        if features.shape[2] != self.in_channels:
            raise ValueError(f"the model takes {self.in_channels} feature channels, found {features.shape[2]}")
        if features.shape[1] != cloud.shape[1] or cloud.shape[0] not in (1, features.shape[0]):
            raise ValueError(f"features {tuple(features.shape)} and points {tuple(cloud.shape)} do not belong together")
        if mask is not None:
            features = features.masked_fill(~mask[..., None], 0)
        latent = self._to_latent(features, cloud, self._weights(cloud, weights, mask), mask, there)
        return self.processor(latent, self._condition(features, mask, cloud.team))

    def _condition(self, features: Features, mask: Mask, team: Team | None) -> Float[Tensor, "batch _"] | None:
        """Return the numbers of the whole cloud among the features, which are the same at all of its points."""
        if not self.condition_features:
            return None
        given = torch.stack([features[..., i] for i in self.condition_features], -1).to(self._dtype)
        if mask is None:
            return given.mean(1)
        sums, counts = given.sum(1), mask.sum(1, keepdim=True).to(given.dtype).expand(len(given), 1)
        if team is not None:  # all points of a sample may be in other processes
            sums, counts = team.all_reduce_sum(sums), team.all_reduce_sum(counts)
        return sums / counts.clamp(min=1)

    def decode(self, state: Latent, queries: Queries, back: Propagation | None = None) -> Values:
        """Return the values at the queries.

        Args:
            state: What ``encode`` returned.
            queries: Coordinates, or a cloud from ``locate``.
            back: The sums from the grid, if already computed.
        """
        back = back or self._propagation(self.locate(queries), self._decoder_resolvent)
        first = self._on_grid
        with torch.autocast(state.device.type, enabled=False):
            state = state.to(self._dtype)
            if first is None:
                grids = state[:, None].expand(-1, len(self.kernels), *state.shape[1:])
            else:  # linear maps of the channels commute with the sums: on the grid there are fewer points
                grids = torch.einsum("b...c,dqc->bq...d", state, first.weight.unflatten(1, (len(self.kernels), -1)))
            arrived = back.to_points(grids, summed=first is not None).flatten(2)
            if first is not None:
                arrived = arrived + first.bias
        return self._in_chunks(self._reader(), arrived)

    @property
    def _on_grid(self) -> nn.Linear | None:
        """The first map of the decoder where it is linear: it acts on the grid, and one sum of all branches travels."""
        if isinstance(self.decoder_fusion, nn.Linear):
            return self.decoder_fusion
        return self.decoder_fusion.first if isinstance(self.decoder_fusion, MLP) else None

    def _reader(self) -> Callable[[Tensor], Tensor]:
        """Return the map from what arrives at a query to the values there."""
        if isinstance(self.decoder_fusion, nn.Linear):
            return self.head
        norm, fusion = (nn.Identity(), self.decoder_fusion) if self._on_grid else tuple(self.decoder_fusion)
        assert isinstance(fusion, MLP)
        # The last map of the fusion and the first of the head have nothing between them: one product instead of two.
        weight = self.head.first.weight @ fusion.last.weight
        bias = self.head.first.weight @ fusion.last.bias + self.head.first.bias

        def read(arrived: Tensor) -> Tensor:
            hidden = F.gelu(arrived) if self._on_grid else fusion.hidden(norm(arrived))
            return self.head.last(F.gelu(F.linear(hidden, weight, bias)))

        return read

    def _to_latent(
        self, features: Features, cloud: Cloud, weights: Tensor, mask: Mask, there: Propagation | None = None
    ) -> Latent:
        """Return the fused latent features V_G before the processor."""
        inputs = self._inputs(features, cloud)
        if self.attention is not None:
            everywhere = weights.expand(-1, cloud.shape[1])
            tokens, latent = self.embedding(inputs), self.grid.points(cloud.points)
            mixed = self.attention(tokens, cloud.points, latent, everywhere, mask, cloud.team)
            return self.encoder_fusion(mixed).view(mixed.shape[0], *self.grid.size, -1)
        # Tokens are v = W h + b. Where h is not wider, the sums are taken of (h, 1), and (W, b) waits for the grid.
        waits = self.settings.point_width is None
        tokens = self._in_chunks(self.embedding.hidden if waits else self.embedding, inputs)
        with torch.autocast(features.device.type, enabled=False):
            tokens = F.pad(tokens.to(self._dtype), (0, 1), value=1.0) if waits else tokens.to(self._dtype)
            equal = weights.shape[1] == 1  # a factor on the grid
            there = there or self._propagation(cloud, self.settings.resolvent)
            sums = there.to_grid(tokens if equal else tokens * weights[..., None])
            if equal:
                sums = sums * weights.view(-1, *(1,) * (self.dim + 2))
            if cloud.team is not None:  # all is linear in the sums over points, so their parts may be added here
                sums = cloud.team.all_reduce_sum(sums)
        branches = sums.movedim(1, -2)
        if waits:
            last = self.embedding.last
            branches = F.linear(branches, torch.cat([last.weight, last.bias[:, None]], 1))
        return self.encoder_fusion(branches.flatten(-2))

    def _inputs(self, features: Tensor, cloud: Cloud) -> Tensor:
        """Return (psi(x), a(x)), of which tokens are made: v(x) = MLP(psi(x), a(x))."""
        psi = self.nerf(cloud.points).expand(features.shape[0], -1, -1)
        return torch.cat([psi, features.to(psi.dtype)], -1)

    def _in_chunks(self, function: Callable[[Tensor], Tensor], x: Float[Tensor, "batch points width"]) -> Tensor:
        """Return a function of each point, ``point_chunk`` of them at a time, which bounds the memory."""
        if self._folded:
            return function(x)
        again = self.settings.checkpointing
        parts = [recompute(function, p) if again else function(p) for p in x.split(self.settings.point_chunk, 1)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _propagation(self, cloud: Cloud, resolvent: ResolventName) -> Propagation:
        """Return K_inf K_GP of all kernels."""
        if resolvent in self._folded:
            return self._folded[resolvent].at(cloud)
        s = self.settings
        return propagation(self.branches, cloud, resolvent, s.order, s.contraction, s.tolerance)

    @property
    def _decoder_resolvent(self) -> ResolventName:
        return self.settings.decoder_resolvent or self.settings.resolvent

    def _weights(self, cloud: Cloud, weights: Weights, mask: Mask) -> Float[Tensor, "clouds _"]:
        """Return the weights of the sum over points, which add up to the number M of grid points, except for ``sum``.

        A single column where all points have the same weight.
        """
        rule = self.settings.point_weights
        if weights is not None:
            weights = weights.to(self._dtype)
        elif rule != "density":
            weights = cloud.points.new_ones(cloud.shape[0], 1)
        elif cloud.cells is None:
            raise UserError(
                "points: they lie so far outside the domain that their density cannot be told; remove those far away, "
                "or train with model.point_weights=uniform"
            )
        else:
            weights = density_weights(cloud)
        if mask is not None:
            weights = weights * mask
        if rule == "sum":
            return weights
        sums = weights.expand(-1, cloud.shape[1]).sum(1, keepdim=True)
        if cloud.team is not None:
            sums = cloud.team.all_reduce_sum(sums)
        empty = sums <= 0  # all points are masked
        return weights * torch.where(empty, 0, self.grid.count / sums.masked_fill(empty, 1))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def branches(self) -> list[Any]:
        """The kernels, one per branch, with their learned scales and decay coefficients."""
        return list(self.kernels)


def _fusion(inputs: int, width: int, normalize: bool) -> nn.Sequential:
    mlp = MLP(inputs, width, width)
    return nn.Sequential(nn.LayerNorm(inputs), mlp) if normalize else mlp
