"""K_inf K_GP: sums between points and grid, and the resolvents that add up all orders, for all kernels of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.linalg import RESOLVENTS, Cloud, Contraction, Local, contraction, inverses, kron_apply

ResolventName = Literal["tensor_product", "vanilla", "truncated", "dense"]
OnGrid = Float[Tensor, "batch kernels *grid width"]


@dataclass(frozen=True)
class Propagation:
    """K_inf K_GP between a cloud and the grid, and its transpose; without ``resolve`` resolvents are in the tables."""

    form: Contraction
    resolve: Callable[[OnGrid], OnGrid] | None = None

    def at(self, cloud: Cloud) -> "Propagation":
        """Return the same for another cloud with the same range of cells."""
        assert cloud.cells == self.form.cloud.cells
        return replace(self, form=replace(self.form, cloud=cloud))

    def to_grid(self, values: Float[Tensor, "batch points width"]) -> OnGrid:
        """Return K_inf K_GP v for each kernel."""
        sums = self.form.to_grid(values)
        return sums if self.resolve is None else self.resolve(sums)

    def to_points(self, grids: OnGrid, summed: bool = False) -> Float[Tensor, "batch points branches width"]:
        """Return K_PG K_inf g for each kernel and its own g, or with ``summed`` the sum of all."""
        return self.form.to_points(grids if self.resolve is None else self.resolve(grids), summed)


def propagation(
    kernels: Sequence[Any],
    cloud: Cloud,
    resolvent: ResolventName,
    order: int = 1,
    method: str = "auto",
    tolerance: float = 1e-5,
) -> Propagation:
    """Return the propagation of several kernels of one class with a resolvent, of an order if it is truncated."""
    form = contraction(kernels, cloud, method, tolerance)
    factors, alpha = kernels[0].grams(kernels, cloud.grid), torch.stack([k.alpha for k in kernels])
    if resolvent == "tensor_product":  # of all kernels at once
        axes = inverses(factors, alpha)
        if isinstance(form, Local):  # (R_1 (x) R_2) (T_1 (x) T_2) = R_1 T_1 (x) R_2 T_2
            return Propagation(replace(form, tables=tuple(r @ t for r, t in zip(axes, form.tables, strict=True))))
        return Propagation(form, _in_shape_of(factors, lambda v: kron_apply(axes, v)))
    make = partial(RESOLVENTS[resolvent], order=order) if resolvent == "truncated" else RESOLVENTS[resolvent]
    each = [make([k[q] for k in factors], alpha[q]) for q in range(len(kernels))]
    return Propagation(
        form, _in_shape_of(factors, lambda v: torch.stack([apply(v[:, q]) for q, apply in enumerate(each)], 1))
    )


def _in_shape_of(factors: Sequence[Tensor], apply: Callable[[Tensor], Tensor]) -> Callable[[OnGrid], OnGrid]:
    """Return a map that sees the grid in the shape of the factors: flat, if there is only one."""
    sizes = [k.shape[-1] for k in factors]
    return lambda v: apply(v.reshape(*v.shape[:2], *sizes, v.shape[-1])).view(v.shape)
