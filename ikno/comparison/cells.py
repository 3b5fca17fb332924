"""Cells: the trainings of a table, each made once and found again by what decides its result; and their schedule."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ikno.atomic import locked_file
from ikno.config import MOVABLE, CompleteConfig, Config, flattened
from ikno.data.problem import Problem
from ikno.errors import UserError
from ikno.evaluation import evaluate, load_evaluation, save_evaluation
from ikno.runs import BusyError, Run
from ikno.training import Report, complete, train, tune_scales

T = TypeVar("T")
C = TypeVar("C", bound=Config)
Say = Callable[[str], None]
Show = Callable[[str, Report], None]


@dataclass
class Cell:
    """One training of a table: a complete config, a digest of the data, and the folder of all cells.

    ``search``: the scales of the kernels are tuned. ``make`` gives it its run and its evaluation.
    """

    config: CompleteConfig
    data: str
    folder: Path
    search: bool = False
    run: Run = field(init=False, repr=False, compare=False)
    evaluation: dict[str, Any] = field(init=False, repr=False, compare=False)

    @classmethod
    def of(cls, config: Config, problem: Problem, folder: Path, search: bool = False) -> "Cell":
        """Return the cell of a config on a problem; what the config leaves open is filled in."""
        return cls(complete(config, problem), problem.digest(), folder, search)

    @property
    def path(self) -> Path:
        """The folder of the run, named for people and, at its end, by all that decides the result."""
        config, train = self.config, self.config.train
        length = f"epochs{train.epochs}" if train.steps is None else f"steps{train.steps}"
        how = f"{train.optimizer}-{train.learning_rate:g}-{length}-seed{config.seed}"
        return self.folder / f"{config.model['name']}-{how}-{digest_of(config, self.data)[:8]}"

    def make(self, report: Callable[[Report], None] = lambda report: None) -> "Cell":
        """Train and evaluate; finished work is not repeated, an interrupted training goes on. Return the cell."""
        if self.search:
            self.run, _ = tune_scales(self.config, self.path, report=lambda factor, step: report(step))
        else:
            begun = (self.path / "run.json").exists()
            if not begun or load_evaluation(Run.open(self.path)) is None:
                train(self.config, self.path, resume=begun, report=report)
            self.run = Run.open(self.path)
        stored = load_evaluation(self.run)
        self.evaluation = evaluate(self.run) if stored is None else stored
        if stored is None:
            save_evaluation(self.run, self.evaluation)
        return self

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
        """Return the number of steps after which the validation error was first at most this, None if never."""
        return next((step for step, value in self.validations() if value <= error), None)


class Schedule:
    """Does trainings one after another, leaves out those that another process is doing, and reports those that fail.

    ``busy`` and ``reason`` tell whether another process is doing a training of the current job, and why one failed.

    Args:
        count: The largest possible number of trainings, shown with each.
        show: Receives the name of a training and its reports.
        say: Receives one line about each training that is not done.
    """

    def __init__(self, count: int = 0, show: Show = lambda name, report: None, say: Say = lambda text: None) -> None:
        self.count, self.show, self.say = count, show, say
        self.number, self.busy = 0, False
        self.reason: str | None = None

    def turns(self, jobs: Sequence[T], each: int = 1) -> Iterator[T]:
        """Yield every job, and at the end again those that met another process; ``each`` is the trainings per job.

        Otherwise two processes that meet in a job, each at a training that the other needs, would both leave it.
        """
        left = list(enumerate(jobs))
        for _ in range(2):
            turn, left = left, []
            for i, job in turn:
                self.number, self.busy, self.reason = i * each, False, None
                yield job
                if self.busy:
                    left.append((i, job))

    def attempt(self, label: str, make: Callable[[Callable[[Report], None]], T]) -> T | None:
        """Return what ``make`` returns, called with a function that receives reports; None if it cannot be done now."""
        self.number += 1
        name = f"{self.number}/{self.count} {label}"
        try:
            return make(lambda report: self.show(name, report))
        except BusyError:
            self.busy = True
            self.say(f"{label}: another process is training it")
        except UserError as error:  # diverged, say; the others go on
            self.reason = self.reason or str(error)
            self.say(f"{label}: {error}")
        return None


@contextmanager
def usable(folder: Path, option: str = "--out") -> Iterator[None]:
    """Make a folder in which something is written; an OSError becomes a UserError that names the option for another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be used as a folder ({error.strerror}); choose another ({option})") from None


@contextmanager
def alone(lock: Path, option: str = "--out") -> Iterator[None]:
    """Hold a lock file, waiting for other processes; its folder is made if needed, ``option`` names it in errors."""
    with ExitStack() as stack:
        with usable(lock.parent, option):
            stack.enter_context(locked_file(lock, wait=True))
        yield


def with_train(config: C, **settings: Any) -> C:
    """Return the config with other settings of the training."""
    return config.model_copy(update={"train": config.train.model_copy(update=settings)})


def digest_of(config: Config, data: str, without: Collection[str] = ()) -> str:
    """Return a digest of the data and of all settings that decide a result, except those in ``without``.

    Settings that are None do not count, so that results stay valid when later versions add settings.
    """
    settings = flattened(config.model_dump(mode="json"))
    decisive = {k: v for k, v in sorted(settings.items()) if v is not None and k not in (*MOVABLE, *without)}
    return hashlib.sha256(json.dumps([decisive, data]).encode()).hexdigest()
