"""Resolvents on a product grid, ``(factors, alpha) -> apply`` with ``apply(v) = K_infinity v``, and their two series.

Everything that depends on the matrix alone is done once, in float64 and on small matrices; ``apply`` does the rest in
the precision of ``v``, which has the shape [..., *grid, width].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.kronecker import Factors, kron_apply, kron_dense

Apply = Callable[[Float[Tensor, "*grid width"]], Float[Tensor, "*grid width"]]


def vanilla(factors: Factors, alpha: Float[Tensor, ""] | float) -> Apply:
    """Return ``v -> (I - alpha K_1 (x) ... (x) K_d)^-1 v`` from one symmetric eigendecomposition per axis.

    ``U diag(1 / (1 - alpha l_1 ... l_d)) U^T v``, paper: IKNOVanilla, VanEig, VanDiag. The factors are taken as
    symmetric: only their symmetric part enters.
    """
    alpha = _as_tensor(alpha, factors)
    with torch.no_grad():
        pairs = [torch.linalg.eigh((k.double() + k.double().mT) / 2) for k in factors]
        gap = 1 - alpha.double() * _products([p.eigenvalues for p in pairs])
        _check_regular(gap.abs().min(), gap.abs().max(), factors[0].dtype)
    if not any(t.requires_grad for t in (alpha, *factors)):  # constants: autograd's own derivative in v is exact
        return lambda v: kron_apply([p.eigenvectors for p in pairs], _in_eigenbasis(v, pairs, gap))
    return lambda v: _SymmetricSolve.apply(v, alpha, pairs, gap, *factors)  # pyright: ignore[reportReturnType]


def _in_eigenbasis(v: Tensor, pairs: Sequence[Any], gap: Tensor) -> Tensor:
    """Return diag(1 / gap) U^T v."""
    return kron_apply([p.eigenvectors.mT for p in pairs], v) / gap.to(v.dtype)[..., None]


def _products(values: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "..."]:
    """Return all products of one number from each list, as a tensor with one axis per list."""
    return reduce(lambda a, b: a[..., None] * b, values)


class _SymmetricSolve(torch.autograd.Function):
    """Y = (I - alpha K)^-1 V as a linear solve with its own backward, so that eigenvectors are never differentiated.

    With W = (I - alpha K)^-1 dY: dV = W, d(alpha) = <W, K Y>, and dK_j = alpha W (Y seen through the other factors),
    symmetrized because only the symmetric part of a factor enters. The sums are taken in the eigenbasis, where K is
    diagonal: on the grid they would cancel and lose digits.
    """

    @staticmethod
    def forward(ctx, v, alpha, pairs, gap, *factors):
        y = _in_eigenbasis(v, pairs, gap)
        ctx.pairs, ctx.gap = pairs, gap
        ctx.save_for_backward(y, alpha, *factors)
        return kron_apply([p.eigenvectors for p in pairs], y)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        y, alpha, *factors = ctx.saved_tensors
        pairs, d = ctx.pairs, len(factors)
        w = _in_eigenbasis(grads[0], pairs, ctx.gap)
        dv = kron_apply([p.eigenvectors for p in pairs], w) if ctx.needs_input_grad[0] else None
        dalpha = None
        if ctx.needs_input_grad[1]:
            values = _products([p.eigenvalues for p in pairs]).to(y.dtype)
            dalpha = (w * y * values[..., None]).sum().to(alpha.dtype)
        dfactors: list[Tensor | None] = []
        for j, needed in enumerate(ctx.needs_input_grad[4:]):
            if not needed:
                dfactors.append(None)
                continue
            others = [p.eigenvalues if i != j else torch.ones_like(p.eigenvalues) for i, p in enumerate(pairs)]
            seen = y * _products(others).to(y.dtype)[..., None]
            axis = y.ndim - 1 - d + j
            core = (w.movedim(axis, 0).flatten(1) @ seen.movedim(axis, 0).flatten(1).mT).double()
            vectors = pairs[j].eigenvectors
            dk = alpha.double() * vectors @ core @ vectors.mT
            dfactors.append(((dk + dk.mT) / 2).to(factors[j].dtype))
        return dv, dalpha, None, None, *dfactors


def tensor_product(factors: Factors, alpha: Float[Tensor, "*stack"] | float) -> Apply:
    """Return ``v -> (I - alpha K_1)^-1 (x) ... (x) (I - alpha K_d)^-1 v`` from one small inverse per axis.

    Stacks of factors with one alpha each act on v of shape [batch, stack, *grid, width]. Paper: IKNOTP, TPinv.
    """
    found = inverses(factors, alpha)
    return lambda v: kron_apply(found, v)


def inverses(factors: Factors, alpha: Float[Tensor, "*stack"] | float) -> list[Float[Tensor, "*stack _ _"]]:
    """Return (I - alpha K_j)^-1 of every axis, in float64: the factors of the tensor product of resolvents."""
    return [_inverse(k, _as_tensor(alpha, factors)) for k in factors]


def truncated(factors: Factors, alpha: Float[Tensor, ""] | float, order: int = 1) -> Apply:
    """Return ``v -> (I + alpha K + ... + alpha^order K^order) v`` by Horner's rule. Paper: R_p, Fapp, FOKernel."""
    if order < 0:
        raise ValueError(f"the order of a truncated series is at least 0, found {order}")
    alpha = _as_tensor(alpha, factors)

    def apply(v: Float[Tensor, "*grid width"]) -> Float[Tensor, "*grid width"]:
        y = v
        for _ in range(order):
            y = v + alpha.to(v.dtype) * kron_apply(factors, y)
        return y

    return apply


