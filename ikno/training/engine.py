"""The training loop. Its random numbers follow from the seed, the epoch and the step, so it can stop anywhere."""

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ikno.config import CompleteConfig, Config
from ikno.cost import Step
from ikno.data.batches import Batch, TrainingPairs, in_order, shuffled
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError, require
from ikno.memory import reused_memory
from ikno.models import name_of
from ikno.runs import Run, check_free, load, save
from ikno.surrogate import Surrogate
from ikno.training.average import Average, copy
from ikno.training.distributed import Group, group
from ikno.training.losses import sample_losses
from ikno.training.optimizers import OPTIMIZERS, learning_rate, restore, state_of
from ikno.training.prepare import as_older, check_memory, complete, new_surrogate, steps_per_epoch
from ikno.training.progress import Progress, Report


class TrainingInterrupted(Exception):  # noqa: N818 (not an error)
    """Training was asked to stop (Ctrl-C or SIGTERM) and has saved its state: it can be resumed."""


def train(
    config: Config,
    out: Path | str,
    resume: bool = False,
    until: int | None = None,
    report: Callable[[Report], None] = lambda report: None,
    model: str | type[nn.Module] | None = None,
) -> Run:
    """Train a surrogate and return its run.

    Args:
        config: What to train on and how, by ``ikno.make_config``.
        out: The folder of the run.
        resume: Go on with the run in ``out``, as if it had never stopped.
        until: End after so many epochs of the whole schedule.
        report: Called after each step.
        model: A registered class, or a name, in place of the model of the config; its settings are the defaults.

    Raises:
        TrainingInterrupted: SIGINT or SIGTERM was received; the state is saved.
    """
    if model is not None:
        config = config.model_copy(update={"model": {"name": name_of(model)}})
    with group(config.device, config.train.point_processes) as processes:
        return _train(processes, config, Path(out), resume, until, report)


def _train(
    processes: Group, config: Config, path: Path, resume: bool, until: int | None, report: Callable[[Report], None]
) -> Run:
    """Train in this process; no references to the process group remain when this returns."""
    problem = open_problem(config.data, config.seed)
    notes: list[str] = []
    run = Run.open(path) if resume else None
    whole = complete(config if run is None else as_older(config, run.config), problem, notes.append)
    if run is None:
        check_free(path)
    else:
        run.check_same(whole, problem.card)
    # A run that was stopped before its first checkpoint begins again.
    goes_on = run is not None and (path / "last.safetensors").is_file()
    surrogate = Surrogate(run.signature) if run is not None and goes_on else new_surrogate(whole, problem)
    # Before anything is written: settings or data may still be rejected.
    training = Training(path, whole, problem, surrogate, processes, report)
    training.notes[:0] = notes
    if run is None:
        run = Run(path, whole, problem.card, surrogate.signature)
        if processes.first:
            Run.create(path, whole, problem.card, surrogate.signature)
    processes.wait()
    needed = training.needed if processes.device.type == "cpu" else None
    with run.locked() if processes.first else nullcontext(), reused_memory(needed):
        training.go(goes_on, until)
    return run


def prepare_step(config: Config, problem: Problem | None = None) -> Step:
    """Return one training step on the first batch as a call, which updates the weights; nothing is written."""
    problem = problem or open_problem(config.data, config.seed)
    whole = complete(config, problem)
    surrogate = new_surrogate(whole, problem)
    with group(whole.device, whole.train.point_processes) as processes:
        training = Training(Path(), whole, problem, surrogate, processes, lambda report: None)
    chosen = shuffled(len(training.items), whole.train.batch, whole.seed, 0)[0]
    batch = training.items.batch(chosen)

    def run_step() -> None:
        training.gradient(batch, chosen)
        training.update()

    return Step(run_step, sum(p.numel() for p in surrogate.model.parameters()))


