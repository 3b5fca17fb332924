"""RIGNO: from the points to a coarser cloud of regions, message passing between regions on several scales, and back.

Region interaction graph neural operator, arXiv 2501.19205. All three graphs take the same step, for edges s -> t,

    m_st = MLP(e_st, v_s, v_t),   e_st <- e_st + m_st,   v_t <- v_t + MLP(v_t, mean over s of m_st),

once from points to regions, ``processor_steps`` times among regions, once from regions to points. The perceptrons end
in a LayerNorm, which the lead time may scale and shift (``conditioned_normalization``).

``docs/systems.md`` says what differs from the original.
"""

from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.errors import UserError
from ikno.models.layers import Count, NerfFeatures, Width, keep_scale
from ikno.models.neighbors import Edges, along_curve, interpolated, nearest, taken, with_everyone
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights
from ikno.models.variants import register


class RIGNOSettings(Settings):
    """The published settings. ``conditioned_normalization``: the last feature is the lead time, one for each cloud."""

    processor_steps: Count = 18
    latent_size: Annotated[int, Field(ge=2, le=65536)] = 128
    mesh_subsample_factor: Annotated[int, Field(ge=2, le=1_000_000)] = 4
    overlap_factor_p2r: PositiveFloat = 1.0
    overlap_factor_r2p: PositiveFloat = 2.0
    max_regions: Count = 16
    rmesh_levels: Annotated[int, Field(ge=1, le=20)] = 6
    node_coordinate_freqs: Annotated[int, Field(ge=0, le=100)] = 4
    conditioned_normalization: bool = False
    cond_norm_hidden_size: Width = 16
    p_edge_masking: Annotated[float, Field(ge=0, lt=1)] = 0.0


@dataclass(frozen=True)
class Regions:
    """Centers and radii of the regions of each cloud; those that are not ``real`` fill up clouds with fewer points."""

    centers: Float[Tensor, "clouds regions dim"]
    radii: Float[Tensor, "clouds regions"]
    real: Bool[Tensor, "clouds regions"]
    links: Edges

    def of(self, points: Float[Tensor, "clouds points dim"], overlap: float, limit: int) -> Edges:
        """Return edges to the points from the regions they belong to, at most ``limit`` and at least one."""
        near = nearest(self.centers, points, limit, self.real)
        inside = near.offsets(self.centers, points)[0].norm(dim=-1) <= overlap * self.radii.flatten()[near.source]
        return with_everyone(only(near, inside), nearest(self.centers, points, 1, self.real))


SMALL = {
    "processor_steps": 6,
    "latent_size": 48,
}


