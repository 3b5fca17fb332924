"""Graphs between clouds: who is near whom, found in time linear in the points (up to a logarithm) and kept by content.

A batch on one cloud shares its edges; clouds of their own are put side by side as one large cloud (``flat``).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

KEPT_BYTES = 2**30  # of graphs; the least recently used one goes first
NEIGHBORS = 4  # points from which values at a query are interpolated
CURVE_BITS = 20  # cells of the curve are 2^-18 wide: points rarely share one


@dataclass(frozen=True)
class Edges:
    """Edges from sources to targets, in the order of the targets; ``targets`` is how many there are."""

    source: Int[Tensor, "edges"]
    target: Int[Tensor, "edges"]
    targets: int

    @property
    def counts(self) -> Int[Tensor, "targets"]:
        """The number of edges of each target."""
        return torch.bincount(self.target, minlength=self.targets)

    def gather(self, values: Float[Tensor, "batch sources width"]) -> Float[Tensor, "batch edges width"]:
        """Return the values at the source of each edge."""
        return values.index_select(1, self.source)

    def gather_targets(self, values: Float[Tensor, "batch targets width"]) -> Float[Tensor, "batch edges width"]:
        """Return the values at the target of each edge."""
        return values.index_select(1, self.target)

    def sum(self, values: Float[Tensor, "batch edges width"]) -> Float[Tensor, "batch targets width"]:
        """Return the sum over the edges of each target, 0 where there are none."""
        zeros = values.new_zeros(values.shape[0], self.targets, values.shape[2])
        return zeros.index_add(1, self.target, values)

    def mean(self, values: Float[Tensor, "batch edges width"]) -> Float[Tensor, "batch targets width"]:
        """Return the mean over the edges of each target, 0 where there are none."""
        return self.sum(values) / self.counts.clamp(min=1)[None, :, None].to(values.dtype)

    def softmax(self, scores: Float[Tensor, "batch edges heads"]) -> Float[Tensor, "batch edges heads"]:
        """Return weights that add up to 1 over the edges of each target."""
        low = scores.new_full((scores.shape[0], self.targets, scores.shape[2]), -torch.inf)
        where = self.target[None, :, None].expand_as(scores)
        highest = low.scatter_reduce(1, where, scores.detach(), "amax")
        weights = (scores - self.gather_targets(highest)).exp()
        return weights / self.gather_targets(self.sum(weights))


def flat(values: Float[Tensor, "batch points width"], clouds: int) -> Float[Tensor, "rows all_points width"]:
    """Return values on their one cloud as they are, and those on clouds of their own side by side.

    Values that are the same for all of several clouds are repeated.
    """
    if clouds == 1:
        return values
    return values.expand(clouds, -1, -1).reshape(1, clouds * values.shape[1], values.shape[2])


def within(
    points: Float[Tensor, "clouds points dim"],
    centers: Float[Tensor, "_ centers dim"],
    radius: float,
    mask: Bool[Tensor, "_ points"] | None = None,
    limit: int | None = None,
) -> Edges:
    """Return edges to each center from the points within the radius, at most the ``limit`` nearest ones.

    Points and centers are one cloud or one per sample; indices count through all clouds. Masked points have no edges.
    """

    def search(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = KDTree(y).sparse_distance_matrix(KDTree(x), radius, output_type="ndarray")
        order = np.lexsort((found["j"], found["v"], found["i"]))
        target, source = found["i"][order], found["j"][order]
        if limit is not None:
            first = np.searchsorted(target, np.arange(len(y)))
            keep = np.arange(len(target)) - first[target] < limit
            target, source = target[keep], source[keep]
        return source, target

    return _kept(("within", radius, limit), points, centers, mask, search)


def nearest(
    points: Float[Tensor, "clouds points dim"],
    centers: Float[Tensor, "_ centers dim"],
    count: int,
    mask: Bool[Tensor, "_ points"] | None = None,
) -> Edges:
    """Return edges to each center from its ``count`` nearest points (all of them if there are fewer)."""

    def search(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = min(count, len(x))
        found: Any = KDTree(x).query(y, k)
        return found[1].reshape(-1), np.repeat(np.arange(len(y)), k)

    return _kept(("nearest", count), points, centers, mask, search)


def with_everyone(edges: Edges, others: Edges) -> Edges:
    """Return the edges, and where a target has none those of the others: nobody is left out."""
    alone = edges.counts == 0
    extra = alone[others.target]
    target = torch.cat([edges.target, others.target[extra]])
    order = torch.argsort(target, stable=True)
    return Edges(torch.cat([edges.source, others.source[extra]])[order], target[order], edges.targets)


def neighborhoods(
    sources: Float[Tensor, "_ sources dim"],
    targets: Float[Tensor, "_ targets dim"],
    radius: float,
    mask: Bool[Tensor, "_ sources"] | None = None,
) -> tuple[Edges, Int[Tensor, "all_targets"]]:
    """Return edges from all sources within the radius, or from the nearest one, and how many are within the radius."""
    edges = within(sources, targets, radius, mask)
    counts = edges.counts
    if (counts == 0).any():
        edges = with_everyone(edges, nearest(sources, targets, 1, mask))
    return edges, counts


def interpolated(
    values: Float[Tensor, "batch points width"],
    points: Float[Tensor, "#batch points dim"],
    queries: Float[Tensor, "#batch queries dim"],
    mask: Bool[Tensor, "#batch points"] | None = None,
) -> Float[Tensor, "batch queries width"]:
    """Return means over the nearest points with weights 1 / distance^2: at a point, that point's own values."""
    batch, count = values.shape[0], queries.shape[1]
    if values.shape[2] == 0:
        return values.new_zeros(batch, count, 0)
    edges = nearest(points, queries, NEIGHBORS, mask)
    clouds = edges.targets // count
    apart = edges.gather(flat(points, clouds)) - edges.gather_targets(flat(queries, clouds))
    near = 1 / apart.square().sum(-1, keepdim=True).clamp(min=1e-18)  # a query within 1e-9 of a point is that point
    sums = edges.sum(edges.gather(flat(values, clouds)) * near)
    return (sums / edges.sum(near).clamp(min=1e-18)).reshape(batch, count, values.shape[2])


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


