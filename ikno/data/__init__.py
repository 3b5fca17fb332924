"""Data sets: cards, files, generators, and what is learned from them."""

from collections.abc import Callable

from ikno.data.catalog import CATALOG, Card, find_card
from ikno.data.files import Dataset, open_data
from ikno.data.generators import GENERATORS, Generator
from ikno.data.library import describe, load_data
from ikno.data.records import Trajectory

__all__ = [
    "CATALOG",
    "GENERATORS",
    "Card",
    "Dataset",
    "Generator",
    "Trajectory",
    "describe",
    "find_card",
    "load_data",
    "open_data",
    "register",
]


def register(card: Card) -> Callable[[type[Generator]], type[Generator]]:
    """Return a decorator that adds a benchmark of your own: its card, and the class that generates its samples.

    Args:
        card: What is known of the data; ``generated`` must be true.
    """

    def add(generator: type[Generator]) -> type[Generator]:
        CATALOG.add(card.name, card)
        GENERATORS.add(card.name, lambda: generator)
        return generator

    return add
