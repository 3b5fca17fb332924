"""Pure tensor functions: Kronecker products, resolvents, and the contraction between points and a product grid."""

from ikno.linalg.contraction import Contraction, Dense, Local, contraction
from ikno.linalg.geometry import Cells, Cloud, Grid, Team, locate
from ikno.linalg.interpolation import Interpolation, density_weights
from ikno.linalg.kronecker import kron_apply, kron_dense
from ikno.linalg.resolvents import (
    RESOLVENTS,
    convergence,
    dense,
    inverse_power,
    inverses,
    tensor_product,
    truncated,
    vanilla,
)

__all__ = [
    "RESOLVENTS",
    "Cells",
    "Cloud",
    "Contraction",
    "Dense",
    "Grid",
    "Interpolation",
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
    "locate",
    "tensor_product",
    "truncated",
    "vanilla",
]
