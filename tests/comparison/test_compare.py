"""The comparison: cells are made once, the best rate goes on, what cannot be done says so."""

import json
import math
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ikno.comparison import Budget, Cell, Cost, Plan, Schedule, compare, lines_of, markdown
from ikno.comparison import cells as cells_module
from ikno.comparison import costs as costs_module
from ikno.config import Config, make_config
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.runs import BusyError, Run, load
from ikno.surrogate import Surrogate
from ikno.training import Report, TrainingInterrupted, complete, prepare_step, train
from ikno.training.engine import Training

compare_module = sys.modules["ikno.comparison.compare"]  # the package has a function of that name
SETTINGS = {"preset": "smoke", "train.batch": 3}
SIZES = {
    "ikno-tp": {"ikno-tp.d_model": 4, "ikno-tp.grid_size": 3},
    "fno-dse": {"fno-dse.width": 16, "fno-dse.modes": 2},
}


def write(folder: Path, dim: int) -> str:
    rng = np.random.default_rng(0)
    x, a = rng.random((16, dim)), rng.normal(size=(8, 2))
    f = a @ np.stack([np.sin(3 * x[:, 0]), x[:, -1]])
    arrays = {"x": x, "c": f[..., None], "u": (f**2)[..., None]}
    np.savez(folder / "small.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (folder / "small.toml").write_text(
        f'name = "small"\nformat = "npz"\nfile = "small.npz"\ncloud = "shared"\nvariables = ["u"]\ndim = {dim}\n'
        'conditions = ["f"]\nsplit = [6, 1, 1]\n[arrays]\nconditions = "c"\n'
    )
    return str(folder / "small.toml")


