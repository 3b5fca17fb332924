"""Commands about learning: train, search, calibrate, evaluate, predict, plot, runs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ikno.cli.intervals import intervals_table
from ikno.cli.options import Device, Json, Target, first_process, parse_numbers, target, training_bar
from ikno.errors import UserError

if TYPE_CHECKING:
    from ikno.config import Config
    from ikno.metrics import Metric
    from ikno.runs import Run

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Checkpoint = Annotated[str, typer.Option(help="The checkpoint: best or last.")]


def train(
    what: Target = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/NAME-MODEL).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    device: Device = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print every setting and where it comes from; train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a surrogate. Ctrl-C saves and stops (exit code 3); --resume goes on as if nothing had happened."""
    name, overrides = target(what)
    if show:
        return _print_settings(name, overrides | ({} if device is None else {"device": device}), as_json)
    if name is None and not resume:
        raise UserError("what to train on is missing; name a benchmark (`ikno data list`), a card or a data file")
    if resume and out is None:
        raise UserError("--resume: which run? name its folder with --out")
    if name is None:
        assert out is not None
        from ikno.config import Config, merged, nested, parse
        from ikno.runs import Run

        config = parse(Config, merged(Run.open(out).config.model_dump(mode="json"), nested(overrides)))
    else:
        config = _config(name, overrides)
    if device is not None:
        config = config.model_copy(update={"device": device})
    path = out or _free_folder(config)
    from ikno.training import train as fit  # seconds of torch: after the settings were checked

    with training_bar() as bar:
        run = fit(config, path, resume, report=lambda r: bar("", r))
    if not first_process():
        return
    found = _outcome(run)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    text = f"{run.path}: {found['epochs']} epochs"
    if found["loss"] is not None:
        text += f", training loss {found['loss']:.4g}"
    if found["validation"] is not None:
        text += f", best validation error {found['validation']:.2%} in epoch {found['best epoch']}"
    print(text)
    print(f"Next: ikno evaluate {run.path}   ikno plot {run.path}")


def _print_settings(name: str | None, overrides: dict[str, Any], as_json: bool) -> None:
    """Print all settings of a run that could be trained, with their origins."""
    if name is None:
        raise UserError("--show: what to train on is missing; name a benchmark (`ikno data list`), a card or a file")
    from rich.console import Console
    from rich.table import Table

    from ikno.training import explain

    settings, notes = explain(name, overrides)
    if as_json:
        print(json.dumps({s.name: {"value": s.value, "origin": s.origin} for s in settings}, indent=2))
        return
    table = Table("setting", "value", "from", box=None)
    for s in settings:
        table.add_row(s.name, json.dumps(s.value), s.origin)
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)


def _outcome(run: "Run") -> dict[str, Any]:
    """Return how training ended; the best epoch is the one whose weights are kept."""
    records = [r for r in run.log() if "loss" in r]
    key = "validation" if any(r["validation"] is not None for r in records) else "loss"
    best = min((r for r in records if r[key] is not None), key=lambda r: r[key], default={})
    last = records[-1] if records else {"epoch": 0, "loss": None}
    found = {"run": str(run.path), "epochs": last["epoch"], "best epoch": best.get("epoch")}
    return found | {"loss": last["loss"], "validation": best.get("validation")}


