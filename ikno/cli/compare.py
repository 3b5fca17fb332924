"""Commands that compare models: what they reach, and what they cost."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ikno.cli import options, screen
from ikno.errors import UserError

MODELS = "ikno-tp,gaot,rigno,transolver,gnot,upt,gino,geofno,fno-dse"

EFFICIENT = "ikno-tp,gaot,transolver,ikno-dense"


def compare(
    what: options.Target = None,
    models: Annotated[str, typer.Option(help="Models, separated by commas; your own as module:Class.")] = MODELS,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Budget of each model: '40 epochs', or '300 seconds' of training steps (on a CPU its processor "
            "time divided by the number of threads). Default: the epochs of the preset."
        ),
    ] = None,
    optimizers: Annotated[str, typer.Option(help="adamw, muon or both (default: the preset's).")] = "",
    learning_rates: Annotated[
        str,
        typer.Option(help="Learning rates; each is tried with a third of the budget, and the best is used."),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each model, with seeds 0, 1, ...")] = 1,
    goal: Annotated[
        float | None,
        typer.Option("--target", min=0, help="Report the time to reach this validation error (0.1)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs (default: comparisons/NAME).")] = None,
    as_json: options.Json = False,
) -> None:
    """Train models on the same data with the same budget, and print error, size, time and memory in one table.

    Settings as in `train`; those of one model begin with its name: gaot.radius=0.1, gaot.surrogate.mode=direct. All
    runs, the table (.md, .json) and a picture of the errors are kept in --out. Ctrl-C saves; the same command goes on,
    and several processes can share the work in one folder.
    """
    name, overrides = options.read_target(what, "compare on")
    rates = options.split_numbers(learning_rates, "--learning-rates")
    from ikno.comparison import LEFT, Budget, Plan, caption, lines_of, markdown
    from ikno.comparison import compare as run
    from ikno.plots import plot_comparison

    plan = Plan(
        name=name,
        models=[options.model_name(name) for name in options.split(models)],
        overrides=overrides,
        budget=Budget() if budget is None else Budget.parse(budget),
        optimizers=options.split(optimizers),
        learning_rates=rates,
        seeds=range(seeds),
        target=goal,
    )
    folder = out or Path("comparisons") / Path(name).name.partition(".")[0]
    with screen.training_bar(f"{folder}: stopped and saved; the same command goes on") as show:
        result, runs = run(plan, folder, show, screen.say)
    (folder / "table.md").write_text(markdown(result))
    pictures = plot_comparison(runs, folder / "errors.png") if runs else []
    if as_json:
        return screen.show_json(result)
    screen.show_table(*lines_of(result), title=caption(result), words=LEFT)
    for row in result["rows"]:
        if row["reason"]:
            print(f"{row['model']}, {row['optimizer']}: {row['reason']}")
    print(f"{folder}: table.md, table.json" + "".join(f", {p.name}" for p in pictures))


def efficiency(
    models: Annotated[str, typer.Option(help="Models, separated by commas, or all.")] = EFFICIENT,
    points: Annotated[int, typer.Option(min=1, help="Number of points.")] = 16431,
    batch: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 1,
    grid: Annotated[int, typer.Option(min=2, help="Size of IKNO's latent grid along each axis.")] = 32,
    preset: Annotated[str, typer.Option(help="Sizes of the models: smoke, cpu or paper.")] = "paper",
    samples: Annotated[int, typer.Option(min=1, help="Samples per epoch (1,024 trajectories of 28 pairs).")] = 28672,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed rounds and of memory measurements.")] = 3,
    double: Annotated[bool, typer.Option("--double", help="Also measure with twice the points.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0 or auto.")] = "cpu",
    as_json: options.Json = False,
) -> None:
    """Measure a training step of each model: time, peak memory, and where the time goes.

    The defaults are those of the paper's table: the shape of Wave-C-Sines, published model sizes, IKNO with and without
    the Kronecker product.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler announces itself otherwise
    import torch

    from ikno.comparison import LEFT, Shape, costs_of, count, measure_efficiency
    from ikno.config import PRESETS, suggest
    from ikno.models import MODELS as KNOWN

    if preset not in PRESETS:
        raise UserError(f"--preset: no preset {preset!r}; {suggest(preset, PRESETS)}")
    names = list(KNOWN) if models == "all" else options.split(models)
    shape = Shape(points=points, batch=batch, grid=grid, device=device)
    rows = measure_efficiency(names, shape, repeats, preset, double, screen.say)
    threads = torch.get_num_threads()
    if as_json:
        facts = {"points": points, "batch": batch, "grid": grid, "preset": preset, "threads": threads, "device": device}
        return screen.show_json({**facts, "rows": rows})
    where = count(threads, "thread") if device == "cpu" else device
    title = f"Training step, {points:,} points, batch {batch}, preset {preset}, {where}"
    screen.show_table(*costs_of(rows, batch, samples), title=title, words=LEFT)