@pytest.fixture
def card(tmp_path: Path) -> str:
    return write(tmp_path, 2)


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is measured in a new process, which takes seconds; the test of costs does it once."""
    monkeypatch.setattr(costs_module, "peak_memory", lambda prepare, config: 12.5)


def plan(card: str, **more: Any) -> Plan:
    models = more.pop("models", ("ikno-tp", "fno-dse"))
    sizes = {k: v for m in models for k, v in SIZES.get(m, {}).items()}
    overrides = {**SETTINGS, **sizes, **more.pop("overrides", {})}
    return Plan(**{"name": card, "models": models, "overrides": overrides, "budget": Budget(2), **more})


def same(a: Path, b: Path) -> bool:
    one, two = (load(p / "best.safetensors")[0] for p in (a, b))
    return one.keys() == two.keys() and all((one[k] == two[k]).all() for k in one)


def test_a_row_for_each_model_and_optimizer(card: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result, runs = compare(plan(card, optimizers=("adamw", "muon"), seeds=(0, 1), target=1e9), out)
    rows = result["rows"]
    assert {(r["model"], r["optimizer"]) for r in rows} == {(m, o) for m in runs for o in ("adamw", "muon")}
    assert [r["error"] for r in rows] == sorted(r["error"] for r in rows)
    for row in rows:
        assert row["error"] == pytest.approx(np.mean(row["errors"]))
        assert row["std"] == pytest.approx(np.std(row["errors"], ddof=1))
        assert row["errors"][0] != row["errors"][1]
        assert row["epochs"] == 2
        assert row["seconds"] == pytest.approx(4 * row["seconds_per_step"])  # 6 samples, 3 in a batch, 2 epochs
        assert row["seconds_to_target"] == pytest.approx(2 * row["seconds_per_step"])  # reached in the first epoch
        assert row["memory"] == 12.5
        assert row["reason"] is None
    assert len(list(out.glob("*/run.json"))) == 8
    for model, run in runs.items():
        first = next(r for r in rows if r["model"] == model)
        assert (run.config.model["name"], run.config.train.optimizer) == (model, first["optimizer"])
        assert run.config.seed == 0
        assert first["parameters"] == sum(p.numel() for p in run.surrogate().model.parameters())
    assert runs["ikno-tp"].config.model["d_model"] == 4
    assert json.loads((out / "table.json").read_text()) == result
    assert set(result["guesses"]) == {"training mean", "nearest training sample"}


def test_a_cell_is_the_training_of_its_config(card: str, tmp_path: Path) -> None:
    _, runs = compare(plan(card, models=("ikno-tp",)), tmp_path / "out")
    given = {"preset": "smoke", "train.batch": 3, "train.epochs": 2, "model.d_model": 4, "model.grid_size": 3}
    alone = train(make_config(card, given), tmp_path / "alone")
    assert same(runs["ikno-tp"].path, alone.path)


def test_one_model_may_be_trained_and_used_differently(card: str, tmp_path: Path) -> None:
    own = {"fno-dse.train.clip": 0.5, "fno-dse.surrogate.coordinates": "one scale"}
    _, runs = compare(plan(card, overrides=own), tmp_path / "out")
    found = {m: (r.config.train.clip, r.config.surrogate.coordinates) for m, r in runs.items()}
    assert found == {"ikno-tp": (1.0, "per axis"), "fno-dse": (0.5, "one scale")}


def test_what_is_finished_is_not_done_again(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = compare(plan(card), tmp_path / "out")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to do")

    for module, name in ((cells_module, "train"), (cells_module, "evaluate"), (costs_module, "prepare_step")):
        monkeypatch.setattr(module, name, never)
    assert compare(plan(card), tmp_path / "out")[0] == first
    with pytest.raises(AssertionError, match="nothing is left"):  # other settings are other cells
        compare(plan(card, budget=Budget(3)), tmp_path / "out")


def test_a_model_is_built_once_per_use(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure a step, to train, and to evaluate; a run that is read is built once more, without memory."""
    made: list[bool] = []
    init = Surrogate.__init__

    def counted(self: Surrogate, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(next(self.parameters()).is_meta)

    monkeypatch.setattr(Surrogate, "__init__", counted)
    compare(plan(card, models=("ikno-tp",)), tmp_path / "out")
    assert sorted(made) == [False, False, False, True]
    made.clear()
    compare(plan(card, models=("ikno-tp",)), tmp_path / "out")
    assert not made


def test_what_was_stopped_goes_on(card: str, tmp_path: Path) -> None:
    expected, whole = compare(plan(card), tmp_path / "whole")
    shown = []

    def stop(name: str, report: Report) -> None:
        shown.append((name, report.step))
        if name.startswith("2/2 ") and report.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted):
        compare(plan(card), tmp_path / "out", stop)
    assert shown[-1] == ("2/2 fno-dse, muon, seed 0", 3)
    done = tmp_path / "out" / whole["ikno-tp"].path.name / "best.safetensors"
    before = done.stat().st_mtime_ns
    result, runs = compare(plan(card), tmp_path / "out")
    assert done.stat().st_mtime_ns == before
    assert [r["errors"] for r in result["rows"]] == [r["errors"] for r in expected["rows"]]
    assert all(same(runs[m].path, whole[m].path) for m in whole)


