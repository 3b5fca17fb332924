"""All pictures of a run."""

from collections.abc import Mapping
from pathlib import Path

from ikno.errors import UserError
from ikno.evaluation import Fields, fields, load_evaluation, problem_of
from ikno.models import IKNO, BaseKernel
from ikno.plots.charts import plot_errors, plot_kernels, plot_training
from ikno.plots.fields import plot_errors_of, plot_fields, plot_rollout
from ikno.runs import Run


def plot_run(
    run: Run,
    out: Path,
    samples: int = 3,
    checkpoint: str = "best",
    data: str | None = None,
    points: int | None = None,
) -> list[Path]:
    """Draw what the run has: predictions beside the truth, training curves, errors (if evaluated), learned kernels.

    ``data`` and ``points``: predictions on other data or another number of points than it was trained on. Problems in
    time are drawn along the rollout that was best in the evaluation, else along the smallest steps.
    """
    surrogate = run.surrogate(checkpoint)
    problem = problem_of(run, data, points)
    result = load_evaluation(run)
    strategy = "autoregressive" if result is None else result["best"]["strategy"]
    found = fields(surrogate, problem, count=samples, strategy=strategy)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be used as a folder ({error.strerror})") from None
    paths = plot_fields(found, out / "fields.png")
    if len(found[0].times) > 1:
        paths += plot_rollout(found[0], out / "rollout.png")
    if records := run.log():
        paths += plot_training(records, out / "training.png")
    if result is not None:
        paths += plot_errors(result, out / "errors.png")
    model = surrogate.model
    if isinstance(model, IKNO) and all(isinstance(k, BaseKernel) for k in model.branches):
        paths += plot_kernels(model, out / "kernels.png")
    return paths


def plot_predictions(run: Run, out: Path, samples: int = 2) -> list[Path]:
    """Draw the first test samples of a run beside the truth, at the final time, and return the file."""
    return plot_fields(_first(run, samples), out)


def plot_comparison(runs: Mapping[str, Run], out: Path) -> list[Path]:
    """Draw the errors of several runs on one data set for the first test sample, and return the file."""
    return plot_errors_of({label: _first(run, 1)[0] for label, run in runs.items()}, out)


def _first(run: Run, count: int) -> list[Fields]:
    """Return the first test samples with their predictions, along the rollout that was best in the evaluation."""
    result = load_evaluation(run)
    strategy = "autoregressive" if result is None else result["best"]["strategy"]
    return fields(run.surrogate(), problem_of(run), count=count, strategy=strategy)
