"""Registries: parts by name, also from outside the package.

@KERNELS.register("cosine")
def cosine(settings, dim): ...

A name is also found if an installed package declares it as an entry point of the registry's group, or if a module that
the environment variable ``IKNO_PLUGINS`` lists registers it. Nothing that a file names is ever imported.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from ikno.config import suggest
from ikno.errors import UserError

T = TypeVar("T")
P = TypeVar("P")

PLUGINS = "IKNO_PLUGINS"  # modules to import, separated by commas; child processes inherit them


class Registry(dict[str, T], Generic[T]):
    """Parts of one kind by name.

    Args:
        kind: What the parts are, in the singular: "model". Entry points are in the group "ikno.models".
        setting: The setting that names one, for messages.
        parts: Those of the package, if they do not register themselves.
    """

    def __init__(self, kind: str, setting: str, parts: Mapping[str, T] | None = None) -> None:
        super().__init__(parts or {})
        self.kind, self.setting = kind, setting
        self._looked = False
        self.seal()

    def seal(self) -> None:
        """Reserve the names of all parts so far for the package."""
        self._own = frozenset(self)

    def register(self, name: str) -> Callable[[P], P]:
        """Return a decorator that adds a part under a name."""
        return partial(self.add, name)

    def add(self, name: str, part: Any) -> Any:
        """Add a part under a name and return it; it replaces one from outside the package, never one of the package."""
        if name in self._own:
            raise ValueError(f"ikno has a {self.kind} named {name!r} of its own; choose another name")
        self[name] = part
        return part

    def has(self, name: str) -> bool:
        """Tell whether there is a part of that name, also outside the package."""
        if name not in self:
            self.look_outside()
        return name in self

    def find(self, name: str) -> T:
        """Return a part; a UserError names the nearest if there is none of that name."""
        if not self.has(name):
            short = name if len(name) <= 100 else f"{name[:100]}..."
            raise UserError(f"{self.setting}: no {self.kind} named {short!r}; {suggest(short, self)}")
        return self[name]

    def look_outside(self) -> None:
        """Add the parts that installed packages declare and the listed modules register; only the first call does."""
        if self._looked:
            return
        self._looked = True
        for module in plugins():
            import_plugin(module)
        for point in entry_points(group=f"ikno.{self.kind}s"):
            if point.name not in self:
                self[point.name] = point.load()


def plugins() -> list[str]:
    """Return the modules that ``IKNO_PLUGINS`` lists."""
    return [name for name in os.environ.get(PLUGINS, "").split(",") if name]


def import_plugin(module: str) -> ModuleType:
    """Import a module that registers parts, and let child processes do the same; return the module."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: nothing there hides an installed package
    try:
        plugin = import_module(module)
    except ImportError as error:
        raise UserError(f"{module}: cannot be imported ({error}); install it, or start in its folder") from None
    os.environ[PLUGINS] = ",".join(dict.fromkeys([*plugins(), module]))
    return plugin
