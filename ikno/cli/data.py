"""Commands about data sets: list, info, generate, import, download, plot."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ikno.cli import options, screen
from ikno.errors import UserError

data = typer.Typer(help="Benchmarks and data files.", no_args_is_help=True)

Benchmark = Annotated[str, typer.Argument(metavar="NAME", help="The benchmark.")]
Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A benchmark, a card (.toml) or a data file.")]
Folder = Annotated[
    Path | None, typer.Option(help="Folder of the data sets (default: the environment's IKNO_DATA, or ./data).")
]


@data.command("list")
def list_sets(folder: Folder = None, as_json: options.Json = False) -> None:
    """List the benchmarks: what is predicted from what, and whether the file is here."""
    from ikno.data.catalog import CATALOG
    from ikno.data.library import data_folder, find_file

    rows, lines = [], []
    for card in CATALOG.values():
        try:
            here = str(find_file(card, folder or data_folder()))
        except UserError:
            here = None
        rows.append({**card.model_dump(mode="json"), "here": here})
        times = "steady" if card.times is None else f"{card.snapshots} in {card.times[0]:g}..{card.times[1]:g}"
        inputs = [*(["u(0)"] if card.times else []), *card.conditions]
        made = card.label.partition(":")[0] if card.generated else "no"
        lines.append([card.name, _few(card.targets), _few(inputs), times, made, "yes" if here else "no"])
    if as_json:
        return screen.show_json(rows)
    screen.show_table(("name", "predicts", "from", "times", "generated", "here"), lines)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ... ({len(names)})"


@data.command()
def info(
    name: Name,
    folder: Folder = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples to read for the statistics.")] = 64,
    as_json: options.Json = False,
) -> None:
    """Show what is in a data file, its statistics beside the published ones, and what is missing."""
    from ikno.data.library import describe, load_data

    with load_data(name, folder) as dataset:
        facts = describe(dataset, samples)
    if as_json:
        return screen.show_json(facts)
    for key in ("file", "benchmark", "label", "source", "license"):
        if facts[key]:
            print(f"{key:10s} {facts[key]}")
    sizes = ", ".join(f"{v:,} {k}" for k, v in facts["sizes"].items())
    print(f"{'sizes':10s} {sizes}; cloud {facts['cloud']}")
    known = {k for row in facts["statistics"] for k, value in row.items() if value is not None}
    columns = [k for k in ("mean", "std", "min", "max", "published mean", "published std") if k in known]
    lines = []
    for row in facts["statistics"]:
        numbers = [row.get(k) for k in columns]
        lines.append([row["name"], *("-" if x is None else f"{x:.4g}" for x in numbers)])
    screen.show_table(("", *columns), lines)
    for line in facts["remarks"]:
        print(f"- {line}")


@data.command()
def generate(
    name: Benchmark,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of the problem, for instance amplitude=5 (docs/data.md)."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 8,
    points: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of points per sample (default: as published).")
    ] = None,
    resolution: Annotated[int | None, typer.Option(min=1, help="Resolution of the solver; smaller is faster.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one per core).")] = None,
    shard: Annotated[str, typer.Option(help="Part i of n, i from 0, for machines that share a folder.")] = "0/1",
    out: Annotated[
        Path | None, typer.Option(help="The file (default: NAME with its suffix in the data folder).")
    ] = None,
) -> None:
    """Solve a benchmark's equation for random data. Can be stopped and started again: finished samples are kept."""
    from ikno.data.catalog import find_card
    from ikno.data.files import open_data
    from ikno.data.generate import Job
    from ikno.data.generate import generate as make
    from ikno.data.generators import GENERATORS
    from ikno.data.library import data_folder, failures, file_name

    card = find_card(name)
    if not GENERATORS.has(card.name):
        raise UserError(f"{card.name}: cannot be generated; it comes from {card.source or 'you'}")
    given = {"points": points, "resolution": resolution}
    settings = options.parse_overrides(overrides or []) | {k: v for k, v in given.items() if v is not None}
    job = Job(card.name, tuple(sorted(settings.items())), samples, seed)
    _ = job.generator  # settings are checked before anything is made
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit()):
        raise UserError(f"--shard: expected i/n such as 0/4, found {shard!r}")
    path = out or data_folder() / file_name(card)
    with screen.progress_bar(card.name) as update:
        made = make(job, path, workers or min(os.cpu_count() or 1, samples), (int(part), int(parts)), update)
    if made is None:
        print(f"shard {shard} of {path} is done; the file appears when all shards are")
        return
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
    """Make a training set from a folder of solved meshes (.vtu, .vtp, .vtk, .msh) or tables (.csv, .npz)."""
    from ikno.data.mesh_sets import import_meshes

    with screen.progress_bar(folder.name) as update:
        card = import_meshes(folder, options.split(inputs), options.split(targets), out, force, update)
    sources = ", ".join(card.conditions) or "the points"
    print(f"{card.file}: {', '.join(card.variables)} from {sources}, {card.dim} axes")
    print(f"Next: ikno data info {out.with_suffix('.toml')}   ikno train {out.with_suffix('.toml')}")


@data.command()
def download(
    name: Benchmark,
    folder: Folder = None,
    url: Annotated[str | None, typer.Option(help="Direct address of the file.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Expected SHA-256 digest of the file.")] = None,
) -> None:
    """Download a released file, or tell where to get it and where to put it."""
    from ikno.data.catalog import find_card
    from ikno.data.library import data_folder
    from ikno.data.library import download as fetch

    card = find_card(name)
    with screen.progress_bar(card.name) as update:
        path = fetch(card, folder or data_folder(), url, sha256, update)
    print(path)


@data.command()
def plot(
    name: Name,
    folder: Folder = None,
    out: Annotated[Path | None, typer.Option(help="The picture (default: NAME.png here).")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of a steady set.")] = 3,
) -> None:
    """Draw inputs and solutions; time-dependent sets as snapshots and an animation."""
    from ikno.data.library import load_data
    from ikno.plots import plot_data

    with load_data(name, folder) as dataset:
        for path in plot_data(dataset, out or Path(f"{dataset.card.name}.png"), samples):
            print(path)
