"""Calibration of runs: from the weights to intervals that hold the truth, in the library and on the command line."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ikno.cli import main
from ikno.config import Config, DataSettings, SurrogateSettings
from ikno.data.pairs import statistics
from ikno.data.problem import open_problem
from ikno.errors import UserError
from ikno.evaluation import PredictionRequest, calibrate, evaluate, evaluate_surrogate, predict, problem_of
from ikno.runs import Run, load_calibration, load_surrogate, save, save_calibration
from ikno.surrogate import Ensemble, Signature, Surrogate, quantile
from ikno.training import complete

TINY = {"name": "ikno-tp", "d_model": 4, "num_heads": 2, "num_layers": 1, "grid_size": 3}
TRAIN, VALIDATION, TEST, N = 8, 30, 40, 12
CARD = 'format = "npz"\ncloud = "shared"\nvariables = ["u", "v"]\nconditions = ["f"]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A steady set, the same in time, and runs with random weights."""
    path, rng = tmp_path_factory.mktemp("calibrate"), np.random.default_rng(0)
    count = TRAIN + VALIDATION + TEST
    x, c = rng.random((1, N, 2)), rng.normal(size=(count, N, 1))
    u = np.concatenate([c, 3 + 10 * c**2], -1) + 0.3 * rng.normal(size=(count, N, 2))
    moving = np.stack([(1 + 0.2 * t) * u for t in range(4)], 1)
    for name, values, given in (
        ("still", u, ""),
        ("moving", moving, "times = [0.0, 3.0]\nsnapshots = 4\nfinal_snapshot = 3\nstride = 1\n"),
    ):
        arrays = {"x": x, "c": c[:, None] if name == "moving" else c, "u": values}
        np.savez(path / f"{name}.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
        split = f"split = [{TRAIN}, {VALIDATION}, {TEST}]\n"
        arrays_of = '[arrays]\nconditions = "c"\n'
        (path / f"{name}.toml").write_text(f'name = "{name}"\nfile = "{name}.npz"\n{CARD}{given}{split}{arrays_of}')
    for seed in range(3):
        make(path / f"still-{seed}", str(path / "still.toml"), seed)
        make(path / f"moving-{seed}", str(path / "moving.toml"), seed)
    return path


def make(path: Path, card: str, seed: int, **changed: Any) -> Run:
    """Return a run with random weights in the units of its data."""
    data = DataSettings(name=card, **changed)
    problem = open_problem(data, 0)
    mode = "direct" if problem.steady else "residual"
    signature = Signature.model_validate(
        {"dim": 2, "variables": problem.card.targets, "conditions": problem.card.conditions, "box": problem.box()}
        | {"times": problem.card.times, "mode": mode, "model": TINY}
    )
    config = Config(data=data, model=TINY, surrogate=SurrogateSettings(mode=mode), seed=seed)
    run = Run.create(path, complete(config, problem), problem.card, signature)
    made = Surrogate(signature, statistics(problem.train, problem.times, problem.pairs, mode), seed=seed)
    for which in ("best", "last"):
        save(path / f"{which}.safetensors", {f"weights.{k}": v for k, v in made.state_dict().items()}, {})
        made.target.mean.add_(0.1)
    return run


def runs_of(folder: Path, name: str = "still", count: int = 3) -> list[Run]:
    return [Run.open(folder / f"{name}-{seed}") for seed in range(count)]


def test_quantiles_of_runs_are_those_of_their_predictions(folder: Path) -> None:
    """Everything by hand from the file and predict: scale, floor, scores and both quantiles."""
    arrays = np.load(folder / "still.npz")
    x, c, u = arrays["x"][0], arrays["c"], arrays["u"].astype(float)
    for count in (1, 3):
        runs = runs_of(folder, count=count)
        each = np.stack([run.surrogate().predict(x, c) for run in runs]).astype(float)
        mean, spread = each.mean(0), each.std(0)
        training = u[:TRAIN].reshape(-1, 2)
        floor = training.std(0) if count == 1 else np.sqrt((spread[:TRAIN] ** 2).mean((0, 1)))
        scores = np.abs(u - mean) / np.sqrt(spread**2 + floor**2)
        held = scores[TRAIN : TRAIN + VALIDATION]
        found = calibrate(runs, 0.8)
        assert (found.samples, found.source, found.start) == (VALIDATION, "validation samples", None)
        np.testing.assert_allclose(found.floor, floor, rtol=1e-5)
        (q,) = found.quantiles
        expected = [quantile(list(held[..., v]), 0.8) for v in range(2)]
        np.testing.assert_allclose(np.array(q.pointwise, float), expected, rtol=1e-4)
        assert q.simultaneous == pytest.approx(np.sort(held.max((1, 2)))[24], rel=1e-4)  # ceil(.8 * 31) = 25
        tests, factors = scores[-TEST:], np.array(q.pointwise, float)
        measured = evaluate_surrogate(Ensemble([r.surrogate() for r in runs], found), problem_of(runs[0]))["intervals"]
        bands = measured["strategies"]["direct"]
        assert bands["pointwise"]["coverage"] == pytest.approx((tests <= factors).mean(), abs=2e-3)
        assert bands["simultaneous"]["coverage"] == pytest.approx((tests.max((1, 2)) <= q.simultaneous).mean())
        half = factors * np.sqrt(spread[-TEST:] ** 2 + floor**2)
        assert bands["pointwise"]["width"] == pytest.approx((2 * half / training.std(0)).mean(), rel=1e-4)
        assert list(bands["pointwise"]["variables"]) == ["u", "v"]
        assert calibrate(runs, 0.8) == found  # the same again


class Noise(nn.Module):
    """In place of a model: the truth, up to an error whose size belongs to the sample."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, features: Tensor, points: Tensor, mask: Tensor | None = None) -> Tensor:
        size = torch.randn(len(features), 1, 1, generator=self.generator).exp()
        return size * torch.randn(*features.shape[:2], 2, generator=self.generator)


def test_coverage_of_synthetic_surrogates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a known distribution: coverage on test samples is the one asked for, in the bounds of chance."""
    rng, count = np.random.default_rng(3), 10 + 400 + 400
    arrays = {"x": rng.random((1, 10, 2)), "c": rng.normal(size=(count, 10, 1)), "u": np.zeros((count, 10, 2))}
    arrays["u"][:10] = rng.normal(size=(10, 10, 2))
    np.savez(tmp_path / "zero.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (tmp_path / "zero.toml").write_text(
        f'name = "zero"\nfile = "zero.npz"\n{CARD}split = [10, 400, 400]\n[arrays]\nconditions = "c"\n'
    )
    runs = [make(tmp_path / f"run-{i}", str(tmp_path / "zero.toml"), i) for i in range(3)]
    original = Run.surrogate

    def noisy(run: Run, *rest: Any) -> Surrogate:
        found = original(run, *rest)
        found.model = Noise(run.config.seed)
        return found

    monkeypatch.setattr(Run, "surrogate", noisy)
    for members in (runs[:1], runs):
        for coverage in (0.5, 0.9):
            calibration = calibrate(members, coverage)
            found = evaluate_surrogate(Ensemble([r.surrogate() for r in members], calibration), problem_of(runs[0]))
            for band in found["intervals"]["strategies"]["direct"].values():
                # Both the calibration and the test samples are drawn: each has the bounds of 400 coins.
                assert abs(band["coverage"] - coverage) <= 3 * np.sqrt(2 * coverage * (1 - coverage) / 400)


def test_rollouts_are_calibrated_at_every_time(folder: Path, tmp_path: Path) -> None:
    runs = runs_of(folder, "moving", 2)
    found = calibrate(runs, 0.9)
    ways = [(q.strategy, q.lead, q.steps) for q in found.quantiles]
    assert ways == [
        *(("direct", lead, 1) for lead in (1.0, 2.0, 3.0)),
        *(("autoregressive", lead, steps) for lead, steps in ((1.0, 1), (2.0, 2), (3.0, 3))),
        *(("star", 2.0, 1), ("star", 3.0, None)),  # two snapshots, then one
    ]
    save_calibration(runs, found)
    ensemble = load_surrogate([run.path for run in runs])
    arrays = np.load(folder / "moving.npz")
    inputs = np.concatenate([arrays["u"][-1, 0], arrays["c"][-1, 0]], -1)
    made = ensemble.predict(arrays["x"][0], inputs, lead=3.0, steps=3, intervals="simultaneous")
    q = found.quantiles[5]
    assert q.simultaneous is not None
    np.testing.assert_allclose(
        made.upper - made.mean, q.simultaneous * np.hypot(made.spread, found.floor), rtol=1e-3, atol=1e-4
    )
    with pytest.raises(UserError, match="use one of these"):
        ensemble.predict(arrays["x"][0], inputs, lead=2.5, intervals="pointwise")
    for run in runs:
        (run.path / "calibration-of-2.json").unlink()


def test_a_calibration_belongs_to_the_weights(folder: Path, tmp_path: Path) -> None:
    runs = [make(tmp_path / f"run-{i}", str(folder / "still.toml"), i) for i in range(3)]
    for some in (runs[:1], runs[:2], runs):
        assert load_calibration(some) is None
        save_calibration(some, calibrate(some))
    names = ["calibration-of-2.json", "calibration-of-3.json", "calibration.json"]
    assert sorted(p.name for p in runs[0].path.glob("calibration*")) == names
    assert load_calibration(runs[::-1]) == load_calibration(runs)  # in any order
    assert load_calibration(runs[1:]) is None  # other members
    assert load_surrogate(runs[0].path).calibration is not None
    assert load_surrogate(run.path for run in runs).calibration == load_calibration(runs)
    assert load_calibration(runs[:1], "last") is None
    x, c = np.random.default_rng(0).random((5, 2)), np.ones(1)
    assert load_surrogate([runs[0].path]).predict(x, c, intervals="pointwise").lower.shape == (5, 2)
    last = runs[1].path / "last.safetensors"
    (runs[1].path / "best.safetensors").write_bytes(last.read_bytes())
    assert load_calibration(runs) is load_calibration(runs[:2]) is None
    assert load_calibration(runs[:1]) is not None
    with pytest.raises(UserError, match="not calibrated, or the weights have changed since"):
        load_surrogate([run.path for run in runs]).predict(x, c, intervals="pointwise")
    file = runs[0].path / "calibration.json"
    text = file.read_text()
    for changed, message in (
        (text.replace("0.9", "0.8"), r"calibration\.json: the checksum does not agree, .*; calibrate again"),
        (text[:100], r"calibration\.json: not a calibration \(JSONDecodeError"),
        ("[]", r"not a calibration \(TypeError"),
    ):
        file.write_text(changed)
        with pytest.raises(UserError, match=message):
            load_surrogate(runs[0].path)


def test_calibrations_of_older_releases(tmp_path: Path) -> None:
    """Simultaneous bands were called ``whole_field``."""
    fixtures = Path(__file__).parent / "fixtures"
    shutil.copytree(fixtures / "run-1", tmp_path / "run")
    shutil.copy(fixtures / "calibration-1" / "calibration.json", tmp_path / "run")
    surrogate = load_surrogate(tmp_path / "run")
    assert surrogate.calibration is not None
    assert [q.simultaneous for q in surrogate.calibration.quantiles] == [4.0, None, 6.0]
    x, inputs = np.random.default_rng(0).random((5, 2)), np.ones(2)
    found = surrogate.predict(x, inputs, lead=0.5, intervals="simultaneous")
    np.testing.assert_allclose(found.upper - found.mean, 4.0 * 0.25, rtol=1e-4)
    with pytest.raises(UserError, match="direct predictions were not finite"):
        surrogate.predict(x, inputs, lead=1.0, intervals="simultaneous")
    run = Run.open(tmp_path / "run")
    save_calibration([run], surrogate.calibration)  # the new name is written
    assert "whole_field" not in (run.path / "calibration.json").read_text()
    assert load_calibration([run]) == surrogate.calibration


def test_what_cannot_be_calibrated(folder: Path, tmp_path: Path) -> None:
    runs = runs_of(folder)
    with pytest.raises(UserError, match=r"30 samples to calibrate on, 0\.99 coverage needs at least 99"):
        calibrate(runs, 0.99)
    for coverage in (0.0, 1.0, 90.0):
        with pytest.raises(UserError, match="--coverage: a share between 0 and 1 is needed"):
            calibrate(runs, coverage)
    with pytest.raises(UserError, match=r"still-0: named twice; name each run of an ensemble once"):
        calibrate([runs[0], runs[0]])
    with pytest.raises(UserError, match="no run is named"):
        load_surrogate([])
    with pytest.raises(UserError, match="member 2 of the ensemble: times"):
        load_surrogate([runs[0].path, folder / "moving-0"])
    other = make(tmp_path / "other", str(folder / "still.toml"), 0, split=(TRAIN + 5, VALIDATION, TEST - 5))
    with pytest.raises(
        UserError, match=r"other: trained on other samples than .*still-0; an ensemble is calibrated on"
    ):
        calibrate([runs[0], other])
    none = make(tmp_path / "none", str(folder / "still.toml"), 0, split=(TRAIN, 0, TEST))
    with pytest.raises(UserError, match="no samples for validation in this split"):
        calibrate([none])
    found = calibrate([none], data=str(folder / "still.toml"))  # every sample of a file
    assert (found.samples, found.source) == (TRAIN + VALIDATION + TEST, "still.npz")


def test_evaluations_hold_the_coverage_of_calibrated_runs(folder: Path, tmp_path: Path) -> None:
    run = make(tmp_path / "run", str(folder / "still.toml"), 0)
    assert "intervals" not in evaluate(run)
    save_calibration([run], calibrate([run], 0.8))
    found = evaluate(run)["intervals"]
    assert (found["coverage"], found["calibration samples"]) == (0.8, VALIDATION)
    assert 0.5 < found["strategies"]["direct"]["pointwise"]["coverage"] < 1


def test_files_with_intervals(folder: Path, tmp_path: Path) -> None:
    runs = [make(tmp_path / f"run-{i}", str(folder / "still.toml"), i) for i in range(2)]
    arrays = np.load(folder / "still.npz")
    np.savez(tmp_path / "in.npz", x=arrays["x"][0], c=arrays["c"][:3])
    with pytest.raises(UserError, match="intervals: not calibrated"):
        predict(runs, PredictionRequest(tmp_path / "in.npz", tmp_path / "out.npz", intervals="pointwise"))
    save_calibration(runs, calibrate(runs))
    made = predict(runs, PredictionRequest(tmp_path / "in.npz", tmp_path / "out.npz", intervals="simultaneous"))
    expected = load_surrogate([r.path for r in runs]).predict(arrays["x"][0], arrays["c"][1], intervals="simultaneous")
    written = np.load(tmp_path / "out.npz")
    for name, one in (("u", "mean"), ("spread", "spread"), ("lower", "lower"), ("upper", "upper")):
        np.testing.assert_array_equal(written[name][1, 0], getattr(expected, one))
    np.testing.assert_array_equal(made.values, written["u"])
    assert str(written["intervals"]) == "simultaneous, coverage 0.9"
    columns = np.concatenate([arrays["x"][0], arrays["c"][1]], 1)
    np.savetxt(tmp_path / "in.csv", columns, delimiter=",", header="x,y,f", comments="", fmt="%.9g")
    predict(runs, PredictionRequest(tmp_path / "in.csv", tmp_path / "out.csv", intervals="simultaneous"))
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    kinds = {"": "mean", "_spread": "spread", "_lower": "lower", "_upper": "upper"}
    assert table.dtype.names == ("x", "y", "f", *(f"{v}{kind}" for v in "uv" for kind in kinds))
    for kind, one in kinds.items():
        np.testing.assert_array_equal(table[f"v{kind}"].astype(np.float32), getattr(expected, one)[:, 1])


def test_commands(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    runs = [str(make(tmp_path / f"run-{i}", str(folder / "still.toml"), i).path) for i in range(2)]

    def ikno(*words: object) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["ikno", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    code, out, _ = ikno("calibrate", runs[0])
    assert code == 0
    assert f"{runs[0]}: 0.9 coverage from 30 samples (validation samples)" in out
    assert "half width" in out
    code, out, _ = ikno("calibrate", *runs, "--coverage", 0.8, "--json")
    assert json.loads(out)["coverage"] == 0.8
    assert "sqrt(spread" in ikno("calibrate", *runs, "--coverage", 0.8)[1]
    code, out, _ = ikno("evaluate", runs[0])
    assert "intervals of 0.9" in out
    assert "points inside" in out
    code, out, _ = ikno("evaluate", *runs)
    assert "intervals of 0.8" in out
    assert "mean of 2 runs" in out
    found = json.loads(ikno("evaluate", *runs, "--json")[1])
    assert found["ensemble"]["runs"] == 2
    assert "direct" in found["ensemble"]["intervals"]["strategies"]
    arrays = np.load(folder / "still.npz")
    np.savez(tmp_path / "in.npz", x=arrays["x"][0], c=arrays["c"][:3])
    result = tmp_path / "out.npz"
    code, out, _ = ikno("predict", *runs, tmp_path / "in.npz", "--out", result, "--intervals", "--band", "simultaneous")
    assert code == 0
    assert "mean and spread of 2 runs, simultaneous intervals" in out
    assert (np.load(result)["lower"] < np.load(result)["upper"]).all()
    code, out, _ = ikno("predict", runs[0], tmp_path / "in.npz", "--out", result, "--force")
    assert code == 0
    assert "lower" not in np.load(result)
    (Path(runs[1]) / "best.safetensors").write_bytes((Path(runs[1]) / "last.safetensors").read_bytes())
    code, _, err = ikno("predict", *runs, tmp_path / "in.npz", "--out", result, "--intervals", "--force")
    assert code == 2
    assert err.startswith("Error: intervals: not calibrated, or the weights have changed since")
    code, out, err = ikno("evaluate", *runs)
    assert "The calibration belongs to other weights" in err
    assert "intervals" not in out
    code, _, err = ikno("calibrate", runs[0], "--coverage", 2)
    assert (code, err.count("\n")) == (2, 1)
