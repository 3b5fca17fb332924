"""Models: modules called as ``model(features, points, queries=None, weights=None, mask=None)``.

model = build("ikno-tp", in_channels=1, out_channels=1, dim=2, grid_size=24)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ikno.config import Settings, parse, read_toml
from ikno.errors import UserError
from ikno.models.fno_dse import FNODSE, FNODSESettings
from ikno.models.gaot import GAOT, GAOTSettings
from ikno.models.geofno import GeoFNO, GeoFNOSettings
from ikno.models.gino import GINO, GINOSettings
from ikno.models.gnot import GNOT, GNOTSettings
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.kernels import KERNELS, BaseKernel
from ikno.models.processors import PROCESSORS
from ikno.models.rigno import RIGNO, RIGNOSettings
from ikno.models.transolver import Transolver, TransolverSettings
from ikno.models.upt import UPT, UPTSettings
from ikno.registry import Registry, import_plugin


@dataclass(frozen=True)
class Variant:
    """A model class with its settings, the defaults that make it this variant, and its settings in each preset.

    ``sizes`` has what a preset sets, and under "PRESET in space" and "PRESET in time" what it sets differently in three
    dimensions and for problems in time.
    """

    summary: str
    model: type[nn.Module]
    settings: type[Settings]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_SYSTEMS: dict[str, tuple[type[nn.Module], type[Settings]]] = {
    "gaot": (GAOT, GAOTSettings),
    "rigno": (RIGNO, RIGNOSettings),
    "transolver": (Transolver, TransolverSettings),
    "gnot": (GNOT, GNOTSettings),
    "upt": (UPT, UPTSettings),
    "gino": (GINO, GINOSettings),
    "geofno": (GeoFNO, GeoFNOSettings),
    "fno-dse": (FNODSE, FNODSESettings),
}


def _own() -> dict[str, Variant]:
    """Return the models of the file ``models.toml``."""
    data = read_toml(Path(__file__).with_name("models.toml"))
    variants: dict[str, Variant] = {}
    for name, about in data["models"].items():
        if name in _SYSTEMS:
            sizes = {"smoke": about["small"], "cpu": about["small"]}
            variants[name] = Variant(about["summary"], *_SYSTEMS[name], sizes=sizes)
        else:
            wide = about["defaults"].get("encoder") == "cross_attention"  # needs all channels
            sizes = {p: {k: v for k, v in s.items() if not wide or k != "point_width"} for p, s in data["ikno"].items()}
            variants[name] = Variant(about["summary"], IKNO, IKNOSettings, about["defaults"], sizes)
    return variants


MODELS: Registry[Variant] = Registry("model", "model", _own())


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
