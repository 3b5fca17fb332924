"""The comparison: which cells there are, in which order they are made, and the numbers they give."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ikno.comparison.cells import Cell, Say, Schedule, Show, with_train
from ikno.comparison.costs import Cost, measure_costs
from ikno.config import CompleteConfig, make_config
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.metrics import mean_and_std
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
        match = re.fullmatch(r"\s*(?:(\d+)\s*epochs?|(\d+(?:\.\d+)?)\s*s(?:econds?)?)\s*", text)
        epochs, seconds = match.groups() if match else (None, None)
        if not float(epochs or seconds or 0):
            raise UserError(f"budget: write for instance '40 epochs' or '300 seconds', found {text!r}")
        return cls(int(epochs) if epochs else None, float(seconds) if seconds else None)

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:g} seconds"
        return "the epochs of the settings" if self.epochs is None else f"{self.epochs} epochs"


@dataclass(frozen=True)
class Plan:
    """What is compared: all models with all optimizers, the best of the learning rates, and all seeds.

    Args:
        name: The benchmark, card or data file.
        models: Names of the models.
        overrides: Settings of a config. Those that begin with the name of a model are for this model alone, its own
            (gaot.radius) or how it is trained and used (gaot.surrogate.mode).
        budget: What each model may spend.
        optimizers: Default: that of the settings.
        learning_rates: The best of them on validation is used. Default: that of the settings.
        seeds: One training each.
        target: A validation error; the table tells how long each model takes to reach it.
    """

    name: str
    models: Sequence[str]
    overrides: Mapping[str, Any]
    budget: Budget = Budget()
    optimizers: Sequence[str] = ()
    learning_rates: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    target: float | None = None


@dataclass
class Candidate:
    """A model with an optimizer: its config, the cost of a step, its cells, one per seed, or why they are missing."""

    config: CompleteConfig
    cost: Cost | None = None
    reason: str | None = None
    cells: Sequence[Cell] = ()

    @property
    def label(self) -> str:
        """The names of model and optimizer."""
        return f"{self.config.model['name']}, {self.config.train.optimizer}"

    @property
    def error(self) -> tuple[float, float | None]:
        """Mean and standard deviation of the error over the seeds; infinite without any."""
        return mean_and_std([c.error for c in self.cells]) if self.cells else (math.inf, None)

    def numbers(self, target: float | None) -> dict[str, Any]:
        """Return its row of the table as plain values; None is what is not known."""
        config, cost, cells = self.config, self.cost, self.cells
        mean, std = self.error
        step = cost.seconds if cost else math.nan
        steps = [c.steps for c in cells]
        reached = [s for c in cells if target is not None and (s := c.steps_to(target)) is not None]
        train = cells[0].run.config.train if cells else None
        return {
            "model": config.model["name"],
            "optimizer": config.train.optimizer,
            "reason": self.reason,
            "learning_rate": train and train.learning_rate,
            "epochs": train and train.epochs,
            "steps": steps[0] if cells else None,
            "error": _finite(mean),
            "std": std,
            "errors": [_finite(c.error) for c in cells] or None,
            "seconds": step * median(steps) if cells else None,
            "seconds_to_target": step * median(reached) if cells and len(reached) == len(cells) else None,
            "parameters": cost and cost.parameters,
            "seconds_per_step": cost and cost.seconds,
            "cpu_seconds_per_step": cost and cost.cpu_seconds,
            "memory": cost and cost.memory,
        }


def compare(
    plan: Plan, out: Path, show: Show = lambda name, report: None, say: Say = lambda text: None
) -> tuple[dict[str, Any], dict[str, Run]]:
    """Return the table as plain values, best first, and of each model the run with the better optimizer, first seed.

    The same call after an interruption goes on. Several processes can share the work: cells that another is training
    are left to it, and looked at once more in the end.

    Args:
        plan: What is compared.
        out: The folder of all runs; the table is written to ``table.json`` there.
        show: Receives the name of a training and its reports.
        say: Receives one line on each thing that a user should know.

    Raises:
        UserError: The plan has a mistake; nothing has been trained then.
    """
    candidates, problem = _candidates(plan, say)
    costs, refused = measure_costs({c.label: c.config for c in candidates}, problem, out / "costs.json", say)
    for candidate in candidates:
        candidate.cost, candidate.reason = costs.get(candidate.label), refused.get(candidate.label)
    able = [candidate for candidate in candidates if candidate.cost is not None]
    each = len(plan.seeds) + (len(plan.learning_rates) if len(plan.learning_rates) > 1 else 0)
    schedule = Schedule(len(able) * each, show, say)
    for candidate in schedule.turns(able, each):
        _make(candidate, plan, problem, out, schedule)
        candidate.reason = candidate.reason or schedule.reason
    candidates.sort(key=lambda c: c.error[0])
    result = _result(plan, candidates, problem)
    write_atomic(out / "table.json", json.dumps(result, indent=1).encode())
    best: dict[str, Run] = {}
    for candidate in candidates:
        if candidate.cells:
            best.setdefault(candidate.config.model["name"], candidate.cells[0].run)
    return result, best


def _make(candidate: Candidate, plan: Plan, problem: Problem, out: Path, schedule: Schedule) -> None:
    """Make the cells of a candidate: a short training with each rate, then all of it with the best and each seed."""
    data = problem.digest()

    def attempt(config: CompleteConfig) -> Cell | None:
        return schedule.attempt(f"{candidate.label}, seed {config.seed}", Cell(config, data, out).make)

    config, errors = _with_budget(candidate, plan.budget, problem), dict.fromkeys(plan.learning_rates, math.inf)
    if len(errors) > 1:
        # A trial: a share of the training, with a whole schedule of its own.
        length = "epochs" if config.train.steps is None else "steps"
        share = max(round(TRIAL * (getattr(config.train, length) or 1)), 1)
        short = complete(with_train(config, **{length: share}), problem)
        for rate in errors:
            cell = attempt(with_train(short, learning_rate=rate))
            errors[rate] = math.inf if cell is None else cell.validation
    if errors:
        config = with_train(config, learning_rate=min(errors, key=lambda rate: errors[rate]))
    if not schedule.busy:  # without its trial the best rate is not known
        made = [attempt(config.model_copy(update={"seed": seed})) for seed in plan.seeds]
        candidate.cells = [cell for cell in made if cell is not None]


def _with_budget(candidate: Candidate, budget: Budget, problem: Problem) -> CompleteConfig:
    config = candidate.config
    if budget.seconds is None:
        return config if budget.epochs is None else with_train(config, epochs=budget.epochs, steps=None)
    assert candidate.cost is not None
    step = candidate.cost.counted(config.device, torch.get_num_threads())
    return complete(with_train(config, steps=max(int(budget.seconds / step), 1)), problem)


def _candidates(plan: Plan, say: Say) -> tuple[list[Candidate], Problem]:
    """Return every model with every optimizer, and the problem; mistakes in the plan are found before any work."""
    if not plan.models or not plan.seeds:
        raise UserError("compare: at least one model and one seed are needed")
    if not all(0 < rate < math.inf for rate in plan.learning_rates):
        raise UserError(f"learning rates: positive numbers are needed, found {list(plan.learning_rates)}")
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
            example = f"{next(iter(own))}.d_model=32"
            raise UserError(f"{key}: models have settings of their own; write for instance {example}")
        else:
            common[key] = value
    base = make_config(plan.name, common)
    problem = open_problem(base.data, base.seed)
    candidates, notes = [], dict[str, None]()
    for name, variant in variants.items():
        for optimizer in plan.optimizers or (base.train.optimizer,):
            given = {**common, **own[name], "model": name, "train.optimizer": optimizer}
            if "init_scales_l1" not in variant.settings.model_fields:
                given.pop("scales", None)
            config = complete(make_config(plan.name, given), problem, lambda text: notes.update({text: None}))
            candidates.append(Candidate(config))
    for text in notes:  # the same for all models that leave it open
        say(text)
    return candidates, problem


def _result(plan: Plan, candidates: list[Candidate], problem: Problem) -> dict[str, Any]:
    """Return the whole table as plain values."""
    evaluation = next((c.cells[0].evaluation for c in candidates if c.cells), None)
    metric = evaluation and evaluation["main_metric"]
    return {
        "benchmark": problem.card.name,
        "label": evaluation and evaluation["label"],
        "samples": {p: len(getattr(problem, p)) for p in ("train", "validation", "test")},
        "points": problem.train.points,
        "metric": metric,
        "budget": str(plan.budget),
        "target": plan.target,
        "seeds": list(plan.seeds),
        "settings": dict(plan.overrides),
        "machine": {"threads": torch.get_num_threads(), "torch": torch.__version__},
        "rows": [c.numbers(plan.target) for c in candidates],
        "guesses": {k: v[metric] for k, v in evaluation["baselines"].items()} if evaluation else {},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
