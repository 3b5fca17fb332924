"""Polynomial interpolation inside one grid cell, and how many nodes a kernel profile needs for a stated tolerance.

The nodes are Chebyshev-Lobatto points: they include both ends of the cell, so that neighboring cells share them, a
point on a grid line is reproduced exactly, and the interpolant is continuous.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

MAX_NODES = 40


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
    return torch.linalg.inv(_chebyshev(torch.tensor(lobatto(count), dtype=torch.float64), count))


def nodes_needed(
    profile: Callable[[Float[Tensor, "*u"]], Float[Tensor, "*u"]],
    reach: float,
    tolerance: float,
    derivatives: float,
    slope: bool,
) -> int | None:
    """Return the smallest node count for which interpolation in all cells meets two tolerances, None above MAX_NODES.

    ``profile(u)`` is the kernel at a distance of u >= 0 cells, negligible beyond ``reach``. What is bounded is the
    root-mean-square error, each relative to the root mean square of the quantity itself: that of the profile f by
    ``tolerance``, by ``derivatives`` that of u f'(u) (the derivative in the scale parameter) and, if ``slope``, of
    f'(u) (the derivative in the coordinates), the last at the worst position in a cell: slopes are worst at its ends,
    where clouds may have all their points. Measured on a fine sample, not estimated.
    """
    offsets = torch.unique(torch.linspace(0, max(math.ceil(reach), 1), 129, dtype=torch.float64).round())
    t = ((torch.arange(-1, 129, dtype=torch.float64) + 0.5) / 128).clamp(0, 1)  # middles of 128 parts, and both ends
    exact = _with_derivatives(profile, t[:, None] + offsets)
    for count in range(2, MAX_NODES + 1):
        nodal = _with_derivatives(profile, torch.tensor(lobatto(count), dtype=torch.float64)[:, None] + offsets)
        basis = lagrange(t, count)
        errors = [_relative(basis @ n - e, e) for n, e in zip(nodal[:2], exact[:2], strict=True)]
        if slope:
            derivative = _along(lambda x, m=count: lagrange(x, m), t)[1]
            worst = (derivative @ nodal[0] - exact[2]).square().mean(1).argmax()
            errors.append(_relative(derivative[worst] @ nodal[0] - exact[2][worst], exact[2]))
        if errors[0] <= tolerance and max(errors[1:]) <= derivatives:
            return count
    return None


def _relative(error: Float[Tensor, "*t offsets"], exact: Float[Tensor, "t offsets"]) -> float:
    return float(error.square().mean().sqrt() / exact.square().mean().sqrt())


def _with_derivatives(
    profile: Callable[[Float[Tensor, "*u"]], Float[Tensor, "*u"]], u: Float[Tensor, "..."]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return f(u), u f'(u) and f'(u)."""
    value, slope = _along(profile, u)
    return value, u * slope, slope


def _along(function: Callable[[Tensor], Tensor], x: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Return an elementwise function, or one that adds a last axis, with its derivative."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone().requires_grad_()
        y = function(x)
        columns = y[..., None].flatten(x.ndim).unbind(-1)
        slopes = torch.stack([torch.autograd.grad(c.sum(), x, retain_graph=True)[0] for c in columns], -1)
    return y.detach(), slopes.view(y.shape)
