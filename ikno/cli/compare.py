"""Commands that compare models: what they reach, and what they cost."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ikno.cli.options import Json, Target, model_name, target, training_bar
from ikno.errors import UserError

MODELS = "ikno-tp,gaot,rigno,transolver,gnot,upt,gino,geofno,fno-dse"

EFFICIENT = "ikno-tp,gaot,transolver,ikno-dense"


def compare(
    what: Target = None,
    models: Annotated[str, typer.Option(help="The models, by commas; your own as module:Class.")] = MODELS,
    budget: Annotated[
        str | None,
        typer.Option(
            help="For each model: '40 epochs', or '300 seconds' of training steps, which decide their number (on a "
            "processor its own seconds, divided by the threads). Default: the preset's epochs."
        ),
    ] = None,
    optimizers: Annotated[str, typer.Option(help="adamw, muon or both (default: the preset's).")] = "",
    rates: Annotated[
        str, typer.Option(help="Learning rates; each is tried with a third of the budget, the best goes on.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each model, with seeds 0, 1, ...")] = 1,
    goal: Annotated[
        float | None, typer.Option("--target", min=0, help="Tell how long each takes to this validation error (0.1).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs (default: comparisons/NAME).")] = None,
    as_json: Json = False,
) -> None:
    """Train models on the same data with the same budget, and print error, size, time and memory in one table.

    Settings as in `train`; those of one model begin with its name: gaot.radius=0.1, gaot.surrogate.mode=direct. All
    runs, the table (.md, .json) and a picture of the errors are kept in --out. Ctrl-C saves; the same command goes on,
    and several may share the work in one folder.
    """
    name, overrides = target(what)
    if name is None:
        raise UserError("what to compare on is missing; name a benchmark (`ikno data list`), a card or a data file")
    try:
        chosen = [float(r) for r in rates.split(",")] if rates else []
    except ValueError:
        raise UserError(f"--rates: numbers separated by commas are needed, found {rates!r}") from None
    from ikno.comparison import Budget, Plan, caption, cells_of, markdown
    from ikno.comparison import compare as run

    plan = Plan(
        name=name,
        models=[model_name(name) for name in _names(models)],
        overrides=overrides,
        budget=Budget() if budget is None else Budget.parse(budget),
        optimizers=_names(optimizers),
        rates=chosen,
        seeds=range(seeds),
        target=goal,
    )
    folder = out or Path("comparisons") / Path(name).name.partition(".")[0]
    from ikno.plots import plot_comparison

    with training_bar(f"{folder}: stopped and saved; the same command goes on") as show:
        result, runs = run(
            plan,
            folder,
            lambda name, report: show(f"{name}: ", report),
            lambda text: print(text, file=sys.stderr),
        )
    (folder / "table.md").write_text(markdown(result))
    pictures = plot_comparison(runs, folder / "errors.png") if runs else []
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print(caption(result), *cells_of(result))
    for row in result["rows"]:
        if row["reason"]:
            print(f"{row['model']}, {row['optimizer']}: {row['reason']}")
    print(f"{folder}: table.md, table.json" + "".join(f", {p.name}" for p in pictures))


def _names(text: str) -> list[str]:
    return [name for word in text.split(",") if (name := word.strip())]


def _print(title: str, header: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ikno.comparison import LEFT

    table = Table(box=None)
    for column in header:
        table.add_column(column, justify="left" if column in LEFT else "right")
    for line in lines:
        table.add_row(*line)
    console = Console()
    console = console if console.is_terminal else Console(width=max(console.width, 160))
    console.print(title, highlight=False)
    console.print(table)


def efficiency(
    models: Annotated[str, typer.Option(help="The models, separated by commas; all of them: all.")] = EFFICIENT,
    points: Annotated[int, typer.Option(min=1, help="Points of the cloud.")] = 16431,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 1,
    grid: Annotated[int, typer.Option(min=2, help="Latent grid of IKNO along each axis.")] = 32,
    preset: Annotated[str, typer.Option(help="Sizes of the models: smoke, cpu or paper.")] = "paper",
    samples: Annotated[int, typer.Option(min=1, help="Samples of an epoch (1,024 trajectories, 28 pairs).")] = 28672,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds; memory is taken as often.")] = 3,
    double: Annotated[bool, typer.Option("--double", help="Also with twice the points, to see the growth.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0 or auto.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure a training step of each model: seconds in turns, peak memory, and where the time goes.

    The defaults are the paper's table: the shape of Wave-C-Sines, published sizes, IKNO with and without the
    Kronecker product.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler announces itself otherwise
    import torch

    from ikno.comparison import Shape, costs_of, measure_efficiency
    from ikno.config import PRESETS, suggest
    from ikno.models import MODELS as KNOWN

    if preset not in PRESETS:
        raise UserError(f"--preset: no preset {preset!r}; {suggest(preset, PRESETS)}")
    names = list(KNOWN) if models == "all" else _names(models)
    shape = Shape(points=points, batch=batch, grid=grid, device=device)
    rows = measure_efficiency(names, shape, repeats, preset, double, lambda text: print(text, file=sys.stderr))
    threads = torch.get_num_threads()
    if as_json:
        facts = {"points": points, "batch": batch, "grid": grid, "preset": preset, "threads": threads, "device": device}
        print(json.dumps({**facts, "rows": rows}, indent=2))
        return
    where = f"{threads} thread{'s' if threads > 1 else ''}" if device == "cpu" else device
    title = f"Training step, {points:,} points, batch {batch}, preset {preset}, {where}"
    _print(title, *costs_of(rows, batch, samples))
