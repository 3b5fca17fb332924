"""The comparison: which cells there are, in which order they are made, and the table they give."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ikno.comparison.cells import Cell, Say, Schedule, Show, with_train
from ikno.comparison.costs import measure_costs
from ikno.comparison.table import Row
from ikno.config import Config, make_config
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.models import MODELS
from ikno.runs import Run, write_atomic
from ikno.training import complete

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


def compare(
    plan: Plan,
    out: Path,
    show: Show = lambda name, report: None,
    say: Say = lambda text: None,
) -> tuple[dict[str, Any], dict[str, Run]]:
    """Return the table as plain numbers, best first, and of each model the run with the better optimizer, first seed.

    All runs are kept in ``out``: the same call after an interruption goes on. Several processes can share the work:
    cells that another is training are left to it, and looked at once more in the end. The table is written to
    ``table.json`` there.
    """
    rows, problem = _rows(plan, say)
    costs, refused = measure_costs({r.label: r.config for r in rows}, problem, out / "costs.json", say)
    for row in rows:
        row.cost, row.reason = costs.get(row.label), refused.get(row.label)
    able = [row for row in rows if row.cost is not None]
    each = len(plan.seeds) + (len(plan.rates) if len(plan.rates) > 1 else 0)
    schedule = Schedule(len(able) * each, show, say)
    for row in schedule.turns(able, each):
        _make(row, plan, problem, out, schedule)
        row.reason = row.reason or schedule.reason
    rows.sort(key=lambda row: row.error[0])
    result = _table(plan, rows, problem)
    write_atomic(out / "table.json", json.dumps(result, indent=1).encode())
    best: dict[str, Run] = {}
    for row in rows:
        if row.cells:
            best.setdefault(row.config.model["name"], row.cells[0].run)
    return result, best


def _make(row: Row, plan: Plan, problem: Problem, out: Path, schedule: Schedule) -> None:
    """Make the cells of a row: a short training with each rate, then all of it with the best rate and each seed."""
    data = problem.digest()

    def attempt(config: Config) -> Cell | None:
        return schedule.attempt(f"{row.label}, seed {config.seed}", Cell(config, data, out).make)

    config, errors = _with_budget(row, plan.budget, problem), dict.fromkeys(plan.rates, math.inf)
    if len(errors) > 1:
        short = _short(config, problem)
        for rate in errors:
            cell = attempt(with_train(short, learning_rate=rate))
            errors[rate] = math.inf if cell is None else cell.validation
    if errors:
        config = with_train(config, learning_rate=min(errors, key=lambda rate: errors[rate]))
    if not schedule.busy:  # without its trial the best rate is not known
        made = [attempt(config.model_copy(update={"seed": seed})) for seed in plan.seeds]
        row.cells = [cell for cell in made if cell is not None]


def _with_budget(row: Row, budget: Budget, problem: Problem) -> Config:
    if budget.seconds is None:
        return row.config if budget.epochs is None else with_train(row.config, epochs=budget.epochs, steps=None)
    assert row.cost is not None
    counted = row.cost.counted(row.config.device, torch.get_num_threads())
    return complete(with_train(row.config, steps=max(int(budget.seconds / counted), 1)), problem)


def _short(config: Config, problem: Problem) -> Config:
    """Return the config of a trial: a share of the training."""
    length = "epochs" if config.train.steps is None else "steps"
    share = max(round(TRIAL * (getattr(config.train, length) or 1)), 1)
    return complete(with_train(config, **{length: share}), problem)


def _rows(plan: Plan, say: Say) -> tuple[list[Row], Problem]:
    """Return a line for each model and optimizer, and the problem; mistakes in the plan are found before any work."""
    if not plan.models or not plan.seeds:
        raise UserError("compare: at least one model and one seed are needed")
    if not all(0 < rate < math.inf for rate in plan.rates):
        raise UserError(f"rates: positive numbers are needed, found {list(plan.rates)}")
    variants = {name: MODELS.find(name) for name in dict.fromkeys(plan.models)}
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
            config = make_config(plan.name, given)
            rows.append(Row(complete(config, problem, lambda text: notes.update({text: None}))))
    for text in notes:  # the same for all models that leave it open
        say(text)
    return rows, problem


def _table(plan: Plan, rows: list[Row], problem: Problem) -> dict[str, Any]:
    """Return what the rows have found as plain numbers."""
    done = [r.cells[0].evaluation for r in rows if r.cells]
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
        "rows": [r.numbers(plan.target) for r in rows],
        "guesses": {k: v[metric] for k, v in done[0]["baselines"].items()} if done else {},
    }
