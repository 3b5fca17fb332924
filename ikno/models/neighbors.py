"""Graphs between clouds: which points are near, found in near-linear time and kept by the content of the clouds."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

KEPT_BYTES = 2**30  # of graphs; the least recently used one goes first
NEIGHBORS = 4  # points from which values at a query are interpolated
CURVE_BITS = 20  # cells of the curve are 2^-18 wide: points rarely share one

Sources = Float[Tensor, "_ sources dim"]  # one cloud for the batch, or one per sample
Targets = Float[Tensor, "_ targets dim"]
Mask = Bool[Tensor, "_ sources"] | None
AtEdges = Float[Tensor, "_ edges width"]
AtTargets = Float[Tensor, "_ targets width"]
Search = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Edges:
    """Edges from sources to targets, in the order of the targets. Indices and ``targets`` count through all clouds.

    A batch on one cloud shares its edges: values at edges have one row per sample. Samples with ``clouds`` of their own
    are put side by side as one large cloud: values at edges have a single row.
    """

    source: Int[Tensor, "edges"]
    target: Int[Tensor, "edges"]
    targets: int
    clouds: int = 1

    @property
    def counts(self) -> Int[Tensor, "all_targets"]:
        """The number of edges of each target."""
        return torch.bincount(self.target, minlength=self.targets)

    def gather(self, values: Float[Tensor, "_ sources width"]) -> AtEdges:
        """Return the values at the source of each edge."""
        return self._side_by_side(values).index_select(1, self.source)

    def gather_targets(self, values: AtTargets) -> AtEdges:
        """Return the values at the target of each edge."""
        return self._side_by_side(values).index_select(1, self.target)

    def offsets(self, sources: Sources, targets: Targets) -> AtEdges:
        """Return source minus target for each edge."""
        return self.gather(sources) - self.gather_targets(targets)

    def sum(self, values: AtEdges) -> AtTargets:
        """Return the sum over the edges of each target, 0 where there are none."""
        sums = values.new_zeros(values.shape[0], self.targets, values.shape[2]).index_add(1, self.target, values)
        return sums.view(values.shape[0] * self.clouds, self.targets // self.clouds, values.shape[2])

    def mean(self, values: AtEdges) -> AtTargets:
        """Return the mean over the edges of each target, 0 where there are none."""
        return self.sum(values) / self.counts.clamp(min=1).view(self.clouds, -1, 1).to(values.dtype)

    def softmax(self, scores: AtEdges) -> AtEdges:
        """Return weights that add up to 1 over the edges of each target."""
        low = scores.new_full((scores.shape[0], self.targets, scores.shape[2]), -torch.inf)
        where = self.target[None, :, None].expand_as(scores)
        highest = low.scatter_reduce(1, where, scores.detach(), "amax")
        weights = (scores - highest.index_select(1, self.target)).exp()
        return weights / self.gather_targets(self.sum(weights))

    def _side_by_side(self, values: Float[Tensor, "_ points width"]) -> Float[Tensor, "_ all_points width"]:
        if self.clouds == 1:
            return values
        return values.expand(self.clouds, -1, -1).reshape(1, self.clouds * values.shape[1], values.shape[2])


def within(points: Sources, centers: Targets, radius: float, mask: Mask = None, limit: int | None = None) -> Edges:
    """Return edges to each center from the points within the radius, at most from the ``limit`` nearest of them."""

    def search(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = KDTree(y).sparse_distance_matrix(KDTree(x), radius, output_type="ndarray")
        order = np.lexsort((pairs["j"], pairs["v"], pairs["i"]))
        target, source = pairs["i"][order], pairs["j"][order]
        if limit is not None:
            first = np.searchsorted(target, np.arange(len(y)))
            keep = np.arange(len(target)) - first[target] < limit
            target, source = target[keep], source[keep]
        return source, target

    return _kept(("within", radius, limit), points, centers, mask, search)


def nearest(points: Sources, centers: Targets, count: int, mask: Mask = None) -> Edges:
    """Return edges to each center from its ``count`` nearest points (all of them if there are fewer)."""

    def search(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = min(count, len(x))
        indices: Any = KDTree(x).query(y, k)[1]
        return indices.reshape(-1), np.repeat(np.arange(len(y)), k)

    return _kept(("nearest", count), points, centers, mask, search)


def with_everyone(edges: Edges, others: Edges) -> Edges:
    """Return the edges, and those of the others to targets that have none."""
    alone = edges.counts == 0
    extra = alone[others.target]
    target = torch.cat([edges.target, others.target[extra]])
    order = torch.argsort(target, stable=True)
    source = torch.cat([edges.source, others.source[extra]])
    return replace(edges, source=source[order], target=target[order])


def neighborhoods(
    sources: Sources, targets: Targets, radius: float, mask: Mask = None
) -> tuple[Edges, Int[Tensor, "all_targets"]]:
    """Return edges from all sources within the radius, or from the nearest one, and how many are within the radius."""
    edges = within(sources, targets, radius, mask)
    counts = edges.counts
    if (counts == 0).any():
        edges = with_everyone(edges, nearest(sources, targets, 1, mask))
    return edges, counts


def interpolated(
    values: Float[Tensor, "batch points width"], points: Sources, queries: Targets, mask: Mask = None
) -> Float[Tensor, "batch queries width"]:
    """Return means over the nearest points with weights 1 / distance^2: at a point, that point's own values."""
    edges = nearest(points, queries, NEIGHBORS, mask)
    squares = edges.offsets(points, queries).square().sum(-1, keepdim=True)
    near = 1 / squares.clamp(min=1e-18)  # a query within 1e-9 of a point is that point
    return edges.sum(edges.gather(values) * near) / edges.sum(near).clamp(min=1e-18)