def _kept(
    how: tuple[Any, ...],
    points: Tensor,
    centers: Tensor,
    mask: Tensor | None,
    search: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> Edges:
    """Return the edges of a search in each cloud; those of a cloud with the same content are found once."""
    x, y = (a.detach().double().cpu().numpy() for a in (points, centers))
    real = None if mask is None else mask.cpu().numpy()
    clouds = max(len(x), len(y), 1 if real is None else len(real))
    found = []
    for b in range(clouds):
        of_cloud = [np.ascontiguousarray(a[b % len(a)]) for a in ((x, y) if real is None else (x, y, real))]
        digest = hashlib.sha256(repr((how, *(a.shape for a in of_cloud), str(points.device))).encode())
        for array in of_cloud:
            digest.update(array.data)
        key = digest.digest()
        if key not in _graphs:
            made = _searched(search, *of_cloud)
            _graphs[key] = made[0].to(points.device), made[1].to(points.device)
            while len(_graphs) > 1 and sum(2 * s.nbytes for s, _ in _graphs.values()) > KEPT_BYTES:
                _graphs.popitem(last=False)
        _graphs.move_to_end(key)
        found.append(_graphs[key])
    if clouds == 1:
        return Edges(found[0][0], found[0][1], y.shape[1])
    source = torch.cat([s + b * x.shape[1] for b, (s, _) in enumerate(found)])
    target = torch.cat([t + b * y.shape[1] for b, (_, t) in enumerate(found)])
    return Edges(source, target, clouds * y.shape[1])


def _searched(
    search: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    points: np.ndarray,
    centers: np.ndarray,
    mask: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Return sources and targets of the edges in one cloud, from real points only."""
    chosen = np.arange(len(points)) if mask is None else np.flatnonzero(mask)
    if not len(chosen) or not len(centers):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    source, target = search(points[chosen], centers)
    return torch.from_numpy(chosen[source].astype(np.int64)), torch.from_numpy(target.astype(np.int64))
