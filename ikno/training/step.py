"""One step of training as a call, to measure what it costs."""

from pathlib import Path

from ikno.config import Config
from ikno.cost import Step
from ikno.data.batches import shuffled
from ikno.data.problem import Problem, open_problem
from ikno.runs import Run
from ikno.training.distributed import group
from ikno.training.engine import Training
from ikno.training.prepare import complete, new_surrogate


def prepare_step(config: Config, problem: Problem | None = None) -> Step:
    """Return a call that makes one step on the first batch, weights included, as training does; nothing is written."""
    problem = problem or open_problem(config.data, config.seed)
    config = complete(config, problem)
    surrogate = new_surrogate(config, problem)
    run = Run(Path(), config, problem.card, surrogate.signature)  # only its settings are used
    with group(config.device, config.train.point_processes) as processes:
        training = Training(run, config, problem, surrogate, processes, lambda report: None)
    chosen = shuffled(len(training.items), config.train.batch, config.seed, 0)[0]
    batch = training.items.batch(chosen)

    def run_step() -> None:
        training.gradient(batch, chosen)
        training.update()

    return Step(run_step, sum(p.numel() for p in surrogate.model.parameters()))
