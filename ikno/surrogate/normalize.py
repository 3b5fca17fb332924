"""Z-scores with their constants as buffers, so that a checkpoint is complete."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Normalizer(nn.Module):
    """v^ = (v - mean) / (std + 1e-10) per channel. Paper: Normalization.

    A channel without variance (to the precision of float32) has no scale of its own: it is only shifted, so that
    rounding in its mean is not blown up by 1e10.
    """

    def __init__(self, mean: Float[Tensor, "channels"], std: Float[Tensor, "channels"]) -> None:
        super().__init__()
        constant = std <= 1e-6 * mean.abs().clamp(min=1e-30)
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", torch.where(constant, 1.0, std + 1e-10).float())

    def forward(self, values: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch channels"]:
        """Return the normalized values."""
        return (values - self.mean.to(values.dtype)) / self.scale.to(values.dtype)

    def inverse(self, values: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch channels"]:
        """Return the physical values."""
        return values * self.scale.to(values.dtype) + self.mean.to(values.dtype)
