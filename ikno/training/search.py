"""The search for the initial scales of the kernels: short runs with multiples of the base scales, the best goes on."""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ikno.config import Config, parse, suggest
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.models import MODELS
from ikno.runs import Run, write_atomic
from ikno.training.engine import Report, train
from ikno.training.prepare import complete

SCALES = ("init_scales_l1", "init_scales_l2")


@dataclass(frozen=True)
class Found:
    """The run of the best factor, and the error of each after its share of the epochs."""

    run: Run
    factor: float
    errors: dict[float, float]


def search(
    config: Config,
    out: Path | str,
    factors: Sequence[float] = (1.0, 2.0, 4.0),
    share: float = 0.2,
    report: Callable[[float, Report], None] = lambda factor, report: None,
) -> Found:
    """Train with each factor for a share of the epochs, and the best on validation (else on training) to the end.

    Each factor has its run in ``out/scale-FACTOR``; what is there already goes on from where it stopped.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("search: runs in one process; train the factors one by one with torchrun instead")
    if not factors or not all(0 < f < math.inf for f in factors):
        raise UserError(f"factors: positive numbers are needed, found {list(factors)}")
    whole = complete(config, open_problem(config.data, config.seed))
    epochs = whole.train.epochs or 1
    until = max(math.ceil(round(share * epochs, 9)), 1)  # rounded: 0.07 * 100 is a little more than 7
    configs = {f: _scaled(whole, f) for f in factors}
    runs, errors = {}, {}
    for factor in factors:
        path = Path(out) / f"scale-{factor:g}"
        runs[factor] = _go(configs[factor], path, until, lambda r, factor=factor: report(factor, r))
        errors[factor] = _error(runs[factor], until)
    best = min(errors, key=lambda f: errors[f])
    summary = {"best": best, "epochs": until, "errors": {f"{f:g}": e for f, e in errors.items()}}
    write_atomic(Path(out) / "search.json", json.dumps(summary, indent=1).encode())
    run = _go(configs[best], runs[best].path, None, lambda r: report(best, r))
    return Found(run, best, errors)


def _scaled(config: Config, factor: float) -> Config:
    """Return the config with all initial scales multiplied."""
    name = config.model["name"]
    if name not in MODELS:
        raise UserError(f"model: no model named {name!r}; {suggest(name, MODELS)}")
    variant = MODELS[name]
    given = {k: v for k, v in config.model.items() if k != "name"}
    settings: Any = parse(variant.settings, {**variant.defaults, **given}, "model")
    if not set(SCALES) <= set(variant.settings.model_fields) or settings.kernel != "base":
        raise UserError(f"model: {name} has no kernel scales to search for; train it with `ikno train`")
    scaled = {key: [factor * s for s in getattr(settings, key)] for key in SCALES}
    return config.model_copy(update={"model": {**config.model, **scaled}})


def _go(config: Config, path: Path, until: int | None, report: Callable[[Report], None]) -> Run:
    return train(config, path, resume=(path / "run.json").exists(), until=until, report=report)


def _error(run: Run, until: int) -> float:
    """Return the best validation error of the first epochs, or training loss where there is none."""
    records = [r for r in run.log() if "loss" in r and r["epoch"] <= until]
    found = [r["validation"] for r in records if r["validation"] is not None] or [r["loss"] for r in records]
    return min((e for e in found if e is not None), default=math.inf)
