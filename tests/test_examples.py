"""Every example runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ikno.data.generators.elasticity import distance, hole, o_grid

ROOT = Path(__file__).parents[1]


def run(name: str, *words: str) -> str:
    """Return what an example prints."""
    result = subprocess.run([sys.executable, str(ROOT / "examples" / name), *words], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_demo(tmp_path: Path) -> None:
    shown = run("demo.py", "--size", "smoke", "--out", str(tmp_path / "out"))
    for words in ("$ ikno train", "nearest training sample", "other samples", "best of three rollouts"):
        assert words in shown
    for name in ("run-poisson-gauss/pictures/fields.png", "run-wave-c-sines/pictures/rollout.gif", "prediction.npz"):
        assert (tmp_path / "out" / name).stat().st_size > 1000


def test_shape(tmp_path: Path) -> None:
    shown = run("shape.py", "--size", "smoke", "--out", str(tmp_path / "out"))
    for words in ("$ ikno data generate elasticity", "Largest stress at the edge of the hole", "of 2 starts"):
        assert words in shown
    assert (tmp_path / "out" / "shapes.png").stat().st_size > 1000


@pytest.mark.slow
def test_shape_improves_the_true_objective(tmp_path: Path) -> None:
    """At the same area, from every start, as the solver finds it."""
    shown = run("shape.py", "--out", str(tmp_path / "out"))
    rows = re.findall(r"^ +\d+ +([\d.]+) +([\d.]+) +[-+][\d.]+% +([\d.]+) +([\d.]+)", shown, re.MULTILINE)
    before, after, area, kept = np.array(rows, float).T
    assert len(before) == 5
    assert (after < before).all()
    assert np.mean(after / before) < 0.85
    np.testing.assert_allclose(area, kept, rtol=2e-3)


def test_shape_has_the_geometry_of_the_generator() -> None:
    """Points, distances and area of the example, in torch, are those of the solver."""
    example = runpy.run_path(str(ROOT / "examples" / "shape.py"))
    c = np.random.default_rng(0).standard_normal((2, 5, 2))
    cell = example["Cell"](48, 4)
    points, gaps = cell.points(torch.from_numpy(c)).numpy(), cell.distance(torch.from_numpy(c)).numpy()
    for k, area in enumerate(example["area"](torch.from_numpy(c)).tolist()):
        expected = o_grid(hole(c[k]), 48, 4)[0]
        np.testing.assert_allclose(points[k], expected, atol=1e-12)
        np.testing.assert_allclose(gaps[k, :, 0], distance(hole(c[k]), expected), atol=2e-5)
        turn = np.linspace(0, 2 * np.pi, 4001)
        assert area == pytest.approx(np.pi * np.mean(hole(c[k])(turn[:-1]) ** 2), rel=1e-6)
