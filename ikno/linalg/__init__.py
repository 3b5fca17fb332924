"""Pure tensor functions: Kronecker products, resolvents, and the contraction between points and a product grid."""

from ikno.linalg.contraction import contraction, grid_to_points, points_to_grid
from ikno.linalg.dense import Dense
from ikno.linalg.geometry import Cells, Cloud, Grid, Team, locate
from ikno.linalg.interpolation import lagrange, lobatto, nodes_needed
from ikno.linalg.kronecker import Factors, kron_apply, kron_dense
from ikno.linalg.local import Local
from ikno.linalg.resolvents import RESOLVENTS, Apply, Resolvent, dense, tensor_product, truncated, vanilla
from ikno.linalg.series import Convergence, convergence, inverse_power, spectral_radius
from ikno.linalg.sums import Contraction, Kernel

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
    "Kernel",
    "Local",
    "Resolvent",
    "Team",
    "contraction",
    "convergence",
    "dense",
    "grid_to_points",
    "inverse_power",
    "kron_apply",
    "kron_dense",
    "lagrange",
    "lobatto",
    "locate",
    "nodes_needed",
    "points_to_grid",
    "spectral_radius",
    "tensor_product",
    "truncated",
    "vanilla",
]
