"""Preparation of training: a complete config, an untrained surrogate, and the check of the memory."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from ikno.config import CompleteConfig, Config, config_layers, flattened, make_config, merged, parse
from ikno.data.pairs import statistics
from ikno.data.problem import Problem, open_problem
from ikno.models import complete_model, model_layers
from ikno.surrogate import Signature, Surrogate, check_available, half_size, prediction_memory, training_memory
from ikno.training.clustering import measure_clustering
from ikno.training.distributed import Group
from ikno.training.losses import LOSSES
from ikno.training.modes import PUBLISHED, measure_sizes
from ikno.training.optimizers import OPTIMIZERS
from ikno.training.scales import auto_scale, measure_lengths, rescaled

Layers = dict[str, dict[str, Any]]  # nested settings by what decides them; the later wins
Say = Callable[[str], None]


def complete(config: Config, problem: Problem, say: Say = lambda text: None) -> CompleteConfig:
    """Return the config with everything that it leaves open.

    ``say`` is told in one line what was chosen from the data, and why.
    """
    return _with_layers(config, _completion(config, problem, say))


def explain(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return value and origin of every setting of a run by its dotted name, and what was chosen from the data and why.

    The data is opened, and examined where a setting asks for it; nothing is trained or written.

    Args:
        name: What to train on, as in ``make_config``.
        overrides: Dotted settings.
    """
    config, notes = make_config(name, overrides), list[str]()
    layers = _completion(config, open_problem(config.data, config.seed), notes.append)
    given = config_layers(name, overrides)
    origins = {key: origin for origin, layer in given.items() for key in flattened(layer)}
    values = flattened(config.model_dump())
    for origin, layer in layers.items():
        for key, value in flattened(layer).items():
            if key not in values or values[key] != value:
                replaced = origin == "data" and key in origins
                origins[key] = f"data ({origins[key]}: {values[key]})" if replaced else origin
                values[key] = value
    completed = flattened(_with_layers(config, layers).model_dump(mode="json"))
    return {key: {"value": value, "origin": origins.get(key, "default")} for key, value in completed.items()}, notes


def _with_layers(config: Config, layers: Layers) -> CompleteConfig:
    values = reduce(merged, layers.values(), config.model_dump())
    return parse(CompleteConfig, {**values, "model": complete_model(values["model"])})


def _completion(config: Config, problem: Problem, say: Say) -> Layers:
    """Return what the config leaves open, by what decides it: the card, the preset or the data."""
    LOSSES.find(config.train.loss)
    OPTIMIZERS.find(config.train.optimizer)
    card, preset, steady = problem.card, f"preset {config.preset}", problem.steady
    of_model = (config.model, config.preset, card.grid, card.dim, steady)
    model = complete_model(*of_model)
    sizes = tuple(len(samples) for samples in (problem.train, problem.validation, problem.test))
    chosen: dict[str, Any] = {"data": {"split": sizes}, "scales": "given", "model": {}}
    layers: Layers = {
        "card": {
            "data": {
                "points": problem.train.points,
                "sampling": problem.train.sampling,
                "stride": None if steady else problem.stride,
                "final_snapshot": None if steady else problem.final,
            },
            "train": {"epochs": config.train.epochs or card.epochs},
        },
        preset: {},
        "data": chosen,
    }
    for origin, layer in model_layers(*of_model).items():
        if origin != "given":
            layers[origin]["model"] = {k: v for k, v in layer.items() if k not in config.model}
    if config.data.split is None and card.split is not None:
        layers["card"]["data"]["split"] = card.split
    if config.train.steps is not None:
        chosen["train"] = {"epochs": -(-config.train.steps // steps_per_epoch(config, problem))}

    mode = config.surrogate.mode
    if mode is None and config.preset == "paper" and not steady:
        mode = PUBLISHED
        layers[preset]["surrogate"] = {"mode": mode}
    elif mode is None or mode == "auto":
        changes = None if steady else measure_sizes(problem)
        mode = "direct" if changes is None else changes.mode
        chosen["surrogate"] = {"mode": mode}
        if changes is not None:
            say(f"surrogate.mode={mode} was chosen: {changes}")

    half = half_size(problem.box(), config.surrogate.coordinates)
    if model.get("stretching") == "auto":
        clustering = measure_clustering(problem, half)
        chosen["model"]["stretching"] = clustering.stretching
        say(f"model.stretching: the latent grid is {clustering}")
    if config.scales == "auto":
        finest = auto_scale(measure_lengths(problem, half, mode, config.seed))
        chosen["model"] |= rescaled(model, lambda largest: finest / largest)
    return layers


def steps_per_epoch(config: Config, problem: Problem) -> int:
    """Return the steps of a whole epoch."""
    return -(-len(problem.items(problem.train)) // config.train.batch)


def as_older(config: Config, older: CompleteConfig) -> Config:
    """Return the config with the prediction mode of an older one if it leaves that open, and with its model.

    Model settings that the older config does not know keep their defaults: the preset must not fill them, since the
    older model was built without.
    """
    if config.surrogate.mode in (None, "auto"):
        surrogate = config.surrogate.model_copy(update={"mode": older.surrogate.mode})
        config = config.model_copy(update={"surrogate": surrogate})
    if config.model["name"] != older.model["name"]:
        return config
    later = {k: v for k, v in complete_model(older.model).items() if k not in older.model}
    return config.model_copy(update={"model": {**later, **config.model}})


def new_surrogate(config: CompleteConfig, problem: Problem) -> Surrogate:
    """Return an untrained surrogate with the statistics of the training samples."""
    card, mode = problem.card, config.surrogate.mode
    described = {
        "dim": card.dim,
        "variables": card.targets,
        "conditions": card.conditions,
        "box": problem.box(),
        "coordinates": config.surrogate.coordinates,
        "times": card.times,
        "mode": mode,
        "model": config.model,
    }
    signature = parse(Signature, described)
    surrogate = Surrogate(signature, seed=config.seed)  # settings of the model are checked before the data is read
    if config.train.point_processes == 1:  # else each process will keep its part of the points
        problem.train.keep(config.data.memory_gb * 1e9)
    surrogate.normalize_by(statistics(problem.train, problem.times, problem.pairs, mode))
    return surrogate


def check_memory(
    config: CompleteConfig, problem: Problem, surrogate: Surrogate, processes: Group
) -> tuple[float | None, str]:
    """Return the bytes that training needs in each process, None if unknown, and a sentence about them.

    Raises:
        UserError: Less memory is available.
    """
    most = (problem.train.most_points(), problem.validation.most_points())
    points, measured = (-(-count // processes.parts) for count in most)
    share = -(-config.train.batch // processes.teams)
    batch = min(config.train.micro_batch or share, share, len(problem.items(problem.train)))
    needed = training_memory(surrogate.model, points, batch)
    what = f"a step of training with {batch} samples of {points:,} points"
    validation = prediction_memory(surrogate.model, measured, measured, batch) if measured else 0.0
    if needed is not None and validation is not None:
        if config.train.ema is not None:
            needed += sum(p.nbytes for p in surrogate.parameters())
        if validation >= needed:
            needed, what = validation, f"validation with {batch} samples of {measured:,} points"
    remedies = (
        "a smaller train.micro_batch, fewer data.points (data.evaluation_points for validation), "
        "model.checkpointing=true, or train.ignore_memory=true"
    )
    return needed, check_available(needed, processes.device, what, remedies, config.train.ignore_memory)
