"""The obvious form of the sums: kernel matrices in chunks of points, formed again in the backward pass. The oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.geometry import Cloud, Grid
from ikno.linalg.sums import Branches, Contraction, Kernel, OnGrid, Values, check_clouds, fold, unfold


@dataclass(frozen=True)
class Dense(Contraction):
    """At most ``chunk`` entries of a kernel matrix exist at a time."""

    kernels: Sequence[Kernel]
    grid: Grid
    summed: bool = False
    chunk: int = 1 << 22

    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]:
        check_clouds(values.shape[0], cloud)
        folded = fold(_masked(values, cloud), cloud)
        sums = [_ToGrid.apply(folded, cloud.points, k, self.grid, self.chunk, *k.parameters()) for k in self.kernels]
        return tuple(unfold(s, values.shape[0]) for s in sums)

    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]:
        return tuple(s.unflatten(1, self.grid.size) for s in spread)

    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]:
        check_clouds(grids[0].shape[0], cloud)
        return tuple(g.flatten(1, -2) for g in grids)

    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> Branches:
        values = []
        for k, g in zip(self.kernels, expanded, strict=True):
            v = _ToPoints.apply(fold(g, cloud), cloud.points, k, self.grid, self.chunk, *k.parameters())
            values.append(_masked(unfold(v, g.shape[0]), cloud))
        return sum(values[1:], values[0]).unsqueeze(-2) if self.summed else torch.stack(values, -2)


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
