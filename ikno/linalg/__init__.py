"""Pure tensor functions: Kronecker products, resolvents, and the contraction between points and a product grid."""

from ikno.linalg.contraction import (
    Contraction,
    Dense,
    Kernel,
    Local,
    contraction,
    grid_to_points,
    node_coordinates,
    points_to_grid,
)
from ikno.linalg.geometry import Cells, Cloud, Grid, Team, locate
from ikno.linalg.interpolation import Interpolation
from ikno.linalg.kronecker import Factors, kron_apply, kron_dense
from ikno.linalg.polynomials import lagrange, lobatto, nodes_needed
from ikno.linalg.resolvents import RESOLVENTS, Apply, Resolvent, dense, inverses, tensor_product, truncated, vanilla
from ikno.linalg.series import Convergence, convergence, inverse_power, spectral_radius
from ikno.linalg.weights import density_weights

__all__ = [
    "RESOLVENTS",
    "Apply",
    "Cells",
    "Cloud",
    "Contraction",
    "Convergence",
    "Dense",
    "Factors",
    "Grid",
    "Interpolation",
    "Kernel",
    "Local",
    "Resolvent",
    "Team",
    "contraction",
    "convergence",
    "dense",
    "density_weights",
    "grid_to_points",
    "inverse_power",
    "inverses",
    "kron_apply",
    "kron_dense",
    "lagrange",
    "lobatto",
    "locate",
    "node_coordinates",
    "nodes_needed",
    "points_to_grid",
    "spectral_radius",
    "tensor_product",
    "truncated",
    "vanilla",
]
