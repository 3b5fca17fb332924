"""The regular latent grid and clouds of points located in it: the work that depends on coordinates alone."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# More cells than this along one axis means coordinates far outside the box: the chunked dense form serves those.
_MAX_CELLS = 1 << 20


@dataclass(frozen=True)
class Grid:
    """Evenly spaced points, ``size[j]`` from ``lower[j]`` to ``upper[j]`` along axis j; a single one in the middle."""

    size: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.size) == len(self.lower) == len(self.upper) >= 1:
            raise ValueError(
                f"a grid needs one size and two bounds per axis, found {self.size}, {self.lower}, {self.upper}"
            )
        for j, (n, a, b) in enumerate(zip(self.size, self.lower, self.upper, strict=True)):
            if n < 1 or not a < b or not math.isfinite(b - a):
                raise ValueError(
                    f"axis {j} of the grid needs at least one point and finite lower < upper, found {n} in [{a}, {b}]"
                )

    @property
    def dim(self) -> int:
        return len(self.size)

    @property
    def count(self) -> int:
        """The number M of grid points."""
        return math.prod(self.size)

    def spacing(self, axis: int) -> float:
        """Return the distance of neighboring grid points; for a single point any cell width serves, so the box's."""
        return (self.upper[axis] - self.lower[axis]) / max(self.size[axis] - 1, 1)

    def origin(self, axis: int) -> float:
        """Return the coordinate of the first grid point."""
        return self.lower[axis] if self.size[axis] > 1 else (self.lower[axis] + self.upper[axis]) / 2

    def axis(self, axis: int, like: Tensor) -> Float[Tensor, "size"]:
        """Return the grid coordinates along one axis with the precision and device of ``like``."""
        steps = torch.arange(self.size[axis], dtype=torch.float64, device=like.device)
        return (self.origin(axis) + self.spacing(axis) * steps).to(like.dtype)

    def points(self, like: Tensor) -> Float[Tensor, "count dim"]:
        """Return all grid points, last axis fastest."""
        return torch.stack(torch.meshgrid(*(self.axis(j, like) for j in range(self.dim)), indexing="ij"), -1).view(
            -1, self.dim
        )


