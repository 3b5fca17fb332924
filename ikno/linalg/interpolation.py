"""The interpolation W between the points of a cloud and the nodes of the grid cells they lie in: geometry alone.

Every axis kernel is smooth inside one grid cell: its kinks sit on grid lines. So a cell has a few nodes along each
axis, and a value at a point is a polynomial of those at the nodes of its cell: f(x_i) ~= sum_node W_i,node f(node).
The nodes are Chebyshev-Lobatto points. They include both ends of the cell: neighboring cells share them, a point on a
grid line is reproduced exactly, and the interpolant is continuous.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ikno.linalg.geometry import Cloud, cell_of

Nodes = tuple[int, ...]  # of a cell, along each axis
AtPoints = Float[Tensor, "clouds points columns"]
AtNodes = Float[Tensor, "clouds *nodes columns"]


@dataclass(frozen=True)
class Blocks:
    """The points of all clouds sorted by cell and cut into blocks of equal size, each within one cell of one cloud.

    ``source`` is the point of each slot of a block, ``share`` its weight: 1, or 0 in a slot that is left over, which
    names some point of the same cell. ``cell`` is the cloud of each block and its cell relative to the cloud's range.
    """

    source: Int[Tensor, "blocks size"]
    share: Float[Tensor, "blocks size"]
    cell: Int[Tensor, "blocks columns"]


@dataclass(frozen=True)
class Interpolation:
    """The sparse matrix W, one row per point, one column per node; made once for a cloud and kept with it.

    A block of points shares its nodes, so W is applied by batched products of small dense matrices, ``weights``.
    ``corner`` is the first node of a block's cell, ``stencil`` the nodes of any cell counted from its first.
    Differentiable in the coordinates through ``weights``.
    """

    clouds: int
    points: int
    node_counts: Nodes
    source: Int[Tensor, "blocks size"]
    corner: Int[Tensor, "blocks"]
    stencil: Int[Tensor, "nodes"]
    weights: Float[Tensor, "blocks size nodes"]

    @classmethod
    def of(cls, cloud: Cloud, nodes: Nodes) -> "Interpolation":
        """Return W for cells with so many nodes along each axis."""
        return cloud.keep(("interpolation", nodes), lambda: _make(cloud, nodes))

    def to_nodes(self, values: AtPoints) -> AtNodes:
        """Return W^T v: what the points add to the nodes of their cells."""
        columns = values.shape[2]
        rows = values.reshape(-1, columns)
        total = values.new_zeros(self.clouds * math.prod(self.node_counts), columns)
        for source, nodes, weights in self._parts(columns):
            block = rows.index_select(0, source).view(*weights.shape[:2], columns)
            total.index_add_(0, nodes, torch.bmm(weights.mT, block).view(-1, columns))
        return total.view(self.clouds, *self.node_counts, columns)

    def to_points(self, values: AtNodes) -> AtPoints:
        """Return W f: values at the nodes interpolated at the points; 0 at masked points."""
        columns = values.shape[-1]
        rows = values.reshape(-1, columns)
        total = values.new_zeros(self.clouds * self.points, columns)
        for source, nodes, weights in self._parts(columns):
            cells = rows.index_select(0, nodes).view(weights.shape[0], -1, columns)
            total.index_add_(0, source, torch.bmm(weights, cells).view(-1, columns))
        return total.view(self.clouds, self.points, columns)

    def _parts(
        self, columns: int
    ) -> Iterator[tuple[Int[Tensor, "slots"], Int[Tensor, "targets"], Float[Tensor, "blocks size nodes"]]]:
        """Yield some blocks at a time: the points of their slots, their nodes and the weights between both."""
        if self.source.shape[1] == 1:  # of a fixed range of cells: as many blocks as points, whose number stays open
            yield self.source.flatten(), (self.corner[:, None] + self.stencil).flatten(), self.weights
            return
        # Few parts: the gradient of each gather has the size of all that it gathers from.
        floats = 1 << 23 if self.source.device.type == "cpu" else 1 << 26
        step = max(floats // ((self.source.shape[1] + len(self.stencil)) * columns), 1)
        for i in range(0, len(self.source), step):
            part = slice(i, i + step)
            yield self.source[part].flatten(), (self.corner[part, None] + self.stencil).flatten(), self.weights[part]


def _make(cloud: Cloud, nodes: Nodes) -> Interpolation:
    """Return W: weights are products over the axes of Lagrange polynomials in t = (x - left end) / width of the cell.

    In float64 where the coordinates are differentiated: slopes of polynomials amplify rounding.
    """
    assert cloud.cells is not None
    grid, cells = cloud.grid, cloud.cells
    blocks = cloud.keep("blocks", lambda: _blocks(cloud))
    dtype = torch.float64 if cloud.points.requires_grad else cloud.points.dtype
    counts = cells.node_counts(nodes)
    corner = blocks.cell[:, 0]
    stencil = torch.zeros(1, dtype=torch.long, device=corner.device)
    weights = blocks.share.to(dtype)[..., None]
    for j, m in enumerate(nodes):
        cell = blocks.cell[:, 1 + j]
        left = grid.origin(j) + grid.spacing(j) * (cell + cells.first[j]).to(dtype)
        x = cloud.points[..., j].reshape(-1)[blocks.source].to(dtype)
        t = (x - left[:, None]) / grid.spacing(j)
        along = lagrange(t.clamp(0, 1) if cloud.fixed else t, m)
        weights = (weights[..., :, None] * along[..., None, :]).flatten(2)
        corner = corner * counts[j] + cell * (m - 1)
        stencil = (stencil[:, None] * counts[j] + torch.arange(m, device=corner.device)).flatten()
    return Interpolation(cloud.shape[0], cloud.shape[1], counts, blocks.source, corner, stencil, weights)


def _blocks(cloud: Cloud) -> Blocks:
    """Return the points sorted by cell; masked points are in no block.

    With a fixed range of cells a block for each point, as many as can be told without looking at them.
    """
    assert cloud.cells is not None
    (clouds, n, d), cells = cloud.shape, cloud.cells
    points = cloud.points.detach()
    source = torch.arange(clouds * n, device=points.device)
    if cloud.mask is not None and not cloud.fixed:
        source = source[cloud.mask.reshape(-1)]
    share = torch.ones_like(source, dtype=points.dtype)
    located = [cell_of(points[..., j], cloud.grid, j) for j in range(d)]
    columns = [source // n] + [c.reshape(-1)[source] - cells.first[j] for j, (c, _) in enumerate(located)]
    for j, (_, on_line) in enumerate(located):
        if cloud.fixed or not cloud.points.requires_grad:
            columns[1 + j] = columns[1 + j].clamp(0, cells.count[j] - 1)
            continue
        # Where coordinates are differentiated, a point on a grid line is two half points, one in each adjacent
        # cell: its gradient is the mean of both sides, as that of |x - y| at 0 is 0.
        twin = torch.nonzero(on_line.reshape(-1)[source]).squeeze(1)
        share = share.index_copy(0, twin, share[twin] / 2)
        columns = [torch.cat([c, c[twin] - int(i == 1 + j)]) for i, c in enumerate(columns)]
        source, share = torch.cat([source, source[twin]]), torch.cat([share, share[twin]])
    if cloud.fixed:
        share = share if cloud.mask is None else cloud.mask.reshape(-1).to(share.dtype)
        return Blocks(source[:, None], share[:, None], torch.stack(columns, 1))
    key = columns[0]
    for c, count in zip(columns[1:], cells.count, strict=True):
        key = key * count + c
    order = torch.argsort(key, stable=True)
    _, counts = torch.unique_consecutive(key[order], return_counts=True)
    size = _block_size(counts)
    per_cell = (counts + size - 1) // size
    begin = counts.cumsum(0) - counts  # of each cell among the sorted points
    rank = torch.arange(len(order), device=key.device) - begin.repeat_interleave(counts)
    slot = (per_cell.cumsum(0) - per_cell).repeat_interleave(counts) * size + rank
    first = order[begin.repeat_interleave(per_cell)]  # of each block's cell
    sources = source[first].repeat_interleave(size).index_copy_(0, slot, source[order])
    shares = share.new_zeros(len(sources)).index_copy_(0, slot, share[order])
    cell = torch.stack([c[first] for c in columns], 1)
    return Blocks(sources.view(-1, size), shares.view(-1, size), cell)


def _block_size(counts: Int[Tensor, "cells"]) -> int:
    """Return the block size with the least work: slots to multiply plus a fixed price per block for scattering it."""
    price = 12
    sizes = (4, 8, 16, 32, 64, 128)
    return min(sizes, key=lambda s: int(((counts + s - 1) // s).sum()) * (s + price))


def density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    """Return weights inverse to the local density of the points, as seen by hat functions on the grid lines.

    With W the multilinear interpolation from grid points to points: w = 1 / (W W^T 1). Strongly clustered clouds then
    count a region by its volume, not by its points.
    """
    return cloud.keep("density", lambda: _density_weights(cloud))


def _density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    if cloud.cells is None:
        raise ValueError("points lie too far outside the grid for density weights; use point_weights='uniform'")
    w = Interpolation.of(cloud, (2,) * cloud.grid.dim)
    nodes = w.to_nodes(torch.ones_like(cloud.points[..., :1], dtype=w.weights.dtype))
    nodes = nodes if cloud.team is None else cloud.team.all_reduce_sum(nodes)
    density = w.to_points(nodes)[..., 0].to(cloud.points.dtype)
    return torch.where(density > 0, 1 / density.clamp(min=torch.finfo(density.dtype).tiny), 0)


@lru_cache
def lobatto(count: int) -> tuple[float, ...]:
    """Return the ``count`` Chebyshev-Lobatto nodes (1 - cos(pi i / (count - 1))) / 2 on [0, 1]."""
    if count < 2:
        raise ValueError(f"a cell needs at least its two ends as nodes, found {count}")
    return tuple((1 - math.cos(math.pi * i / (count - 1))) / 2 for i in range(count))


def lagrange(t: Float[Tensor, "*points"], count: int) -> Float[Tensor, "*points {count}"]:
    """Return the Lagrange polynomials of the Lobatto nodes at t in [0, 1]: rows that sum to one.

    Formed from Chebyshev polynomials, l_i(t) = sum_k C_ki T_k(2t - 1), which is stable at any degree used here and
    differentiable everywhere, nodes and ends included.
    """
    return _chebyshev(t, count) @ _lagrange_coefficients(count).to(t)


def _chebyshev(t: Float[Tensor, "*points"], count: int) -> Float[Tensor, "*points {count}"]:
    z = 2 * t - 1
    terms = [torch.ones_like(z), z]
    while len(terms) < count:
        terms.append(2 * z * terms[-1] - terms[-2])
    return torch.stack(terms[:count], -1)


@lru_cache
def _lagrange_coefficients(count: int) -> Float[Tensor, "count count"]:
    with torch.inference_mode(False):  # it is cached, also for later calls with gradients
        return torch.linalg.inv(_chebyshev(torch.tensor(lobatto(count), dtype=torch.float64), count))
