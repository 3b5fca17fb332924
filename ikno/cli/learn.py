"""Commands about learning: train, tune-scales, evaluate, calibrate, predict, plot, runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ikno.cli import options, screen
from ikno.errors import UserError

if TYPE_CHECKING:
    from ikno.config import Config
    from ikno.metrics import Metric
    from ikno.runs import Run


def train(
    what: options.Target = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/NAME-MODEL).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    device: options.Device = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print every setting and where it comes from; train nothing.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Train a surrogate. Ctrl-C saves and stops (exit code 3); --resume continues where it stopped."""
    if show:
        return _print_settings(*options.read_target(what, "train on", device), as_json)
    name, overrides = options.read_words(what, device) if resume else options.read_target(what, "train on", device)
    if resume and out is None:
        raise UserError("--resume: which run? name its folder with --out")
    from ikno.config import Config, make_config, merged, nested, parse

    if name is None:
        assert out is not None
        from ikno.runs import Run

        config = parse(Config, merged(Run.open(out).config.model_dump(mode="json"), nested(overrides)))
    else:
        config = make_config(name, overrides)
    path = out or _free_folder(config)
    from ikno.training import train as fit  # seconds of torch: after the settings were checked

    with screen.training_bar() as bar:
        run = fit(config, path, resume, report=lambda r: bar("", r))
    if not screen.first_process():
        return
    outcome = _outcome(run)
    if as_json:
        return screen.show_json(outcome)
    text = f"{run.path}: {outcome['epochs']} epochs"
    if outcome["loss"] is not None:
        text += f", training loss {outcome['loss']:.4g}"
    if outcome["validation"] is not None:
        text += f", best validation error {outcome['validation']:.2%} in epoch {outcome['best epoch']}"
    print(text)
    print(f"Next: ikno evaluate {run.path}   ikno plot {run.path}")


def _print_settings(name: str, overrides: dict[str, Any], as_json: bool) -> None:
    """Print all settings of a run that could be trained, with their origins."""
    from ikno.training import explain

    settings, notes = explain(name, overrides)
    if as_json:
        return screen.show_json(settings)
    rows = [(key, json.dumps(setting["value"]), setting["origin"]) for key, setting in settings.items()]
    screen.show_table(("setting", "value", "from"), rows)
    for note in notes:
        print(note)


def _outcome(run: "Run") -> dict[str, Any]:
    """Return how training ended; the best epoch is the one whose weights are kept."""
    records = [r for r in run.log() if "loss" in r]
    key = "validation" if any(r["validation"] is not None for r in records) else "loss"
    best = min((r for r in records if r[key] is not None), key=lambda r: r[key], default={})
    last = records[-1] if records else {"epoch": 0, "loss": None}
    outcome = {"run": str(run.path), "epochs": last["epoch"], "best epoch": best.get("epoch")}
    return outcome | {"loss": last["loss"], "validation": best.get("validation")}


def _free_folder(config: "Config") -> Path:
    """Return runs/NAME-MODEL, with a number if there is one already."""
    base = f"{Path(config.data.name).name.partition('.')[0]}-{config.model['name']}"
    names = [base, *(f"{base}-{i}" for i in range(2, 10_000))]
    return next(p for p in (Path("runs") / n for n in names) if not p.exists())


