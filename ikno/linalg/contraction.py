"""Sums between scattered points and the latent grid, K_GP V and K_PG V', for several kernels at once.

Two forms with the same four steps, neither of which stores anything of size points x grid:

``Dense`` forms the kernel matrix in chunks of points, and again in the backward pass. It is the oracle.

``Local`` uses that every axis kernel is smooth inside one grid cell. The values of a point are spread with polynomial
weights onto the interpolation nodes of its cell; since the weights depend on geometry alone, one pass serves all
kernels, and the kernel parameters enter only through small per-axis tables between nodes and grid points:
K_GP ~= (T_1 (x) ... (x) T_d) W^T with T_j = k_j(grid, nodes) and W sparse. See docs/design.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.geometry import Cells, Cloud, Grid
from ikno.linalg.interpolation import lobatto
from ikno.linalg.kronecker import kron_apply
from ikno.linalg.spreading import interpolation_weights, sample_nodes, spread_nodes

Values = Float[Tensor, "batch points width"]
OnGrid = Float[Tensor, "batch *grid width"]


@runtime_checkable
class Kernel(Protocol):
    """What a contraction needs of a kernel, usually a module."""

    def parameters(self) -> Iterable[Tensor]:
        """Return the tensors that the kernel depends on and that may be differentiated."""
        ...

    def matrix(self, points: Float[Tensor, "clouds points dim"], grid: Grid) -> Float[Tensor, "clouds points count"]:
        """Return k(x, y) for all points x and grid points y."""
        ...

    def factor(self, axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]) -> Float[Tensor, "*rows cols"]:
        """Return k_j(x, y) along one axis; only asked of kernels that are products over the axes."""
        ...

    def nodes(self, grid: Grid, tolerance: float, slope: bool) -> tuple[int, ...] | None:
        """Return the nodes per cell and axis that meet the tolerance, None if no product or too many."""
        ...


def _fold(x: Float[Tensor, "batch *space width"], cloud: Cloud) -> Float[Tensor, "clouds *space samples width"]:
    """Put the samples that share a cloud beside each other."""
    if cloud.points.shape[0] not in (1, x.shape[0]):
        raise ValueError(f"{x.shape[0]} samples need one cloud or one each, found {cloud.points.shape[0]} clouds")
    return x.unsqueeze(-2) if cloud.points.shape[0] == x.shape[0] else x.movedim(0, -2).unsqueeze(0)


def _unfold(x: Float[Tensor, "clouds *space samples width"]) -> Float[Tensor, "batch *space width"]:
    """Undo ``_fold``: one of clouds and samples is 1."""
    return x.squeeze(-2) if x.shape[-2] == 1 else x.squeeze(0).movedim(-2, 0)


class Contraction(ABC):
    """Points to grid is ``collect(spread(values, cloud))``, grid to points ``sample(expand(grids, cloud), cloud)``.

    ``spread`` may be summed over parts of a cloud before ``collect``, and what ``expand`` returns serves any number of
    parts: so memory stays bounded for clouds of any size. Grids are one tensor per kernel.

    In between, samples that share a cloud stand side by side, [clouds, ..., samples, width], as one wide product.
    """

    @abstractmethod
    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]: ...

    @abstractmethod
    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> tuple[Values, ...]: ...


@dataclass(frozen=True)
class Dense(Contraction):
    """Kernel matrices in chunks of points, at most ``chunk`` entries at a time."""

    kernels: Sequence[Kernel]
    grid: Grid
    chunk: int = 1 << 22

    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]:
        folded = _fold(_masked(values, cloud), cloud)
        flat = folded.flatten(2)
        sums = (_ToGrid.apply(flat, cloud.points, k, self.grid, self.chunk, *k.parameters()) for k in self.kernels)
        return tuple(s.unflatten(2, folded.shape[2:]) for s in sums)  # pyright: ignore[reportAttributeAccessIssue]

    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]:
        return tuple(_unfold(g).unflatten(1, self.grid.size) for g in spread)

    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]:
        return tuple(_fold(g, cloud).flatten(1, -3) for g in grids)

    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> tuple[Values, ...]:
        values = []
        for k, g in zip(self.kernels, expanded, strict=True):
            v = _ToPoints.apply(g.flatten(2), cloud.points, k, self.grid, self.chunk, *k.parameters())
            assert isinstance(v, Tensor)
            values.append(_masked(_unfold(v.unflatten(2, g.shape[2:])), cloud))
        return tuple(values)


def _masked(values: Values, cloud: Cloud) -> Values:
    return values if cloud.mask is None else values.masked_fill(~cloud.mask[..., None], 0)


class _ToGrid(torch.autograd.Function):
    """K^T V with K = k(points, grid) in chunks of points."""

    @staticmethod
    def forward(ctx, values, points, kernel, grid, chunk, *parameters):
        ctx.kernel, ctx.grid, ctx.chunk = kernel, grid, chunk
        ctx.save_for_backward(values, points, *parameters)
        total = values.new_zeros(values.shape[0], grid.count, values.shape[2])
        for part in _parts(points, grid, chunk):
            torch.baddbmm(total, kernel.matrix(points[:, part], grid).mT, values[:, part], out=total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        values, points, *parameters = ctx.saved_tensors
        return _backward(ctx, points, parameters, values, grads[0], to_grid=True)


class _ToPoints(torch.autograd.Function):
    """K V with K = k(points, grid) in chunks of points."""

    @staticmethod
    def forward(ctx, values, points, kernel, grid, chunk, *parameters):
        ctx.kernel, ctx.grid, ctx.chunk = kernel, grid, chunk
        ctx.save_for_backward(values, points, *parameters)
        result = values.new_empty(*points.shape[:2], values.shape[2])
        for part in _parts(points, grid, chunk):
            torch.bmm(kernel.matrix(points[:, part], grid), values, out=result[:, part])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        values, points, *parameters = ctx.saved_tensors
        return _backward(ctx, points, parameters, grads[0], values, to_grid=False)


def _backward(ctx, points: Tensor, parameters: list[Tensor], at_points: Tensor, on_grid: Tensor, to_grid: bool):
    """Return the gradients of <at_points, K on_grid>: in one of the two, in the points and in the kernel.

    K is formed again chunk by chunk; its own derivatives are those of ``kernel.matrix``.
    """
    need_values, need_points = ctx.needs_input_grad[:2]
    wanted = [p for p, needed in zip(parameters, ctx.needs_input_grad[5:], strict=True) if needed]
    sums = [torch.zeros_like(p) for p in wanted]
    dvalues = torch.zeros_like(at_points if to_grid else on_grid) if need_values else None
    dpoints = torch.zeros_like(points) if need_points else None
    for part in _parts(points, ctx.grid, ctx.chunk):
        x = points[:, part].detach().requires_grad_(need_points)
        with torch.enable_grad():
            matrix = ctx.kernel.matrix(x, ctx.grid)
        k, v = matrix.detach(), at_points[:, part]
        if dvalues is not None and to_grid:
            torch.bmm(k, on_grid, out=dvalues[:, part])
        elif dvalues is not None:
            torch.baddbmm(dvalues, k.mT, v, out=dvalues)
        if not matrix.requires_grad:
            continue
        inputs = [*wanted, *([x] if need_points else [])]
        grads = torch.autograd.grad(matrix, inputs, torch.bmm(v, on_grid.mT), allow_unused=True)
        for total, g in zip(sums, grads, strict=False):
            if g is not None:
                total += g
        if dpoints is not None:
            dpoints[:, part] = grads[-1]
    found = iter(sums)
    dparameters = [next(found) if needed else None for needed in ctx.needs_input_grad[5:]]
    return dvalues, dpoints, None, None, None, *dparameters


def _parts(points: Tensor, grid: Grid, chunk: int) -> list[slice]:
    size = max(chunk // (grid.count * points.shape[0]), 1)
    return [slice(i, min(i + size, points.shape[1])) for i in range(0, points.shape[1], size)]


@dataclass(frozen=True)
class Local(Contraction):
    """Interpolation inside the cells of the grid with ``nodes[j]`` nodes per cell along axis j.

    Where coordinates are differentiated everything runs in float64: slopes of polynomials amplify rounding.
    """

    kernels: Sequence[Kernel]
    grid: Grid
    cells: Cells
    nodes: tuple[int, ...]
    slope: bool
    dtype: torch.dtype

    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]:
        weights = interpolation_weights(cloud, self.nodes)
        groups = self._groups(_fold(self._working(values), cloud))
        fine = [spread_nodes(g.flatten(2), weights, cloud, self.nodes) for g in groups]
        return tuple(f.unflatten(-1, g.shape[-2:]) for f, g in zip(fine, groups, strict=True))

    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]:
        return tuple(torch.cat([self._product(axes, f) for f in spread]) for axes in self._tables(spread[0]))

    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]:
        tables = self._tables(self._working(grids[0]))
        expanded = []
        for axes, grid in zip(tables, grids, strict=True):
            for g in self._groups(_fold(self._working(grid), cloud)):
                expanded.append(kron_apply([t.mT for t in axes], g.flatten(-2)).unflatten(-1, g.shape[-2:]))
        return tuple(expanded)

    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> tuple[Values, ...]:
        weights = interpolation_weights(cloud, self.nodes)
        values = []
        for fine in expanded:
            v = sample_nodes(fine.flatten(-2), weights, cloud, self.nodes).to(self.dtype)
            values.append(_unfold(v.unflatten(-1, fine.shape[-2:])))
        groups = len(values) // len(self.kernels)
        return tuple(torch.cat(values[q : q + groups]) for q in range(0, len(values), groups))

    def _product(self, axes: list[Tensor], fine: Tensor) -> OnGrid:
        return _unfold(kron_apply(axes, fine.flatten(-2)).to(self.dtype).unflatten(-1, fine.shape[-2:]))

    def _groups(self, folded: Tensor) -> tuple[Tensor, ...]:
        """Split samples that share a cloud: node values above some 16 MB at a time cost page faults."""
        size = prod(self.cells.node_counts(self.nodes)) * folded.shape[-1]
        return folded.split(max((1 << 22) // size, 1), -2)

    def _working(self, x: Tensor) -> Tensor:
        return x.double() if self.slope else x

    def _tables(self, like: Tensor) -> list[list[Float[Tensor, "_ _"]]]:
        """Return k_j(grid points, nodes) per kernel and axis, formed in float64 since slopes amplify noise."""
        exact = torch.empty(0, dtype=torch.float64, device=like.device)
        axes = [(j, self.grid.axis(j, exact), self._node_coordinates(j, exact)) for j in range(self.grid.dim)]
        return [[k.factor(j, y, x).to(like.dtype) for j, y, x in axes] for k in self.kernels]

    def _node_coordinates(self, axis: int, like: Tensor) -> Float[Tensor, "nodes"]:
        inside = torch.tensor(lobatto(self.nodes[axis])[:-1], dtype=torch.float64).to(like)
        cells = torch.arange(self.cells.count[axis] + 1).to(like)[:, None]
        steps = (cells + inside).flatten()[: self.cells.node_counts(self.nodes)[axis]] + self.cells.first[axis]
        return self.grid.origin(axis) + self.grid.spacing(axis) * steps


def contraction(
    kernels: Sequence[Kernel],
    cloud: Cloud,
    method: str = "auto",
    tolerance: float = 1e-5,
) -> Contraction:
    """Return the contraction for a cloud: ``dense``, ``local``, or with ``auto`` the one that costs less.

    ``tolerance`` bounds the error of ``local`` as ``nodes_needed`` says, split evenly over the axes, for values and all
    derivatives that the cloud asks for.
    """
    grid, cells = cloud.grid, cloud.cells
    if method not in ("auto", "dense", "local"):
        raise ValueError(f"the contraction is one of auto, dense, local; found {method!r}")
    if method == "dense":
        return Dense(kernels, grid)
    slope = cloud.points.requires_grad
    counts = [k.nodes(grid, tolerance, slope) for k in kernels]
    known = [c for c in counts if c is not None]
    if cells is None or len(known) < len(counts):
        if method == "local":
            reason = (
                "points lie too far outside the grid"
                if cells is None
                else "a kernel is no product or too narrow for the grid"
            )
            raise ValueError(f"the cell-local contraction cannot be used: {reason}; use contraction='dense' or 'auto'")
        return Dense(kernels, grid)
    nodes = tuple(max(axis) for axis in zip(*known, strict=True))
    if method == "local" or _local_cost(cells, grid, nodes, cloud.points.shape[1], len(kernels)) < _dense_cost(
        grid, cloud.points.shape[1], len(kernels)
    ):
        return Local(kernels, grid, cells, nodes, slope, cloud.points.dtype)
    return Dense(kernels, grid)


def _dense_cost(grid: Grid, points: int, kernels: int) -> float:
    """Return the multiplications per sample and channel of the dense form."""
    return float(kernels * grid.count * points)


def _local_cost(cells: Cells, grid: Grid, nodes: tuple[int, ...], points: int, kernels: int) -> float:
    """Return the same for the local form, with the measured prices of its small products in units of a large one's."""
    sizes = list(cells.node_counts(nodes))
    tables = 0
    for j in sorted(range(grid.dim), key=lambda j: grid.size[j] / sizes[j]):
        tables += grid.size[j] * prod(sizes)
        sizes[j] = grid.size[j]
    return 8.0 * prod(nodes) * points + 2.5 * kernels * tables


def points_to_grid(
    values: Values, cloud: Cloud, kernels: Sequence[Kernel], method: str = "auto", tolerance: float = 1e-5
) -> tuple[OnGrid, ...]:
    """Return sum_i k(y, x_i) v_i on the grid for each kernel: K_GP V_P."""
    form = contraction(kernels, cloud, method, tolerance)
    return form.collect(form.spread(values, cloud))


def grid_to_points(
    grids: Sequence[OnGrid], cloud: Cloud, kernels: Sequence[Kernel], method: str = "auto", tolerance: float = 1e-5
) -> tuple[Values, ...]:
    """Return sum_y k(x, y) v(y) at the points of the cloud for each kernel and its own grid values: K_PG V_G."""
    form = contraction(kernels, cloud, method, tolerance)
    return form.sample(form.expand(grids, cloud), cloud)
