"""An exponential moving average of the weights: smoother than the weights of a single step, at the cost of a copy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """m <- d m + (1 - d) w after each step, with d = min(decay, (1 + step) / (10 + step)) and m = w in the beginning.

    So the first steps, far from the end, are soon forgotten. Only parameters are averaged: buffers are constants.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        named = dict(model.named_parameters())
        self.names, self.weights = list(named), [p.detach() for p in named.values()]  # the same memory
        self.means = [w.clone() for w in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after a step into account; steps are counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.means, self.weights, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while; they come back as they were."""
        kept = [w.clone() for w in self.weights]
        self._put(self.means)
        try:
            yield
        finally:
            self._put(kept)

    def _put(self, values: Sequence[Tensor]) -> None:
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)

    def state(self) -> dict[str, Tensor]:
        """Return the average by the names of a checkpoint."""
        return {f"average.{name}": mean for name, mean in zip(self.names, self.means, strict=True)}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what ``state`` returned."""
        for name, mean in self.state().items():
            mean.copy_(tensors[name])
