"""Scales from the data: lengths of fields that are known, and what becomes of them."""

import math
from pathlib import Path

import numpy as np
import pytest

from ikno.config import make_config
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.training import train, tune_scales
from ikno.training.scales import Lengths, auto_scale, measure_lengths

SMOKE = {"preset": "smoke", "model.d_model": 4, "model.grid_size": 3, "train.epochs": 1}


def problem(folder: Path, x: np.ndarray, u: np.ndarray, c: np.ndarray) -> Problem:
    """Return the problem of arrays x [points, dim], u and c [samples, points, channels]."""
    arrays = {"x": x, "u": u, "c": c}
    np.savez(folder / "a.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    names = {"variables": [f"u{i}" for i in range(u.shape[-1])], "conditions": [f"c{i}" for i in range(c.shape[-1])]}
    entries = {"name": "a", "format": "npz", "file": "a.npz", "cloud": "shared", "dim": x.shape[1], **names}
    lines = [f"{k} = {str(v) if not isinstance(v, str) else repr(v)}" for k, v in entries.items()]
    (folder / "a.toml").write_text("\n".join(lines) + '\n[arrays]\nconditions = "c"\n')
    return open_problem(
        make_config(str(folder / "a.toml"), {"data.split": [len(u) - 2, 1, 1], "data.points": None}).data, 0
    )


def waves(x: np.ndarray, number: float, samples: int, seed: int = 0) -> np.ndarray:
    """Return cos(k x + phase), k = number. Its variogram (1 - cos(k r)) / 2 is half of the variance at r = pi/(3 k)."""
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, (samples, 1))
    return np.cos(number * x[:, 0] + phases)[..., None]


def test_lengths_of_waves(tmp_path: Path) -> None:
    """Inputs and targets in the order of the channels, in units where half of the domain is 1; numbers have none."""
    x = np.random.default_rng(0).uniform(0, 10, (1500, 1))
    c = np.concatenate([waves(x, 3, 40), np.full((40, 1500, 1), 7.0)], 2)
    c[:, :, 1] += np.arange(40)[:, None]  # differs from sample to sample, not from point to point
    u = 1e-4 * waves(x, 8, 40) + 5
    found = measure_lengths(problem(tmp_path, x, u, c), (5.0,), "direct", 0)
    np.testing.assert_allclose(found.fields, [np.pi / 9 / 5, np.pi / 24 / 5], rtol=0.1)
    gap = np.log(2) / 2 * 10 / 1500 / 5  # the median of the distance to the nearer of two neighbors
    assert found.spacing == pytest.approx(gap, rel=0.15)
    again = measure_lengths(problem(tmp_path, x, u, c), (5.0,), "direct", 0)
    np.testing.assert_array_equal(again.fields, found.fields)


def test_lengths_are_distances_in_all_directions(tmp_path: Path) -> None:
    """f = cos(k x) + cos(k y) with free phases has the variogram 1 - (cos(k dx) + cos(k dy)) / 2: on average over
    directions 1 - J0(k r), which is half at k r = 1.521."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3000, 2))
    phases = rng.uniform(0, 2 * np.pi, (40, 2, 1))
    f = np.cos(9 * x[:, 0] + phases[:, 0]) + np.cos(9 * x[:, 1] + phases[:, 1])
    found = measure_lengths(problem(tmp_path, x, f[..., None], f[..., None]), (1.0, 1.0), "direct", 0)
    np.testing.assert_allclose(found.fields, 1.521 / 9, rtol=0.1)


@pytest.mark.parametrize("points", [1, 2, 5])
def test_few_points_and_constant_fields(tmp_path: Path, points: int) -> None:
    x = np.linspace(0, 1, points)[:, None]
    constant = np.ones((5, points, 1))
    found = measure_lengths(problem(tmp_path, x, constant, constant), (0.5,), "direct", 0)
    assert found.fields.shape == (0,)
    assert auto_scale(found) > 0
    assert math.isfinite(auto_scale(found))


def test_the_finest_kernel_follows_the_shortest_field_but_not_between_the_points() -> None:
    for length in (0.4, 0.2):
        s, halfway = auto_scale(Lengths(np.array([0.5, length]), 0.01)), length / 2
        assert (np.exp(-((s * halfway) ** 2)) + np.exp(-s * halfway)) / 2 == pytest.approx(0.5, abs=0.02)
    assert auto_scale(Lengths(np.array([1e-4]), 0.1)) == auto_scale(Lengths(np.array([1e-9]), 0.1))


def test_scales_auto_fills_the_config(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1))
    made = problem(tmp_path, x, waves(x, 12, 12), waves(x, 12, 12))
    given = {**SMOKE, "data.points": None, "data.split": [10, 1, 1], "scales": "auto"}
    config = make_config(str(tmp_path / "a.toml"), given)
    run = train(config, tmp_path / "run")
    finest = auto_scale(measure_lengths(made, (1.0,), "direct", 0))
    for key in ("init_scales_l1", "init_scales_l2"):
        assert run.config.model[key] == pytest.approx([finest / 4, finest / 2, finest], rel=0.05)
    assert run.config.scales == "given"  # the run says what they are: nothing is chosen again
    assert train(config, tmp_path / "run", resume=True).config == run.config
    best, _ = tune_scales(config, tmp_path / "tuned", factors=[2.0], share=1.0)
    assert best.config.model["init_scales_l1"] == [2 * s for s in run.config.model["init_scales_l1"]]


def test_models_without_scales(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (30, 1))
    problem(tmp_path, x, waves(x, 3, 12), waves(x, 3, 12))
    config = make_config(str(tmp_path / "a.toml"), {**SMOKE, "model": "ikno-finite", "scales": "auto"})
    with pytest.raises(UserError, match="ikno-finite has no kernel scales to choose"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
