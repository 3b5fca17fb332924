"""Stretched coordinates, in which the latent grid is regular; in space its lines are denser where points are."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ikno.errors import UserError


class Stretching(nn.Module):
    """A smooth increasing map of each axis, from -1 at its first knot to 1 at its last in equal steps.

    Between knots it is a monotone cubic, beyond them a straight line. Its slope at a knot is the weighted harmonic
    mean of the slopes of both sides (Fritsch and Butland), so it has no kinks and never turns back.
    """

    def __init__(self, knots: Sequence[Sequence[float]], dim: int) -> None:
        super().__init__()
        if len(knots) != dim:
            raise UserError(f"model.stretching: {dim} axes need as many lists of positions, found {len(knots)}")
        if len({len(axis) for axis in knots}) > 1 or len(knots[0]) < 2:
            raise UserError("model.stretching: each axis needs the same number of positions, at least two")
        if not all(a < b for axis in knots for a, b in pairwise(axis)):
            raise UserError("model.stretching: the positions must increase along each axis")
        x = torch.tensor(knots, dtype=torch.float64)
        width = x.diff()
        step = 2 / width.shape[1]
        slope = step / width
        left, right = width[:, :-1] + 2 * width[:, 1:], 2 * width[:, :-1] + width[:, 1:]
        inner = (left + right) / (left / slope[:, :-1] + right / slope[:, 1:])
        self.step = step
        self.knots: Tensor
        self.slopes: Tensor
        # Not part of the weights: they follow from the settings.
        self.register_buffer("knots", x.float(), persistent=False)
        self.register_buffer("slopes", torch.cat([slope[:, :1], inner, slope[:, -1:]], 1).float(), persistent=False)

    def forward(self, points: Float[Tensor, "clouds points dim"]) -> Float[Tensor, "clouds points dim"]:
        """Return the stretched coordinates."""
        return torch.stack([self._along(axis, points[..., axis]) for axis in range(len(self.knots))], -1)

    def _along(self, axis: int, x: Float[Tensor, "clouds points"]) -> Float[Tensor, "clouds points"]:
        knots, slopes = self.knots[axis].to(x.dtype), self.slopes[axis].to(x.dtype)
        i = torch.bucketize(x.detach().contiguous(), knots[1:-1])
        width = knots[i + 1] - knots[i]
        t = (x.clamp(knots[0], knots[-1]) - knots[i]) / width
        first, last = slopes[i] * width, slopes[i + 1] * width
        cubic = t * (t * (3 - 2 * t) * self.step + (1 - t) * ((1 - t) * first - t * last))
        below = torch.where(x < knots[0], x - knots[0], 0) * slopes[0]
        above = torch.where(x > knots[-1], x - knots[-1], 0) * slopes[-1]
        return self.step * i.to(x.dtype) - 1 + cubic + below + above
