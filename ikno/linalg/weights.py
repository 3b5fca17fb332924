"""Quadrature weights of a cloud."""

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.linalg.geometry import Cloud
from ikno.linalg.spreading import Interpolation, interpolation_weights


def density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    """Return weights inverse to the local density of the points, as seen by hat functions on the grid lines.

    With W the multilinear interpolation from grid points to points: w = 1 / (W W^T 1). Strongly clustered clouds then
    count a region by its volume, not by its points.
    """
    if not cloud.density:
        cloud.density.append(_density_weights(cloud))
    return cloud.density[0]


def _density_weights(cloud: Cloud) -> Float[Tensor, "clouds points"]:
    with torch.no_grad():
        if cloud.cells is None:
            raise ValueError("points lie too far outside the grid for density weights; use point_weights='uniform'")
        nodes = (2,) * cloud.grid.dim
        w = Interpolation(cloud, nodes, interpolation_weights(cloud, nodes))
        clouds, points = cloud.points.shape[:2]
        ones = torch.ones(clouds * points, 1, 1, dtype=w.bases[0].dtype, device=cloud.points.device)
        density = ones.new_zeros(clouds * points + 1, 1, 1)
        team = cloud.team
        for strip in w.strips(1, 1 << 22, empty=team is not None):  # in a team all go through the same strips
            counts = w.spread(ones, strip)
            w.sample(counts if team is None else team.total(counts), strip, density)
        density = density[:-1].view(clouds, points).to(cloud.points.dtype)
        return torch.where(density > 0, 1 / density.clamp(min=torch.finfo(density.dtype).tiny), 0)
