"""Tiny versions of the compared systems, and clouds to try them on."""

from typing import Any

import torch
from torch import Tensor, nn

from ikno.models import build
from ikno.models.fourier import SpectralWeights

TINY: dict[str, dict[str, Any]] = {
    "gaot": {
        "latent_tokens": 4,
        "radius": 0.5,
        "lifting_channels": 6,
        "projection_channels": 8,
        "encoder_kernel": (8,),
        "decoder_kernel": (8,),
        "hidden_size": 16,
        "num_heads": 2,
        "num_layers": 3,
        "ffn_multiplier": 2,
    },
    "gino": {
        "latent_grid": 6,
        "radius": 0.5,
        "n_modes": 4,
        "hidden_channels": 6,
        "n_layers": 2,
        "in_kernel": (8,),
        "out_kernel": (8, 8),
        "projection_channels": 8,
    },
    "geofno": {
        "modes": 3,
        "width": 8,
        "num_layers": 1,
        "fourier_grid": 8,
        "projection": 16,
        "deformation_width": 4,
    },
    "fno-dse": {"modes": 3, "width": 8, "num_layers": 2, "projection": 16},
    "transolver": {"d_model": 16, "num_heads": 2, "num_layers": 2, "num_slices": 5},
    "gnot": {"d_model": 16, "num_heads": 2, "num_layers": 2, "num_experts": 3, "ff_mult": 2, "mlp_layers": 1},
    "upt": {
        "num_supernodes": 12,
        "radius": 0.6,
        "gnn_dim": 12,
        "enc_dim": 8,
        "enc_depth": 1,
        "num_latent_tokens": 5,
        "latent_dim": 12,
        "latent_depth": 1,
        "dec_depth": 1,
        "query_dim": 12,
        "position_scale": 4.0,
        "max_wavelength": 10.0,
    },
    "rigno": {"processor_steps": 2, "latent_size": 10, "rmesh_levels": 2},
}


def tiny(name: str, in_channels: int = 2, dim: int = 2, **settings: Any) -> Any:
    """Return a tiny model with three outputs; some of its settings may be others.

    Spectral weights start next to nothing, which would hide mistakes, and are made larger.
    """
    model = build(name, in_channels=in_channels, out_channels=3, dim=dim, seed=0, **{**TINY[name], **settings})
    torch.manual_seed(1)
    for part in model.modules():
        if isinstance(part, SpectralWeights):
            nn.init.normal_(part.weight, std=0.2)
    return model


def shaken(model: Any) -> Any:
    """Return the model with all parameters drawn anew, biases too."""
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.eval()


def cloud(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers in [-1, 1], which serve as points, features or weights."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    """Tell whether two results agree, relative to the largest value."""
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())


def parameters(model: nn.Module) -> int:
    """Return how many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())