def search(
    what: Target = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME-MODEL).")] = None,
    factors: Annotated[str, typer.Option(help="Factors on the base scales.")] = "1,2,4",
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the epochs for each factor.")] = 0.2,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Search for the initial kernel scales: each factor for a share of the epochs, then the best to the end."""
    name, overrides = target(what)
    if name is None:
        raise UserError("what to train on is missing; name a benchmark (`ikno data list`), a card or a data file")
    config = _config(name, overrides)
    if device is not None:
        config = config.model_copy(update={"device": device})
    try:
        values = [float(f) for f in factors.split(",")]
    except ValueError:
        raise UserError(f"--factors: numbers separated by commas are needed, found {factors!r}") from None
    path = out or _free_folder(config)
    from ikno.training import search as find

    with training_bar(f"{path}: stopped and saved; the same command with --out {path} goes on") as show:
        found = find(config, path, values, share, lambda f, r: show(f"scales x {f:g}, ", r))
    if as_json:
        errors = {f"{f:g}": e for f, e in found.errors.items()}
        print(json.dumps({"run": str(found.run.path), "best": found.factor, "errors": errors}, indent=2))
        return
    for factor, error in found.errors.items():
        print(f"scales x {factor:g}: error {error:.4g}{'  <- best' if factor == found.factor else ''}")
    print(f"{found.run.path}: trained to the end")


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="The folder of a run, or of several that differ in their seed.")
    ],
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, card or file.")] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Another number of points.")] = None,
    split: Annotated[Literal["train", "validation", "test", "all"], typer.Option(help="The samples.")] = "test",
    checkpoint: Checkpoint = "best",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a run on its test samples, beside trivial predictions, and keep the result in the run.

    Of several runs mean and sample standard deviation are shown. After `ikno calibrate` also how often the truth lies
    inside the intervals, of the run or of the ensemble of all runs.
    """
    from ikno.evaluation import as_json as to_json
    from ikno.evaluation import collect, measure_ensemble, save_evaluation
    from ikno.evaluation import evaluate as measure
    from ikno.runs import Run, calibration_file, load_calibration

    results, every = [], [Run.open(path) for path in runs]
    for opened in every:
        results.append(measure(opened, checkpoint=checkpoint, split=split, data=data, points=points, device=device))
        if data is None and points is None and split == "test" and checkpoint == "best":
            save_evaluation(opened, results[-1])
    found = results[0] if len(runs) == 1 else collect(results)
    calibration = load_calibration(every, checkpoint)
    if calibration is None and any((run.path / calibration_file(every, checkpoint)).is_file() for run in every):
        print("The calibration is of other weights; `ikno calibrate` again for intervals.", file=sys.stderr)
    if calibration is not None and len(runs) > 1:
        found["ensemble"] = measure_ensemble(every, calibration, checkpoint, split, data, points, device=device)
    if as_json:
        print(to_json(found))
        return
    _show(found, results, split)


def _show(found: dict[str, Any], results: list[dict[str, Any]], split: str) -> None:
    """Print an evaluation as a table; ``found`` is the only one of the results, or all of them together."""
    from rich.console import Console
    from rich.table import Table

    from ikno.metrics import METRICS, find_metric

    console = Console()
    several = f"{len(results)} runs, " if len(results) > 1 else ""
    console.print(
        f"{found['benchmark']}, {found['model']}: {several}{results[0]['samples']} {split} samples of "
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys(results[0]['points']))} points",
        highlight=False,
    )
    mean = {"model": f"mean of {len(results)} runs", **found.get("ensemble", {"metrics": {}})}
    rows = {
        **{_strategy(k, found): v for k, v in found["metrics"].items()},
        **{_strategy(k, mean): v for k, v in mean["metrics"].items()},
        **found["baselines"],
    }
    relative = find_metric(found["main_metric"]).relative
    shown = [m for m in METRICS.values() if m.title and m.relative == relative]
    table = Table("prediction", *(m.title for m in shown), box=None)
    for label, metrics in rows.items():
        table.add_row(label, *(_number(metrics[m.name], m) for m in shown))
    console.print(table)
    if len(found["metrics"]) > 1:
        names = dict.fromkeys(r["best"]["strategy"] for r in results)
        console.print(f"best: {', '.join(names)}", highlight=False)
    shown_of = mean if "intervals" in mean else found
    if "intervals" in shown_of:
        console.print(intervals_table(shown_of), highlight=False)


def _strategy(name: str, found: dict[str, Any]) -> str:
    return f"{found['model']} {name}" if len(found["metrics"]) > 1 else found["model"]


def _number(value: float | dict[str, Any], metric: "Metric") -> str:
    return metric.text(value["mean"], value["std"]) if isinstance(value, dict) else metric.text(value)


def predict(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... FILE [KEY=VALUE]",
            help="The folder of a run (of several the mean is predicted); a file of points and inputs: .npz, .nc as "
            "released, .csv, or a mesh (.vtu, .vtp, .vtk, .msh, .stl, .obj); inputs as one number for all points, for "
            "instance Mach=0.82.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The result: .npz, or .nc for any size; of a mesh a copy with the predictions in it.")
    ],
    queries: Annotated[
        Path | None, typer.Option(help="Where to predict: .npz or .npy with an array of points.")
    ] = None,
    time: Annotated[float | None, typer.Option(help="Time of the input (default: the first of the data).")] = None,
    lead: Annotated[list[float] | None, typer.Option(help="How far ahead; may be given several times.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to each lead, each from the result of the last.")] = 1,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Write lower and upper ends too (after `ikno calibrate`).")
    ] = False,
    band: Annotated[
        Literal["pointwise", "whole field"], typer.Option(help="Intervals for each value, or for whole fields at once.")
    ] = "pointwise",
    checkpoint: Checkpoint = "best",
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Begin even if the memory does not seem to suffice.")
    ] = False,
) -> None:
    """Predict at any points and times, from the inputs in a file."""
    given = [word for word in what if "=" in word and not Path(word).exists()]
    *runs, file = [word for word in what if word not in given] or [""]
    if not runs:
        raise UserError("ikno predict needs the folder of a run and a file of points: ikno predict RUN FILE --out OUT")
    from ikno.evaluation import PredictionRequest
    from ikno.evaluation import predict as write
    from ikno.runs import Run

    opened = [Run.open(Path(run)) for run in runs]
    asked = band if intervals else None
    request = PredictionRequest(
        file=Path(file),
        out=out,
        queries=queries,
        time=time,
        leads=lead or [],
        steps=steps,
        checkpoint=checkpoint,
        device=device,
        given=parse_numbers(given),
        force=force,
        intervals=asked,
        ignore_memory=ignore_memory,
    )
    made = write(opened, request)
    samples, leads, points, _ = made.values.shape
    when = f", {leads} lead{'s' if leads > 1 else ''}" if made.leads else ""
    print(
        f"{out}: {samples} samples at {points} points{when}, {', '.join(made.variables)}"
        f"{f', mean and spread of {len(runs)} runs' if len(runs) > 1 else ''}{f', {band} intervals' if asked else ''}"
    )


def plot(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures (default: pictures in the run).")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to draw.")] = 3,
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, card or file.")] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Another number of points.")] = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Draw predictions beside the truth, the training curves, errors over samples and the learned kernels."""
    from ikno.plots.runs import plot_run
    from ikno.runs import Run

    opened = Run.open(run)
    for path in plot_run(opened, out or opened.path / "pictures", samples, checkpoint, data, points):
        print(path)


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs below a folder and compare them."""
    from rich.console import Console
    from rich.table import Table

    from ikno.evaluation import load_evaluation
    from ikno.runs import Run, find_runs

    rows = []
    for path in find_runs(folder):
        try:
            run = Run.open(path)
            records = [r for r in run.log() if "loss" in r]
            measured = load_evaluation(run)
        except UserError as error:  # a damaged run does not hide the others
            print(f"Error: {error}", file=sys.stderr)
            continue
        errors = [r["validation"] for r in records if r["validation"] is not None]
        rows.append(
            {
                "run": str(path),
                "benchmark": run.card.name,
                "model": run.config.model["name"],
                "epochs": f"{records[-1]['epoch'] if records else 0}/{run.config.train.epochs}",
                "loss": records[-1]["loss"] if records else None,
                "validation": min(errors, default=None),
                "test": None if measured is None else measured["best"]["value"],
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        raise UserError(f"{folder}: no runs here; `ikno train` makes one")
    table = Table(box=None)
    for name in ("run", "benchmark", "model", "epochs", "loss", "validation", "test"):
        table.add_column(name, overflow="fold")  # never cut: a path is there to be copied
    for row in rows:
        numbers = ["-" if row[k] is None else f"{row[k]:.4g}" for k in ("loss", "validation", "test")]
        table.add_row(row["run"], row["benchmark"], row["model"], row["epochs"], *numbers)
    Console().print(table)


def _config(name: str, overrides: dict[str, Any]) -> "Config":
    from ikno.config import make_config

    return make_config(name, overrides)


def _free_folder(config: "Config") -> Path:
    """Return runs/NAME-MODEL, with a number if there is one already."""
    base = f"{Path(config.data.name).name.partition('.')[0]}-{config.model['name']}"
    names = [base, *(f"{base}-{i}" for i in range(2, 10_000))]
    return next(p for p in (Path("runs") / n for n in names) if not p.exists())
