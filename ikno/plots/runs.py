"""All pictures of a run, and those of several runs."""

from collections.abc import Mapping
from pathlib import Path

from ikno.comparison import usable
from ikno.evaluation import Fields, fields, load_evaluation, problem_of
from ikno.models import IKNO, BaseKernel
from ikno.plots.charts import plot_errors, plot_kernels, plot_training
from ikno.plots.fields import plot_errors_of, plot_fields, plot_rollout
from ikno.runs import Run
from ikno.surrogate import Surrogate


def plot_run(
    run: Run,
    out: Path,
    samples: int = 3,
    checkpoint: str = "best",
    data: str | None = None,
    points: int | None = None,
) -> list[Path]:
    """Draw what the run has and return the files: predictions, training curves, errors (if evaluated), learned kernels.

    Problems in time are drawn along the rollout that was best in the evaluation, else along the smallest steps.

    Args:
        run: The run.
        out: The folder of the pictures.
        samples: Test samples to draw.
        checkpoint: The weights, best or last.
        data: Other data than it was trained on.
        points: Another number of points than it was trained on.
    """
    surrogate = run.surrogate(checkpoint)
    drawn = _fields(run, surrogate, samples, data, points)
    with usable(out):
        paths = plot_fields(drawn, out / "fields.png")
    if len(drawn[0].times) > 1:
        paths += plot_rollout(drawn[0], out / "rollout.png")
    if records := run.log():
        paths += plot_training(records, out / "training.png")
    if (evaluation := load_evaluation(run)) is not None:
        paths += plot_errors(evaluation, out / "errors.png")
    model = surrogate.model
    if isinstance(model, IKNO) and all(isinstance(k, BaseKernel) for k in model.branches):
        paths += plot_kernels(model, out / "kernels.png")
    return paths


def plot_predictions(run: Run, out: Path, samples: int = 2) -> list[Path]:
    """Draw the first test samples of a run beside the truth, at the final time, and return the file."""
    return plot_fields(_fields(run, run.surrogate(), samples), out)


def plot_comparison(runs: Mapping[str, Run], out: Path) -> list[Path]:
    """Draw the errors of several runs on one data set for the first test sample, and return the file."""
    return plot_errors_of({label: _fields(run, run.surrogate(), 1)[0] for label, run in runs.items()}, out)


def _fields(
    run: Run, surrogate: Surrogate, count: int, data: str | None = None, points: int | None = None
) -> list[Fields]:
    """Return the first test samples with their predictions, along the rollout that was best in the evaluation."""
    evaluation = load_evaluation(run)
    strategy = "autoregressive" if evaluation is None else evaluation["best"]["strategy"]
    return fields(surrogate, problem_of(run, data, points), count=count, strategy=strategy)
