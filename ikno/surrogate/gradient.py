"""How a number made of a prediction changes with the points, the conditions and the queries: shape sensitivity."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ikno.errors import UserError

Array = np.ndarray | Tensor
Objective = Callable[[Float[Tensor, "*batch queries variables"], Float[Tensor, "*batch queries dim"]], Tensor]


@dataclass(frozen=True)
class Gradient:
    """The value of an objective, and its derivatives in the shape of each input; None for inputs that were not given.

    That in the points is at fixed conditions and the other way round.
    """

    value: float
    points: Array
    conditions: Array | None = None
    queries: Array | None = None
    start: Array | None = None


def gradient(
    self: Any,
    objective: Objective,
    points: Array,
    conditions: Array | None = None,
    queries: Array | None = None,
    time: float | Array | None = None,
    lead: float | Array | None = None,
    start: Array | None = None,
    steps: int = 1,
) -> Gradient:
    """Return ``objective(values, places)`` with its derivatives; numpy for numpy, tensors for tensors.

    A method of surrogates and ensembles. ``values`` are what ``predict`` returns for the same arguments and ``places``
    the queries, both as tensors; the objective is one number made of them by torch. Without queries the points are
    where the input is known and where the solution is wanted, and the gradient in them is the sum of both effects and
    of ``places`` in the objective.
    """
    given = {"points": points, "conditions": conditions, "queries": queries, "start": start}
    leaves = {name: _leaf(array) for name, array in given.items() if array is not None}
    with torch.enable_grad():
        x, c, q, s = (leaves.get(name) for name in given)
        assert x is not None
        places = x if q is None else q
        values = self.predict(x, c, q, time, lead, s, steps)
        value = objective(values, places)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"objective: expected one number made of the prediction by torch, found {found}")
        slopes = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    if not all(bool(torch.isfinite(slope).all()) for slope in slopes):
        raise UserError("objective: its derivative is NaN or infinite here; use one that is smooth, or other points")
    derivatives = {
        name: slope.cpu().numpy() if isinstance(given[name], np.ndarray) else slope
        for name, slope in zip(leaves, slopes, strict=True)
    }
    return Gradient(float(value.detach()), **derivatives)


def _leaf(array: Array) -> Tensor:
    """Return a copy that is differentiated; in native numbers, as torch takes no others."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.array(array, dtype=np.float64)).requires_grad_()
    return array.detach().clone().requires_grad_()