def dense(factors: Factors, alpha: Float[Tensor, ""] | float) -> Apply:
    """Return ``v -> (I - alpha K)^-1 v`` with the M x M inverse formed explicitly. Paper: IKNO (direct inverse)."""
    inverse, d = _inverse(kron_dense(factors), _as_tensor(alpha, factors)), len(factors)
    return lambda v: kron_apply([inverse], v.flatten(-d - 1, -2)).view(v.shape)


RESOLVENTS: dict[str, Callable[..., Apply]] = {f.__name__: f for f in (vanilla, tensor_product, truncated, dense)}


def _inverse(k: Float[Tensor, "*stack n n"], alpha: Float[Tensor, "*stack"]) -> Float[Tensor, "*stack n n"]:
    """Return (I - alpha K)^-1 in float64; autograd's own backward of an inverse is exact and needs no eigenvectors."""
    matrix = torch.eye(k.shape[-1], dtype=torch.float64, device=k.device) - alpha.double()[..., None, None] * k.double()
    inverse, _ = torch.linalg.inv_ex(matrix)
    with torch.no_grad():
        smallest = 1 / torch.linalg.matrix_norm(inverse).amax()  # at most the smallest |1 - alpha lambda|
        _check_regular(smallest, torch.linalg.matrix_norm(matrix).amax(), k.dtype)
    return inverse


def _check_regular(smallest: Float[Tensor, ""], largest: Float[Tensor, ""], dtype: torch.dtype) -> None:
    """Raise where I - alpha K is singular to working precision: a resolvent there is noise or infinity."""
    limit = 16 * max(torch.finfo(dtype).eps, torch.finfo(torch.float64).eps * float(largest))
    if not float(smallest) > limit:
        raise ValueError(
            f"the resolvent (I - alpha K)^-1 is singular: the smallest |1 - alpha lambda| is {float(smallest):.1e}, "
            f"below {limit:.1e}; use a negative alpha, or another positive one"
        )


def _as_tensor(alpha: Float[Tensor, "*stack"] | float, factors: Factors) -> Float[Tensor, "*stack"]:
    return alpha.to(factors[0].device) if isinstance(alpha, Tensor) else factors[0].new_tensor(alpha)


@dataclass(frozen=True)
class Convergence:
    """Spectral radii of alpha K and of its inverse, and which of the two series converges. Paper: CLFapp, InvPower."""

    radius: float
    inverse_radius: float

    @property
    def neumann(self) -> bool:
        """Whether sum of (alpha K)^n, n >= 0, converges: rho(alpha K) < 1."""
        return self.radius < 1

    @property
    def inverse_power(self) -> bool:
        """Whether -sum of (alpha K)^-n, n >= 1, converges: rho((alpha K)^-1) < 1, that is |alpha| lambda_min > 1."""
        return self.inverse_radius < 1


def convergence(factors: Factors, alpha: Float[Tensor, ""] | float) -> Convergence:
    """Return the spectral radii of alpha K and (alpha K)^-1 for symmetric factors; inf for a singular K."""
    with torch.no_grad():
        sizes = [torch.linalg.eigvalsh(k.double()).abs() for k in factors]
    scale = abs(float(alpha))
    largest = scale * reduce(lambda a, b: a * b, [float(s.max()) for s in sizes])
    smallest = scale * reduce(lambda a, b: a * b, [float(s.min()) for s in sizes])
    return Convergence(largest, 1 / smallest if smallest > 0 else float("inf"))


def inverse_power(factors: Factors, alpha: Float[Tensor, ""] | float, order: int) -> Apply:
    """Return ``v -> -((alpha K)^-1 + ... + (alpha K)^-order) v``, the partial sum of InvPower.

    The partial sum of the other series is ``truncated``.
    """
    if order < 1:
        raise ValueError(f"the inverse-power series starts at order 1, found {order}")
    found = [torch.linalg.inv(k.double()) for k in factors]
    others = truncated(found, 1 / alpha, order - 1)
    return lambda v: -kron_apply(found, others(v)) / alpha
