"""Quadrature weights of a cloud."""

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.linalg.geometry import Cloud
from ikno.linalg.spreading import interpolation_weights, sample_nodes, spread_nodes


def density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    """Return weights inverse to the local density of the points, as seen by hat functions on the grid lines.

    With W the multilinear interpolation from grid points to points: w = 1 / (W W^T 1). Strongly clustered clouds then
    count a region by its volume, not by its points.
    """
    with torch.no_grad():
        if cloud.cells is None:
            raise ValueError("points lie too far outside the grid for density weights; use point_weights='uniform'")
        nodes = (2,) * cloud.grid.dim
        weights = interpolation_weights(cloud, nodes)
        ones = torch.ones_like(cloud.points[..., :1]).to(weights[0].dtype)
        density = sample_nodes(spread_nodes(ones, weights, cloud, nodes), weights, cloud, nodes)[..., 0]
        density = density.to(cloud.points.dtype)
        return torch.where(density > 0, 1 / density.clamp(min=torch.finfo(density.dtype).tiny), 0)
