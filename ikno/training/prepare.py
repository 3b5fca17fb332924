"""What training starts from: a complete config and an untrained surrogate."""

from collections.abc import Callable

from ikno.config import Config
from ikno.data.pairs import Mode, statistics
from ikno.data.problem import Problem
from ikno.errors import UserError
from ikno.models import complete_model
from ikno.surrogate import Signature, Surrogate, check_memory, half_size, prediction_memory, training_memory
from ikno.training.clustering import measure_clustering
from ikno.training.distributed import Group
from ikno.training.losses import LOSSES
from ikno.training.modes import PUBLISHED, measure_sizes
from ikno.training.optimizers import OPTIMIZERS
from ikno.training.scales import auto_scale, measure_lengths, rescaled


def complete(config: Config, problem: Problem, say: Callable[[str], None] = lambda text: None) -> Config:
    """Return the config with all that it leaves open filled from card and data, so that a run says everything.

    ``say`` is told in one line what was chosen from the data, and why.
    """
    LOSSES.find(config.train.loss)
    OPTIMIZERS.find(config.train.optimizer)
    card = problem.card
    model = complete_model(config.model, config.preset, card.grid, card.dim, card.steady)
    mode = _mode(config, problem, say)
    half = half_size(problem.box(), config.surrogate.coordinates)
    if model.get("stretching") == "auto":
        clustering = measure_clustering(problem, half)
        model["stretching"] = clustering.stretching
        say(f"model.stretching: the latent grid is {clustering}")
    if config.scales == "auto":
        finest = auto_scale(measure_lengths(problem, half, mode, config.seed))
        model |= rescaled(model, lambda largest: finest / largest)
    parts = {
        "data": {
            "split": tuple(len(s) for s in (problem.train, problem.validation, problem.test)),
            "points": problem.train.points,
            "sampling": problem.train.sampling,
            "stride": None if card.steady else problem.stride,
            "final_snapshot": None if card.steady else problem.final,
        },
        "surrogate": {"mode": mode},
        "train": {"epochs": _epochs(config, problem)},
    }
    filled = {name: getattr(config, name).model_copy(update=values) for name, values in parts.items()}
    return config.model_copy(update={**filled, "model": model, "scales": "given"})


def _mode(config: Config, problem: Problem, say: Callable[[str], None]) -> Mode:
    """Return what is predicted: what the config says, else states of steady problems, else a choice from the data."""
    mode = config.surrogate.mode
    if mode is not None and mode != "auto":
        return mode
    if problem.steady:
        return "direct"
    if mode is None and config.preset == "paper":
        return PUBLISHED
    sizes = measure_sizes(problem)
    say(f"surrogate.mode={sizes.mode} was chosen: {sizes}")
    return sizes.mode


def _epochs(config: Config, problem: Problem) -> int:
    """Return the epochs of training; if the number of steps is given, those that they begin."""
    if config.train.steps is None:
        return config.train.epochs or problem.card.epochs
    return -(-config.train.steps // steps_per_epoch(config, problem))


def steps_per_epoch(config: Config, problem: Problem) -> int:
    """Return the steps of a whole epoch."""
    return -(-len(problem.items(problem.train)) // config.train.batch)


def as_older(config: Config, older: Config) -> Config:
    """Return the config with the mode of the older one, if it leaves it open, and without settings that came later.

    Such settings of the model have their defaults. The preset must not fill them: the older model was built without.
    """
    if config.surrogate.mode in (None, "auto"):
        surrogate = config.surrogate.model_copy(update={"mode": older.surrogate.mode})
        config = config.model_copy(update={"surrogate": surrogate})
    if config.model["name"] != older.model["name"]:
        return config
    later = {k: v for k, v in complete_model(older.model).items() if k not in older.model}
    return config.model_copy(update={"model": {**later, **config.model}})


def new_surrogate(config: Config, problem: Problem) -> Surrogate:
    """Return an untrained surrogate with the statistics of the training samples; the config is complete."""
    mode = config.surrogate.mode or "direct"
    if mode == "auto":
        raise ValueError("surrogate.mode: auto is decided by `complete`")
    if problem.steady and mode != "direct":
        raise UserError(f"surrogate.mode: a steady problem has no {mode}; use direct")
    card = problem.card
    signature = Signature(
        dim=card.dim,
        variables=card.targets,
        conditions=card.conditions,
        box=problem.box(),
        coordinates=config.surrogate.coordinates,
        times=card.times,
        mode=mode,
        model=config.model,
    )
    surrogate = Surrogate(signature, seed=config.seed)  # settings of the model are checked before the data is read
    if config.train.point_processes == 1:  # else each process will keep its part of the points
        problem.train.keep(config.data.memory_gb * 1e9)
    surrogate.normalize_by(statistics(problem.train, problem.times, problem.pairs, mode))
    return surrogate


def check_room(config: Config, problem: Problem, surrogate: Surrogate, processes: Group) -> tuple[float | None, str]:
    """Return the bytes that training needs in each process, if known, and a sentence; a UserError if there are less."""
    most = (problem.train.most_points(), problem.validation.most_points())
    points, measured = (-(-count // processes.parts) for count in most)
    whole = -(-config.train.batch // processes.teams)
    batch = min(config.train.micro_batch or whole, whole, len(problem.items(problem.train)))
    step = training_memory(surrogate.model, points, batch)
    if step is not None and config.train.ema is not None:
        step += sum(p.nbytes for p in surrogate.parameters())
    validation = prediction_memory(surrogate.model, measured, measured, batch) if measured else 0.0
    needed = None if step is None or validation is None else max(step, validation)
    what = f"a step of training with {batch} samples of {points:,} points"
    if needed is not None and needed == validation:
        what = f"validation with {batch} samples of {measured:,} points"
    remedies = (
        "a smaller train.micro_batch, fewer data.points (data.evaluation_points for validation), "
        "model.checkpointing=true, or train.ignore_memory=true"
    )
    return needed, check_memory(needed, processes.device, what, remedies, config.train.ignore_memory)