@dataclass
class Training:
    """One training run in one process."""

    path: Path
    config: CompleteConfig
    problem: Problem
    surrogate: Surrogate
    processes: Group
    report: Callable[[Report], None]
    at: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.settings = self.config.train
        self.surrogate.to(self.processes.device)
        self.processes.divide_points(self.surrogate.model, self.config.model["name"])
        self.wrapped = self.processes.wrap(self.surrogate)
        if self.settings.compile:
            # The processor, or a model without one as a whole; each size of batch has its own program.
            getattr(self.surrogate.model, "processor", self.surrogate.model).compile(dynamic=False)
        self.optimizers = OPTIMIZERS.find(self.settings.optimizer)(self.surrogate, self.settings)
        self.average = Average(self.surrogate, self.settings.ema)
        part, parts = self.processes.part, self.processes.parts
        train, validation = (s.part(part, parts) for s in (self.problem.train, self.problem.validation))
        for samples in (train, validation):
            samples.keep(self.config.data.memory_gb * 1e9)
        self.needed, memory = check_memory(self.config, self.problem, self.surrogate, self.processes)
        self.notes = [memory]
        self.items = self.problem.items(train)
        self.validation = self.problem.items(validation, from_start=True)
        self.epochs = self.settings.epochs
        self.steps = self.settings.steps or self.epochs * steps_per_epoch(self.config, self.problem)
        self.clouds: dict[int, Any] = {}
        self.saved = time.monotonic()
        self.validated: float | None = None
        self.last = self.epochs
        self.board: Any = None
        if self.settings.tensorboard:
            require("tensorboard", "track")

    def go(self, resume: bool, until: int | None = None) -> None:
        """Train to the end, or until a signal asks to stop."""
        (self._restore if resume else self._begin)()
        for text in self.notes if self.processes.first else []:
            self._say(text)
        self.last = min(until or self.epochs, self.epochs)
        if self.settings.tensorboard and self.processes.first:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.path / "tensorboard"))
        with _signals() as asked:
            while self.at.epoch < self.last and not self.at.finished:
                self._epoch(asked)
        self._save()

    def _epoch(self, asked: list[int]) -> None:
        at = self.at
        whole = shuffled(len(self.items), self.settings.batch, self.config.seed, at.epoch)
        whole = whole[: self.steps - (at.step - at.batch)]  # the last epoch may be cut
        batches = whole[at.batch :]
        mine = [self.processes.mine(b) or b[:1] for b in batches]  # without a share: one sample of weight zero
        loader = self.items.loader(mine, self.config.data.workers, (at.epoch, at.batch))
        for chosen, batch in zip(batches, loader, strict=True):
            start = time.monotonic()
            loss = self._step(batch, chosen)
            at.step, at.batch = at.step + 1, at.batch + 1
            if loss is not None:
                at.loss, at.samples = at.loss + loss * len(chosen), at.samples + len(chosen)
            mean = at.loss / max(at.samples, 1)
            seconds = time.monotonic() - start
            self.report(Report(at.epoch + 1, self.epochs, at.step, self.steps, mean, self.validated, seconds))
            if self.processes.any(bool(asked)):
                self._save()
                raise TrainingInterrupted(
                    f"{self.path}: stopped in epoch {at.epoch + 1}, step {at.step}; go on with --resume"
                )
            if self._due() and at.batch < len(whole):
                self._save()
        self._end_of_epoch()

    def _step(self, batch: Batch, chosen: list[int]) -> float | None:
        """Update the weights; return the loss of the whole batch, or None if it or its gradient was not finite."""
        at = self.at
        value, norm = self.gradient(batch, chosen)
        if not (np.isfinite(value) and np.isfinite(norm)):
            at.bad, at.skipped = at.bad + 1, at.skipped + 1
            samples = [self.items.sample(i) for i in chosen]
            self._record({"event": "skipped", "epoch": at.epoch + 1, "step": at.step, "samples": samples})
            if at.bad >= self.settings.max_bad_steps:
                self._save()
                raise UserError(
                    f"{self.path}: loss or gradient was not finite in {at.bad} steps in a row (last: samples "
                    f"{samples[:8]}); lower train.learning_rate or look at these samples"
                )
            return None
        at.bad = 0
        self.update()
        return value

    def gradient(self, batch: Batch, chosen: list[int]) -> tuple[float, float]:
        """Compute the gradients and return the loss of the whole batch and the norm of the gradient before clipping.

        ``chosen`` are the items of all processes, ``batch`` those of this process's team.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        # Dropout: the processes of a team are copies of one processor on one grid, so they share a seed.
        entropy = np.random.SeedSequence((self.config.seed, 4, self.at.step, self.processes.number))
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
        self.surrogate.train()
        total = torch.zeros((), device=self.processes.device)
        parts = batch.parts(self.settings.micro_batch)
        for i, part in enumerate(parts):
            with self.processes.without_sync(self.wrapped, i == len(parts) - 1):
                losses = self._losses(part.to(self.processes.device))
                # Processes average their gradients: with this factor the average is that of the whole batch.
                share = self.processes.teams / len(chosen) if self.processes.mine(chosen) else 0.0
                loss = losses.sum() * share
                loss.backward()
            total += loss.detach() / self.processes.size
        norm = nn.utils.clip_grad_norm_(self.surrogate.parameters(), self.settings.clip or math.inf)
        return float(self.processes.total(total)), float(norm)

    def update(self) -> None:
        """Update the weights by the gradients, and then their average."""
        rate = learning_rate(self.settings, self.at.step, self.steps)
        for optimizer in self.optimizers:
            for parameters in optimizer.param_groups:
                parameters["lr"] = rate
            optimizer.step()
        self.average.update(self.at.step)

    def _losses(self, batch: Batch) -> Float[Tensor, "batch"]:
        enabled = self.settings.precision == "bfloat16"
        with torch.autocast(self.processes.device.type, torch.bfloat16, enabled):
            output = self.wrapped(self._cloud(batch), batch.inputs, batch.time, batch.lead, batch.mask)
        target = self.surrogate.targets(batch.inputs, batch.values, batch.lead)
        return sample_losses(output.float(), target, batch.mask, self.settings.loss, self.processes.team)

    def _cloud(self, batch: Batch) -> Any:
        """Return the located points; a cloud that occurs again is located once."""
        if batch.cloud is None:
            return self.surrogate.locate(batch.points, batch.mask)
        if batch.cloud not in self.clouds:
            self.clouds = {batch.cloud: self.surrogate.locate(batch.points)}
        return self.clouds[batch.cloud]

    def _end_of_epoch(self) -> None:
        at, s = self.at, self.settings
        loss = at.loss / at.samples if at.samples else None
        done = at.epoch + 1
        with self.average.used():
            score, validation = self._scored(done, loss)
        rate = learning_rate(s, at.step - 1, self.steps)
        record = {"epoch": done, "step": at.step, "loss": loss, "validation": validation, "learning_rate": rate}
        self._record(record)
        at.epoch, at.batch, at.loss, at.samples = done, 0, 0.0, 0
        patient = s.patience is None or score is None or done - at.best_epoch < s.patience
        at.finished = done == self.epochs or not patient
        if self._due() or at.finished:
            self._save()

    def _scored(self, done: int, loss: float | None) -> tuple[float | None, float | None]:
        """Return the score that selects the best weights, which are saved, and the validation error if it is due."""
        at, validation = self.at, None
        if len(self.validation) and (done % self.settings.validate_every == 0 or done in (self.epochs, self.last)):
            found = self.validate(self.validation)
            validation = self.validated = found if np.isfinite(found) else None
        score = validation if len(self.validation) else loss
        if score is not None and (at.best is None or score < at.best):
            at.best, at.best_epoch = score, done
            if self.processes.first:
                save(self.path / "best.safetensors", self._weights(), {"epoch": done, "error": score})
        return score, validation

    @torch.no_grad()
    def validate(self, items: TrainingPairs) -> float:
        """Return the mean over samples and leads of the relative L1 error, all variables normalized and pooled."""
        self.surrogate.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.processes.device)
        size = (self.settings.micro_batch or self.settings.batch) * self.processes.teams
        mine = [b for b in map(self.processes.mine, in_order(len(items), size)) if b]
        scale = self.surrogate.target if self.problem.steady else self.surrogate.values
        for batch in items.loader(mine, self.config.data.workers):
            batch = batch.to(self.processes.device)
            output = self.surrogate(self._cloud(batch), batch.inputs, batch.time, batch.lead, batch.mask)
            values = self.surrogate.physical(batch.inputs, output, batch.lead)
            errors = sample_losses(scale(values), scale(batch.values), batch.mask, "relative_l1", self.processes.team)
            total += torch.stack([errors.double().sum(), total.new_tensor(len(batch))])
        error, count = self.processes.total(total).tolist()
        return error / count

    def _due(self) -> bool:
        return self.processes.any(time.monotonic() - self.saved >= self.settings.save_seconds)

    def _weights(self) -> dict[str, Tensor]:
        return {f"weights.{k}": v for k, v in self.surrogate.state_dict().items()}

    def _save(self) -> None:
        if self.processes.first:
            tensors = {**self._weights(), **self.average.means, **state_of(self.optimizers)}
            save(self.path / "last.safetensors", tensors, asdict(self.at))
        self.saved = time.monotonic()

    def _begin(self) -> None:
        self.at.data = self.problem.digest()
        if self.processes.first:
            (self.path / "log.jsonl").unlink(missing_ok=True)
        self._save()

    def _restore(self) -> None:
        file = self.path / "last.safetensors"
        tensors, state = load(file, {**self._weights(), **self.average.means})
        at = Progress.restored(state, file)
        if at.data != self.problem.digest():
            raise UserError(f"{self.problem.path}: not the data that {self.path} was trained on; put that back")
        self.surrogate.load_state_dict({k.removeprefix("weights."): tensors[k] for k in self._weights()})
        restore(self.optimizers, tensors)
        copy(tensors, self.average.means)
        self.at = at
        if self.processes.first:  # what came after the checkpoint is computed, and written, again
            with (self.path / "log.jsonl").open("ab") as log:
                if log.tell() < at.records:
                    raise UserError(
                        f"{log.name}: records before step {at.step} are missing; put the file back or train again"
                    )
                log.truncate(at.records)
            self._say(f"resumed after step {at.step}")

    def _record(self, record: dict[str, Any]) -> None:
        line = json.dumps(record) + "\n"
        self.at.records += len(line)
        if not self.processes.first:
            return
        with (self.path / "log.jsonl").open("a", newline="\n") as file:
            file.write(line)
        self._say(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()))
        if self.board is not None and "loss" in record:
            for name in ("loss", "validation", "learning_rate"):
                if record[name] is not None:
                    self.board.add_scalar(name, record[name], record["step"])

    def _say(self, text: str) -> None:
        with (self.path / "train.log").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list that receives SIGINT and SIGTERM instead of their usual effect."""
    asked: list[int] = []
    before = {}
    with suppress(ValueError):  # not the main thread: signals are not ours
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda n, _: asked.append(n))
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
