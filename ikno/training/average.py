"""An exponential moving average of the weights: smoother than the weights of a single step, at the cost of a copy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """m <- d m + (1 - d) w after each step, with d = min(decay, (1 + step) / (10 + step)) and m = w in the beginning.

    So the first steps, far from the end, are soon forgotten. Only parameters are averaged: buffers are constants.
    ``means`` are the averages by their names in a checkpoint. Without a decay nothing is averaged.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self.decay = decay or 0.0
        self.weights = {f"average.{k}": p.detach() for k, p in model.named_parameters() if decay}  # the same memory
        self.means = {k: w.clone() for k, w in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after a step into account; steps are counted from 0."""
        if self.means:
            pair = list(self.means.values()), list(self.weights.values())
            torch._foreach_lerp_(*pair, 1 - min(self.decay, (1 + step) / (10 + step)))  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Replace the weights by the averages; they come back at the end, as they were."""
        kept = {k: w.clone() for k, w in self.weights.items()}
        copy(self.means, self.weights)
        try:
            yield
        finally:
            copy(kept, self.weights)


def copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy the values of the target's names into it."""
    for name, tensor in target.items():
        tensor.copy_(source[name])
