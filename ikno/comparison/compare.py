"""The comparison: which cells there are, in which order they are made, and the table they give."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ikno.comparison.cells import Cell, Measured, measured
from ikno.comparison.costs import Cost, measure_costs
from ikno.config import Config, make_config
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.metrics import mean_and_std
from ikno.models import MODELS, find_variant
from ikno.runs import BusyError, Run, write_atomic
from ikno.training import Report, complete, prepare_step

TRIAL = 1 / 3  # the share of the training that each learning rate gets, before the best is trained with all of it


@dataclass(frozen=True)
class Budget:
    """What each model may spend: epochs, or seconds of training steps; neither means what the settings say."""

    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Return the budget that a text like ``40 epochs`` or ``300 seconds`` names."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(epochs?|seconds?|s)\s*", text)
        if found is None or float(found[1]) <= 0:
            raise UserError(f"budget: write for instance '40 epochs' or '300 seconds', found {text!r}")
        if not found[2].startswith("epoch"):
            return cls(seconds=float(found[1]))
        if not float(found[1]).is_integer():
            raise UserError(f"budget: a whole number of epochs is needed, found {text!r}")
        return cls(epochs=int(float(found[1])))

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:g} seconds"
        return "the epochs of the settings" if self.epochs is None else f"{self.epochs} epochs"


@dataclass(frozen=True)
class Plan:
    """What is compared: all models with all optimizers, the best of the learning rates, and all seeds.

    ``overrides`` are settings of a config; those that begin with the name of a model are for this model alone, its own
    (gaot.radius) or how it is trained and used (gaot.surrogate.mode).
    ``target`` is an error, to see how long it takes to reach it. No rates: that of the settings.
    """

    name: str
    models: Sequence[str]
    overrides: Mapping[str, Any]
    budget: Budget = Budget()
    optimizers: Sequence[str] = ()
    rates: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    target: float | None = None


@dataclass(frozen=True)
class Shown:
    """What a display may show: which run it is, out of how many at most, and the report of its training."""

    number: int
    count: int
    label: str
    report: Report


@dataclass
class Row:
    """One line of the table while it is made: a config for each model and optimizer, or why there is none."""

    model: str
    optimizer: str
    config: Config | None
    reason: str | None = None
    busy: bool = False
    cost: Cost | None = None
    found: tuple[Measured, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.model}, {self.optimizer}"

    def mean_and_std(self) -> tuple[float, float | None]:
        """Return those of the error over the seeds."""
        return mean_and_std([m.error for m in self.found])


def compare(
    plan: Plan,
    out: Path,
    show: Callable[[Shown], None] = lambda shown: None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], dict[str, Run]]:
    """Return the table as plain numbers, best first, and of each model the run with the better optimizer, first seed.

    All runs are kept in ``out``: the same call after an interruption goes on. Several processes can share the work:
    cells that another is training are left to it, and looked at once more in the end. The table is written to
    ``table.json`` there.
    """
    rows, problem = _rows(plan, say)
    able = [r for r in rows if r.config is not None]
    found = _costs(able, problem, out, say)
    each = len(plan.seeds) + (len(plan.rates) if len(plan.rates) > 1 else 0)
    number = 0
    # What another process is training is left to it, and looked at once more in the end: two that meet in a row, each
    # at a trial that the other needs, would both leave it.
    turns = [(i, row, last) for last in (False, True) for i, row in enumerate(able)]
    for i, row, last in turns:
        if last and not row.busy:
            continue
        row.busy, number = False, i * each
        row.cost = found[row.label]
        config = _with_budget(_config(row), plan.budget, row.cost, problem)

        def make(config: Config, row: Row = row) -> Measured | None:
            nonlocal number
            number += 1
            label, count = f"{row.label}, seed {config.seed}", len(able) * each
            try:
                return measured(Cell(config, problem.digest(), out), lambda r: show(Shown(number, count, label, r)))
            except BusyError:
                row.busy = True
                say(f"{label}: another process is training it")
            except UserError as error:  # diverged, say; the others go on
                row.reason = row.reason or str(error)
                say(f"{label}: {error}")
            return None

        config = _best_rate(config, plan.rates, problem, make)
        if row.busy:  # without its trial the best rate is not known
            continue
        made = [make(config.model_copy(update={"seed": s})) for s in plan.seeds]
        row.found = tuple(m for m in made if m is not None)
    rows.sort(key=lambda row: row.mean_and_std()[0] if row.found else math.inf)
    result = _table(plan, rows, problem)
    write_atomic(out / "table.json", json.dumps(result, indent=1).encode())
    best: dict[str, Run] = {}
    for row in rows:
        if row.found:
            best.setdefault(row.model, row.found[0].run)
    return result, best


def cost_of(plan: Plan, out: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Cost]:
    """Return what a step costs each model and optimizer, without any training; ``compare`` uses the same numbers."""
    rows, problem = _rows(plan, say)
    return _costs([r for r in rows if r.config is not None], problem, out, say)


def _costs(rows: list[Row], problem: Problem, out: Path, say: Callable[[str], None]) -> dict[str, Cost]:
    return measure_costs({r.label: _config(r) for r in rows}, problem, out / "costs.json", say)


def _rows(plan: Plan, say: Callable[[str], None]) -> tuple[list[Row], Problem]:
    """Return a line for each model and optimizer, and the problem; mistakes in the plan are found before any work."""
    if not plan.models or not plan.seeds:
        raise UserError("compare: at least one model and one seed are needed")
    if not all(0 < rate < math.inf for rate in plan.rates):
        raise UserError(f"rates: positive numbers are needed, found {list(plan.rates)}")
    variants = {name: find_variant(name) for name in dict.fromkeys(plan.models)}
    own = {name: {} for name in variants}
    common: dict[str, Any] = {}
    for key, value in plan.overrides.items():
        name, _, rest = key.partition(".")
        if name in own and rest:
            elsewhere = rest.startswith(("surrogate.", "train."))  # settings of models have no dots
            own[name][rest if elsewhere else f"model.{rest}"] = value
        elif name in MODELS:
            raise UserError(f"{key}: {name} is not among the models that are compared")
        elif name == "model":
            raise UserError(
                f"{key}: models have settings of their own; write for instance {next(iter(own))}.d_model=32"
            )
        else:
            common[key] = value
    base = make_config(plan.name, common)
    problem = open_problem(base.data, base.seed)
    rows, notes = [], dict[str, None]()
    for name, variant in variants.items():
        for optimizer in plan.optimizers or (base.train.optimizer,):
            given = {**common, **own[name], "model": name, "train.optimizer": optimizer}
            if "init_scales_l1" not in variant.settings.model_fields:
                given.pop("scales", None)
            config = complete(make_config(plan.name, given), problem, lambda text: notes.update({text: None}))
            try:
                prepare_step(config, problem)
                rows.append(Row(name, optimizer, config))
            except UserError as error:  # two dimensions only, or nothing for Muon: the table tells
                rows.append(Row(name, optimizer, None, str(error)))
    for text in notes:  # the same for all models that leave it open
        say(text)
    return rows, problem


def _config(row: Row) -> Config:
    assert row.config is not None
    return row.config


def _with_budget(config: Config, budget: Budget, cost: Cost, problem: Problem) -> Config:
    if budget.seconds is not None:
        counted = cost.counted(config.device, torch.get_num_threads())
        return complete(_with(config, steps=max(int(budget.seconds / counted), 1)), problem)
    return config if budget.epochs is None else _with(config, epochs=budget.epochs, steps=None)


def _best_rate(
    config: Config, rates: Sequence[float], problem: Problem, make: Callable[[Config], Measured | None]
) -> Config:
    """Return the config with the best of the rates on validation (else training) after a third of the training."""
    if len(rates) < 2:
        return _with(config, learning_rate=rates[0]) if rates else config
    length = "epochs" if config.train.steps is None else "steps"
    share = max(round(TRIAL * (getattr(config.train, length) or 1)), 1)
    short = complete(_with(config, **{length: share}), problem)
    tried = {rate: make(_with(short, learning_rate=rate)) for rate in rates}
    errors = {rate: math.inf if m is None else m.validation for rate, m in tried.items()}
    return _with(config, learning_rate=min(errors, key=lambda r: errors[r]))


def _with(config: Config, **train: Any) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=train)})


def _table(plan: Plan, rows: list[Row], problem: Problem) -> dict[str, Any]:
    """Return what the rows have found as plain numbers."""
    done = [r.found[0].evaluation for r in rows if r.found]
    metric = done[0]["main_metric"] if done else None
    return {
        "benchmark": problem.card.name,
        "label": done[0]["label"] if done else None,
        "samples": {p: len(getattr(problem, p)) for p in ("train", "validation", "test")},
        "points": problem.train.points,
        "metric": metric,
        "budget": str(plan.budget),
        "target": plan.target,
        "seeds": list(plan.seeds),
        "settings": dict(plan.overrides),
        "machine": {"threads": torch.get_num_threads(), "torch": torch.__version__},
        "rows": [_numbers(r, plan.target) for r in rows],
        "guesses": {k: v[metric] for k, v in done[0]["baselines"].items()} if done else {},
    }


def _numbers(row: Row, target: float | None) -> dict[str, Any]:
    """Return a line of the table; what is not known is None."""
    found: dict[str, Any] = {"model": row.model, "optimizer": row.optimizer, "reason": row.reason}
    names = ("learning_rate", "epochs", "steps", "error", "std", "errors", "seconds", "seconds_to_target")
    found |= dict.fromkeys((*names, "parameters", "seconds_per_step", "cpu_seconds_per_step", "memory"))
    if row.cost is not None:
        found["parameters"], found["memory"] = row.cost.parameters, row.cost.memory
        found["seconds_per_step"], found["cpu_seconds_per_step"] = row.cost.seconds, row.cost.cpu_seconds
    if row.found and row.cost is not None:
        train = row.found[0].run.config.train
        found["learning_rate"], found["epochs"] = train.learning_rate, train.epochs
        found["steps"] = row.found[0].steps
        mean, found["std"] = row.mean_and_std()
        found["error"] = mean if math.isfinite(mean) else None
        found["errors"] = [m.error if math.isfinite(m.error) else None for m in row.found]
        found["seconds"] = row.cost.seconds * median(m.steps for m in row.found)
        reached = [s for m in row.found if target is not None and (s := m.steps_to(target)) is not None]
        if len(reached) == len(row.found):
            found["seconds_to_target"] = row.cost.seconds * median(reached)
    return found