def test_the_best_rate_goes_on(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rate gets a third of the epochs; the validation error decides, here of 1e-3."""
    errors = {1e-4: 0.5, 1e-3: 0.2, 1e-2: 0.3}
    monkeypatch.setattr(Training, "validate", lambda self, items: errors[self.config.train.learning_rate])
    asked = plan(card, models=("ikno-tp",), learning_rates=tuple(errors), budget=Budget(6), seeds=(0, 1))
    result, _ = compare(asked, tmp_path)
    assert result["rows"][0]["learning_rate"] == 1e-3
    runs = [Run.open(p.parent).config for p in tmp_path.glob("*/run.json")]
    found = sorted((c.train.learning_rate, c.train.epochs, c.seed) for c in runs)
    assert found == [(1e-4, 2, 0), (1e-3, 2, 0), (1e-3, 6, 0), (1e-3, 6, 1), (1e-2, 2, 0)]
    one = compare(plan(card, models=("ikno-tp",), learning_rates=(1e-2,)), tmp_path / "one")[0]["rows"][0]
    assert one["learning_rate"] == 1e-2
    assert len(list((tmp_path / "one").glob("*/run.json"))) == 1


def test_a_model_that_cannot_do_it_says_so(tmp_path: Path) -> None:
    result, runs = compare(plan(write(tmp_path, 3), models=("geofno", "ikno-tp")), tmp_path / "out")
    good, bad = result["rows"]
    assert good["model"] == "ikno-tp"
    assert good["reason"] is None
    assert bad["model"] == "geofno"
    assert bad["error"] is None
    assert "2 dimensions, found 3" in bad["reason"]
    assert list(runs) == ["ikno-tp"]
    assert f"- geofno, muon: {bad['reason']}" in markdown(result)


def test_an_optimizer_that_has_nothing_to_do_says_so(card: str, tmp_path: Path) -> None:
    asked = plan(card, models=("fno-dse",), overrides={"fno-dse.width": 4}, optimizers=("adamw", "muon"))
    good, bad = compare(asked, tmp_path / "out")[0]["rows"]
    assert (good["optimizer"], good["reason"]) == ("adamw", None)
    assert "muon is for matrices" in bad["reason"]


def test_a_training_that_fails_does_not_stop_the_others(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = Training.gradient

    def bad(self: Training, *args: Any) -> tuple[float, float]:
        return (math.nan, math.nan) if self.config.model["name"] == "ikno-tp" else gradient(self, *args)

    monkeypatch.setattr(Training, "gradient", bad)
    asked = plan(card, overrides={"train.max_bad_steps": 2})
    result, _ = compare(asked, tmp_path / "out")
    assert result["rows"][0]["model"] == "fno-dse"
    assert "not finite in 2 steps" in result["rows"][1]["reason"]


def test_lines_of_another_process_are_left_to_it(card: str, tmp_path: Path) -> None:
    said: list[str] = []
    asked, out = plan(card), tmp_path / "out"
    compare(plan(card, models=("ikno-tp",)), tmp_path / "other")
    other = Run.open(next((tmp_path / "other").glob("ikno-tp-*")))
    run = Run.create(out / other.path.name, other.config, other.card, other.signature)
    with run.locked():
        result, runs = compare(asked, out, say=said.append)
    assert list(runs) == ["fno-dse"]
    assert any("another process" in text for text in said)
    assert result["rows"][1]["error"] is None


@pytest.mark.parametrize("rates", [(), (1e-3, 1e-2)])
def test_cells_that_another_process_gives_up_are_made_in_the_end(
    rates: tuple[float, ...], card: str, tmp_path: Path
) -> None:
    said: list[str] = []
    numbers: list[list[str]] = []
    asked, out = plan(card, learning_rates=rates), tmp_path / "out"
    compare(asked, tmp_path / "other")
    other = Run.open(min((tmp_path / "other").glob("ikno-tp-*")))
    run = Run.create(out / other.path.name, other.config, other.card, other.signature)
    with ExitStack() as stack:
        stack.enter_context(run.locked())

        def show(name: str, report: Report) -> None:
            numbers.append(name.partition(" ")[0].split("/"))
            if "fno-dse" in name:
                stack.close()

        result, runs = compare(asked, out, show, said.append)
    assert any("another process" in text for text in said)
    assert set(runs) == {"ikno-tp", "fno-dse"}
    assert all(row["error"] is not None for row in result["rows"])
    assert all(1 <= int(number) <= int(count) for number, count in numbers)


def test_a_training_that_another_process_begins_at_the_same_time_is_its_own(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found no run; one of them makes it first. The other must not take that for a failure."""
    said: list[str] = []

    def too_late(config: Config, path: Path, **more: Any) -> Run:
        if not more["resume"]:
            train(config, path)
        return train(config, path, **more)

    monkeypatch.setattr(cells_module, "train", too_late)
    result, _ = compare(plan(card, models=("ikno-tp",)), tmp_path / "out", say=said.append)
    assert said[-1] == "ikno-tp, muon, seed 0: another process is training it"
    assert result["rows"][0]["reason"] is None
    assert result["rows"][0]["error"] is not None  # found in the second turn


def test_the_best_rate_waits_for_the_trials_of_another_process(card: str, tmp_path: Path) -> None:
    asked, out = plan(card, models=("ikno-tp",), learning_rates=(1e-3, 1e-2), budget=Budget(epochs=3)), tmp_path / "out"
    compare(asked, tmp_path / "other")
    trial = Run.open(next((tmp_path / "other").glob("ikno-tp-*-0.01-epochs1-*")))
    run = Run.create(out / trial.path.name, trial.config, trial.card, trial.signature)
    with run.locked():
        result, _ = compare(asked, out)
    assert result["rows"][0]["error"] is None
    assert not list(out.glob("ikno-tp-*-epochs3-*"))
    assert compare(asked, out)[0]["rows"][0]["error"] is not None


def test_budgets() -> None:
    assert Budget.parse("40 epochs") == Budget(epochs=40)
    assert Budget.parse("1epoch") == Budget(epochs=1)
    assert Budget.parse("2.5 seconds") == Budget.parse("2.5s") == Budget(seconds=2.5)
    for text in ("", "40", "0 epochs", "2.5 epochs", "many epochs", "-3 seconds", "10 minutes"):
        with pytest.raises(UserError, match="budget"):
            Budget.parse(text)


def with_costs(monkeypatch: pytest.MonkeyPatch, cost: Cost) -> None:
    monkeypatch.setattr(compare_module, "measure_costs", lambda configs, *_: (dict.fromkeys(configs, cost), {}))


def test_seconds_become_steps(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's seconds count, shared among the threads: here 0.3 and not the 7 that the clock says."""
    with_costs(monkeypatch, Cost(parameters=5, seconds=7.0, cpu_seconds=0.6, memory=None))
    monkeypatch.setattr(compare_module.torch, "get_num_threads", lambda: 2)
    errors = {1e-3: 0.5, 1e-2: 0.3}
    monkeypatch.setattr(Training, "validate", lambda self, items: errors[self.config.train.learning_rate])
    asked = plan(card, models=("fno-dse",), learning_rates=tuple(errors), budget=Budget(seconds=2.3))
    row = compare(asked, tmp_path / "out")[0]["rows"][0]
    assert (row["steps"], row["epochs"], row["learning_rate"]) == (7, 4, 1e-2)  # 2 steps are an epoch
    assert row["seconds"] == pytest.approx(7 * 7.0)
    runs = {p.parent.name.rsplit("-", 1)[0]: Run.open(p.parent) for p in (tmp_path / "out").glob("*/run.json")}
    assert set(runs) == {f"fno-dse-muon-{k}-seed0" for k in ("0.001-steps2", "0.01-steps2", "0.01-steps7")}
    assert [r["step"] for r in runs["fno-dse-muon-0.01-steps7-seed0"].log()] == [2, 4, 6, 7]
    row = compare(
        plan(card, models=("fno-dse",), learning_rates=(1e-2,), budget=Budget(seconds=0.01)), tmp_path / "out"
    )[0]
    assert row["rows"][0]["steps"] == 1
    again = plan(card, models=("fno-dse",), learning_rates=(1e-2,), budget=Budget(3), overrides={"train.steps": 1})
    row = compare(again, tmp_path / "out")[0]["rows"][0]
    assert (row["steps"], row["epochs"]) == (6, 3)  # a budget of epochs wins over the settings
    again = plan(card, models=("fno-dse",), learning_rates=(1e-2,), budget=Budget(), overrides={"train.steps": 3})
    row = compare(again, tmp_path / "out")[0]["rows"][0]
    assert (row["steps"], row["epochs"]) == (3, 2)


def test_which_seconds_count() -> None:
    cost = Cost(parameters=5, seconds=7.0, cpu_seconds=0.6, memory=None)
    assert cost.counted("cpu", 1) == 0.6
    assert cost.counted("cpu", 4) == pytest.approx(0.15)


def test_costs(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = open_problem(make_config(card).data, 0)
    config = complete(make_config(card, {"preset": "smoke", "train.batch": 3}), problem)
    file = tmp_path / "costs.json"
    found = costs_module.measure_costs({"one": config}, problem, file)[0]["one"]
    assert 0 < found.seconds < 10
    assert found.memory is not None
    assert found.memory > 0
    monkeypatch.setattr(costs_module, "interleaved", lambda *_: pytest.fail("measured again"))
    other = config.model_copy(update={"seed": 3, "train": config.train.model_copy(update={"epochs": 77})})
    assert costs_module.measure_costs({"same": other}, problem, file) == ({"same": found}, {})
    assert found == Cost(**next(iter(json.loads(file.read_text()).values())))
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        costs_module.measure_costs({"larger": _larger(config)}, problem, file)
    file.write_text("[1]")
    with pytest.raises(UserError, match="damaged"):
        costs_module.measure_costs({"one": config}, problem, file)


def test_a_memory_that_cannot_be_measured(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "peak_memory", lambda prepare, config: math.nan)
    result, _ = compare(plan(card, models=("fno-dse",)), tmp_path / "out")
    assert result["rows"][0]["memory"] is None
    header, lines = lines_of(json.loads((tmp_path / "out" / "table.json").read_text()))
    assert lines[0][header.index("peak MB")] == "-"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used as a folder"):
        compare(plan(card), tmp_path / "file" / "out")


def _larger(config: Any) -> Any:
    return config.model_copy(update={"model": {**config.model, "d_model": 32}})


def test_a_measured_step_is_one_of_training(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves the weights as the first step of training does, and writes nothing."""
    config = make_config(card, {"preset": "smoke", "train.batch": 6, "train.epochs": 1})
    run = train(config, tmp_path / "run")
    made: list[Training] = []
    monkeypatch.setattr("ikno.training.engine.Training", lambda *a: made.append(Training(*a)) or made[-1])
    prepare_step(config)()
    trained, _ = load(run.path / "last.safetensors")
    for name, tensor in made[0].surrogate.state_dict().items():
        assert (trained[f"weights.{name}"] == tensor).all(), name
    assert not Path("log.jsonl").exists()


def test_mistakes_are_found_before_any_work(card: str, tmp_path: Path) -> None:
    wrong = {
        "no model named 'gat'; did you mean 'gaot'": {"models": ("ikno-tp", "gat")},
        "gaot.radius: gaot is not among the models": {"overrides": {"gaot.radius": 0.1}},
        "model.d_model: models have settings of their own": {"overrides": {"model.d_model": 8}},
        "model.d_mdel: no such setting": {"overrides": {"ikno-tp.d_mdel": 8}},
        "train.optimizer": {"optimizers": ("sgd",)},
        "at least one model": {"models": ()},
        "learning rates: positive numbers": {"learning_rates": (1e-3, 0.0)},
    }
    for message, change in wrong.items():
        with pytest.raises(UserError, match=message):
            compare(plan(card, **change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scales_are_for_models_that_have_them(card: str, tmp_path: Path) -> None:
    _, runs = compare(plan(card, overrides={"scales": "auto"}), tmp_path)
    assert runs["ikno-tp"].config.model["init_scales_l1"] != [1.0, 2.0, 4.0]


def test_steps_to_an_error(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [0.5, 0.3, 0.4, 0.1]
    monkeypatch.setattr(Training, "validate", lambda self, items: errors[self.at.epoch])
    problem = open_problem(make_config(card).data, 0)
    given = {"preset": "smoke", "train.batch": 3, "train.epochs": 4}
    found = Cell.of(make_config(card, given), problem, tmp_path).make()
    assert [found.steps_to(e) for e in (0.6, 0.5, 0.35, 0.3, 0.2, 0.05)] == [2, 2, 4, 4, 8, None]
    assert found.validation == 0.1
    assert found.steps == 8


def test_the_table_as_text(card: str, tmp_path: Path) -> None:
    result, _ = compare(plan(card, target=0.25), tmp_path)
    result["rows"][0] |= {"error": 0.12345, "std": 0.005, "parameters": 12345, "seconds_to_target": None}
    header, lines = lines_of(result)
    line = dict(zip(header, lines[0], strict=True))
    assert line["error"] == "12.35 ± 0.50 %"
    assert line["parameters"] == "12,345"
    assert line["s to 25 %"] == "-"
    assert [len(x) for x in lines] == [len(header)] * 4  # two models, two guesses
    text = markdown(result)
    assert "6 training, 1 validation and 1 test samples" in text
    assert text.count("\n|") == 6


def test_jobs_that_meet_another_process_get_one_more_turn() -> None:
    said: list[str] = []
    schedule = Schedule(4, say=said.append)
    busy, turns = {"a", "c"}, []

    def make(report: Any) -> str:
        if job in busy:
            raise BusyError(job)
        return job.upper()

    made = []
    for job in schedule.turns(["a", "b", "c", "d"]):
        turns.append((job, schedule.number))
        made.append(schedule.attempt(job, make))
        busy -= {"a"} if job == "d" else set()
    assert turns == [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("a", 0), ("c", 2)]
    assert made == [None, "B", None, "D", "A", None]
    assert said == [f"{job}: another process is training it" for job in "acc"]
