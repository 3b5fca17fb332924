"""Polynomial interpolation inside one grid cell.

The nodes are Chebyshev-Lobatto points: they include both ends of the cell, so that neighboring cells share them, a
point on a grid line is reproduced exactly, and the interpolant is continuous.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor


@lru_cache
def lobatto(count: int) -> tuple[float, ...]:
    """Return the ``count`` Chebyshev-Lobatto nodes (1 - cos(pi i / (count - 1))) / 2 on [0, 1]."""
    if count < 2:
        raise ValueError(f"a cell needs at least its two ends as nodes, found {count}")
    return tuple((1 - math.cos(math.pi * i / (count - 1))) / 2 for i in range(count))


def lagrange(t: Float[Tensor, "*points"], count: int) -> Float[Tensor, "*points {count}"]:
    """Return the Lagrange polynomials of the Lobatto nodes at t in [0, 1]: rows that sum to one.

    Formed from Chebyshev polynomials, l_i(t) = sum_k C_ki T_k(2t - 1), which is stable at any degree used here and
    differentiable everywhere, nodes and ends included.
    """
    return _chebyshev(t, count) @ _lagrange_coefficients(count).to(t)


def _chebyshev(t: Float[Tensor, "*points"], count: int) -> Float[Tensor, "*points {count}"]:
    z = 2 * t - 1
    terms = [torch.ones_like(z), z]
    while len(terms) < count:
        terms.append(2 * z * terms[-1] - terms[-2])
    return torch.stack(terms[:count], -1)


@lru_cache
def _lagrange_coefficients(count: int) -> Float[Tensor, "count count"]:
    with torch.inference_mode(False):  # it is kept for all that comes, gradients too
        return torch.linalg.inv(_chebyshev(torch.tensor(lobatto(count), dtype=torch.float64), count))