def tune_scales(
    what: options.Target = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME-MODEL).")] = None,
    factors: Annotated[str, typer.Option(help="Factors that the initial kernel scales are multiplied by.")] = "1,2,4",
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="Fraction of the epochs for each factor.")] = 0.2,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Tune the initial kernel scales: train with each factor for a share of the epochs, with the best to the end."""
    from ikno.config import make_config

    config = make_config(*options.read_target(what, "train on", device))
    values, path = options.split_numbers(factors, "--factors"), out or _free_folder(config)
    from ikno.training import tune_scales as tune

    with screen.training_bar(f"{path}: stopped and saved; the same command with --out {path} goes on") as show:
        run, errors = tune(config, path, values, share, lambda f, r: show(f"scales x {f:g}", r))
    best = min(errors, key=lambda f: errors[f])
    if as_json:
        named = {f"{f:g}": e for f, e in errors.items()}
        return screen.show_json({"run": str(run.path), "best": best, "errors": named})
    for factor, error in errors.items():
        print(f"scales x {factor:g}: error {error:.4g}{'  <- best' if factor == best else ''}")
    print(f"{run.path}: trained to the end")


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="The folder of a run, or of several that differ in their seed.")
    ],
    data: options.Data = None,
    points: options.Points = None,
    split: Annotated[Literal["train", "validation", "test", "all"], typer.Option(help="The samples to use.")] = "test",
    checkpoint: options.Checkpoint = "best",
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Measure a run on its test samples, beside baselines (trivial guesses), and keep the result in the run.

    For several runs, mean and sample standard deviation are shown. After `ikno calibrate`, the coverage of the
    intervals of the run, or of the ensemble of all runs, is measured too.
    """
    from ikno.evaluation import as_json as to_json
    from ikno.evaluation import collect, evaluate_surrogate, problem_of, save_evaluation
    from ikno.evaluation import evaluate as measure
    from ikno.runs import Run, calibration_file, load_calibration, surrogate_of

    results, every = [], [Run.open(path) for path in runs]
    for opened in every:
        results.append(measure(opened, checkpoint=checkpoint, split=split, data=data, points=points, device=device))
        if data is None and points is None and split == "test" and checkpoint == "best":
            save_evaluation(opened, results[-1])
    result = results[0] if len(runs) == 1 else collect(results)
    calibration = load_calibration(every, checkpoint)
    if calibration is None and any((run.path / calibration_file(every, checkpoint)).is_file() for run in every):
        screen.say("The calibration belongs to other weights; run `ikno calibrate` again for intervals.")
    if calibration is not None and len(runs) > 1:
        ensemble, problem = surrogate_of(every, checkpoint, device), problem_of(every[0], data, points)
        result["ensemble"] = {"runs": len(runs), **evaluate_surrogate(ensemble, problem, split, guess=False)}
    if as_json:
        print(to_json(result))
    else:
        _print_evaluation(result, results, split)


def _print_evaluation(result: dict[str, Any], results: list[dict[str, Any]], split: str) -> None:
    """Print an evaluation as a table; ``result`` is the only one of the results, or all of them together."""
    from ikno.metrics import METRICS, find_metric

    several = f"{len(results)} runs, " if len(results) > 1 else ""
    points = " to ".join(f"{n:,}" for n in dict.fromkeys(results[0]["points"]))
    samples = f"{results[0]['samples']} {split} samples of {points} points"
    ensemble = result.get("ensemble", {"metrics": {}}) | {"model": f"mean of {len(results)} runs"}
    rows = {
        **{_label(k, of, of["metrics"]): v for of in (result, ensemble) for k, v in of["metrics"].items()},
        **result["baselines"],
    }
    relative = find_metric(result["main_metric"]).relative
    shown = [m for m in METRICS.values() if m.title and m.relative == relative]
    screen.show_table(
        ["prediction", *(m.title for m in shown)],
        [[label, *(_number(metrics[m.name], m) for m in shown)] for label, metrics in rows.items()],
        f"{result['benchmark']}, {result['model']}: {several}{samples}",
    )
    if len(result["metrics"]) > 1:
        print(f"best: {', '.join(dict.fromkeys(r['best']['strategy'] for r in results))}")
    of = ensemble if "intervals" in ensemble else result
    if "intervals" in of:
        lines, strategies = [], of["intervals"]["strategies"]
        for strategy, bands in strategies.items():
            lines.append([_label(strategy, of, strategies)])
            for band in bands.values():
                lines[-1] += [f"{band['coverage']:.1%} ± {band['standard error']:.1%}", f"{band['width']:.3g} std"]
        header = (f"intervals of {of['intervals']['coverage']:.4g}", "points inside", "width", "samples inside")
        screen.show_table((*header, "width"), lines)


def _label(strategy: str, result: dict[str, Any], strategies: Mapping[str, Any]) -> str:
    """Return the name of a model, with the rollout if there are several."""
    return f"{result['model']} {strategy}" if len(strategies) > 1 else result["model"]


