"""Tuning of the initial scales of the kernels: short runs with multiples of the base scales, the best goes on."""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ikno.config import Config
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.runs import Run, write_atomic
from ikno.training.engine import Report, train
from ikno.training.prepare import complete
from ikno.training.scales import rescaled


def tune_scales(
    config: Config,
    out: Path | str,
    factors: Sequence[float] = (1.0, 2.0, 4.0),
    share: float = 0.2,
    report: Callable[[float, Report], None] = lambda factor, report: None,
) -> tuple[Run, dict[float, float]]:
    """Return the run with the best initial scales, trained to the end, and the error of each factor by then.

    Each factor has its run in ``out/scale-FACTOR``; one that is there already goes on from where it stopped.

    Args:
        config: What to train on and how.
        out: The folder of the runs.
        factors: Multiples of the initial scales of the config.
        share: The share of the epochs that each factor is trained for, before the best on validation (without
            validation samples on training) goes on.
        report: Called with the factor after each step.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("tune-scales: runs in one process; train the factors one by one with torchrun instead")
    if not factors or not all(0 < f < math.inf for f in factors):
        raise UserError(f"factors: positive numbers are needed, found {list(factors)}")
    whole = complete(config, open_problem(config.data, config.seed))
    until = max(math.ceil(round(share * whole.train.epochs, 9)), 1)  # rounded: 0.07 * 100 is a little more than 7
    scales = {f: rescaled(whole.model, lambda _, f=f: f) for f in factors}

    def go(factor: float, until: int | None) -> Run:
        path = Path(out) / f"scale-{factor:g}"
        scaled = whole.model_copy(update={"model": {**whole.model, **scales[factor]}})
        begun = (path / "run.json").exists()
        return train(scaled, path, resume=begun, until=until, report=lambda r: report(factor, r))

    errors = {factor: _error(go(factor, until), until) for factor in factors}
    best = min(errors, key=lambda f: errors[f])
    summary = {"best": best, "epochs": until, "errors": {f"{f:g}": e for f, e in errors.items()}}
    write_atomic(Path(out) / "search.json", json.dumps(summary, indent=1).encode())
    return go(best, None), errors


def _error(run: Run, until: int) -> float:
    """Return the best validation error of the first epochs, or training loss where there is none."""
    records = [r for r in run.log() if "loss" in r and r["epoch"] <= until]
    errors = [r["validation"] for r in records if r["validation"] is not None] or [r["loss"] for r in records]
    return min((e for e in errors if e is not None), default=math.inf)
