"""Data sets in files of all formats: read sample by sample, as float32, and checked as they are read."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ikno.data.catalog import Card, plain
from ikno.data.formats import FORMATS, DataFile, readable
from ikno.data.layouts import Arrays, Folder, Groups, Rows, all_rows
from ikno.data.records import Trajectory
from ikno.errors import UserError


class Dataset:
    """An open data file: ``dataset[i]`` reads one trajectory. Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path, card: Card, source: "Arrays | Groups | Folder | _Joined", close) -> None:
        self.path, self.card, self._source, self._close = path, card, source, close

    def __len__(self) -> int:
        return self._source.samples

    def __getitem__(self, sample: int) -> Trajectory:
        return self.read(sample)

    def read(self, sample: int, rows: Rows = all_rows) -> Trajectory:
        """Return a trajectory at some of its points; only these are read where the format allows it."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        made = self._source.read(sample, rows)
        parts = {"points": made.points, "values": made.values, "conditions": made.conditions}
        for what, array in parts.items():
            if array is not None and not np.isfinite(array).all():
                raise UserError(f"{self.path}: sample {sample} has NaN or infinite {what}; remove it or mend the file")
        return made

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[i] for i in range(len(self)))

    @property
    def shared(self) -> bool:
        """Whether all samples have one cloud."""
        return self._source.shared

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the file: samples, times, points (of the first sample), variables, conditions, dim."""
        first = self._source.read(0, all_rows)
        channels = 0 if first.conditions is None else first.conditions.shape[2]
        times, points, variables = first.values.shape
        sizes = {"samples": len(self), "times": times, "points": points, "variables": variables}
        return {**sizes, "conditions": channels, "dim": first.points.shape[1]}

    @property
    def attributes(self) -> dict[str, Any]:
        """What the file says about how it was made."""
        return self._source.attributes

    def close(self) -> None:
        self._close()

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_data(path: str | Path, card: Card) -> Dataset:
    """Return the data set in a file, checked against its card: names, shapes, number types.

    If the card names a second file and it lies beside this one, its samples follow.
    """
    path = Path(path)
    first = _open_file(path, card)
    if card.second is None or plain(path.stem) == plain(card.second):
        return first
    beside = [p for p in sorted(path.parent.iterdir()) if _fits(p, card, {plain(card.second)})]
    if not beside:
        return first
    try:
        second = _open_file(beside[0], card)
    except UserError:
        first.close()
        raise
    return Dataset(path, card, _Joined(first, second), lambda: (first.close(), second.close()))


def _open_file(path: Path, card: Card) -> Dataset:
    form = FORMATS[card.format]
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if form.holds[0] == "points":
        return Dataset(path, card, Folder(path, card), lambda: None)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a {card.format} file")
    file = form.open(path, form.holds[0])
    assert isinstance(file, DataFile)
    with readable(file):
        layout = Groups if form.holds[0] == "groups" else Arrays
        return Dataset(path, card, layout(file, card), file.close)


def benchmark_of(path: Path) -> str | None:
    """Return the benchmark that a file names as its own, as generated ones do."""
    netcdf = FORMATS["netcdf"]
    if path.suffix not in netcdf.suffixes:
        return None
    with closing(netcdf.open(path)) as file:
        assert isinstance(file, DataFile)
        return str(file.attributes.get("benchmark"))


def find_file(card: Card, folder: str | Path) -> Path:
    """Return the file of a benchmark in a folder, whatever the case and separators of its name."""
    folder = Path(folder)
    if card.file is not None:
        return Path(card.file)
    wanted = {plain(n) for n in (card.name, *card.aliases)}
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in files:
        if _fits(path, card, wanted):
            return path
    hint = f"make one with: ikno data generate {card.name}" if card.generated else f"it comes from {card.source}"
    raise UserError(f"{card.name}: no file {card.name}{FORMATS[card.format].suffixes[0]} in {folder}; {hint}")


def _fits(path: Path, card: Card, names: set[str]) -> bool:
    """Tell whether this is a file of the card's format under one of the names."""
    return path.is_file() and path.suffix.lower() in FORMATS[card.format].suffixes and plain(path.stem) in names


class _Joined:
    """The samples of one file, then those of another."""

    shared = False

    def __init__(self, first: Dataset, second: Dataset) -> None:
        self.first, self.second, self.attributes = first, second, first.attributes
        self.samples = len(first) + len(second)

    def read(self, sample: int, rows: Rows) -> Trajectory:
        first = sample < len(self.first)
        return self.first.read(sample, rows) if first else self.second.read(sample - len(self.first), rows)
