"""Rollouts: from the first snapshot to later ones by one step or several."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ikno.data.pairs import snapshots
from ikno.linalg import Cloud
from ikno.surrogate.surrogate import Surrogate

Strategy = Literal["direct", "autoregressive", "star"]
STRATEGIES: tuple[Strategy, ...] = ("direct", "autoregressive", "star")


def path(strategy: Strategy, final: int, stride: int) -> tuple[int, ...]:
    """Return the snapshots a rollout visits: the whole interval at once, the smallest steps, or the second smallest.

    With snapshots 0, 2, ..., 14 they are (0, 14), (0, 2, ..., 14) and (0, 4, 8, 12, 14): a last step may be short.
    """
    if strategy == "direct":
        return (0, final)
    step = stride if strategy == "autoregressive" else 2 * stride
    return snapshots(final, min(step, final))


@torch.no_grad()
def rollout(
    surrogate: Surrogate,
    points: Float[Tensor, "clouds points dim"] | Cloud,
    start: Float[Tensor, "batch points variables"],
    conditions: Float[Tensor, "batch _ points conditions"] | None,
    times: Sequence[float],
    visited: Sequence[int],
) -> Float[Tensor, "batch visited points variables"]:
    """Return u at the visited snapshots, the given start first; each prediction is the input of the next.

    Conditions may change in time: each step takes those of the snapshot where it starts.
    """
    cloud = points if isinstance(points, Cloud) else surrogate.locate(points)
    found = [start]
    for i, j in pairwise(visited):
        inputs = found[-1]
        if conditions is not None:
            inputs = torch.cat([inputs, conditions[:, i if conditions.shape[1] > 1 else 0]], -1)
        t = start.new_full((len(start),), times[i])
        lead = start.new_full((len(start),), times[j] - times[i])
        found.append(surrogate.physical(inputs, surrogate(cloud, inputs, t, lead), lead))
    return torch.stack(found, 1)
