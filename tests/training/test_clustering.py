"""Where the latent grid is finer: at clusters of points, not where a domain is narrow or has a hole."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ikno
from ikno.config import make_config
from ikno.surrogate import half_size
from ikno.training import complete, train
from ikno.training.clustering import KNOTS, measure_clustering
from tests.training.test_scales import problem

RNG = np.random.default_rng(0)
SPLIT = {"data.split": [2, 1, 1], "train.epochs": 1}
SQUARE = RNG.uniform(-1, 1, (6000, 2))


def clustering_of(folder: Path, x: np.ndarray):
    values = np.ones((4, len(x), 1)) * np.arange(4)[:, None, None]
    made = problem(folder, x, values, values)
    return measure_clustering(made, half_size(made.box(), "per axis")), made


@pytest.mark.parametrize(
    "x",
    [
        SQUARE,
        SQUARE[np.hypot(*SQUARE.T) < 1],
        SQUARE[np.hypot(*SQUARE.T) > 0.6],
        SQUARE * (10, 0.1) + 7,
        np.stack(np.meshgrid(np.linspace(0, 1, 40), np.linspace(0, 1, 40)), -1).reshape(-1, 2),
        np.repeat(SQUARE[:400], 6, 0),
    ],
    ids=["square", "disc", "hole", "long", "regular", "repeated"],
)
def test_even_points_leave_the_grid_regular(tmp_path: Path, x: np.ndarray) -> None:
    found, _ = clustering_of(tmp_path, x)
    assert found.stretching is None


def test_a_boundary_layer(tmp_path: Path) -> None:
    """y = s^2 has the density 1 / (2 sqrt y): between positions lie equally many points; x stays as it is."""
    s = RNG.uniform(0, 1, (6000, 2))
    found, _ = clustering_of(tmp_path, np.stack([s[:, 0], s[:, 1] ** 2], 1))
    assert found.stretching is not None
    np.testing.assert_allclose(found.stretching[0], np.linspace(-1, 1, KNOTS))
    knots = np.array(found.stretching[1])
    shares = np.diff(np.sqrt((knots + 1) / 2))
    assert (knots[0], knots[-1]) == (-1, 1)
    np.testing.assert_allclose(shares, 1 / (KNOTS - 1), atol=0.01)


@pytest.mark.parametrize("points", [1, 3, 6])
def test_few_points(tmp_path: Path, points: int) -> None:
    found, _ = clustering_of(tmp_path, np.linspace(0, 1, points)[:, None] + 0.5)
    assert found.stretching is None


def test_training_decides_it_and_says_so(tmp_path: Path) -> None:
    s = RNG.uniform(0, 1, (500, 2))
    _, made = clustering_of(tmp_path, s**3)
    config = make_config(str(tmp_path / "a.toml"), {**SPLIT, "preset": "smoke", "data.points": 500})
    said: list[str] = []
    whole = complete(config, made, said.append)
    assert len(whole.model["stretching"]) == 2
    assert any(line.startswith("model.stretching") and "varies by factors of" in line for line in said)
    assert complete(whole, made) == whole
    regular = complete(make_config(str(tmp_path / "a.toml"), {**SPLIT, "preset": "paper"}), made)
    assert regular.model["stretching"] is None
    run = train(config, tmp_path / "run")
    surrogate = ikno.load(run.path)
    assert torch.equal(surrogate.model.stretching.knots, torch.tensor(whole.model["stretching"]))  # type: ignore[union-attr]
