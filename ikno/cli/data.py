"""Commands about data sets: list, info, generate, import, download, plot."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ikno.cli.options import Json, parse_overrides
from ikno.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

data = typer.Typer(help="Benchmarks and data files.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A benchmark, a card (.toml) or a data file.")]
Folder = Annotated[
    Path | None, typer.Option(help="Folder of the data sets (default: the environment's IKNO_DATA, or ./data).")
]


@data.command("list")
def list_sets(folder: Folder = None, as_json: Json = False) -> None:
    """List the benchmarks: what is predicted from what, and which are here."""
    from rich.console import Console
    from rich.table import Table

    from ikno.data.catalog import CATALOG
    from ikno.data.library import data_folder, find_file

    rows = []
    for card in CATALOG.values():
        try:
            here = str(find_file(card, folder or data_folder()))
        except UserError:
            here = None
        rows.append({**card.model_dump(mode="json"), "here": here})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None)
    for title in ("name", "predicts", "from", "times", "generated", "here"):
        table.add_column(title, no_wrap=title in ("name", "times", "generated", "here"))
    for row in rows:
        times = "steady" if row["times"] is None else f"{row['snapshots']} in {row['times'][0]:g}..{row['times'][1]:g}"
        inputs = [*(["u(0)"] if row["times"] else []), *row["conditions"]]
        made = row["label"].partition(":")[0] if row["generated"] else "no"
        table.add_row(row["name"], _few(row["targets"]), _few(inputs), times, made, "yes" if row["here"] else "no")
    Console().print(table)


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ... ({len(names)})"


@data.command()
def info(
    name: Name,
    folder: Folder = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples to read for the statistics.")] = 64,
    as_json: Json = False,
) -> None:
    """Show what is in a data file, its statistics beside the published ones, and what is missing."""
    from rich.console import Console
    from rich.table import Table

    from ikno.data.library import describe, load_data

    with load_data(name, folder) as dataset:
        found = describe(dataset, samples)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    for key in ("file", "benchmark", "label", "source", "license"):
        if found[key]:
            console.print(f"{key:10s} {found[key]}", highlight=False, soft_wrap=True)
    sizes = ", ".join(f"{v:,} {k}" for k, v in found["sizes"].items())
    console.print(f"{'sizes':10s} {sizes}; cloud {found['cloud']}", highlight=False, soft_wrap=True)
    known = {k for row in found["statistics"] for k, value in row.items() if value is not None}
    columns = [k for k in ("mean", "std", "min", "max", "published mean", "published std") if k in known]
    table = Table("", *columns, box=None)
    for row in found["statistics"]:
        numbers = [row.get(k) for k in columns]
        table.add_row(row["name"], *("-" if x is None else f"{x:.4g}" for x in numbers))
    console.print(table)
    for line in found["remarks"]:
        console.print(f"- {line}", highlight=False, soft_wrap=True)


@data.command()
def generate(
    name: Annotated[str, typer.Argument(help="The benchmark.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of the problem, for instance amplitude=5 (docs/data.md)."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 8,
    points: Annotated[
        int | None, typer.Option(min=1, help="Points per sample, at most (default: as published).")
    ] = None,
    resolution: Annotated[int | None, typer.Option(min=1, help="Resolution of the solver; small is quick.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one per core).")] = None,
    shard: Annotated[str, typer.Option(help="Part i of n, i from 0, for several machines with one folder.")] = "0/1",
    out: Annotated[
        Path | None, typer.Option(help="The file (default: NAME with its suffix in the data folder).")
    ] = None,
) -> None:
    """Solve a benchmark's equation for random data. Stop and start again as you like: finished samples are kept."""
    from ikno.data.catalog import find_card
    from ikno.data.files import open_data
    from ikno.data.generate import Job
    from ikno.data.generate import generate as make
    from ikno.data.generators import GENERATORS
    from ikno.data.library import data_folder, failures, file_name

    card = find_card(name)
    if not GENERATORS.has(card.name):
        raise UserError(f"{card.name}: cannot be generated; it comes from {card.source or 'you'}")
    settings = parse_overrides(overrides or [])
    given = {"points": points, "resolution": resolution}
    settings |= {k: v for k, v in given.items() if v is not None}
    job = Job(card.name, tuple(sorted(settings.items())), samples, seed)
    _ = job.generator  # settings are checked before anything is made
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit()):
        raise UserError(f"--shard: expected i/n such as 0/4, found {shard!r}")
    path = out or data_folder() / file_name(card)
    with _progress() as bar:
        task = bar.add_task(card.name, total=None)
        count = workers or min(os.cpu_count() or 1, samples)
        made = make(job, path, count, (int(part), int(parts)), lambda d, n: bar.update(task, completed=d, total=n))
    if made is None:
        print(f"shard {shard} of {path} is done; the file appears when all shards are")
    else:
        print(f"{made}: {samples} samples, label: {job.label()}")
        with open_data(made, card) as dataset:
            if "draws" in dataset.attributes:
                print(failures(int(dataset.attributes["draws"]), samples))


@data.command("import")
def import_folder(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Solved meshes, one file per sample.")],
    targets: Annotated[str, typer.Option(help="Point arrays to predict, separated by commas.")],
    out: Annotated[Path, typer.Option(help="The set, an .h5 file; its card (.toml) is put beside it.")],
    inputs: Annotated[str, typer.Option(help="Point arrays to predict from, separated by commas.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace --out and its card if they exist.")] = False,
) -> None:
    """Make a training set of a folder of solved meshes (.vtu, .vtp, .vtk, .msh) or tables (.csv, .npz)."""
    from ikno.data.mesh_sets import import_meshes

    given, wanted = ([w.strip() for w in text.split(",") if w.strip()] for text in (inputs, targets))
    with _progress() as bar:
        task = bar.add_task(folder.name, total=None)
        card = import_meshes(folder, given, wanted, out, force, lambda d, n: bar.update(task, completed=d, total=n))
    print(
        f"{card.file}: {', '.join(card.variables)} from {', '.join(card.conditions) or 'the points'}, {card.dim} axes"
    )
    print(f"Next: ikno data info {out.with_suffix('.toml')}   ikno train {out.with_suffix('.toml')}")


@data.command()
def download(
    name: Annotated[str, typer.Argument(help="The benchmark.")],
    folder: Folder = None,
    url: Annotated[str | None, typer.Option(help="Direct address of the file.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Expected SHA-256 digest of the file.")] = None,
) -> None:
    """Fetch a released file, or say what to fetch and where to put it."""
    from ikno.data.catalog import find_card
    from ikno.data.library import data_folder
    from ikno.data.library import download as fetch

    card = find_card(name)
    with _progress() as bar:
        task = bar.add_task(card.name, total=None)
        path = fetch(card, folder or data_folder(), url, sha256, lambda d, n: bar.update(task, completed=d, total=n))
    print(path)


@data.command()
def plot(
    name: Name,
    folder: Folder = None,
    out: Annotated[Path | None, typer.Option(help="The picture (default: NAME.png here).")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of a steady set.")] = 3,
) -> None:
    """Draw inputs and solutions; sets in time as a row of snapshots and an animation."""
    from ikno.data.library import load_data
    from ikno.plots import plot_data

    with load_data(name, folder) as dataset:
        for path in plot_data(dataset, out or Path(f"{dataset.card.name}.png"), samples):
            print(path)


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
