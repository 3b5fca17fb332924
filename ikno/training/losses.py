"""What training minimizes, and the error that selects the best weights: one number per sample, over all its points.

With a ``team`` every process has some of the points of each sample and gets the number of the whole sample. What is
masked is zero in both output and target.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from ikno.linalg import Team
from ikno.registry import Registry

Fields = Float[Tensor, "batch points variables"]
Mask = Bool[Tensor, "batch points"]
PerSample = Float[Tensor, "batch"]

# Functions (output, target, mask, team) -> the loss of each sample.
LOSSES: Registry[Callable[..., PerSample]] = Registry("loss", "train.loss")


@LOSSES.register("relative_l1")
def relative_l1(output: Fields, target: Fields, mask: Mask | None, team: Team | None = None) -> PerSample:
    """Return |output - target| / |target| (L1) of each sample; by it the best weights are selected."""
    error, size = (output - target).abs().sum((1, 2)), target.abs().sum((1, 2))
    if team is not None:
        error, size = team.all_reduce_sum(error), team.all_reduce_sum(size)
    return error / size.clamp(min=1e-30)


@LOSSES.register("relative_l2")
def relative_l2(output: Fields, target: Fields, mask: Mask | None, team: Team | None = None) -> PerSample:
    """Return |output - target| / |target| (L2) of each sample."""
    error, size = (output - target).flatten(1).norm(dim=1), target.flatten(1).norm(dim=1)
    if team is not None:  # the root of nothing has no slope: below the limit there is none
        error, size = (team.all_reduce_sum(n.square()).clamp(min=1e-30).sqrt() for n in (error, size))
    return error / size.clamp(min=1e-12)


@LOSSES.register("mse")
def mean_square(output: Fields, target: Fields, mask: Mask | None, team: Team | None = None) -> PerSample:
    """Return the mean square of output - target of each sample."""
    squares = (output - target).flatten(1).square().sum(1)
    count = target.shape[1] * target.shape[2]
    counts = squares.new_full(squares.shape, count) if mask is None else mask.sum(1) * target.shape[2]
    if team is not None:
        squares, counts = team.all_reduce_sum(squares), team.all_reduce_sum(counts.to(squares))
    return squares / counts


LOSSES.seal()


def sample_losses(output: Fields, target: Fields, mask: Mask | None, kind: str, team: Team | None = None) -> PerSample:
    """Return the loss of each sample, by its name."""
    if mask is not None:
        output, target = output * mask[..., None], target * mask[..., None]
    return LOSSES.find(kind)(output, target, mask, team)
