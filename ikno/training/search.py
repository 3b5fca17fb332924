"""The search for the initial scales of the kernels: short runs with multiples of the base scales, the best goes on."""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ikno.config import Config
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.runs import Run, write_atomic
from ikno.training.engine import Report, train
from ikno.training.prepare import complete
from ikno.training.scales import rescaled


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
    scales = {f: rescaled(whole.model, lambda _, f=f: f) for f in factors}
    configs = {f: whole.model_copy(update={"model": {**whole.model, **scales[f]}}) for f in factors}
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


def _go(config: Config, path: Path, until: int | None, report: Callable[[Report], None]) -> Run:
    return train(config, path, resume=(path / "run.json").exists(), until=until, report=report)


def _error(run: Run, until: int) -> float:
    """Return the best validation error of the first epochs, or training loss where there is none."""
    records = [r for r in run.log() if "loss" in r and r["epoch"] <= until]
    found = [r["validation"] for r in records if r["validation"] is not None] or [r["loss"] for r in records]
    return min((e for e in found if e is not None), default=math.inf)
