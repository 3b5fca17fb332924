"""The two series behind the resolvent, and which of them converges. Paper: Fapp, CLFapp, InvPower."""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.linalg.kronecker import Factors, kron_apply
from ikno.linalg.resolvents import Apply


@dataclass(frozen=True)
class Convergence:
    """Spectral radii of alpha K and of its inverse, and what follows for the two series."""

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
    inverses = [torch.linalg.inv(k.double()) for k in factors]

    def apply(v: Float[Tensor, "*grid width"]) -> Float[Tensor, "*grid width"]:
        y = torch.zeros_like(v)
        for _ in range(order):
            y = kron_apply(inverses, y - v) / alpha
        return y

    return apply
