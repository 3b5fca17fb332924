"""The regular latent grid and clouds of points located in it: the work that depends on coordinates alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

T = TypeVar("T")

# More cells than this along one axis means coordinates far outside the box, which use the chunked dense form.
_MAX_CELLS = 1 << 20


@dataclass(frozen=True)
class Grid:
    """Evenly spaced points, ``size[j]`` from ``lower[j]`` to ``upper[j]`` along axis j; a single one in the middle."""

    size: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.size) == len(self.lower) == len(self.upper) >= 1:
            raise ValueError(f"a grid needs one size and two bounds per axis, found {self}")
        for j, (n, a, b) in enumerate(zip(self.size, self.lower, self.upper, strict=True)):
            if n < 1 or not a < b or not math.isfinite(b - a):
                raise ValueError(f"axis {j} of a grid needs a point and finite lower < upper, found {n} in [{a}, {b}]")

    @property
    def dim(self) -> int:
        return len(self.size)

    @property
    def count(self) -> int:
        """The number M of grid points."""
        return math.prod(self.size)

    def spacing(self, axis: int) -> float:
        """Return the distance of neighboring grid points; for a single point the width of the box."""
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
        return torch.cartesian_prod(*(self.axis(j, like) for j in range(self.dim))).view(-1, self.dim)


@runtime_checkable
class Team(Protocol):
    """The processes that hold one cloud together, each some of its points; all make the same calls in one order."""

    def all_reduce_sum(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the sum over the processes, in each of them; differentiable."""
        ...

    def all_reduce_max(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the maximum over the processes, in each of them."""
        ...


@dataclass(frozen=True)
class Cells:
    """The range of grid cells that a cloud occupies: per axis the first one and a count. Cell 0 starts at grid point 0.

    Points outside the box lie in cells that continue the grid; kernels are smooth there, so nothing else changes.
    """

    first: tuple[int, ...]
    count: tuple[int, ...]

    def node_counts(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of interpolation nodes per axis, ends shared between cells."""
        return tuple(c * (m - 1) + 1 for c, m in zip(self.count, nodes, strict=True))


@dataclass(frozen=True)
class Cloud:
    """Points located in a grid: one cloud for a whole batch (leading size 1) or one per sample.

    ``kept`` holds what depends on the geometry alone and is used again: the interpolation (``Interpolation.of``) and
    the density weights. Models accept a cloud wherever they accept points. With a ``team`` these are the points of one
    process; ``elsewhere`` is how many the others have, and the range of cells is that of all. A ``fixed`` range does
    not depend on the points: no number is read from them, and points beyond it are treated as if they were at its end.
    """

    points: Float[Tensor, "clouds points dim"]
    mask: Bool[Tensor, "clouds points"] | None
    grid: Grid
    cells: Cells | None
    team: Team | None = None
    elsewhere: int = 0
    fixed: bool = False
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def shape(self) -> torch.Size:
        return self.points.shape

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value of ``make``, which is kept unless it is part of a graph or was made in inference mode."""
        if self.points.requires_grad or torch.is_inference_mode_enabled():
            return make()
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


def locate(
    points: Float[Tensor, "clouds points dim"],
    grid: Grid,
    mask: Bool[Tensor, "clouds points"] | None = None,
    team: Team | None = None,
) -> Cloud:
    """Return the cloud with the range of grid cells it occupies; masked points (False) are ignored."""
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
        ends = team.all_reduce_max(ends)
        elsewhere = int(team.all_reduce_sum(flat.new_tensor(points.shape[1], dtype=torch.float64))) - points.shape[1]
    low, high = (-ends[0]).tolist(), ends[1].tolist()
    first, count = [], []
    for j in range(grid.dim):
        if not (abs(low[j]) < float("inf") and abs(high[j]) < float("inf")):
            raise ValueError(f"coordinate {j} of the points has NaN or infinite values; coordinates must be finite")
        ends = [(x - grid.origin(j)) / grid.spacing(j) for x in (low[j], high[j])]
        if max(abs(e) for e in ends) > _MAX_CELLS:
            return Cloud(points, mask, grid, None, team, elsewhere)
        cells, on_line = cell_of(torch.tensor([low[j], high[j]], dtype=points.dtype), grid, j)
        # A grid line at either end needs the cell beyond it only where both sides are wanted (see Interpolation).
        both_sides = points.requires_grad
        start = int(cells[0]) - int(both_sides and bool(on_line[0]))
        stop = int(cells[1]) + int(both_sides or not bool(on_line[1]))
        first.append(start)
        count.append(max(stop - start, 1))
    return Cloud(points, mask, grid, Cells(tuple(first), tuple(count)), team, elsewhere)


def cell_of(
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
