"""Infinite-order kernel neural operators: learn the solution operators of PDEs on arbitrary point clouds.

import ikno
model = ikno.models.build("ikno-tp", in_channels=1, out_channels=1, dim=2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ikno import data, linalg, models
    from ikno.errors import UserError

__version__ = "0.1.0"

__all__ = ["UserError", "__version__", "data", "linalg", "models"]

# Loaded on first use: torch takes seconds to import, `import ikno` should not.
_LAZY = {"data": "ikno.data", "linalg": "ikno.linalg", "models": "ikno.models", "UserError": "ikno.errors:UserError"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ikno' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
