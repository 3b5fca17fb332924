"""Where data lives: names to files, what is in them, and getting files that others released."""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ikno.atomic import whole_file
from ikno.data.catalog import CATALOG, Card, find_card, plain
from ikno.data.files import Dataset, find_named, open_data
from ikno.data.formats import FORMATS, open_arrays
from ikno.data.pairs import Accumulator
from ikno.errors import UserError


def data_folder() -> Path:
    """Return the folder of data sets: the environment's IKNO_DATA, or ``data`` here."""
    return Path(os.environ.get("IKNO_DATA") or "data")


def file_name(card: Card) -> str:
    """Return the name of the (first) file of a benchmark: as released where there are two."""
    return f"{card.name if card.test_file is None else card.aliases[0]}{FORMATS[card.format].suffixes[0]}"


def find_file(card: Card, folder: str | Path) -> Path:
    """Return the file of a benchmark in a folder, whatever the case and separators of its name.

    Raises:
        UserError: There is none; the message says where to get it.
    """
    if card.file is not None:
        return Path(card.file)
    path = find_named(Path(folder), card, card.name, *card.aliases)
    if path is None:
        hint = f"make one with: ikno data generate {card.name}" if card.generated else f"it comes from {card.source}"
        raise UserError(f"{card.name}: no file {card.name}{FORMATS[card.format].suffixes[0]} in {folder}; {hint}")
    return path


def find_data(name: str, folder: Path | None = None) -> tuple[Card, Path]:
    """Return card and file for the name of a benchmark, a card (.toml), or a data file that has its name or says it.

    Args:
        name: Any of these.
        folder: Where the files of benchmarks are; None: ``data_folder()``.
    """
    path = Path(name)
    if path.suffix == ".toml" or not (path.is_file() or len(path.parts) > 1 or path.suffix):
        card = find_card(name)
        return card, find_file(card, folder or data_folder())
    if not path.exists():
        raise UserError(f"{path}: no such file")
    words = re.split(r"[\W_]+", path.name.partition(".")[0])  # whole words: ce-rpui.nc is not CE-RP
    starts = {plain("".join(words[:k])) for k in range(1, len(words) + 1)}
    CATALOG.look_outside()
    for card in CATALOG.values():
        if starts & {plain(n) for n in (card.name, *card.aliases, card.test_file or card.name)}:
            return card, path
    if path.suffix in FORMATS["netcdf"].suffixes:  # generated files name their benchmark
        with closing(open_arrays(path, FORMATS["netcdf"])) as file:
            card = CATALOG.get(str(file.attributes.get("benchmark")))
        if card is not None:
            return card, path
    raise UserError(f"{path}: its name is that of no benchmark; write a card (.toml) that says what is in the file")


def load_data(name: str, folder: Path | None = None) -> Dataset:
    """Return the open data set of a benchmark, a card or a file, found as ``find_data`` does."""
    card, path = find_data(name, folder)
    return open_data(path, card)


