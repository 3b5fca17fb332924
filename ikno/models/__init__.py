"""Models: modules called as ``model(features, points, queries=None, weights=None, mask=None)``.

model = build("ikno-tp", in_channels=1, out_channels=1, dim=2, grid_size=24)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ikno.config import Settings, parse
from ikno.errors import UserError
from ikno.models import fno_dse, gaot, geofno, gino, gnot, rigno, transolver, upt
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.kernels import KERNELS, BaseKernel, LinearWindow
from ikno.models.processors import PROCESSORS
from ikno.registry import Registry, import_plugin


@dataclass(frozen=True)
class Variant:
    """A model class with its settings, the defaults that make it this variant, and its settings in each preset.

    ``in_space`` has what a preset sets differently for three dimensions, ``in_time`` for problems in time.
    """

    summary: str
    model: type[nn.Module]
    settings: type[Settings]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_time: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# `benchmarks.search` compares with other sizes. Density weights: what is learned on one cloud holds on others; the
# paper weighs all points alike. Narrow channels between points and grid, few nodes per cell and layers of kernels in
# place of attention make a step cheap.
_LEAN = {
    "point_weights": "density",
    "processor": "kernels",
    "free": "both",
    "free_decay": 0.5,
    "ff_mult": 1,
    "tolerance": 0.3,
    "stretching": "auto",
}
_CPU = {"d_model": 64, "num_heads": 8, "num_layers": 3, "grid_size": 16, "first_scale": 1.875, **_LEAN}
_SMOKE = {"d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6, **_LEAN}
_SIZES = {
    "smoke": {**_SMOKE, "point_width": 8},
    "cpu": {**_CPU, "point_width": 16},
    "paper": {"normalize_branches": False},
}
_WIDE = {"smoke": _SMOKE, "cpu": _CPU, "paper": _SIZES["paper"]}  # for an encoder that needs all channels
_IN_SPACE = {"cpu": {"grid_size": 12}}
_IN_TIME = {"smoke": {"conditions": 2}, "cpu": {"conditions": 2}}  # time and lead, the last two features


def _ikno(summary: str, sizes: Mapping[str, Mapping[str, Any]] = _SIZES, **defaults: Any) -> Variant:
    return Variant(summary, IKNO, IKNOSettings, defaults, sizes, _IN_SPACE, _IN_TIME)


def _system(summary: str, module: ModuleType, model: str) -> Variant:
    """Return a system that others have published, at its published size in the preset paper."""
    small = module.SMALL
    return Variant(
        summary, getattr(module, model), getattr(module, f"{model}Settings"), sizes={"smoke": small, "cpu": small}
    )


_OWN = {
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
        _WIDE,
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
MODELS: Registry[Variant] = Registry("model", "model", _OWN)


def find_variant(name: str) -> Variant:
    """Return a variant of the registry."""
    return MODELS.find(name)


def register(
    name: str,
    *,
    settings: type[Settings] = Settings,
    summary: str = "",
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Return a decorator that adds a model class of your own under a name.

    The class is built as ``Class(in_channels, out_channels, dim, settings)`` and called as
    ``model(features, points, queries=None, weights=None, mask=None)``.

    Args:
        name: What ``model=`` and ``ikno.models.build`` call it.
        settings: Its settings, a subclass of ``ikno.models.Settings``.
        summary: One line for ``ikno models``.
        sizes: Settings that a preset (smoke, cpu, paper) changes.
    """

    def add(model: type[nn.Module]) -> type[nn.Module]:
        MODELS.add(name, Variant(summary, model, settings, sizes=sizes or {}))
        return model

    return add


def name_of(model: "str | type[nn.Module]") -> str:
    """Return the name of a model: of a registered class, or of one given as ``package.module:Class``.

    Such a path is imported: it must come from a person, never from a file.
    """
    if isinstance(model, str):
        module, separator, attribute = model.partition(":")
        if not separator:
            return model
        found = getattr(import_plugin(module), attribute, None)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise UserError(f"{model}: the module has no model class of that name; write package.module:Class")
        model = found
    names = [name for name, variant in MODELS.items() if variant.model is model]
    if not names:
        raise UserError(
            f"{model.__module__}:{model.__qualname__}: not registered; put @ikno.models.register('a-name') before it"
        )
    return names[0]


def settings_of(name: str, settings: Mapping[str, Any]) -> Settings:
    """Return all settings of a variant, its defaults where none are given."""
    variant = find_variant(name)
    return parse(variant.settings, {**variant.defaults, **settings}, "model")


def complete_model(
    model: Mapping[str, Any], preset: str | None = None, grid: Any = None, dim: int = 2, steady: bool = True
) -> dict[str, Any]:
    """Return the name of a model with all its settings: those given, else the preset's, else the defaults.

    ``grid`` is the latent grid where neither says one, for models that have a ``grid_size``; in ``dim`` dimensions.
    ``steady``: not for a problem in time.
    """
    layers = model_layers(model, preset, grid, dim, steady)
    settings = settings_of(model["name"], {k: v for layer in layers.values() for k, v in layer.items()})
    return {"name": model["name"], **settings.model_dump(mode="json")}


def model_layers(
    model: Mapping[str, Any], preset: str | None = None, grid: Any = None, dim: int = 2, steady: bool = True
) -> dict[str, dict[str, Any]]:
    """Return what decides the settings of a model by where it comes from; the later wins, the rest are defaults."""
    variant = find_variant(model["name"])
    known = variant.settings.model_fields
    kinds = [variant.sizes] + [variant.in_space] * (dim == 3) + [variant.in_time] * (not steady)
    return {
        "card": {"grid_size": grid} if grid is not None and "grid_size" in known else {},
        f"preset {preset}": {k: v for kind in kinds for k, v in kind.get(preset or "", {}).items()},
        "given": {k: v for k, v in model.items() if k != "name"},
    }


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
    "KERNELS",
    "MODELS",
    "PROCESSORS",
    "BaseKernel",
    "IKNOSettings",
    "LinearWindow",
    "Settings",
    "Variant",
    "build",
    "complete_model",
    "find_variant",
    "model_layers",
    "name_of",
    "register",
    "settings_of",
]