def _number(value: float | dict[str, Any], metric: "Metric") -> str:
    return metric.text(value["mean"], value["std"]) if isinstance(value, dict) else metric.text(value)


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The folder of a run, or of several that form an ensemble.")
    ],
    coverage: Annotated[float, typer.Option(help="Fraction of the truth that the intervals must contain.")] = 0.9,
    data: Annotated[
        str | None,
        typer.Option(help="All samples of this file, none of them trained on (default: validation samples)."),
    ] = None,
    points: options.Points = None,
    checkpoint: options.Checkpoint = "best",
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Measure on validation samples how wide intervals must be, and store that in the runs (docs/uncertainty.md).

    Then `ikno predict --intervals` writes them, and `ikno evaluate` measures them on test samples.
    """
    from ikno.evaluation import calibrate as fit
    from ikno.runs import Run, save_calibration

    opened = [Run.open(path) for path in runs]
    made = fit(opened, coverage, checkpoint, data, points, device=device)
    save_calibration(opened, made, checkpoint)
    if as_json:
        return screen.show_json(made.model_dump(mode="json"))
    several = len(runs) > 1
    what = f"an ensemble of {len(runs)} runs" if several else str(runs[0])
    unit = "times sqrt(spread² + floor²)" if several else "half width"
    lines = []
    for q in made.quantiles:
        way = q.strategy if q.lead is None else f"{q.strategy} to {q.lead:g}"
        for variable, each, floor in zip(made.variables, q.pointwise, made.floor, strict=True):
            widths = [None if v is None else v * (1 if several else floor) for v in (each, q.simultaneous)]
            lines.append([way, variable, *("unbounded" if w is None else f"{w:.4g}" for w in widths)])
    title = f"{what}: {made.coverage:.4g} coverage from {made.samples} samples ({made.source})"
    screen.show_table(("prediction", "variable", f"pointwise, {unit}", f"simultaneous, {unit}"), lines, title)


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
    time: Annotated[float | None, typer.Option(help="Time of the input (default: the first time of the data).")] = None,
    lead: Annotated[list[float] | None, typer.Option(help="How far ahead to predict; can be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to each lead, each from the previous result.")] = 1,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Also write lower and upper bounds (after `ikno calibrate`).")
    ] = False,
    band: Annotated[
        Literal["pointwise", "simultaneous"],
        typer.Option(help="Intervals for each value, or for all values of a sample at once."),
    ] = "pointwise",
    checkpoint: options.Checkpoint = "best",
    device: options.Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Start even if more memory seems to be needed than is available.")
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
    request = PredictionRequest(
        file=Path(file),
        out=out,
        queries=queries,
        time=time,
        leads=lead or [],
        steps=steps,
        checkpoint=checkpoint,
        device=device,
        given=options.parse_inputs(given),
        force=force,
        intervals=band if intervals else None,
        ignore_memory=ignore_memory,
    )
    made = write(opened, request)
    samples, leads, points, _ = made.values.shape
    text = f"{out}: {samples} samples at {points} points"
    text += f", {leads} lead{'s' if leads > 1 else ''}" if made.leads else ""
    text += f", {', '.join(made.variables)}"
    text += f", mean and spread of {len(runs)} runs" if len(runs) > 1 else ""
    print(text + (f", {band} intervals" if intervals else ""))


def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures (default: pictures in the run).")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to draw.")] = 3,
    data: options.Data = None,
    points: options.Points = None,
    checkpoint: options.Checkpoint = "best",
) -> None:
    """Draw predictions beside the truth, the training curves, errors over samples and the learned kernels."""
    from ikno.plots import plot_run
    from ikno.runs import Run

    opened = Run.open(run)
    for path in plot_run(opened, out or opened.path / "pictures", samples, checkpoint, data, points):
        print(path)


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder to search.")] = Path("runs"),
    as_json: options.Json = False,
) -> None:
    """List the runs below a folder and compare them."""
    from ikno.evaluation import load_evaluation
    from ikno.runs import Run, find_runs

    rows = []
    for path in find_runs(folder):
        try:
            run = Run.open(path)
            outcome, evaluation = _outcome(run), load_evaluation(run)
        except UserError as error:  # a damaged run does not hide the others
            screen.say(f"Error: {error}")
            continue
        rows.append(
            {
                "run": str(path),
                "benchmark": run.card.name,
                "model": run.config.model["name"],
                "epochs": f"{outcome['epochs']}/{run.config.train.epochs}",
                "loss": outcome["loss"],
                "validation": outcome["validation"],
                "test": evaluation and evaluation["best"]["value"],
            }
        )
    if as_json:
        return screen.show_json(rows)
    if not rows:
        raise UserError(f"{folder}: no runs here; `ikno train` makes one")
    lines = [["-" if v is None else v if isinstance(v, str) else f"{v:.4g}" for v in r.values()] for r in rows]
    screen.show_table(list(rows[0]), lines)
