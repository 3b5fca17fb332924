"""Quadrature weights of a cloud."""

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.linalg.geometry import Cloud
from ikno.linalg.interpolation import Interpolation


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
    if cloud.team is not None:
        nodes = cloud.team.total(nodes)
    density = w.to_points(nodes)[..., 0].to(cloud.points.dtype)
    return torch.where(density > 0, 1 / density.clamp(min=torch.finfo(density.dtype).tiny), 0)
