"""The registry of models. Each file of this package that defines a model registers it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from ikno.config import Settings
from ikno.registry import Registry

M = TypeVar("M", bound=type[nn.Module])


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


MODELS: Registry[Variant] = Registry("model", "model")


def register(
    name: str,
    *,
    settings: type[Settings] = Settings,
    summary: str = "",
    defaults: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[M], M]:
    """Return a decorator that adds a model class under a name.

    The class is built as ``Class(in_channels, out_channels, dim, settings)`` and called as
    ``model(features, points, queries=None, weights=None, mask=None)``.

    Args:
        name: What ``model=`` and ``ikno.models.build`` call it.
        settings: Its settings, a subclass of ``ikno.models.Settings``.
        summary: One line for ``ikno models``.
        defaults: Settings that differ from those of the class.
        sizes: Settings that a preset (smoke, cpu, paper) changes.
    """

    def add(model: M) -> M:
        MODELS.add(name, Variant(summary, model, settings, defaults or {}, sizes or {}))
        return model

    return add
