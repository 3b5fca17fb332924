"""One partial differential equation per file; ``GENERATORS`` names what can be made and loads it when asked for."""

from collections.abc import Callable
from importlib import import_module

from ikno.data.catalog import MADE_BY
from ikno.data.records import Generator
from ikno.registry import Registry


def _class(place: str) -> Callable[[], type[Generator]]:
    module, _, name = place.partition(".")
    return lambda: getattr(import_module(f"{__name__}.{module}"), name)


# Functions () -> the class of a generator; that of a benchmark has its name.
GENERATORS: Registry[Callable[[], type[Generator]]] = Registry(
    "generator", "data", {name: _class(place) for name, place in MADE_BY.items()}
)
