"""Data sets in files of all formats, and where these files are."""

from contextlib import closing
from pathlib import Path

from ikno.data.catalog import Card, plain
from ikno.data.formats import FORMATS, open_arrays, readable
from ikno.data.layouts import Arrays, Dataset, Folder, Groups, Joined
from ikno.errors import UserError


def open_data(path: str | Path, card: Card) -> Dataset:
    """Return the data set in a file, checked against its card: names, shapes, number types.

    If the card names a second file and it lies beside this one, its samples follow.
    """
    path = Path(path)
    first = _open_file(path, card)
    if card.test_file is None or plain(path.stem) == plain(card.test_file):
        return first
    beside = [p for p in sorted(path.parent.iterdir()) if _fits(p, card, {plain(card.test_file)})]
    if not beside:
        return first
    try:
        return Joined(first, _open_file(beside[0], card))
    except UserError:
        first.close()
        raise


def _open_file(path: Path, card: Card) -> Dataset:
    form = FORMATS[card.format]
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if form.holds[0] == "points":
        return Folder(path, card)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a {card.format} file")
    file = open_arrays(path, form)
    with readable(file):
        return Groups(file, card) if form.holds[0] == "groups" else Arrays(file, card)


def benchmark_of(path: Path) -> str | None:
    """Return the benchmark that a file names as its own, as generated ones do."""
    if path.suffix not in FORMATS["netcdf"].suffixes:
        return None
    with closing(open_arrays(path, FORMATS["netcdf"])) as file:
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
