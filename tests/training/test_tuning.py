"""Tuning the scales: short runs, the best goes on, and nothing of it differs from training that config alone."""

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ikno.config import Config, make_config
from ikno.errors import UserError
from ikno.runs import Run, load
from ikno.training import TrainingInterrupted, train, tune_scales
from ikno.training.engine import Training

EPOCHS, SHORT = 6, 2  # a fifth of 6 is 1.2: two epochs
# Validation errors by factor and epoch. The best of the first two epochs is that of 2, though 4 would win in the end.
ERRORS = {
    "scale-1": [0.5, 0.4, 0.1, 0.1, 0.1, 0.1],
    "scale-2": [0.3, 0.6, 0.5, 0.25, 0.5, 0.6],
    "scale-4": [0.35, 0.31, 0.01, 0.01, 0.01, 0.01],
    "alone": [0.3, 0.6, 0.5, 0.25, 0.5, 0.6],
}


@pytest.fixture
def card(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x, a = rng.random((16, 2)), rng.normal(size=(8, 2))
    f = a @ np.stack([np.sin(3 * x[:, 0]), x[:, 1]])
    arrays = {"x": x, "c": f[..., None], "u": (f**2)[..., None]}
    np.savez(tmp_path / "small.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (tmp_path / "small.toml").write_text(
        'name = "small"\nformat = "npz"\nfile = "small.npz"\ncloud = "shared"\nvariables = ["u"]\nconditions = ["f"]\n'
        'split = [6, 1, 1]\n[arrays]\nconditions = "c"\n'
    )
    return str(tmp_path / "small.toml")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "validate", lambda self, items: ERRORS[self.path.name][self.at.epoch])


def settings(card: str, **more: Any) -> Config:
    values = {"preset": "smoke", "model.d_model": 4, "model.grid_size": 3, "train.epochs": EPOCHS, "train.batch": 6}
    return make_config(
        card, {**values, "train.save_seconds": 1000, **{k.replace("__", "."): v for k, v in more.items()}}
    )


def content(run: Path) -> list[Any]:
    """Return everything in a run that does not depend on the clock or its place."""
    found: list[Any] = [(run / "log.jsonl").read_bytes()]
    for which in ("last", "best"):
        tensors, state = load(run / f"{which}.safetensors")
        found += [{k: v.numpy().tobytes() for k, v in tensors.items()}, state]
    return found


def test_the_best_goes_on_to_the_end_as_if_it_had_been_trained_alone(card: str, tmp_path: Path, scripted: None) -> None:
    seen = []
    run, errors = tune_scales(settings(card), tmp_path / "out", report=lambda f, r: seen.append((f, r.epoch)))
    assert seen[:6] == [(1.0, 1), (1.0, 2), (2.0, 1), (2.0, 2), (4.0, 1), (4.0, 2)]
    assert seen[6:] == [(2.0, 3), (2.0, 4), (2.0, 5), (2.0, 6)]
    assert errors == {1.0: 0.4, 2.0: 0.3, 4.0: 0.31}
    assert run.path == tmp_path / "out" / "scale-2"
    expected = {"best": 2.0, "epochs": SHORT, "errors": {"1": 0.4, "2": 0.3, "4": 0.31}}
    assert json.loads((tmp_path / "out" / "search.json").read_text()) == expected
    for factor, epochs in ((1, SHORT), (2, EPOCHS), (4, SHORT)):
        run = Run.open(tmp_path / "out" / f"scale-{factor}")
        assert [r["epoch"] for r in run.log()] == list(range(1, epochs + 1))
        assert load(run.path / "last.safetensors")[1]["finished"] == (epochs == EPOCHS)
        assert run.config.model["init_scales_l1"] == [factor, 2 * factor, 4 * factor]
        assert run.config.model["init_scales_l2"] == [factor, 2 * factor, 4 * factor]
        assert run.config.train.epochs == EPOCHS  # the schedule of the learning rate is that of the whole
    scales = {"model__init_scales_l1": [2, 4, 8], "model__init_scales_l2": [2, 4, 8]}
    alone = train(settings(card, **scales), tmp_path / "alone")
    assert content(alone.path) == content(tmp_path / "out" / "scale-2")
    kernel = alone.surrogate("last").get_submodule("model.kernels.0")
    assert float(getattr(kernel, "beta").detach()[0]) == pytest.approx(2, rel=0.1)  # noqa: B009


