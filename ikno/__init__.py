"""Infinite-order kernel neural operators: learn the solution operators of PDEs on arbitrary point clouds.

import ikno
ikno.train(ikno.make_config("poisson-gauss", {"train.epochs": 40}), out="runs/first")
surrogate = ikno.load("runs/first")
values = surrogate.predict(points, inputs)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ikno import data, linalg, models
    from ikno.config import make_config
    from ikno.errors import UserError
    from ikno.runs import load_surrogate as load
    from ikno.training import train

__version__ = "0.1.0"

__all__ = ["UserError", "__version__", "data", "linalg", "load", "make_config", "models", "train"]

# Loaded on first use: torch takes seconds to import, `import ikno` should not.
_LAZY = {
    "UserError": "ikno.errors:UserError",
    "data": "ikno.data",
    "linalg": "ikno.linalg",
    "load": "ikno.runs:load_surrogate",
    "make_config": "ikno.config:make_config",
    "models": "ikno.models",
    "train": "ikno.training:train",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ikno' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
