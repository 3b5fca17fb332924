"""The moving average of the weights: the formula, what is kept and used of it, and that training does not see it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ikno
from ikno.config import Config, make_config
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.evaluation import evaluate
from ikno.runs import Run, load, save
from ikno.training import train
from ikno.training.average import Average
from ikno.training.distributed import group
from ikno.training.engine import Training

DECAY = 0.8


def settings(**more: Any) -> Config:
    values = {"preset": "smoke", "data.split": [8, 2, 2], "train.batch": 3, "train.epochs": 3, "train.ema": DECAY}
    return make_config("poisson-gauss", {**values, **{k.replace("__", "."): v for k, v in more.items()}})


def slow_average(history: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    """Return the average of weights before training and after each step."""
    found = {k: v.double() for k, v in history[0].items()}
    for step, weights in enumerate(history[1:]):
        d = min(decay, (1 + step) / (10 + step))
        found = {k: d * found[k] + (1 - d) * weights[k].double() for k in found}
    return found


def test_the_formula() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = Average(model, 0.5)
    weights = dict(model.named_parameters())
    history = [{k: v.detach().clone() for k, v in weights.items()}]
    for step in range(30):
        with torch.no_grad():
            for p in weights.values():
                p.add_(torch.randn_like(p))
        history.append({k: v.detach().clone() for k, v in weights.items()})
        average.update(step)
    expected = slow_average(history, 0.5)
    assert set(average.means) == {f"average.{k}" for k in weights}  # no buffers
    for name, value in expected.items():
        torch.testing.assert_close(average.means[f"average.{name}"].double(), value, rtol=1e-5, atol=1e-6)
    with average.used():
        assert all(torch.equal(p, average.means[f"average.{k}"]) for k, p in weights.items())
    assert all(torch.equal(p, history[-1][k]) for k, p in weights.items())


def test_training_keeps_it_and_does_not_see_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history: list[dict[str, Tensor]] = []
    update, begin = Training.update, Training._begin

    def note(self: Training) -> None:
        history.append({k: p.detach().clone() for k, p in self.surrogate.named_parameters()})

    monkeypatch.setattr(Training, "update", lambda self: (update(self), note(self)))
    monkeypatch.setattr(Training, "_begin", lambda self: (note(self), begin(self)))
    run = train(settings(), data / "run")
    monkeypatch.undo()
    monkeypatch.setenv("IKNO_DATA", str(data))
    assert len(history) == 10
    last, best = (load(run.path / f"{checkpoint}.safetensors")[0] for checkpoint in ("last", "best"))
    for name, value in slow_average(history, DECAY).items():
        torch.testing.assert_close(last[f"average.{name}"].double(), value, rtol=1e-5, atol=1e-6)
        assert torch.equal(last[f"weights.{name}"], history[-1][name])
    assert not any(k.startswith("average.") for k in best)
    assert "average.target.mean" not in last  # buffers are constants

    plain = load(train(settings(train__ema=None), data / "plain").path / "last.safetensors")[0]
    assert not any(k.startswith("average.") for k in plain)
    for name, value in plain.items():
        assert torch.equal(last[name], value), name


def test_validation_the_best_and_prediction_use_it(data: Path) -> None:
    """After one epoch the best weights are the last average."""
    run = train(settings(train__epochs=1), data / "run")
    last, state = load(run.path / "last.safetensors")
    best, _ = load(run.path / "best.safetensors")
    for name, mean in ((k.removeprefix("average."), v) for k, v in last.items() if k.startswith("average.")):
        assert torch.equal(best[f"weights.{name}"], mean)
        for checkpoint in ("best", "last"):
            assert torch.equal(ikno.load(run.path, checkpoint).state_dict()[name], mean)
    assert evaluate(run, checkpoint="last")["metrics"] == evaluate(run, checkpoint="best")["metrics"]
    problem = open_problem(run.config.data, 0)
    with group("cpu") as processes:
        again = Training(
            run.path, run.config, problem, run.surrogate("last").requires_grad_(), processes, lambda r: None
        )
    assert again.validate(again.validation) == run.log()[-1]["validation"] == state["best"]


def test_a_resumed_run_has_the_same_average(data: Path) -> None:
    expected = train(settings(), data / "expected")
    train(settings(), data / "run", until=1)
    with pytest.raises(UserError, match=r"train\.ema was 0\.8, now 0\.9"):
        train(settings(train__ema=0.9), data / "run", resume=True)
    run = train(settings(), data / "run", resume=True)
    for checkpoint in ("last", "best"):
        one, other = (load(r.path / f"{checkpoint}.safetensors") for r in (expected, run))
        assert one[1] == other[1]
        assert one[0].keys() == other[0].keys()
        assert all(torch.equal(one[0][k], other[0][k]) for k in one[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"average.model.more": torch.zeros(2)}, r"model\.more is not part of the model"),
        ({"average.target.mean": torch.zeros(2)}, r"the average of target\.mean has another shape or type"),
        ({"average.target.mean": torch.tensor([torch.nan])}, r"target\.mean holds NaN or infinite numbers"),
    ],
)
def test_an_average_of_another_model(data: Path, change: dict[str, Tensor], message: str) -> None:
    run = train(settings(train__epochs=1), data / "run")
    tensors, state = load(run.path / "last.safetensors")
    save(run.path / "last.safetensors", {**tensors, **change}, state)
    with pytest.raises(UserError, match=message):
        Run.open(run.path).surrogate("last")


def test_a_checkpoint_without_its_average_is_refused(data: Path) -> None:
    run = train(settings(), data / "run", until=1)
    tensors, state = load(run.path / "last.safetensors")
    save(run.path / "last.safetensors", {k: v for k, v in tensors.items() if "average" not in k}, state)
    with pytest.raises(UserError, match=r"average\.model\..* is missing"):
        train(settings(), run.path, resume=True)


@pytest.mark.parametrize("decay", [0, 1, -0.5, 1.5])
def test_decays_that_are_none(decay: float) -> None:
    with pytest.raises(UserError, match=r"train\.ema"):
        settings(train__ema=decay)
