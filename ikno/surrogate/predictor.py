"""Predictor: what a user asks of a surrogate or an ensemble. Predictions, spread and intervals, and gradients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ikno.errors import UserError
from ikno.surrogate.intervals import Band, Calibration, Estimate
from ikno.surrogate.signature import Signature

Array = np.ndarray | Tensor
Objective = Callable[[Float[Tensor, "*batch queries variables"], Float[Tensor, "*batch queries dim"]], Tensor]


@dataclass(frozen=True)
class Request:
    """The arguments of ``Predictor.predict``, as the members get them."""

    points: Array
    inputs: Array | None
    queries: Array | None
    time: float | Array | None
    lead: float | Array | None
    start: Array | None
    steps: int
    spread: bool = False
    intervals: Band | None = None

    @property
    def single(self) -> bool:
        """Whether it is one sample, so that the result has no batch axis."""
        return self.points.ndim == 2 and (self.inputs is None or self.inputs.ndim < 3)


@dataclass(frozen=True)
class Gradient:
    """The value of an objective, and its derivatives in the shape of each array; None for arrays that were not given.

    The derivative in the points is at fixed inputs, and the derivative in the inputs is at fixed points.
    """

    value: float
    points: Array
    inputs: Array | None = None
    queries: Array | None = None
    start: Array | None = None


class Predictor:
    """One surrogate or several: the mean of the members' predictions, and their standard deviation as its spread."""

    members: tuple[Any, ...]
    signature: Signature
    calibration: Calibration | None = None

    def predict(
        self,
        points: Array,
        inputs: Array | None = None,
        queries: Array | None = None,
        time: float | Array | None = None,
        lead: float | Array | None = None,
        start: Array | None = None,
        steps: int = 1,
        spread: bool = False,
        intervals: Band | None = None,
    ) -> Any:
        """Return u at the queries in physical units; numpy for numpy, tensors for tensors.

        Tensors that require gradients get them, as anywhere in torch; ``gradient`` is for all others.

        Args:
            points: [points, dim] or [batch, points, dim].
            inputs: [points, channels] or [batch, points, channels], in the order of ``signature.inputs``: for problems
                in time u(t), then the conditions. [channels] is one number per channel for all points.
            queries: [queries, dim] or [batch, queries, dim]. Default: the points.
            time: Time of the inputs, one number or one per sample. Default: the first time of the data.
            lead: How far ahead to predict, one number or one per sample; problems in time only.
            start: u(t) at the queries, to which the modes residual and derivative add a change. Default: linear
                interpolation between the points.
            steps: Equal steps to the lead. Each starts from the result of the last, with the conditions of the first.
            spread: Also return the standard deviation over the members, zero for one run.
            intervals: Also return the spread and the ends of intervals, pointwise or simultaneous.

        Returns:
            u [..., queries, variables], or an ``Estimate`` if the spread or intervals are asked for.

        Raises:
            UserError: If shapes, numbers or times do not fit the signature, or intervals are not calibrated.
        """
        return self._predict(Request(points, inputs, queries, time, lead, start, steps, spread, intervals))

    def stream(
        self,
        points: Array,
        inputs: Array | None = None,
        queries: Array | None = None,
        time: float | Array | None = None,
        lead: float | Array | None = None,
        start: Array | None = None,
        steps: int = 1,
        spread: bool = False,
        intervals: Band | None = None,
    ) -> Iterator[tuple[slice, Any]]:
        """Yield slices of the queries, each with what ``predict`` returns there, for the same arguments.

        The queries may be a memory map: only the part that is being predicted is read.
        """
        request = Request(points, inputs, queries, time, lead, start, steps, spread, intervals)
        return ((part, self._joined(values, request)) for part, values in self._parts_of_members(request))

    def gradient(
        self,
        objective: Objective,
        points: Array,
        inputs: Array | None = None,
        queries: Array | None = None,
        time: float | Array | None = None,
        lead: float | Array | None = None,
        start: Array | None = None,
        steps: int = 1,
    ) -> Gradient:
        """Return ``objective(values, places)`` with its derivatives; numpy for numpy, tensors for tensors.

        Without queries the points are where the input is known and where the solution is wanted. The gradient in them
        is the sum of both effects and of ``places`` in the objective.

        Args:
            objective: Makes one number, by torch, of the values that ``predict`` returns and the places they are at
                (the queries), both tensors. All other arguments are those of ``predict``.

        Raises:
            UserError: If the objective is not one number that depends on the prediction, or has no finite derivative.
        """
        request = Request(points, inputs, queries, time, lead, start, steps)
        given = {"points": points, "inputs": inputs, "queries": queries, "start": start}
        leaves = {name: _leaf(array) for name, array in given.items() if array is not None}
        with torch.enable_grad():
            value = objective(self._predict(replace(request, **leaves)), leaves.get("queries", leaves["points"]))
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
                kind = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"objective: expected one number made of the prediction by torch, found {kind}")
            slopes = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        if not all(bool(torch.isfinite(slope).all()) for slope in slopes):
            raise UserError("objective: its derivative is NaN or infinite here; use a smooth one, or other points")
        derivatives = {
            name: slope.cpu().numpy() if isinstance(given[name], np.ndarray) else slope
            for name, slope in zip(leaves, slopes, strict=True)
        }
        return Gradient(float(value.detach()), **derivatives)

    def _predict(self, request: Request) -> Any:
        columns = zip(*(values for _, values in self._parts_of_members(request)), strict=True)
        return self._joined([torch.cat(column, -2) for column in columns], request)

    def _parts_of_members(self, request: Request) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield slices of the queries, each with the values of every member."""
        for each in zip(*(member.values_of(request) for member in self.members), strict=True):
            yield each[0][0], [values for _, values in each]

    def _joined(self, values: list[Tensor], request: Request) -> Any:
        """Return the mean of the members' values, with spread and intervals if they are asked for."""
        if request.intervals is not None:
            values = [v.detach() for v in values]  # the ends of intervals have no gradients
        results = [values[0] if len(values) == 1 else torch.stack(values).mean(0)]
        if request.spread or request.intervals is not None:
            results.append(torch.stack(values).std(0, correction=0))
        if request.intervals is not None:
            if self.calibration is None:
                raise UserError(
                    "intervals: not calibrated, or the weights have changed since; `ikno calibrate RUN` does it"
                )
            mean, spread = results
            way = (request.intervals, request.time, request.lead, request.steps)
            half = torch.from_numpy(self.calibration.half_width(spread.cpu().numpy(), *way)).to(mean)
            results += [mean - half, mean + half]
        if isinstance(request.points, np.ndarray):
            results = [v.detach().cpu().numpy() for v in results]
        return results[0] if len(results) == 1 else Estimate(*results)


def _leaf(array: Array) -> Tensor:
    """Return a copy that is differentiated; in native numbers, as torch takes no others."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.array(array, dtype=np.float64)).requires_grad_()
    return array.detach().clone().requires_grad_()
