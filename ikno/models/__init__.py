"""Models: modules called as ``model(features, points, queries=None, weights=None, mask=None)``.

model = build("ikno-tp", in_channels=1, out_channels=1, dim=2, grid_size=24)
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch import nn

from ikno.config import Settings, parse
from ikno.errors import UserError
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.kernels import KERNELS, BaseKernel
from ikno.models.processors import PROCESSORS
from ikno.models.variants import MODELS, Variant, register
from ikno.registry import import_plugin

import_module(f"{__name__}.ikno_variants")  # first in lists
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
for _registry in (MODELS, KERNELS, PROCESSORS):
    _registry.seal()


def name_of(model: "str | type[nn.Module]") -> str:
    """Return the name of a registered model.

    Args:
        model: A name, a registered class, or its path as ``package.module:Class``. A path is imported, so it must come
            from a person, never from a file.

    Raises:
        UserError: The path leads to no model class, or the class is not registered.
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
    """Return all settings of a model: those given, else its defaults. Unknown or invalid ones raise a UserError."""
    variant = MODELS.find(name)
    return parse(variant.settings, {**variant.defaults, **settings}, "model")


def complete_model(
    model: Mapping[str, Any], preset: str | None = None, grid: Any = None, dim: int = 2, steady: bool = True
) -> dict[str, Any]:
    """Return the name of a model with all its settings: those given, else those of the preset, else the defaults.

    Args:
        model: The name and the given settings.
        preset: smoke, cpu, paper, or none.
        grid: The latent grid if neither settings nor preset have one, for models with a ``grid_size``.
        dim: Dimensions of the problem.
        steady: Whether the problem has no time.
    """
    layers = model_layers(model, preset, grid, dim, steady)
    settings = settings_of(model["name"], {k: v for layer in layers.values() for k, v in layer.items()})
    return {"name": model["name"], **settings.model_dump(mode="json")}


def model_layers(
    model: Mapping[str, Any], preset: str | None = None, grid: Any = None, dim: int = 2, steady: bool = True
) -> dict[str, dict[str, Any]]:
    """Return the settings of a model that are no defaults, by origin: card, preset, given; later origins win.

    The arguments are those of ``complete_model``.
    """
    variant = MODELS.find(model["name"])
    presets = [preset, *[f"{preset} in space"] * (dim == 3), *[f"{preset} in time"] * (not steady)]
    return {
        "card": {"grid_size": grid} if grid is not None and "grid_size" in variant.settings.model_fields else {},
        f"preset {preset}": {k: v for p in presets for k, v in variant.sizes.get(p or "", {}).items()},
        "given": {k: v for k, v in model.items() if k != "name"},
    }


def build(
    name: str, *, in_channels: int, out_channels: int, dim: int, seed: int | None = None, **settings: Any
) -> nn.Module:
    """Return a new model from the registry.

    Args:
        name: A model that ``ikno models`` lists.
        in_channels: Feature channels at each point; 0 for none.
        out_channels: Variables to predict.
        dim: Dimensions of the points.
        seed: Decides the initial weights; without it the global random state does.
        settings: Override the defaults of the variant, by the names in the parameter table of the paper.

    Raises:
        UserError: Unknown name, or settings that do not fit.
    """
    variant = MODELS.find(name)
    if in_channels < 0 or out_channels < 1 or dim < 1:
        found = f"found {in_channels}, {out_channels}, {dim}"
        raise ValueError(f"in_channels must be at least 0, out_channels and dim at least 1, {found}")
    values = settings_of(name, settings)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return variant.model(in_channels, out_channels, dim, values)


__all__ = [
    "IKNO",
    "KERNELS",
    "MODELS",
    "PROCESSORS",
    "BaseKernel",
    "IKNOSettings",
    "Settings",
    "Variant",
    "build",
    "complete_model",
    "model_layers",
    "name_of",
    "register",
    "settings_of",
]
