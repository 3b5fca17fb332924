"""Kronecker products by reshape: a matrix on a product grid is a tuple of small factors, one per axis."""

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

Factors = Sequence[Float[Tensor, "*_ _ _"]]  # one per axis, of any size, or a stack of so many matrices


def kron_apply(factors: Factors, v: Float[Tensor, "*in_grid width"]) -> Float[Tensor, "*out_grid width"]:
    """Return ``(K_1 (x) ... (x) K_d) v`` for v of shape [..., cols_1, ..., cols_d, width]; leading axes are a batch.

    Factors may be stacks of matrices, one for each index of the axis before the grid: [batch, stack, *grid, width].
    One matrix product per axis, none of which moves data: axis j is seen as the middle of [before, cols_j, after].
    The axes that shrink most go first. Paper: KronK and the complexity paragraph after TPinv.
    """
    d = len(factors)
    columns = tuple(k.shape[-1] for k in factors)
    if v.ndim <= d or tuple(v.shape[-d - 1 : -1]) != columns:
        raise ValueError(f"the factors act on a grid of shape {columns}, found a tensor of shape {tuple(v.shape)}")
    first = v.ndim - d - 1
    for j in sorted(range(d), key=lambda j: factors[j].shape[-2] / factors[j].shape[-1]):
        v = axis_apply(factors[j], v, first + j)
    return v


def axis_apply(k: Float[Tensor, "*stack rows cols"], v: Float[Tensor, "..."], axis: int) -> Float[Tensor, "..."]:
    """Return the product of a matrix with one axis of v. A stack of matrices has its own axis in v, the second."""
    shape = v.shape
    before, after = prod(shape[:axis]), prod(shape[axis + 1 :])
    k = k.to(v.dtype)
    if k.ndim == 3:
        k = k[None, :, None].expand(shape[0], -1, prod(shape[2:axis]), -1, -1).flatten(0, 2)
        y = torch.bmm(k, v.reshape(before, shape[axis], after))
    elif before == 1:  # one large product runs on all cores
        y = k @ v.reshape(shape[axis], after)
    else:
        y = torch.bmm(k.expand(before, *k.shape), v.reshape(before, shape[axis], after))
    return y.view(*shape[:axis], k.shape[-2], *shape[axis + 1 :])


def kron_dense(factors: Factors) -> Float[Tensor, "m n"]:
    """Return the full matrix ``K_1 (x) ... (x) K_d``, for the direct inverse."""
    return reduce(torch.kron, factors)