@runtime_checkable
class Team(Protocol):
    """The processes that hold one cloud together, each some of its points; all make the same calls in one order."""

    def total(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the sum over the processes, in each of them; differentiable."""
        ...

    def largest(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the largest over the processes, in each of them."""
        ...


@dataclass(frozen=True)
class Cells:
    """The range of cells that a cloud occupies: per axis the first one and a count. Cell 0 starts at grid point 0.

    Points outside the box lie in cells that continue the grid; kernels are smooth there, so nothing else changes.
    """

    first: tuple[int, ...]
    count: tuple[int, ...]

    def node_counts(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of interpolation nodes per axis, ends shared between cells."""
        return tuple(c * (m - 1) + 1 for c, m in zip(self.count, nodes, strict=True))


@dataclass(frozen=True)
class Blocks:
    """Points sorted by cell and cut into blocks of equal size, each within one cell of one cloud.

    ``source`` is the flat point of each slot, ``share`` its weight (1 for a whole point, 0 for an empty slot, which
    names some point of the same cell; ``parted`` where points are cut into several) and ``cell`` the cell of each block
    relative to the range, after its cloud. ``starts`` holds the first block of every row of cells along the first axis,
    those of all clouds one after the other, and the end.
    """

    size: int
    source: Int[Tensor, "slots"]
    share: Float[Tensor, "slots"]
    parted: bool
    cell: Int[Tensor, "blocks columns"]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Cloud:
    """Points located in a grid: one cloud for a whole batch (leading size 1) or one per sample.

    ``index`` says which points of a whole cloud a part of it holds. Keep it to avoid sorting again: blocks, parts and
    density weights are made once, and models accept it wherever they accept points. With a ``team`` these are the
    points of one process; ``elsewhere`` is how many the others have, and the range of cells is that of all.
    """

    points: Float[Tensor, "clouds points dim"]
    mask: Bool[Tensor, "clouds points"] | None
    grid: Grid
    cells: Cells | None
    index: Int[Tensor, "clouds points"] | None = None
    team: Team | None = None
    elsewhere: int = 0
    _parts: "dict[int, list[Cloud]]" = field(default_factory=dict, repr=False, compare=False)
    density: list[Float[Tensor, "clouds points"]] = field(default_factory=list, repr=False, compare=False)

    @property
    def shape(self) -> torch.Size:
        return self.points.shape

    def split(self, size: int) -> "list[Cloud]":
        """Return parts of at most ``size`` points that share the range of cells.

        Parts are neighbors in space, so that each needs few rows of cells; ``index`` says which points they hold.
        """
        if size >= self.points.shape[1]:
            return [self]
        if size not in self._parts:
            self._parts[size] = [self._part(i) for i in self._order().split(size, 1)]
        return self._parts[size]

    def _part(self, index: Int[Tensor, "clouds part"]) -> "Cloud":
        points = self.points.gather(1, index[..., None].expand(-1, -1, self.grid.dim))
        mask = None if self.mask is None else self.mask.gather(1, index)
        return Cloud(points, mask, self.grid, self.cells, index)

    def _order(self) -> Int[Tensor, "clouds points"]:
        """Return the points of each cloud by cell along the first axis, then the second, and so on."""
        clouds, n, d = self.points.shape
        if self.cells is None:
            return torch.arange(n, device=self.points.device).expand(clouds, n)
        key = torch.zeros(clouds, n, dtype=torch.long, device=self.points.device)
        for j in range(d):
            cell = _locate(self.points.detach()[..., j], self.grid, j)[0] - self.cells.first[j]
            key = key * self.cells.count[j] + cell.clamp(0, self.cells.count[j] - 1)
        return torch.argsort(key, dim=1, stable=True)

    def offsets(self, axis: int, source: Int[Tensor, "slots"], cell: Int[Tensor, "slots"]) -> Float[Tensor, "slots"]:
        """Return t = (x - left end) / width of the given points in the given cells; differentiable in the points."""
        assert self.cells is not None
        # The slopes of high polynomials need the digits; values do not.
        dtype = torch.float64 if self.points.requires_grad else self.points.dtype
        left = self.grid.origin(axis) + self.grid.spacing(axis) * (cell + self.cells.first[axis]).to(dtype)
        x = self.points.reshape(-1, self.points.shape[2])[:, axis].index_select(0, source).to(dtype)
        return (x - left) / self.grid.spacing(axis)

    @cached_property
    def blocks(self) -> Blocks:
        """Sort the points into cells and cut the cells into blocks."""
        assert self.cells is not None
        clouds, n, d = self.points.shape
        points = self.points.detach()
        source = torch.arange(clouds * n, device=points.device)
        if self.mask is not None:
            source = source[self.mask.reshape(-1)]
        share = torch.ones(len(source), dtype=points.dtype, device=points.device)
        located = [_locate(points[..., j], self.grid, j) for j in range(d)]
        columns = [source // n] + [c.reshape(-1)[source] - self.cells.first[j] for j, (c, _) in enumerate(located)]
        for j, (_, on_line) in enumerate(located):
            last = self.cells.count[j] - 1
            if not self.points.requires_grad:
                columns[1 + j] = columns[1 + j].clamp(0, last)
                continue
            # Where coordinates are differentiated, a point on a grid line is two half points, one in each adjacent
            # cell: its gradient is the mean of both sides, as that of |x - y| at 0 is 0.
            twin = torch.nonzero(on_line.reshape(-1)[source]).squeeze(1)
            share = share.index_copy(0, twin, share[twin] / 2)
            columns = [torch.cat([c, c[twin] - int(i == 1 + j)]) for i, c in enumerate(columns)]
            source, share = torch.cat([source, source[twin]]), torch.cat([share, share[twin]])
        key = columns[0]
        for c, count in zip(columns[1:], self.cells.count, strict=True):
            key = key * count + c
        order = torch.argsort(key, stable=True)
        _, counts = torch.unique_consecutive(key[order], return_counts=True)
        size = _block_size(counts)
        per_cell = (counts + size - 1) // size
        first_block = per_cell.cumsum(0) - per_cell
        rank = torch.arange(len(order), device=key.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        slot = first_block.repeat_interleave(counts) * size + rank
        total = int(per_cell.sum())
        starts = (counts.cumsum(0) - counts).repeat_interleave(per_cell)
        slots = source[order][starts].repeat_interleave(size).index_copy_(0, slot, source[order])
        shares = torch.zeros(total * size, dtype=share.dtype, device=key.device).index_copy_(0, slot, share[order])
        cell = torch.stack([c[order][starts] for c in columns], 1)
        row = cell[:, 0] * self.cells.count[0] + cell[:, 1]
        ends = torch.bincount(row, minlength=clouds * self.cells.count[0]).cumsum(0)
        return Blocks(size, slots, shares, self.points.requires_grad, cell, (0, *ends.tolist()))


def locate(
    points: Float[Tensor, "clouds points dim"],
    grid: Grid,
    mask: Bool[Tensor, "clouds points"] | None = None,
    team: Team | None = None,
) -> Cloud:
    """Return the cloud with the range of grid cells it occupies; masked points (False) count for nothing."""
    if points.shape[2] != grid.dim:
        raise ValueError(f"points have {points.shape[2]} coordinates, the latent grid has {grid.dim} axes")
    if points.shape[1] == 0:
        raise ValueError("a cloud needs at least one point, found none")
    if mask is not None:
        middle = torch.tensor([(a + b) / 2 for a, b in zip(grid.lower, grid.upper, strict=True)])
        points = torch.where(mask[..., None], points, middle.to(points))
    flat = points.detach().reshape(-1, grid.dim)
    ends, elsewhere = torch.stack([-flat.amin(0), flat.amax(0)]), 0
    if team is not None:
        ends = team.largest(ends)
        elsewhere = int(team.total(flat.new_tensor(points.shape[1], dtype=torch.float64))) - points.shape[1]
    low, high = (-ends[0]).tolist(), ends[1].tolist()
    first, count = [], []
    for j in range(grid.dim):
        if not (abs(low[j]) < float("inf") and abs(high[j]) < float("inf")):
            raise ValueError(f"coordinate {j} of the points has NaN or infinite values; coordinates must be finite")
        ends = [(x - grid.origin(j)) / grid.spacing(j) for x in (low[j], high[j])]
        if max(abs(e) for e in ends) > _MAX_CELLS:
            return Cloud(points, mask, grid, None, None, team, elsewhere)
        tensor = torch.tensor([low[j], high[j]], dtype=points.dtype)
        cells, on_line = _locate(tensor, grid, j)
        # A grid line at either end needs the cell beyond it only where both sides are wanted (see Cloud.blocks).
        both_sides = points.requires_grad
        start = int(cells[0]) - int(both_sides and bool(on_line[0]))
        stop = int(cells[1]) + int(both_sides or not bool(on_line[1]))
        first.append(start)
        count.append(max(stop - start, 1))
    return Cloud(points, mask, grid, Cells(tuple(first), tuple(count)), None, team, elsewhere)


def _locate(
    x: Float[Tensor, "*points"], grid: Grid, axis: int
) -> tuple[Int[Tensor, "*points"], Bool[Tensor, "*points"]]:
    """Return the cell of each coordinate (a grid line belongs to the cell on its right) and whether it is on a line.

    Inside the box cells are found by comparison with the grid coordinates themselves, so that rounding cannot put a
    point on the wrong side of a kernel's kink.
    """
    lines = grid.axis(axis, x)
    cell = torch.floor((x - grid.origin(axis)) / grid.spacing(axis)).long()
    inside = torch.bucketize(x.contiguous(), lines, right=True) - 1
    last = len(lines) - 1
    cell = torch.where(x >= lines[-1], cell.clamp(min=last), torch.where(x < lines[0], cell.clamp(max=-1), inside))
    return cell, x == lines[inside.clamp(0, last)]


def _block_size(counts: Int[Tensor, "cells"]) -> int:
    """Return the block size with the least work: slots to multiply plus a fixed price per block for scattering it."""
    price = 12
    sizes = (4, 8, 16, 32, 64, 128)
    return min(sizes, key=lambda s: int(((counts + s - 1) // s).sum()) * (s + price))