def taken(
    x: Float[Tensor, "clouds points width"], index: Int[Tensor, "clouds chosen"]
) -> Float[Tensor, "clouds chosen width"]:
    """Return the chosen rows of each cloud."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def along_curve(
    points: Float[Tensor, "clouds points dim"], mask: Bool[Tensor, "#clouds points"] | None = None
) -> Int[Tensor, "clouds points"]:
    """Return the indices of the points in the order along a space-filling (Morton) curve, masked ones last.

    Points taken evenly in this order are spread like the cloud, however its points were numbered.
    """
    dim = points.shape[2]
    cells = ((points.detach().clamp(-2, 2).double() + 2) * 2 ** (CURVE_BITS - 2)).long()
    code = torch.zeros_like(cells[..., 0])
    for bit in range(CURVE_BITS):
        for axis in range(dim):
            code |= (cells[..., axis] >> bit & 1) << (bit * dim + axis)
    keys = [*points.detach().unbind(-1), code]  # coordinates decide inside a cell
    if mask is not None:
        keys.append(~mask.expand(len(points), -1))
    order = torch.arange(points.shape[1], device=points.device).expand(len(points), -1)
    for key in keys:  # the last key counts most
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order


_graphs: "OrderedDict[bytes, tuple[Tensor, Tensor]]" = OrderedDict()


def _kept(how: tuple[Any, ...], points: Tensor, centers: Tensor, mask: Tensor | None, search: Search) -> Edges:
    """Return the edges of a search in each cloud; a cloud with the content of an earlier one has its edges."""
    x, y = (a.detach().double().cpu().numpy() for a in (points, centers))
    real = np.ones((1, x.shape[1]), dtype=bool) if mask is None else mask.cpu().numpy()
    clouds = max(len(x), len(y), len(real))
    graphs = []
    for b in range(clouds):
        cloud = [np.ascontiguousarray(a[b % len(a)]) for a in (x, y, real)]
        digest = hashlib.sha256(repr((how, *(a.shape for a in cloud), str(points.device))).encode())
        for array in cloud:
            digest.update(array.data)
        key = digest.digest()
        if key not in _graphs:
            source, target = _searched(search, *cloud)
            _graphs[key] = source.to(points.device), target.to(points.device)
            while len(_graphs) > 1 and sum(2 * s.nbytes for s, _ in _graphs.values()) > KEPT_BYTES:
                _graphs.popitem(last=False)
        _graphs.move_to_end(key)
        graphs.append(_graphs[key])
    if clouds == 1:
        return Edges(graphs[0][0], graphs[0][1], y.shape[1])
    source = torch.cat([s + b * x.shape[1] for b, (s, _) in enumerate(graphs)])
    target = torch.cat([t + b * y.shape[1] for b, (_, t) in enumerate(graphs)])
    return Edges(source, target, clouds * y.shape[1], clouds)


def _searched(search: Search, points: np.ndarray, centers: np.ndarray, mask: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return sources and targets of the edges in one cloud, from real points only."""
    chosen = np.flatnonzero(mask)
    if not len(chosen) or not len(centers):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    source, target = search(points[chosen], centers)
    return torch.from_numpy(chosen[source].astype(np.int64)), torch.from_numpy(target.astype(np.int64))
