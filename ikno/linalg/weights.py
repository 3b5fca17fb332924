"""Quadrature weights of a cloud."""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.geometry import Cloud
from ikno.linalg.spreading import Interpolation, interpolation_weights

FLOATS = 1 << 22  # node values worked on at a time, those of one cloud if it has more


def density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    """Return weights inverse to the local density of the points, as seen by hat functions on the grid lines.

    With W the multilinear interpolation from grid points to points: w = 1 / (W W^T 1). Strongly clustered clouds then
    count a region by its volume, not by its points.
    """
    if cloud.points.requires_grad:  # not kept: they belong to one backward pass
        return _density_weights(cloud)
    if not cloud.density:
        cloud.density.append(_density_weights(cloud))
    return cloud.density[0]


def _density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    if cloud.cells is None:
        raise ValueError("points lie too far outside the grid for density weights; use point_weights='uniform'")
    density = _Density.apply(cloud, *interpolation_weights(cloud, (2,) * cloud.grid.dim))
    assert isinstance(density, Tensor)
    density = density.to(cloud.points.dtype)
    return torch.where(density > 0, 1 / density.clamp(min=torch.finfo(density.dtype).tiny), 0)


class _Density(torch.autograd.Function):
    """W W^T 1 at the points; W depends on the coordinates through the weights along each axis."""

    @staticmethod
    def forward(ctx, cloud, *bases):
        ctx.cloud = cloud
        ctx.save_for_backward(*bases)
        w, ones = _hats(cloud, bases)
        density = ones.new_zeros(len(ones) + 1, 1, 1)
        for strip in _strips(w):
            w.sample(_total(w.spread(ones, strip), cloud), strip, density)
        return density[:-1].view(cloud.points.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        w, ones = _hats(ctx.cloud, ctx.saved_tensors)
        found = [torch.zeros_like(b) for b in ctx.saved_tensors]
        rows = grads[0].reshape(-1, 1, 1)
        for strip in _strips(w):  # a point feels the nodes, and its neighbors feel it through them
            w.add_gradients(rows, _total(w.spread(ones, strip), ctx.cloud), strip, found)
            w.add_gradients(ones, _total(w.spread(rows, strip), ctx.cloud), strip, found)
        return None, *found


def _strips(w: Interpolation):
    """Return strips of whole clouds: the nodes between two rows of cells must have the points of both.

    In a team all processes go through the same ones, some of them without points.
    """
    return w.strips(1, max(FLOATS, prod(w.node_counts)), empty=w.cloud.team is not None)


def _total(nodes: Tensor, cloud: Cloud) -> Tensor:
    return nodes if cloud.team is None else cloud.team.total(nodes)


def _hats(cloud: Cloud, bases: tuple[Tensor, ...]) -> tuple[Interpolation, Float[Tensor, "points 1 1"]]:
    ones = bases[0].new_ones(cloud.points.shape[0] * cloud.points.shape[1], 1, 1)
    return Interpolation(cloud, (2,) * cloud.grid.dim, bases), ones