def describe(dataset: Dataset, samples: int = 64) -> dict[str, Any]:
    """Return the sizes of a data set, statistics of its first samples, and remarks on what is odd or missing."""
    card, count, made = dataset.card, min(samples, len(dataset)), dataset.attributes
    domain = np.array(card.domain or [(-np.inf, np.inf)] * card.dim)
    slack = 1e-5 * (domain[:, 1] - domain[:, 0])
    kinds, outside = {kind: Accumulator() for kind in ("points", "conditions", "values")}, 0.0
    for i in range(count):
        sample = dataset[i]
        for kind, accumulator in kinds.items():
            if (array := getattr(sample, kind)) is not None:
                accumulator.add(array)
        beyond = (sample.points < domain[:, 0] - slack) | (sample.points > domain[:, 1] + slack)
        outside += float(beyond.any(1).mean())
    names = iter([*(f"{axis} (coordinate)" for axis in "xyz"[: card.dim]), *card.conditions, *card.variables])
    rows: list[dict[str, Any]] = []
    for accumulator in kinds.values():
        moments = accumulator.moments()
        for numbers in np.stack([moments.mean, moments.std, accumulator.low, accumulator.high], 1).tolist():
            rows.append(dict(zip(("name", "mean", "std", "min", "max"), (next(names), *numbers), strict=True)))
    for row in rows if card.metric_std else ():
        if row["name"] in card.targets:
            place = card.targets.index(row["name"])
            row |= {"published mean": card.metric_mean[place], "published std": card.metric_std[place]}
    remarks = [card.notes] if card.notes else []
    if count < len(dataset):
        remarks.append(f"statistics of {count} of {len(dataset)} samples")
    if outside > 0:
        remarks.append(f"{100 * outside / count:.3g} % of the points lie outside the domain {card.domain} of the card")
    if card.split is not None and sum(card.split) > len(dataset):
        remarks.append(f"the published split {card.split} needs {sum(card.split):,} samples, here are {len(dataset):,}")
    for row in rows:
        published = row.get("published std")
        if published and abs(row["std"] / published - 1) > 0.2:
            remarks.append(f"the std of {row['name']} is {row['std'] / published:.2f} times the published constant")
    if "draws" in made:
        remarks.append(failures(int(made["draws"]), len(dataset)))
    return {
        "file": str(dataset.path),
        "benchmark": card.name,
        "label": made.get("label", "") if made.get("seed") else "released file or data of your own",
        "source": card.source,
        "license": card.license,
        "cloud": "shared" if dataset.shared else "per sample",
        "sizes": dataset.shape,
        "statistics": rows,
        "remarks": remarks,
        "attributes": {k: str(v) for k, v in made.items() if not k.startswith("_")},
    }


def failures(draws: int, samples: int) -> str:
    """Return how many random cases failed and were drawn again until there were so many samples."""
    return f"{draws - samples:,} of {draws:,} random cases failed and were drawn again"


def download(
    card: Card,
    folder: Path,
    url: str | None = None,
    sha256: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Fetch the (first) file of a benchmark, check its digest if one is known, and return its path.

    Args:
        card: That of the benchmark.
        folder: Where the file goes.
        url: Its address, by default the card's.
        sha256: Its digest, by default the card's.
        progress: Called with the bytes that have arrived and their total (0 if unknown).

    Raises:
        UserError: There is no address, or the file is incomplete or wrong; nothing partial is left behind.
    """
    path = folder / file_name(card)
    url, sha256 = url or card.url, sha256 or card.sha256
    by_hand = f"fetch it by hand from {card.source} and put it at {path}"
    if path.exists():
        raise UserError(f"{path}: exists already; remove it first to fetch it again")
    if url is None:
        raise UserError(f"{card.name}: no direct address is known; {by_hand}, or give the address with --url")
    if not url.startswith(("https://", "http://", "file://")):
        raise UserError(f"{url}: not an address; it starts with https://")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be used as a folder ({error.strerror})") from None
    digest, done = hashlib.sha256(), 0
    with whole_file(path) as partial:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, partial.open("wb") as file:
                total = int(answer.headers.get("Content-Length") or 0)
                while block := answer.read(1 << 20):
                    file.write(block)
                    digest.update(block)
                    done += len(block)
                    progress(done, total)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an odd address or answer
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the connection
            reason = " ".join(str(getattr(error, "reason", error)).split())  # some quote lines of the answer
            raise UserError(f"{url}: cannot be fetched ({reason}); {by_hand}") from None
        if total and done != total:
            raise UserError(f"{url}: the connection ended after {done:,} of {total:,} bytes; try again, or {by_hand}")
        if sha256 is not None and digest.hexdigest() != sha256.lower():
            raise UserError(f"{url}: the checksum is {digest.hexdigest()}, expected {sha256}; {by_hand}")
    return path
