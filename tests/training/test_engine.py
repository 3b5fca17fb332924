"""Training: it learns, it stops and goes on with the same bits, and it says what goes wrong."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from ikno.config import Config, DataSettings, make_config
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.evaluation import evaluate
from ikno.runs import Run, load
from ikno.training import TrainingInterrupted, train


def settings(name: str = "poisson-gauss", **more) -> Config:
    """A run of seconds; dots in keys are written as two underscores."""
    values = {
        "preset": "smoke",
        "data.split": [8, 2, 2],
        "train.batch": 3,
        "train.epochs": 3,
        "train.save_seconds": 1000,
    }
    return make_config(name, {**values, **{k.replace("__", "."): v for k, v in more.items()}})


def content(run: Run, which: str = "last") -> tuple[dict[str, bytes], dict]:
    """Return all that a checkpoint holds, as bytes."""
    tensors, state = load(run.path / f"{which}.safetensors")
    return {k: v.numpy().tobytes() for k, v in tensors.items()}, state


def same(a: Run, b: Run) -> None:
    for which in ("last", "best"):
        assert content(a, which) == content(b, which)
    assert (a.path / "log.jsonl").read_bytes() == (b.path / "log.jsonl").read_bytes()


@pytest.mark.parametrize("mode", ["direct", "residual", "derivative"])
def test_time_dependent_sets_are_learned_by_the_same_loop(data: Path, mode: str) -> None:
    run = train(settings("ns-gauss", surrogate__mode=mode, data__stride=7, train__epochs=3), data / "run")
    losses = [r["loss"] for r in run.log()]
    assert losses[2] < losses[0]
    assert run.signature.inputs == ("vx", "vy")
    assert run.config.data.split == (8, 2, 2)
    assert (run.config.data.stride, run.config.data.final_snapshot) == (7, 14)
    assert run.log()[0]["step"] == 8 * 3 / 3  # three pairs of each of 8 samples, batches of three


@pytest.mark.slow
def test_overfitting_eight_samples(data: Path) -> None:
    """F17: eight samples are learned to 1 %."""
    often = {"train__epochs": 700, "train__batch": 4, "train__validate_every": 700}
    run = train(settings("poisson-gauss", **often, train__learning_rate=5e-3, model__d_model=32), data / "run")
    assert run.log()[-1]["loss"] < 0.01


def test_more_memory_than_there_is(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"^a step of training with 3 samples of [0-9]+ points needs about [0-9.]+ GB of memory, 0\.0 GB are "
        r"available on cpu; use a smaller train\.micro_batch, .* or train\.ignore_memory=true to begin anyway$"
    )
    with monkeypatch.context() as little:
        little.setattr("ikno.surrogate.memory_estimate.available_memory", lambda _: 1e3)
        with pytest.raises(UserError, match=message):
            train(settings(), data / "run")
        assert not (data / "run").exists()
        train(settings(train__ignore_memory=True), data / "run", until=1)
    run = train(settings(), data / "run", resume=True)  # whether it was ignored does not decide the result
    assert "a step of training with 3 samples of" in (run.path / "train.log").read_text()


def test_random_points_in_training_and_all_in_evaluation(data: Path) -> None:
    run = train(settings(data__sampling="random", data__points=30, train__epochs=1), data / "run")
    whole = open_problem(DataSettings(name="poisson-gauss"), 0).test.whole(0)
    count = len(whole.points)
    assert count == 40
    found = evaluate(run)
    assert found["points"] == [count, count]
    assert found["baselines"]["nearest training sample"]
    assert evaluate(run, points=35)["points"] == [35, 35]


@pytest.mark.parametrize("name", ["poisson-gauss", "ns-gauss"])
def test_same_seed_same_bits_with_any_number_of_workers(data: Path, name: str) -> None:
    """F18: shuffling, dropout and random points follow from the seed alone."""
    more = {"model__dropout": 0.2, "data__sampling": "random", "data__points": 30, "train__epochs": 2}
    if name == "ns-gauss":
        more |= {"data__stride": 7}
    first = train(settings(name, **more), data / "a")
    same(first, train(settings(name, **more), data / "b"))
    second = train(settings(name, **more, data__workers=2), data / "c")
    assert content(first)[0] == content(second)[0]
    assert first.log() == second.log()
    other = train(settings(name, **more, seed=1), data / "d")
    assert content(first)[0] != content(other)[0]


def test_accumulation_and_one_batch_agree(data: Path) -> None:
    whole = train(settings(train__batch=8), data / "a")
    parts = train(settings(train__batch=8, train__micro_batch=3), data / "b")
    assert [r["loss"] for r in parts.log()] == pytest.approx([r["loss"] for r in whole.log()], rel=1e-4)


# A child trains and is killed; it prints each step so that the parent can choose the moment.
CHILD = """
import sys
from pathlib import Path
from ikno.config import Config
from ikno.training import train
import json
torch_threads = __import__("torch").set_num_threads(1)
config = Config.model_validate(json.loads(Path(sys.argv[1]).read_text()))
train(config, sys.argv[2], resume=sys.argv[3] == "resume", report=lambda r: print(r.step, flush=True))
"""


def child(config: Config, folder: Path, resume: bool) -> subprocess.Popen:
    file = folder / "config.json"
    file.write_text(json.dumps(config.model_dump(mode="json")))
    command = [sys.executable, "-c", CHILD, str(file), str(folder / "run"), "resume" if resume else "new"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("name", "ema"), [("poisson-gauss", None), ("ns-gauss", 0.9)])
def test_killed_at_random_steps_and_resumed(data: Path, name: str, ema: float | None) -> None:
    """F12: weights, their average, optimizer, log and losses are those of a run that was never stopped."""
    config = settings(
        name,
        train__save_seconds=0,
        train__epochs=6,
        model__dropout=0.2,
        data__sampling="random",
        data__points=30,
        data__stride=7,
        train__batch=2,
        train__ema=ema,
    )
    expected = train(config, data / "expected")
    rng = random.Random(name)
    resume = False
    for _ in range(2):
        process = child(config, data, resume)
        assert process.stdout is not None
        for _ in range(rng.randrange(2, 9)):
            process.stdout.readline()
        time.sleep(rng.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        resume = True
    run = train(config, data / "run", resume=True)
    same(expected, run)


def test_killed_while_saving(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: the previous checkpoint is whole, whichever byte the new one had reached."""
    config = settings(train__epochs=2, train__save_seconds=0)
    expected = train(config, data / "expected")
    count = 0
    replace = os.replace

    class Killed(BaseException):
        pass

    def killed(source: Path, target: Path) -> None:
        nonlocal count
        count += Path(target).name == "last.safetensors"
        if count == 3:
            raise Killed
        replace(source, target)

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(Killed):
        train(config, data / "run")
    monkeypatch.undo()
    monkeypatch.setenv("IKNO_DATA", str(data))
    (data / "run" / "last.safetensors.partial").write_bytes(b"half a checkpoint")
    same(expected, train(config, data / "run", resume=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_stop(data: Path, number: int) -> None:
    """F13: a signal ends the step, saves, and the run goes on with the same bits."""
    config = settings(train__save_seconds=1000)
    expected = train(config, data / "expected")

    def interrupt(report) -> None:
        if report.step == 4:
            os.kill(os.getpid(), number)

    with pytest.raises(TrainingInterrupted, match=r"stopped in epoch 2, step 4; go on with --resume"):
        train(config, data / "run", report=interrupt)
    assert signal.getsignal(number) is not None
    run = train(config, data / "run", resume=True)
    same(expected, run)


def test_full_disk(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: the old checkpoint stays, and the message says what to do."""
    config = settings(train__save_seconds=0)
    calls = 0

    def full(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); make room"):
        train(config, data / "run")
    monkeypatch.undo()
    monkeypatch.setenv("IKNO_DATA", str(data))
    assert not list((data / "run").glob("*.partial"))
    same(train(config, data / "expected"), train(config, data / "run", resume=True))


def test_bad_steps_are_skipped_counted_and_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F16: NaN in a loss leaves the weights alone; too many in a row end the run, the best checkpoint is untouched."""
    from ikno.training import engine

    real = engine.sample_losses
    calls = 0

    def sometimes(*arguments):
        nonlocal calls
        if arguments[3] == "relative_l1":  # validation
            return real(*arguments)
        calls += 1
        return real(*arguments) * (math.nan if calls in (2, 5) else 1.0)

    monkeypatch.setattr(engine, "sample_losses", sometimes)
    run = train(settings(), data / "a")
    events = [r for r in run.log() if r.get("event") == "skipped"]
    assert [e["step"] for e in events] == [1, 4]
    assert all(0 <= s < 8 for e in events for s in e["samples"])
    assert len(events[0]["samples"]) == 3
    assert content(run)[1]["skipped"] == 2
    assert all(torch.isfinite(p).all() for p in run.surrogate("last").parameters())

    def after_a_while(*arguments):
        nonlocal calls
        calls += 1
        return real(*arguments) * (math.nan if calls > 4 else 1.0)

    calls = 0
    monkeypatch.setattr(engine, "sample_losses", after_a_while)
    with pytest.raises(UserError, match=r"not finite in 2 steps in a row \(last: samples \[\d"):
        train(settings(train__max_bad_steps=2), data / "b")
    best = Run.open(data / "b").surrogate("best")
    assert all(torch.isfinite(p).all() for p in best.parameters())


def test_gradients_that_overflow_are_bad_steps_too(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = nn.utils.clip_grad_norm_
    calls = 0

    def overflow(parameters, limit):
        nonlocal calls
        calls += 1
        return torch.tensor(math.inf) if calls == 1 else clip(parameters, limit)

    monkeypatch.setattr("ikno.training.engine.nn.utils.clip_grad_norm_", overflow)
    run = train(settings(train__epochs=1), data / "run")
    assert [r["step"] for r in run.log() if "event" in r] == [0]


def test_resume_with_another_config_is_refused(data: Path) -> None:
    """F19: the difference is shown."""
    train(settings(), data / "run")
    with pytest.raises(UserError, match=r"train\.batch was 3, now 4.*--out"):
        train(settings(train__batch=4), data / "run", resume=True)
    with pytest.raises(UserError, match=r"model\.dropout was 0\.0, now 0\.5"):
        train(settings(model__dropout=0.5), data / "run", resume=True)
    train(settings(data__workers=1, train__save_seconds=5), data / "run", resume=True)  # how, not what


def test_the_best_is_kept_also_across_resume(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F20: validation improves, then worsens."""
    from ikno.training.engine import Training

    errors = iter([0.5, 0.3, 0.4, 0.6, 0.7])
    monkeypatch.setattr(Training, "validate", lambda self, items: next(errors))
    config = settings(train__epochs=5)
    run = train(config, data / "run", until=3)
    before = content(run, "best")
    assert before[1] == {"epoch": 2, "error": 0.3}
    assert not content(run)[1]["finished"]
    run = train(config, data / "run", resume=True)
    assert content(run, "best") == before
    assert content(run)[1]["best"] == 0.3
    assert content(run)[1]["finished"]


def test_early_stop(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ikno.training.engine import Training

    errors = iter([0.5, 0.3, 0.4, 0.6, 0.7, 0.8])
    monkeypatch.setattr(Training, "validate", lambda self, items: next(errors))
    run = train(settings(train__epochs=6, train__patience=2), data / "run")
    assert [r["epoch"] for r in run.log()] == [1, 2, 3, 4]


def test_two_processes_in_one_folder(data: Path) -> None:
    """F21: the second is refused, whether it begins or resumes."""
    config = settings(train__epochs=2)

    def second(report) -> None:
        if report.step == 2:
            with pytest.raises(UserError, match="holds a run already"):
                train(config, data / "run")
            with pytest.raises(UserError, match="another process is training here"):
                train(config, data / "run", resume=True)

    train(config, data / "run", report=second)


def test_without_validation_the_training_loss_decides(data: Path) -> None:
    run = train(settings("poisson-gauss", **{"data__split": [10, 0, 2]}), data / "run")
    records = run.log()
    assert all(r["validation"] is None for r in records)
    assert content(run, "best")[1]["error"] == min(r["loss"] for r in records)


def test_settings_of_the_model_are_checked_before_data_is_read(data: Path) -> None:
    """F30."""
    with pytest.raises(UserError, match=r"model\.d_modle: no such setting; did you mean 'd_model'\?"):
        train(settings(model__d_modle=3), data / "run")
    with pytest.raises(UserError, match="no model named 'ikno-tq'; did you mean 'ikno-tp'"):
        train(settings(model="ikno-tq"), data / "run")
    with pytest.raises(UserError, match=r"model\.grid_size: one value or one for each of the 2 axes"):
        train(settings(model__grid_size=[4, 4, 4]), data / "run")
    assert not (data / "run").exists()
    with pytest.raises(UserError, match="a steady problem has no derivative target"):
        train(settings(surrogate__mode="derivative"), data / "run")
    with pytest.raises(UserError, match="device: 'gpu' is no device"):
        train(settings(device="gpu"), data / "run")


def test_resume_of_what_is_not_whole(data: Path) -> None:
    config = settings()
    expected = train(config, data / "expected")
    run = train(config, data / "run")
    last = (run.path / "last.safetensors").read_bytes()
    (run.path / "last.safetensors").write_bytes((run.path / "best.safetensors").read_bytes())
    with pytest.raises(UserError, match="holds no progress of training"):
        train(config, run.path, resume=True)
    (run.path / "last.safetensors").write_bytes(last)
    log = (run.path / "log.jsonl").read_bytes()
    (run.path / "log.jsonl").write_bytes(log[:-5])
    with pytest.raises(UserError, match=r"log\.jsonl: records before step 9 are missing"):
        train(config, run.path, resume=True)
    (run.path / "last.safetensors").unlink()  # as if killed before the first checkpoint: it begins again
    same(expected, train(config, run.path, resume=True))


def test_resume_with_other_data_is_refused(data: Path) -> None:
    """F19: another benchmark with the same settings, or the same file made anew."""
    run = train(settings("ns-gauss", data__stride=7), data / "run", until=1)
    with h5py.File(data / "ns-gauss.nc", "r+") as file:
        kept = np.asarray(file["u"])
        del file["u"]
        file["u"] = 2 * kept
    with pytest.raises(UserError, match=r"ns-gauss\.nc: not the data that .*run was trained on"):
        train(settings("ns-gauss", data__stride=7), run.path, resume=True)
    with h5py.File(data / "ns-gauss.nc", "r+") as file:
        del file["u"]
        file["u"] = kept
    (data / "ns-sl.nc").write_bytes((data / "ns-gauss.nc").read_bytes())
    with pytest.raises(UserError, match="card was ns-gauss, now ns-sl"):
        train(settings("ns-sl", data__stride=7), run.path, resume=True)
    train(settings("ns-gauss", data__stride=7), run.path, resume=True)


def test_checkpoints_in_an_epoch_also_after_a_resume(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ikno.training.engine import Training

    config = settings(train__batch=1, train__epochs=1, train__save_seconds=0)

    def interrupt(report) -> None:
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted):
        train(config, data / "run", report=interrupt)
    saved = []
    save = Training._save
    monkeypatch.setattr(Training, "_save", lambda self: (saved.append(self.at.step), save(self)))
    train(config, data / "run", resume=True)
    assert saved[:3] == [6, 7, 8]


def test_patience_counts_validations_only(data: Path) -> None:
    run = train(settings(train__epochs=4, train__patience=1, train__validate_every=3), data / "run")
    assert run.digest("best")
    assert len(run.log()) >= 3


def test_a_variable_that_never_varies_does_not_decide(data: Path) -> None:
    with h5py.File(data / "ns-gauss.nc", "r+") as file:
        u = np.asarray(file["u"]) * np.array([1.0, 0.0], np.float32)
        del file["u"]
        file["u"] = u
    run = train(settings("ns-gauss", data__stride=7), data / "run")
    assert all(r["validation"] < 10 for r in run.log())


def test_a_first_validation_that_is_not_a_number(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ikno.training.engine import Training

    errors = iter([math.nan, 0.5, 0.4])
    monkeypatch.setattr(Training, "validate", lambda self, items: next(errors))
    run = train(settings(), data / "run")
    assert content(run, "best")[1] == {"epoch": 3, "error": 0.4}
    assert [r["validation"] for r in run.log()] == [None, 0.5, 0.4]


def test_what_is_found_wrong_late_leaves_no_run_behind(data: Path) -> None:
    with pytest.raises(UserError, match="muon is for matrices inside a model"):
        train(settings(model__num_layers=0, model__d_model=8), data / "run")
    train(settings(model__num_layers=0, model__d_model=8, train__optimizer="adamw", train__epochs=1), data / "run")


def test_a_run_says_everything_about_its_model(data: Path) -> None:
    run = train(settings(train__epochs=1), data / "run")
    assert run.config.model["point_weights"] == "density"
    assert run.config.model["tolerance"] == 0.3
    assert run.config.model["point_chunk"] == 65536
    assert run.signature.model == run.config.model


@pytest.mark.slow
def test_compiled_training_with_a_smaller_last_batch(data: Path) -> None:
    plain = train(settings(), data / "plain")
    process = child(settings(train__compile=True), data, resume=False)  # without the shape checks of the tests
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    compiled = Run.open(data / "run")
    assert [r["loss"] for r in compiled.log()] == pytest.approx([r["loss"] for r in plain.log()], rel=1e-3)
