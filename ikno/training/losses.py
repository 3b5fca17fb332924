"""What training makes small, and the error that chooses the best: one number per sample, summed over all its points.

With a ``team`` every process has some of the points of each sample and gets the number of the whole sample.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ikno.linalg import Team

Fields = Float[Tensor, "batch points variables"]
Mask = Bool[Tensor, "batch points"]
PerSample = Float[Tensor, "batch"]


def sample_losses(output: Fields, target: Fields, mask: Mask | None, kind: str, team: Team | None = None) -> PerSample:
    """Return the loss of each sample: |output - target| / |target| (L2), or the mean square."""
    if mask is not None:
        keep = mask[..., None]
        output, target = output * keep, target * keep
    difference = (output - target).flatten(1)
    if kind == "relative_l2":
        error, size = difference.norm(dim=1), target.flatten(1).norm(dim=1)
        if team is not None:  # the root of nothing has no slope: below the limit there is none
            error, size = (team.total(n.square()).clamp(min=1e-30).sqrt() for n in (error, size))
        return error / size.clamp(min=1e-12)
    squares = difference.square().sum(1)
    counts = squares.new_full(squares.shape, difference.shape[1]) if mask is None else mask.sum(1) * target.shape[2]
    if team is not None:
        squares, counts = team.total(squares), team.total(counts.to(squares))
    return squares / counts


def relative_errors(values: Fields, truth: Fields, mask: Mask | None, team: Team | None = None) -> PerSample:
    """Return |values - truth| / |truth| (L1) of each sample, all variables pooled."""
    keep = 1.0 if mask is None else mask[..., None].float()
    error, size = (keep * (values - truth).abs()).sum((1, 2)), (keep * truth.abs()).sum((1, 2))
    if team is not None:
        error, size = team.total(error), team.total(size)
    return error / size.clamp(min=1e-30)
