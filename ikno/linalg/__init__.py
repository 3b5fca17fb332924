"""Pure tensor functions: Kronecker products, resolvents, and the contraction between points and a product grid."""

from ikno.linalg.contraction import Contraction, Dense, Kernel, Local, contraction
from ikno.linalg.geometry import Cells, Cloud, Grid, Team, locate
from ikno.linalg.interpolation import Interpolation, density_weights
from ikno.linalg.kronecker import Factors, kron_apply, kron_dense
from ikno.linalg.polynomials import lagrange, lobatto
from ikno.linalg.resolvents import RESOLVENTS, Apply, dense, inverses, tensor_product, truncated, vanilla
from ikno.linalg.series import Convergence, convergence, inverse_power

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
    "Team",
    "contraction",
    "convergence",
    "dense",
    "density_weights",
    "inverse_power",
    "inverses",
    "kron_apply",
    "kron_dense",
    "lagrange",
    "lobatto",
    "locate",
    "tensor_product",
    "truncated",
    "vanilla",
]
