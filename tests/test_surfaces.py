"""Surfaces in space: what pixels show against geometry by hand, colors against a known field, and dots without VTK."""

import logging
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from ikno.evaluation import Fields
from ikno.plots import plot_fields, surfaces
from ikno.plots.canvas import Scatter, Surface, canvas_of
from ikno.plots.surfaces import VIEWS, WIDTH, discs, seen


def axes_of(view: tuple[float, float]) -> np.ndarray:
    """Return the directions to the right, up and to the viewer."""
    a, e = np.deg2rad(view)
    viewer = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    return np.stack([right, np.cross(viewer, right), viewer])


def sphere(count: int = 4000) -> np.ndarray:
    """Return points spread evenly over the unit sphere."""
    z, turn = 1 - 2 * (np.arange(count) + 0.5) / count, np.pi * (1 + 5**0.5) * np.arange(count)
    r = np.sqrt(1 - z**2)
    return np.stack([r * np.cos(turn), r * np.sin(turn), z], 1).astype(np.float32)


def views_of(found: surfaces.Seen) -> list[tuple[np.ndarray, ...]]:
    """Return index, weights and empty pixels of each view; all views of a sphere have the same size."""
    parts = (np.split(getattr(found, name), len(VIEWS)) for name in ("index", "weights", "empty"))
    return list(zip(*parts, strict=True))


@pytest.fixture(scope="module")
def ball() -> surfaces.Seen:
    found = seen(sphere())
    assert found is not None
    return found


def test_pixels_of_a_cloud_show_the_near_side(ball: surfaces.Seen) -> None:
    """On a sphere: a full circle of pixels, each with a point close to its place, none from behind."""
    spacing = np.sqrt(4 * np.pi / 4000)
    for view, (index, weights, empty) in zip(VIEWS, views_of(ball), strict=True):
        rows, columns = empty.shape
        assert columns == WIDTH
        pixel = 2 * 1.04 / WIDTH  # the sphere with a margin fills the width
        places = (sphere()[index] * weights[..., None]).sum(2) @ axes_of(view).T
        y, x = np.meshgrid(rows / 2 - 0.5 - np.arange(rows), np.arange(columns) - columns / 2 + 0.5, indexing="ij")
        inside = pixel * np.hypot(x, y) < 1 - spacing
        assert not empty[inside].any()
        assert empty[pixel * np.hypot(x, y) > 1 + 2 * spacing].all()
        off = np.hypot(places[..., 0] - pixel * x, places[..., 1] - pixel * y)[inside]
        assert off.max() < 2 * spacing
        assert off.mean() < 0.5 * spacing
        assert (places[..., 2][inside] > 0).all()


def test_pixels_of_triangles_are_interpolated() -> None:
    """Two squares, one before the other: the near one is seen, and each pixel's place is found to rounding."""
    right, up, viewer = axes_of(VIEWS[0])
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) @ np.stack([right, up])
    points = np.concatenate([square - 0.5 * viewer, square + 0.5 * viewer]).astype(np.float32)
    triangles = np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
    found = seen(points, triangles)
    assert found is not None
    index, weights, empty = (part[:WIDTH] for part in (found.index, found.weights, found.empty))
    middle = slice(WIDTH // 2 - 200, WIDTH // 2 + 200)
    assert not empty[middle, middle].any()
    assert (index[middle, middle] >= 4).all()
    places = (points[index] * weights[..., None]).sum(2)[middle, middle] @ axes_of(VIEWS[0]).T
    steps = 2.08 / WIDTH * (np.arange(-200, 200) + 0.5)
    np.testing.assert_allclose(places[..., 0], np.broadcast_to(steps, (400, 400)), atol=1e-5)
    np.testing.assert_allclose(places[..., 1], np.broadcast_to(-steps[:, None], (400, 400)), atol=1e-5)


def test_colors_follow_the_field(ball: surfaces.Seen) -> None:
    """A field that grows to the right of the first view: blue on the left, red on the right, pale in the middle."""
    surface = Surface(ball)
    colors = surface.image((sphere() @ axes_of(VIEWS[0])[0]).astype(np.float32), (-1.0, 1.0, "RdBu_r"))
    left, middle, right = (colors[WIDTH // 2, WIDTH // 2 + k] for k in (-180, 0, 180))
    assert left[2] > 1.5 * left[0]
    assert right[0] > 1.5 * right[2]
    assert np.ptp(middle[:3]) < 0.05
    assert colors[0, 0, 3] == 0
    values = np.ones(4000, np.float32)
    values[sphere()[:, 2] > 0] = np.nan
    assert (surface.image(values, (0.0, 2.0, "viridis"))[..., 3] == 0).sum() > ball.empty.sum() + 1000


def test_pictures_of_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truth, prediction and error on a surface, with names along the color bars; the file is not blank."""
    x = sphere()
    truth = x[None, :, :1]
    prediction = truth + 0.1 * x[None, :, 1:2]
    field = Fields(0, x, np.zeros((len(x), 0), np.float32), truth, prediction, (0.0,), ("p",), ())
    figures: list[Any] = []
    close = plt.close
    monkeypatch.setattr(plt, "close", lambda figure: figures.append(figure))
    (path,) = plot_fields([field], tmp_path / "fields.png")
    shown = [axis for axis in figures[0].axes if axis.images]
    assert [axis.get_title() for axis in shown][:2] == ["truth", "prediction"]
    bars = [axis.get_ylabel() for axis in figures[0].axes if not axis.images]
    assert sorted(bars) == ["error of p", "p"]
    for figure in figures:
        close(figure)
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 500
    assert 0.1 < (pixels < 250).any(1).mean() < 0.9


def test_volumes_and_odd_clouds_are_dots(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    for points in (rng.random((500, 3)), np.ones((50, 3)), rng.random((5, 3))):
        assert discs(points) is None
        assert isinstance(canvas_of(points.astype(np.float32)), Scatter)
    assert not caplog.records


@pytest.mark.parametrize("fault", ["missing", "dies", "endless"])
def test_without_vtk_surfaces_are_dots(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One line in the log says why, once."""
    monkeypatch.setattr(surfaces, "_failures", [])
    if fault == "missing":
        monkeypatch.setattr(surfaces, "find_spec", lambda name: None)
    else:
        program = tmp_path / "python"
        program.write_text("#!/bin/sh\n" + ("echo no display >&2; kill -6 $$" if fault == "dies" else "exec sleep 60"))
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(surfaces, "SECONDS", 0.5)
    with caplog.at_level(logging.WARNING, "ikno.plots"):
        assert all(isinstance(canvas_of(sphere(200)), Scatter) for _ in range(2))
    (record,) = caplog.records
    said = record.getMessage()
    assert "\n" not in said
    expected = {"missing": "pip install 'ikno[vtk]'", "dies": "exit code -6: no display", "endless": "did not end"}
    assert said.startswith("surfaces are drawn as dots: ")
    assert expected[fault] in said
