"""Sums between the points of a cloud and the latent grid, K_GP V and its transpose, in two forms.

Dense: the kernel matrix in chunks of points. Obvious, the oracle, and right for few points or very narrow kernels.

Local: with W the interpolation from the nodes of the grid cells to the points (see ``Interpolation``),

    K_GP ~= (T_1 (x) ... (x) T_d) W^T,   T_j = k_j(grid points, nodes).

W depends on geometry alone and serves all kernels at once; the parameters of the kernels enter only through the small
tables T_j. All derivatives are autograd's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ikno.linalg.geometry import Cloud, Grid
from ikno.linalg.interpolation import Interpolation, Nodes, lobatto
from ikno.linalg.kronecker import axis_apply

MAX_NODES = 1 << 24  # of all cells together: more take too much memory, even for one channel at a time
AT_A_TIME = 1 << 23  # node values that are worked on at a time, or those of 16 columns
KEPT = 1 << 28  # node values that are kept for the backward pass; where there are more, they are computed again
DENSE_CHUNK = 1 << 22  # entries of a kernel matrix at a time

Values = Float[Tensor, "batch points width"]
OnGrid = Float[Tensor, "batch kernels *grid width"]
Branches = Float[Tensor, "batch points branches width"]
Table = Float[Tensor, "kernels _ _"]


@runtime_checkable
class Kernel(Protocol):
    """What a contraction asks of a kernel. Static methods serve several kernels of one class at once."""

    def matrix(self, points: Float[Tensor, "clouds points dim"], grid: Grid) -> Float[Tensor, "clouds points count"]:
        """Return k(x, y) for all points x and grid points y."""
        ...

    @staticmethod
    def along(
        kernels: "Sequence[Any]", axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]
    ) -> Float[Tensor, "kernels *rows cols"]:
        """Return k_j(x, y) along one axis; only asked of kernels that are products over the axes."""
        ...

    @staticmethod
    def nodes(kernels: "Sequence[Any]", grid: Grid, tolerance: float, slope: bool) -> Nodes | None:
        """Return the nodes per cell and axis that meet the tolerance for all, None if no product or too many."""
        ...


@dataclass(frozen=True)
class Dense:
    """Kernel matrices, at most ``chunk`` entries of one at a time; the backward pass forms them again."""

    kernels: Sequence[Kernel]
    cloud: Cloud
    chunk: int = DENSE_CHUNK

    def to_grid(self, values: Values) -> OnGrid:
        """Return sum_i k(y, x_i) v_i on the grid for each kernel."""
        mask = self.cloud.mask
        x = _fold(values if mask is None else values.masked_fill(~mask[..., None], 0), self.cloud)

        def add(total: Tensor, kernel: Kernel, points: Tensor, part: Tensor) -> Tensor:
            return torch.baddbmm(total, part.mT, kernel.matrix(points, self.cloud.grid))

        sums = []
        for kernel in self.kernels:
            total = x.new_zeros(x.shape[0], x.shape[2], self.cloud.grid.count)
            for i in self._chunks():
                total = _recomputed(add, total, kernel, self.cloud.points[:, i], x[:, i])
            sums.append(total.mT)
        return _unfold(torch.stack(sums, 1), values.shape[0]).unflatten(2, self.cloud.grid.size)

    def to_points(self, grids: OnGrid, summed: bool = False) -> Branches:
        """Return sum_y k(x, y) g(y) at the points for each kernel and its own g; ``summed``: one sum over kernels."""
        x = _fold(grids, self.cloud).flatten(2, -2)

        def product(kernel: Kernel, points: Tensor, g: Tensor) -> Tensor:
            return kernel.matrix(points, self.cloud.grid) @ g

        values = []
        for q, kernel in enumerate(self.kernels):
            parts = [_recomputed(product, kernel, self.cloud.points[:, i], x[:, q]) for i in self._chunks()]
            values.append(torch.cat(parts, 1))
        found = sum(values[1:], values[0])[:, :, None] if summed else torch.stack(values, 2)
        if self.cloud.mask is not None:
            found = found.masked_fill(~self.cloud.mask[..., None, None], 0)
        return _unfold(found, grids.shape[0])

    def _chunks(self) -> list[slice]:
        clouds, points = self.cloud.shape[:2]
        if self.cloud.fixed:  # the number of points stays open
            return [slice(None)]
        size = max(self.chunk // (self.cloud.grid.count * clouds), 1)
        return [slice(i, min(i + size, points)) for i in range(0, points, size)]


@dataclass(frozen=True)
class Local:
    """Interpolation inside the cells of the grid, with ``nodes`` of them in each cell along each axis.

    ``tables`` are k_j(grid points, nodes) of all kernels, one for each axis. Columns are channels, of all samples that
    share a cloud; some of them are worked on at a time, which bounds the memory.
    """

    cloud: Cloud
    nodes: Nodes
    tables: tuple[Table, ...]

    def to_grid(self, values: Values) -> OnGrid:
        """Return (T_1 (x) ... (x) T_d) W^T v for each kernel."""
        w = Interpolation.of(self.cloud, self.nodes)
        x = _fold(values, self.cloud)
        first = self.tables[0].flatten(0, 1)  # one product for all kernels

        def sums(columns: Tensor, first: Tensor, *others: Tensor) -> Tensor:
            y = axis_apply(first, w.to_nodes(columns), 1).unflatten(1, (-1, self.tables[0].shape[1]))
            for j, table in enumerate(others, 3):
                y = axis_apply(table, y, j)
            return y

        found = self._by_columns(sums, x, first, *self.tables[1:])
        return _unfold(found, values.shape[0]).to(values.dtype)

    def to_points(self, grids: OnGrid, summed: bool = False) -> Branches:
        """Return W (T_1 (x) ... (x) T_d)^T g for each kernel and its own g; ``summed``: one sum over kernels."""
        w = Interpolation.of(self.cloud, self.nodes)
        x = _fold(grids, self.cloud)

        def sampled(columns: Tensor, *tables: Tensor) -> Tensor:
            y = columns
            for j, table in reversed(list(enumerate(tables[1:], 3))):
                y = axis_apply(table.mT, y, j)
            if summed:  # over the kernels, in the product along the first axis
                values = w.to_points(axis_apply(tables[0].flatten(0, 1).mT, y.flatten(1, 2), 1))
                return values[:, :, None]
            each = zip(tables[0], y.unbind(1), strict=True)
            return torch.stack([w.to_points(axis_apply(table.mT, part, 1)) for table, part in each], 2)

        found = self._by_columns(sampled, x, *self.tables)
        return _unfold(found, grids.shape[0]).to(grids.dtype)

    def _by_columns(self, function: Callable[..., Tensor], x: Tensor, *tables: Tensor) -> Tensor:
        """Return the function of some columns at a time, computed again in the backward pass where they are many."""
        assert self.cloud.cells is not None
        nodes = self.cloud.shape[0] * prod(self.cloud.cells.node_counts(self.nodes))
        dtype = torch.float64 if self.cloud.points.requires_grad else x.dtype
        tables = tuple(t.to(dtype) for t in tables)
        parts = x.split(max(AT_A_TIME // nodes, 16), -1)
        run = partial(_recomputed, function) if nodes * x.shape[-1] > KEPT else function
        found = [run(p.to(dtype), *tables) for p in parts]
        return torch.cat(found, -1) if len(found) > 1 else found[0]


Contraction = Dense | Local


def contraction(kernels: Sequence[Kernel], cloud: Cloud, method: str = "auto", tolerance: float = 1e-5) -> Contraction:
    """Return the contraction for a cloud: ``dense``, ``local``, or with ``auto`` the one that costs less.

    ``tolerance`` bounds the error of ``local``, for values and all derivatives that the cloud asks for, as
    ``Kernel.nodes`` says.
    """
    if method not in ("auto", "dense", "local"):
        raise ValueError(f"the contraction is one of auto, dense, local; found {method!r}")
    nodes = None if method == "dense" else _nodes(kernels, cloud, tolerance)
    if nodes is None and method == "local":
        raise ValueError(
            "the cell-local contraction cannot be used: a kernel is no product or too narrow for the grid, or points "
            "lie too far outside; use contraction='dense' or 'auto'"
        )
    if nodes is None or (method == "auto" and not _local_is_cheaper(cloud, nodes, len(kernels))):
        return Dense(kernels, cloud)
    return Local(cloud, nodes, tuple(_table(kernels, cloud, j, m) for j, m in enumerate(nodes)))


def _nodes(kernels: Sequence[Kernel], cloud: Cloud, tolerance: float) -> Nodes | None:
    """Return the nodes of the most demanding kernel along each axis; None if there is no such number, or too many."""
    if cloud.cells is None or any(type(k) is not type(kernels[0]) for k in kernels):
        return None
    nodes = kernels[0].nodes(kernels, cloud.grid, tolerance, cloud.points.requires_grad)
    return None if nodes is None or prod(cloud.cells.node_counts(nodes)) > MAX_NODES else nodes


def _local_is_cheaper(cloud: Cloud, nodes: Nodes, kernels: int) -> bool:
    """Compare the multiplications per sample and channel, with measured prices of small products in units of large."""
    assert cloud.cells is not None
    grid, sizes = cloud.grid, list(cloud.cells.node_counts(nodes))
    points = cloud.shape[1] + cloud.elsewhere  # a team makes the choice that one process would make
    tables = 0
    for j in range(grid.dim):
        tables += grid.size[j] * prod(sizes)
        sizes[j] = grid.size[j]
    return 8.0 * prod(nodes) * points + 2.5 * kernels * tables < kernels * grid.count * points


def _table(kernels: Sequence[Kernel], cloud: Cloud, axis: int, nodes: int) -> Table:
    """Return k_j(grid points, nodes) of all kernels, formed in float64 since slopes amplify noise."""
    assert cloud.cells is not None
    first, count = cloud.cells.first[axis], cloud.cells.count[axis]
    like = cloud.points.new_empty(0, dtype=torch.float64)
    places = torch.arange(first, first + count).to(like)[:, None] + like.new_tensor(lobatto(nodes)[:-1])
    places = torch.cat([places.flatten(), like.new_tensor([first + count])])
    y = cloud.grid.origin(axis) + cloud.grid.spacing(axis) * places
    return kernels[0].along(kernels, axis, cloud.grid.axis(axis, y), y)


def _fold(x: Float[Tensor, "batch *space width"], cloud: Cloud) -> Float[Tensor, "clouds *space columns"]:
    """Put the samples that share a cloud beside each other, as one wide product."""
    if cloud.shape[0] not in (1, x.shape[0]):
        raise ValueError(f"{x.shape[0]} samples need one cloud or one each, found {cloud.shape[0]} clouds")
    return x if cloud.shape[0] == x.shape[0] else x.movedim(0, -2).flatten(-2)[None]


def _unfold(x: Float[Tensor, "clouds *space columns"], batch: int) -> Float[Tensor, "batch *space width"]:
    """Undo ``_fold``."""
    return x if x.shape[0] == batch else x[0].unflatten(-1, (batch, -1)).movedim(-2, 0)


def _recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Return the function's value; what it needs for its gradient is computed again in the backward pass."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    found = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(found, Tensor)
    return found