@register(
    "rigno",
    settings=RIGNOSettings,
    summary="message passing between regions, arXiv 2501.19205",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class RIGNO(System):
    """Region interaction graph neural operator, in 1, 2 and 3 dimensions.

    Quadrature weights are not used: messages are averaged, as in the original. Values at a query depend on no other
    query.
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: RIGNOSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or RIGNOSettings()
        if s.conditioned_normalization and in_channels < 1:
            raise UserError("model.conditioned_normalization: needs a lead time as the last feature, found no features")
        self.coordinates = NerfFeatures(s.node_coordinate_freqs, scale=pi)
        place, w = self.coordinates.width(dim), s.latent_size
        condition = s.cond_norm_hidden_size if s.conditioned_normalization else None
        self.embed_points = Perceptron(in_channels + place, w)
        self.embed_regions = Perceptron(place + 1, w)
        self.embed_edges = nn.ModuleDict({k: Perceptron(dim + 1, w) for k in ("p2r", "r2r", "r2p")})
        self.update_points = Perceptron(w, w, condition)
        self.p2r = Step(w, condition)
        self.r2r = nn.ModuleList(Step(w, condition) for _ in range(s.processor_steps))
        self.r2p = Step(w, condition)
        self.head = nn.Sequential(nn.Linear(w, w), nn.SiLU(), nn.Linear(w, out_channels))
        self.apply(_initialize)

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        s, batch = self.settings, len(features)
        clouds = max(len(a) for a in (points, queries, mask) if a is not None)
        points = points.expand(clouds, -1, -1)
        mask = torch.ones_like(points[..., 0], dtype=torch.bool) if mask is None else mask.expand(clouds, -1)
        condition = None
        if s.conditioned_normalization:
            condition = (features[..., -1].sum(1) / mask.sum(1).clamp(min=1))[:, None, None]

        regions = self.regions(points, mask)
        of_points = regions.of(points, s.overlap_factor_p2r, s.max_regions)
        p2r = self._masked(backwards(only(of_points, mask.flatten()[of_points.target]), regions.real.numel()))
        place = torch.cat([self.coordinates(regions.centers), regions.radii[..., None]], -1)
        x = self.embed_regions(place).expand(batch, -1, -1)
        e = self._edges("p2r", p2r, points, regions.centers)
        x, _ = self.p2r(p2r, e, self._points(features, points), x, condition)

        r2r = self._masked(regions.links)
        e = self._edges("r2r", r2r, regions.centers, regions.centers)
        for step in self.r2r:
            x, e = step(r2r, e, x, x, condition)

        at = points if queries is None else queries.expand(clouds, -1, -1)
        if queries is not None:
            features = interpolated(features, points, at, mask)
        p = self._points(features, at)
        p = p + self.update_points(p, condition)
        r2p = self._masked(regions.of(at, s.overlap_factor_r2p, s.max_regions))
        p, _ = self.r2p(r2p, self._edges("r2p", r2p, regions.centers, at), x, p, condition)
        return self.head(p)

    def regions(self, points: Float[Tensor, "clouds points dim"], mask: Bool[Tensor, "clouds points"]) -> Regions:
        """Return the regions of each cloud and the links between them on all scales."""
        s, links = self.settings, 2 * (2**self.dim - 1)
        factor, count = s.mesh_subsample_factor, mask.sum(1, keepdim=True)
        i = torch.arange(0, points.shape[1], factor, device=points.device)
        real = i < count
        centers = taken(points, along_curve(points, mask).gather(1, torch.where(real, i, 0)))
        total, ids, radii = real.numel(), [], torch.zeros_like(centers[..., 0])
        for level in range(s.rmesh_levels):
            here = real & (i % factor ** (level + 1) == 0)
            near = nearest(centers, centers, links + 1, here)
            near = only(near, here.flatten()[near.target] & (near.source != near.target))
            ids += [near.target * total + near.source, near.source * total + near.target]
            if level == 0:
                edge = near.offsets(centers, centers)[0].norm(dim=-1) * sqrt(self.dim / (2 * (self.dim + 1)))
                radii = radii.flatten().scatter_reduce(0, near.target, edge, "amax").view_as(radii)
        both = torch.cat(ids).unique()
        return Regions(centers, radii, real, Edges(both % total, both // total, total, len(real)))

    def _points(self, features: Features, points: Points) -> Float[Tensor, "batch points width"]:
        """Return the embedded features and coordinates of points."""
        place = self.coordinates(points).expand(len(features), -1, -1)
        return self.embed_points(torch.cat([features.to(place.dtype), place], -1))

    def _edges(self, name: str, edges: Edges, sources: Tensor, targets: Tensor) -> Float[Tensor, "one edges width"]:
        """Return the embedded differences and lengths of the edges, in units of the diagonal of the box."""
        apart = edges.offsets(sources, targets)
        geometry = torch.cat([apart, apart.norm(dim=-1, keepdim=True)], -1) / (2 * sqrt(self.dim))
        return self.embed_edges[name](geometry)

    def _masked(self, edges: Edges) -> Edges:
        p = self.settings.p_edge_masking if self.training else 0.0
        return only(edges, torch.rand(len(edges.source), device=edges.source.device) >= p) if p else edges


class Perceptron(nn.Module):
    """Linear, SiLU, Linear, LayerNorm, and after it 1 + c MLP(c) times the result plus c MLP(c) for a condition c."""

    def __init__(self, inputs: int, width: int, condition: int | None = None) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(inputs, width), nn.Linear(width, width), nn.LayerNorm(width, 1e-6)
        self.condition = None
        if condition is not None:
            self.condition = nn.Linear(1, 2 * condition)
            self.scale, self.shift = nn.Linear(condition, width), nn.Linear(condition, width)

    def forward(self, x: Float[Tensor, "*batch inputs"], c: Tensor | None = None) -> Float[Tensor, "*batch width"]:
        """Return the result for each row."""
        return self.finish(self.first(x), c)

    def finish(self, hidden: Float[Tensor, "*batch width"], c: Tensor | None) -> Float[Tensor, "*batch width"]:
        """Return the result, given that of the first layer."""
        x = self.norm(self.last(F.silu(hidden)))
        if self.condition is None or c is None:
            return x
        scale, shift = self.condition(c).sigmoid().chunk(2, -1)
        return x * (1 + c * self.scale(scale)) + c * self.shift(shift)


class Step(nn.Module):
    """One step of message passing with residuals for edges and targets."""

    def __init__(self, width: int, condition: int | None) -> None:
        super().__init__()
        self.edge, self.node = Perceptron(3 * width, width, condition), Perceptron(2 * width, width, condition)

    def forward(
        self,
        edges: Edges,
        e: Float[Tensor, "_ edges width"],
        sources: Float[Tensor, "batch sources width"],
        targets: Float[Tensor, "batch targets width"],
        condition: Float[Tensor, "batch 1 1"] | None,
    ) -> tuple[Float[Tensor, "batch targets width"], Float[Tensor, "rows edges width"]]:
        """Return the updated targets and edges."""
        # The first layer acts on nodes before they are spread over the edges, which is the same and costs less.
        of_edge, of_source, of_target = self.edge.first.weight.chunk(3, 1)
        hidden = F.linear(e, of_edge, self.edge.first.bias)
        hidden = hidden + edges.gather(F.linear(sources, of_source))
        hidden = hidden + edges.gather_targets(F.linear(targets, of_target))
        of_edges = condition
        if condition is not None and edges.clouds > 1:
            of_edges = edges.gather_targets(condition.expand(-1, targets.shape[1], -1))
        message = self.edge.finish(hidden, of_edges)
        return targets + self.node(torch.cat([targets, edges.mean(message)], -1), condition), e + message


def only(edges: Edges, keep: Bool[Tensor, "edges"]) -> Edges:
    """Return some of the edges."""
    return replace(edges, source=edges.source[keep], target=edges.target[keep])


def backwards(edges: Edges, sources: int) -> Edges:
    """Return the edges from targets to sources, of which there are so many."""
    order = torch.argsort(edges.source, stable=True)
    return replace(edges, source=edges.target[order], target=edges.source[order], targets=sources)


def _initialize(module: nn.Module) -> None:
    # Zero biases: the inputs of short edges are small, and the norm behind them would see little but biases.
    if isinstance(module, nn.Linear):
        keep_scale(module)
    if isinstance(module, Perceptron) and module.condition is not None:
        for weight in (module.condition.weight, module.scale.weight, module.shift.weight):
            nn.init.normal_(weight, std=0.01)
