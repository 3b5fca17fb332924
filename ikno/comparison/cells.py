"""Cells: one config, trained and evaluated once, found again by what decides its result."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ikno.config import MOVABLE, Config, flattened
from ikno.evaluation import evaluate, load_evaluation, save_evaluation
from ikno.runs import Run
from ikno.training import Report, train


@dataclass(frozen=True)
class Cell:
    """A complete config, the data it is for (a digest), and the folder that holds all cells."""

    config: Config
    data: str
    folder: Path

    @property
    def path(self) -> Path:
        """The folder of the run, named for people and, at its end, by all that decides the result."""
        config, train = self.config, self.config.train
        length = f"epochs{train.epochs}" if train.steps is None else f"steps{train.steps}"
        how = f"{train.optimizer}-{train.learning_rate:g}-{length}-seed{config.seed}"
        return self.folder / f"{config.model['name']}-{how}-{digest_of(config, self.data)[:8]}"


@dataclass(frozen=True)
class Measured:
    """A finished cell: its run and its evaluation."""

    run: Run
    evaluation: dict[str, Any]

    @property
    def error(self) -> float:
        """The main metric of the set on the test samples, with the best rollout."""
        return self.evaluation["best"]["value"]

    @property
    def validation(self) -> float:
        """The best validation error."""
        return min((e for _, e in self.validations()), default=float("inf"))

    @property
    def steps(self) -> int:
        """The steps of the whole training."""
        return max((r["step"] for r in self.run.log()), default=0)

    def validations(self) -> list[tuple[int, float]]:
        """Return pairs of steps and validation errors."""
        return [(r["step"], r["validation"]) for r in self.run.log() if r.get("validation") is not None]

    def steps_to(self, error: float) -> int | None:
        """Return the steps after which the validation error was first at most this, None if never."""
        return next((step for step, found in self.validations() if found <= error), None)


def measured(cell: Cell, report: Callable[[Report], None] = lambda report: None) -> Measured:
    """Return the cell trained and evaluated; what is there already is not done again, what was begun goes on."""
    begun = (cell.path / "run.json").exists()
    if begun and (found := load_evaluation(run := Run.open(cell.path))) is not None:
        return Measured(run, found)
    return evaluated(train(cell.config, cell.path, resume=begun, report=report))


def evaluated(run: Run) -> Measured:
    """Return a trained run with its evaluation, which is made and kept if it is not there yet."""
    found = load_evaluation(run)
    if found is None:
        found = evaluate(run)
        save_evaluation(run, found)
    return Measured(run, found)


def digest_of(config: Config, data: str, without: Collection[str] = ()) -> str:
    """Return a digest of all settings that decide a result, but for some, and of the data.

    What is not set (None) does not count, so that results stay valid when there are more settings one day.
    """
    settings = flattened(config.model_dump(mode="json"))
    decisive = {k: v for k, v in sorted(settings.items()) if v is not None and k not in (*MOVABLE, *without)}
    return hashlib.sha256(json.dumps([decisive, data]).encode()).hexdigest()
