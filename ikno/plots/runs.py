"""All pictures of a run."""

from pathlib import Path

from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.evaluation import fields, load_evaluation
from ikno.models import IKNO
from ikno.plots.charts import plot_errors, plot_kernels, plot_training
from ikno.plots.fields import plot_fields, plot_rollout
from ikno.runs import Run


def plot_run(run: Run, out: Path, samples: int = 3, which: str = "best") -> list[Path]:
    """Draw what the run has: predictions beside the truth, training curves, errors (if evaluated), learned kernels."""
    surrogate = run.surrogate(which)
    problem = open_problem(run.config.data, run.config.seed)
    found = fields(surrogate, problem, count=samples)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be used as a folder ({error.strerror})") from None
    paths = [*_list(plot_fields(found, out / "fields.png"))]
    if not problem.steady:
        paths += _list(plot_rollout(found[0], out / "rollout.png"))
    if records := run.log():
        paths += _list(plot_training(records, out / "training.png"))
    if (result := load_evaluation(run)) is not None:
        paths += _list(plot_errors(result, out / "errors.png"))
    if isinstance(surrogate.model, IKNO):
        paths += _list(plot_kernels(surrogate.model, out / "kernels.png"))
    return paths


def _list(found: Path | list[Path]) -> list[Path]:
    return found if isinstance(found, list) else [found]
