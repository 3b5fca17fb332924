"""Interpolation weights applied: point values onto the nodes of their cells (spread) and back (sample).

Both are faces of one trilinear form in point values, node values and weights, so each is the other's gradient. Blocks
of points in one cell make small matrix products; temporaries are bounded by working on a few blocks at a time.
"""

from collections.abc import Iterator
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.geometry import Cloud
from ikno.linalg.interpolation import lagrange

Bases = tuple[Float[Tensor, "slots _"], ...]


def interpolation_weights(cloud: Cloud, nodes: tuple[int, ...]) -> Bases:
    """Return the weights of every slot on the nodes of its cell along each axis, its share included in the first.

    In float64 where the coordinates are differentiated.
    """
    blocks = cloud.blocks
    bases = []
    for j, m in enumerate(nodes):
        cell = blocks.cell[:, 1 + j].repeat_interleave(blocks.size)
        bases.append(lagrange(cloud.offsets(j, blocks.source, cell), m))
    return bases[0] * blocks.share[:, None], *bases[1:]


def spread_nodes(
    values: Float[Tensor, "clouds points width"], bases: Bases, cloud: Cloud, nodes: tuple[int, ...]
) -> Float[Tensor, "clouds *nodes width"]:
    """Return sum_i w_i(node) v_i on all interpolation nodes of the cloud's range of cells."""
    return _Spread.apply(values, cloud, nodes, *bases)  # pyright: ignore[reportReturnType]


def sample_nodes(
    fine: Float[Tensor, "clouds *nodes width"], bases: Bases, cloud: Cloud, nodes: tuple[int, ...]
) -> Float[Tensor, "clouds points width"]:
    """Return sum_node w_i(node) f(node) at every point; zero where the cloud is masked."""
    return _Sample.apply(fine, cloud, nodes, *bases)  # pyright: ignore[reportReturnType]


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, cloud, nodes, *bases):
        ctx.cloud, ctx.nodes = cloud, nodes
        ctx.save_for_backward(values if any(b.requires_grad for b in bases) else None, *bases)
        return _spread(values, bases, cloud, nodes)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        values, *bases = ctx.saved_tensors
        dvalues = _sample(grads[0], bases, ctx.cloud, ctx.nodes) if ctx.needs_input_grad[0] else None
        dbases = [None] * len(bases) if values is None else _weights(values, grads[0], bases, ctx.cloud, ctx.nodes)
        return dvalues, None, None, *dbases


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fine, cloud, nodes, *bases):
        ctx.cloud, ctx.nodes = cloud, nodes
        ctx.save_for_backward(fine if any(b.requires_grad for b in bases) else None, *bases)
        return _sample(fine, bases, cloud, nodes)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        fine, *bases = ctx.saved_tensors
        dfine = _spread(grads[0], bases, ctx.cloud, ctx.nodes) if ctx.needs_input_grad[0] else None
        dbases = [None] * len(bases) if fine is None else _weights(grads[0], fine, bases, ctx.cloud, ctx.nodes)
        return dfine, None, None, *dbases


def _spread(values: Tensor, bases, cloud: Cloud, nodes: tuple[int, ...]) -> Tensor:
    assert cloud.cells is not None
    width = values.shape[-1]
    fine = values.new_zeros(values.shape[0], *cloud.cells.node_counts(nodes), width)
    rows, targets = values.reshape(-1, width), fine.view(-1, width)
    for source, index, weights, _ in _chunks(bases, cloud, nodes, width):
        block = rows.index_select(0, source).view(*weights.shape[:2], width)
        targets.index_add_(0, index, torch.bmm(weights.mT, block).view(-1, width))
    return fine


def _sample(fine: Tensor, bases, cloud: Cloud, nodes: tuple[int, ...]) -> Tensor:
    width = fine.shape[-1]
    values = fine.new_zeros(fine.shape[0], cloud.points.shape[1], width)
    rows, targets = values.view(-1, width), fine.reshape(-1, width)
    for source, index, weights, _ in _chunks(bases, cloud, nodes, width):
        cell = targets.index_select(0, index).view(weights.shape[0], -1, width)
        rows.index_add_(0, source, torch.bmm(weights, cell).view(-1, width))
    return values


def _weights(values: Tensor, fine: Tensor, bases, cloud: Cloud, nodes: tuple[int, ...]) -> list[Tensor]:
    """Return the gradient in the weights: <v_i, f(node)> contracted with the weights of the other axes."""
    width, d = values.shape[-1], len(nodes)
    grads = [torch.empty_like(b) for b in bases]
    rows, targets = values.reshape(-1, width), fine.reshape(-1, width)
    letters = "ijk"[:d]
    for source, index, weights, slots in _chunks(bases, cloud, nodes, width):
        block = rows.index_select(0, source).view(*weights.shape[:2], width)
        cell = targets.index_select(0, index).view(weights.shape[0], -1, width)
        products = torch.bmm(block, cell.mT).view(-1, *nodes)
        for j in range(d):
            others = [k for k in range(d) if k != j]
            terms = "".join(f",s{letters[k]}" for k in others)
            equation = f"s{letters}{terms}->s{letters[j]}"
            grads[j][slots] = torch.einsum(equation, products, *(bases[k][slots] for k in others))
    return grads


def _chunks(
    bases, cloud: Cloud, nodes: tuple[int, ...], width: int
) -> Iterator[tuple[Int[Tensor, "slots"], Int[Tensor, "targets"], Float[Tensor, "blocks size nodes"], slice]]:
    """Yield a few blocks at a time: their points, their nodes, the weights between both and the slots they cover."""
    assert cloud.cells is not None
    blocks, sizes = cloud.blocks, cloud.cells.node_counts(nodes)
    device = blocks.source.device
    corner = blocks.cell[:, 0]
    local = torch.zeros(1, dtype=torch.long, device=device)
    for j, (m, n) in enumerate(zip(nodes, sizes, strict=True)):
        corner = corner * n + blocks.cell[:, 1 + j] * (m - 1)
        local = (local[:, None] * n + torch.arange(m, device=device)).flatten()
    # Small enough to stay in a processor's cache, large enough to keep an accelerator busy.
    floats = 1 << 21 if device.type == "cpu" else 1 << 26
    step = max(floats // ((blocks.size + prod(nodes)) * width), 1)
    for start in range(0, len(corner), step):
        stop = min(start + step, len(corner))
        slots = slice(start * blocks.size, stop * blocks.size)
        weights = bases[0][slots]
        for b in bases[1:]:
            weights = (weights[:, :, None] * b[slots][:, None, :]).flatten(1)
        index = (corner[start:stop, None] + local).flatten()
        yield blocks.source[slots], index, weights.view(stop - start, blocks.size, -1), slots
