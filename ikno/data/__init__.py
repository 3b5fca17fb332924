"""Data sets: cards, files, generators, and what is learned from them."""

from ikno.data.catalog import CATALOG, Card, find_card
from ikno.data.files import Dataset, open_data
from ikno.data.generators import GENERATORS
from ikno.data.library import describe, load_data
from ikno.data.records import Generator, Trajectory

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
]
