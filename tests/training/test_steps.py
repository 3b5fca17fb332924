"""Training for a number of steps: the last epoch is cut and validated, the schedule ends there, and it can stop."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ikno.config import Config, make_config
from ikno.errors import UserError
from ikno.runs import Run, load
from ikno.training import Report, TrainingInterrupted, train, tune_scales
from ikno.training.engine import Training
from ikno.training.optimizers import learning_rate

PER_EPOCH = 3  # 8 samples in batches of 3


def settings(**more: Any) -> Config:
    values = {"preset": "smoke", "data.split": [8, 2, 2], "train.batch": 3, "train.epochs": 50, "train.steps": 7}
    return make_config("poisson-gauss", {**values, **{k.replace("__", "."): v for k, v in more.items()}})


def same(a: Run, b: Run) -> None:
    for which in ("last", "best"):
        (one, state), (other, other_state) = (load(r.path / f"{which}.safetensors") for r in (a, b))
        assert state == other_state
        assert one.keys() == other.keys()
        assert all((one[k] == other[k]).all() for k in one)
    assert (a.path / "log.jsonl").read_bytes() == (b.path / "log.jsonl").read_bytes()


@pytest.mark.parametrize(("steps", "ends"), [(1, [1]), (2, [2]), (3, [3]), (7, [3, 6, 7]), (9, [3, 6, 9])])
def test_the_last_epoch_is_cut_and_validated(data: Path, steps: int, ends: list[int]) -> None:
    reports: list[Report] = []
    run = train(settings(train__steps=steps, train__validate_every=20), data / "run", report=reports.append)
    records = run.log()
    assert [r["step"] for r in records] == ends
    assert [r["validation"] is not None for r in records] == [False] * (len(ends) - 1) + [True]
    assert run.digest("best")
    assert load(run.path / "last.safetensors")[1]["finished"]
    assert (run.config.train.steps, run.config.train.epochs) == (steps, len(ends))  # what was done, not what was said
    assert [r.step for r in reports] == list(range(1, steps + 1))
    assert {(r.steps, r.epochs) for r in reports} == {(steps, len(ends))}
    assert records[-1]["learning_rate"] == learning_rate(run.config.train, steps - 1, steps)


def test_as_many_steps_as_epochs_have_is_the_same_training(data: Path) -> None:
    same(train(settings(train__steps=6), data / "a"), train(settings(train__steps=None, train__epochs=2), data / "b"))


@pytest.mark.parametrize("step", [2, 3, 6])
def test_a_stopped_run_goes_on_with_the_same_bits(data: Path, step: int) -> None:
    """In the first epoch, at its end, and before the last step of all."""
    config = settings(model__dropout=0.2, data__sampling="random", data__points=30, train__ema=0.9)
    expected = train(config, data / "expected")

    def interrupt(report: Report) -> None:
        if report.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted):
        train(config, data / "run", report=interrupt)
    run = train(config, data / "run", resume=True)
    same(expected, run)
    same(expected, train(run.config, run.path, resume=True))  # nothing is left to do
    with pytest.raises(UserError, match=r"train\.epochs was 3, now 4; train\.steps was 7, now 10"):
        train(settings(**{"train__steps": 10}, model__dropout=0.2), data / "run", resume=True)


def test_checkpoints_within_the_cut_epoch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = Training._save
    monkeypatch.setattr(Training, "_save", lambda self: (saved.append(self.at.step), save(self)))
    train(settings(train__steps=5, train__save_seconds=0), data / "run")
    assert sorted(set(saved)) == [0, 1, 2, 3, 4, 5]


def test_factors_share_the_steps(data: Path) -> None:
    run, errors = tune_scales(settings(train__steps=3 * 5 + 1), data / "tuned", factors=(1.0, 2.0), share=0.2)
    assert run.log()[-1]["step"] == 16
    other = max(errors, key=lambda f: errors[f])
    assert Run.open(data / "tuned" / f"scale-{other:g}").log()[-1]["step"] == 2 * PER_EPOCH  # a fifth of 6 epochs
