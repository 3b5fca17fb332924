"""Models: modules called as ``model(features, points, queries=None, weights=None, mask=None)``.

model = build("ikno-tp", in_channels=1, out_channels=1, dim=2, grid_size=24)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ikno.config import Settings, parse, suggest
from ikno.errors import UserError
from ikno.models import fno_dse, gaot, geofno, gino, gnot, rigno, transolver, upt
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.kernels import BaseKernel, LinearWindow


@dataclass(frozen=True)
class Variant:
    """A model class with its settings, the defaults that make it this variant, and its settings in each preset.

    ``in_space`` has what a preset sets differently for three dimensions.
    """

    summary: str
    model: type[nn.Module]
    settings: type[Settings]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# Density weights: what is learned on one cloud holds on others; the paper weighs all points alike. Four frequencies of
# the coordinates instead of one: small models learn much faster (`benchmarks.choices` has the comparison). Rotary
# positions: attention that knows where latent points are does better on most sets (docs/results/cpu/positions.md).
_SMALL = {"point_weights": "density", "nerf_frequencies": 4}
_SIZES = {
    "smoke": {"d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6, **_SMALL},
    "cpu": {"d_model": 64, "num_heads": 4, "num_layers": 3, "grid_size": 16, "positions": "rotary", **_SMALL},
    "paper": {"normalize_branches": False},
}
_IN_SPACE = {"cpu": {"grid_size": 12}}  # attention among 16^3 latent points would take nearly all of the time


def _ikno(summary: str, **defaults: Any) -> Variant:
    return Variant(summary, IKNO, IKNOSettings, defaults, _SIZES, _IN_SPACE)


def _system(summary: str, module: ModuleType, model: str) -> Variant:
    """Return a system that others have published, at its published size in the preset paper."""
    small = module.SMALL
    return Variant(
        summary, getattr(module, model), getattr(module, f"{model}Settings"), sizes={"smoke": small, "cpu": small}
    )


MODELS: dict[str, Variant] = {
    "ikno-tp": _ikno("infinite order, tensor product of per-axis resolvents", resolvent="tensor_product"),
    "ikno-vanilla": _ikno("infinite order, resolvent of the full kernel by eigendecomposition", resolvent="vanilla"),
    "ikno-finite": _ikno(
        "finite order in encoder and decoder, fixed linear window (preliminary study)",
        resolvent="truncated",
        kernel="linear_window",
        num_kernels=1,
        kernel_alpha=(-0.15,),
    ),
    "ikno-first-order": _ikno(
        "ablation: encoder cut at first order, infinite-order decoder",
        resolvent="truncated",
        order=1,
        decoder_resolvent="tensor_product",
    ),
    "ikno-cross-attention": _ikno(
        "ablation: cross-attention encoder, infinite-order decoder",
        encoder="cross_attention",
        resolvent="tensor_product",
    ),
    "ikno-dense": _ikno("ablation: direct inverse of the full M x M matrix", resolvent="dense"),
    "gaot": _system("geometry-aware operator transformer, arXiv 2505.18781", gaot, "GAOT"),
    "rigno": _system("message passing between regions, arXiv 2501.19205", rigno, "RIGNO"),
    "transolver": _system("attention among learned slices, arXiv 2402.02366", transolver, "Transolver"),
    "gnot": _system("normalized cross-attention and gated experts, arXiv 2302.14376", gnot, "GNOT"),
    "upt": _system("supernodes, latent tokens, perceiver decoder, arXiv 2402.12365", upt, "UPT"),
    "gino": _system("graph operators around a Fourier operator, arXiv 2309.00583", gino, "GINO"),
    "geofno": _system("Fourier operator in learned coordinates, arXiv 2207.05209", geofno, "GeoFNO"),
    "fno-dse": _system("direct spectral transforms at the points, arXiv 2305.19663", fno_dse, "FNODSE"),
}


def find_variant(name: str) -> Variant:
    """Return a variant of the registry."""
    if name not in MODELS:
        raise UserError(f"model: no model named {name!r}; {suggest(name, MODELS)}")
    return MODELS[name]


def settings_of(name: str, settings: Mapping[str, Any]) -> Settings:
    """Return all settings of a variant, its defaults where none are given."""
    variant = find_variant(name)
    return parse(variant.settings, {**variant.defaults, **settings}, "model")


def complete_model(
    model: Mapping[str, Any], preset: str | None = None, grid: Any = None, dim: int = 2
) -> dict[str, Any]:
    """Return the name of a model with all its settings: those given, else the preset's, else the defaults.

    ``grid`` is the latent grid where neither says one, for models that have a ``grid_size``; in ``dim`` dimensions.
    """
    name, variant = model["name"], find_variant(model["name"])
    start = {"grid_size": grid} if grid is not None and "grid_size" in variant.settings.model_fields else {}
    given = {k: v for k, v in model.items() if k != "name"}
    sizes = {**variant.sizes.get(preset or "", {}), **(variant.in_space.get(preset or "", {}) if dim == 3 else {})}
    settings = settings_of(name, {**start, **sizes, **given})
    return {"name": name, **settings.model_dump(mode="json")}


def build(
    name: str, *, in_channels: int, out_channels: int, dim: int, seed: int | None = None, **settings: Any
) -> nn.Module:
    """Return a new model from the registry; with a seed its initial weights depend on nothing else.

    ``settings`` override the variant's defaults, by the names of the paper's parameter table.
    """
    variant = find_variant(name)
    for label, value in (("in_channels", in_channels), ("out_channels", out_channels), ("dim", dim)):
        if value < (0 if label == "in_channels" else 1):
            raise ValueError(f"{label} is too small, found {value}")
    values = settings_of(name, settings)
    if seed is None:
        return variant.model(in_channels, out_channels, dim, values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return variant.model(in_channels, out_channels, dim, values)


__all__ = [
    "IKNO",
    "MODELS",
    "BaseKernel",
    "IKNOSettings",
    "LinearWindow",
    "Variant",
    "build",
    "complete_model",
    "find_variant",
    "settings_of",
]