def test_an_interrupted_tuning_goes_on(card: str, tmp_path: Path, scripted: None) -> None:
    """F13: whichever of the runs was stopped, in the first part or the second."""
    config, out = settings(card, train__epochs=2, train__batch=3), tmp_path / "out"  # two steps an epoch
    expected = tmp_path / "expected"
    tune_scales(config, expected)
    for factor, step in ((1.0, 1), (4.0, 2), (2.0, 3)):

        def interrupt(at: float, report: Any, factor: float = factor, step: int = step) -> None:
            if at == factor and report.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(
            TrainingInterrupted, match=rf"scale-{factor:g}: stopped in epoch {math.ceil(step / 2)}, step {step}"
        ):
            tune_scales(config, out, report=interrupt)
        assert (out / "search.json").exists() == (step == 3)
    for _ in range(2):  # the second time nothing is left to do
        assert tune_scales(config, out)[0].path.name == "scale-2"
        for name in ("scale-1", "scale-2", "scale-4"):
            assert content(out / name) == content(expected / name)
        assert (out / "search.json").read_bytes() == (expected / "search.json").read_bytes()


def test_a_run_that_ended_before_it_began_is_begun_again(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after run.json was written, while the data was read."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    config = settings(card, train__epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "go", killed)
        with pytest.raises(Killed):
            tune_scales(config, tmp_path / "out", [3.0])
    assert [p.name for p in (tmp_path / "out" / "scale-3").iterdir() if p.name != "lock"] == ["run.json"]
    with Run.open(tmp_path / "out" / "scale-3").locked(), pytest.raises(UserError, match="another process"):
        tune_scales(config, tmp_path / "out", [3.0])
    run, _ = tune_scales(config, tmp_path / "out", [3.0])
    assert run.log()[-1]["epoch"] == 1
    with pytest.raises(UserError, match=r"cannot go on with another config \(seed was 0, now 1\)"):
        tune_scales(settings(card, train__epochs=1, seed=1), tmp_path / "out", [3.0])


def test_without_validation_the_training_loss_decides(card: str, tmp_path: Path) -> None:
    config = settings(card, data__split=[7, 0, 1], train__epochs=2)
    run, errors = tune_scales(config, tmp_path / "out", [1.0, 300.0], share=1.0)
    losses = {f: min(r["loss"] for r in Run.open(tmp_path / "out" / f"scale-{f:g}").log()) for f in (1.0, 300.0)}
    assert errors == losses
    assert run.path.name == f"scale-{min(losses, key=lambda f: losses[f]):g}"


@pytest.mark.parametrize(
    ("share", "epochs", "short"), [(0.2, 5, 1), (0.2, 6, 2), (0.07, 100, 7), (1.0, 3, 3), (0.0, 9, 1)]
)
def test_the_share_is_rounded_up(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, epochs: int, short: int
) -> None:
    class Asked(Exception):  # noqa: N818
        pass

    def ask(config: Config, out: Path, until: int, **_: object) -> None:
        raise Asked(until)

    monkeypatch.setattr(sys.modules[tune_scales.__module__], "train", ask)
    with pytest.raises(Asked) as asked:
        tune_scales(settings(card, train__epochs=epochs), tmp_path, share=share)
    assert asked.value.args == (short,)


@pytest.mark.parametrize(
    ("more", "factors", "message"),
    [
        ({"model": "ikno-finite"}, [1.0], r"model: ikno-finite has no kernel scales to choose; train it with"),
        ({"model__kernel": "linear_window"}, [1.0], r"model: ikno-tp has no kernel scales"),
        ({"model": "ikno-tq"}, [1.0], r"model: no model named 'ikno-tq'; did you mean 'ikno-tp'\?"),
        ({"model__d_modle": 3}, [1.0], r"model\.d_modle: no such setting"),
        ({}, [], r"factors: positive numbers are needed, found \[\]"),
        ({}, [1.0, 0.0], r"factors: positive numbers are needed, found \[1\.0, 0\.0\]"),
        ({}, [-1.0], r"factors: positive numbers"),
        ({}, [math.nan], r"factors: positive numbers"),
        ({}, [math.inf], r"factors: positive numbers"),
    ],
)
def test_what_cannot_be_tuned(card: str, tmp_path: Path, more: dict, factors: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tune_scales(settings(card, **more), tmp_path / "out", factors)
    assert not (tmp_path / "out").exists()
