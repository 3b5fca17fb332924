"""What is predicted in time is chosen from the training data, in one place, and all parts of the system abide by it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ikno.comparison import Budget, Plan, compare
from ikno.comparison import costs as costs_module
from ikno.config import Config, make_config
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.runs import Run
from ikno.training import complete, train, tune_scales
from ikno.training.modes import SAMPLES, measure_sizes

POINTS, TIMES = 50, 15  # snapshots 0, 2, ..., 14
Field = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def card(folder: Path, field: Field, samples: int = 12) -> str:
    """Return the card of u(sample, t, x) = field(coefficients, t, wave), arguments that multiply to [s, t, p].

    Each second sample has the coefficient of the one before with the other sign: means are zero.
    """
    rng = np.random.default_rng(0)
    x, t = rng.random((POINTS, 2)), np.linspace(0, 1, TIMES)
    a = np.outer(rng.normal(size=samples // 2), [1, -1]).reshape(-1, 1, 1)
    wave = np.sin(np.pi * x[:, 0]) * np.sin(np.pi * x[:, 1])
    u = field(a, t[:, None], wave)
    np.savez(folder / "own.npz", x=x.astype(np.float32), u=u[..., None].astype(np.float32))
    (folder / "own.toml").write_text(
        'name = "own"\nformat = "npz"\nfile = "own.npz"\ncloud = "shared"\nvariables = ["u"]\ntimes = [0.0, 1.0]\n'
        f"snapshots = {TIMES}\nstride = 7\nfinal_snapshot = 14\nsplit = [{samples - 4}, 2, 2]\n"
    )
    return str(folder / "own.toml")


def settings(name: str, **more: Any) -> Config:
    values = {"preset": "smoke", "train.epochs": 1, "train.batch": 6, "model.d_model": 4, "model.grid_size": 3}
    return make_config(name, {**values, **{k.replace("__", "."): v for k, v in more.items()}})


def problem_of(name: str, **more: Any) -> Problem:
    config = settings(name, **more)
    return open_problem(config.data, config.seed)


def decaying(a: np.ndarray, t: np.ndarray, wave: np.ndarray) -> np.ndarray:
    return a * np.exp(-np.log(30) * t) * wave


def slow(a: np.ndarray, t: np.ndarray, wave: np.ndarray) -> np.ndarray:
    return a * (1 + 0.1 * t) * wave


def jumping(a: np.ndarray, t: np.ndarray, wave: np.ndarray) -> np.ndarray:
    """A constant part, and one that jumps between three states: changes of one size for all leads."""
    step = np.round(2 * t[:, 0]).astype(int)
    parts = 0.1 * np.stack([wave**2, np.roll(wave, 7), np.roll(wave, 23)])
    return a * (wave + parts[step] - parts.mean(0))


def test_the_sizes_are_those_of_a_decay(tmp_path: Path) -> None:
    """u = a exp(-ct) w: |u_j - u_i| / |u_j| = exp(c tau) - 1 for all samples, here of two leads."""
    sizes = measure_sizes(problem_of(card(tmp_path, lambda a, t, w: a * np.exp(-3 * t) * w)))
    assert sizes.change == pytest.approx(np.median(np.exp(3 * np.array([0.5, 1.0])) - 1), rel=1e-4)
    d = np.array([1 - np.exp(-1.5), 1 - np.exp(-3), np.exp(-1.5) - np.exp(-3)])  # pairs (0, 7), (0, 14), (7, 14)
    assert sizes.residual == pytest.approx(np.exp(np.log(d).std()), rel=1e-3)
    assert sizes.derivative == pytest.approx(np.exp(np.log(d / [0.5, 1, 0.5]).std()), rel=1e-3)


@pytest.mark.parametrize(
    ("field", "mode", "reason"),
    [
        (decaying, "direct", r"changes are [0-9.]+ times the states they lead to, more than 0\.3"),
        (slow, "derivative", r"at most 0\.3; .* rates of change differ in size by a factor of 1, changes by 1\.4"),
        (jumping, "residual", r"at most 0\.3; "),
    ],
)
def test_the_choice(tmp_path: Path, field: Field, mode: str, reason: str) -> None:
    name = card(tmp_path, field)
    run = train(settings(name), tmp_path / "run")
    assert run.config.surrogate.mode == run.signature.mode == mode
    assert Run.open(run.path).config.surrogate.mode == mode
    log = (run.path / "train.log").read_text()
    assert re.search(rf"surrogate\.mode={mode} was chosen: .*{reason}", log)
    explicit = train(settings(name, surrogate__mode=mode), tmp_path / "explicit")
    assert explicit.config == run.config
    assert "was chosen" not in (explicit.path / "train.log").read_text()


def test_the_choice_does_not_depend_on_seed_points_or_test_samples(tmp_path: Path) -> None:
    name = card(tmp_path, slow, samples=3 * SAMPLES)
    first = measure_sizes(problem_of(name))
    assert measure_sizes(problem_of(name, seed=3, data__points=9, data__sampling="farthest")) == first
    arrays = dict(np.load(tmp_path / "own.npz"))
    arrays["u"][-4:] *= 1e3  # validation and test
    np.savez(tmp_path / "own.npz", **arrays)
    assert measure_sizes(problem_of(name)) == first


def test_fields_that_are_zero_or_constant(tmp_path: Path) -> None:
    for field in (lambda a, t, w: 0 * a * t * w, lambda a, t, w: 7 + 0 * a * t * w):
        sizes = measure_sizes(problem_of(card(tmp_path, field)))
        assert all(np.isfinite([sizes.change, sizes.residual, sizes.derivative]))


def test_explicit_modes_and_steady_problems_are_left_alone(tmp_path: Path, data: Path) -> None:
    name = card(tmp_path, decaying)
    for mode in ("direct", "residual", "derivative"):
        config = complete(settings(name, surrogate__mode=mode), problem_of(name))
        assert config.surrogate.mode == mode
    steady = settings("poisson-gauss", data__split=[8, 2, 2])
    for mode in (None, "auto"):
        config = steady.model_copy(update={"surrogate": steady.surrogate.model_copy(update={"mode": mode})})
        assert complete(config, open_problem(config.data, 0)).surrogate.mode == "direct"


def test_the_preset_of_the_paper_keeps_the_published_mode(tmp_path: Path) -> None:
    name = card(tmp_path, decaying)
    said: list[str] = []
    paper = complete(make_config(name, {"preset": "paper"}), problem_of(name), said.append)
    assert paper.surrogate.mode == "derivative"
    assert not said
    asked = make_config(name, {"preset": "paper", "surrogate.mode": "auto"})
    assert complete(asked, problem_of(name), said.append).surrogate.mode == "direct"
    assert len(said) == 1
    assert "\n" not in said[0]


def test_a_run_keeps_its_mode_when_it_is_resumed(tmp_path: Path) -> None:
    """Whatever would be chosen today; another one that is asked for is refused."""
    name = card(tmp_path, decaying)
    run = train(settings(name, surrogate__mode="derivative", train__epochs=2), tmp_path / "run", until=1)
    with pytest.raises(UserError, match=r"surrogate\.mode was derivative, now residual"):
        train(settings(name, surrogate__mode="residual", train__epochs=2), run.path, resume=True)
    run = train(settings(name, surrogate__mode="auto", train__epochs=2), run.path, resume=True)
    assert len(run.log()) == 2


def test_all_factors_have_one_mode(tmp_path: Path) -> None:
    run, _ = tune_scales(settings(card(tmp_path, decaying)), tmp_path / "tuned", factors=(1.0, 2.0))
    modes = {Run.open(p.parent).config.surrogate.mode for p in (tmp_path / "tuned").glob("*/run.json")}
    assert modes == {"direct"}
    assert run.config.surrogate.mode == "direct"


def test_comparisons_choose_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "peak_memory", lambda prepare, config: 12.5)
    name, said = card(tmp_path, decaying), []
    own = {"ikno-tp.d_model": 4, "ikno-tp.grid_size": 3, "fno-dse.width": 16, "fno-dse.modes": 2}
    settings = {"preset": "smoke", "fno-dse.surrogate.mode": "residual", **own}
    plan = Plan(name, ["ikno-tp", "fno-dse"], settings, Budget(1), optimizers=("muon", "adamw"))
    _, runs = compare(plan, tmp_path / "out", say=said.append)
    assert {m: r.config.surrogate.mode for m, r in runs.items()} == {"ikno-tp": "direct", "fno-dse": "residual"}
    assert len([text for text in said if "surrogate.mode=direct was chosen" in text]) == 1
    monkeypatch.setattr("ikno.comparison.cells.train", lambda *_, **__: pytest.fail("found again"))
    compare(plan, tmp_path / "out")


def test_the_released_layout(data: Path) -> None:
    """Two variables of different size count alike."""
    problem = open_problem(make_config("ns-gauss", {"data.split": [8, 2, 2]}).data, 0)
    before = measure_sizes(problem)
    with h5py.File(data / "ns-gauss.nc", "r+") as file:
        u = np.asarray(file["u"]) * np.array([1.0, 1e-3], np.float32)
        del file["u"]
        file["u"] = u
    after = measure_sizes(open_problem(make_config("ns-gauss", {"data.split": [8, 2, 2]}).data, 0))
    assert after.change == pytest.approx(before.change, rel=1e-4)
