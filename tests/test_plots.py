"""Pictures of data sets that the tests write themselves in the released layout."""

from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from ikno.data.catalog import Arrays, Card
from ikno.data.files import open_data
from ikno.errors import UserError
from ikno.plots import Canvas, plot_data

RNG = np.random.default_rng(0)


def write(path: Path, samples: int, times: int, dim: int, variables: int, conditions: int, shared: bool) -> Path:
    """Write random points and smooth values that change with sample and time."""
    n = 120
    x = RNG.random((1 if shared else samples, 1, n, dim)).astype(np.float32)
    phase = np.arange(samples)[:, None, None, None] + np.arange(times)[None, :, None, None]
    u = np.sin(5 * x[..., :1] + phase + np.arange(variables))
    with h5py.File(path, "w") as file:
        file["u"], file["x"] = u.astype(np.float32), x
        if conditions:
            file["c"] = RNG.random((samples, 1, n, conditions)).astype(np.float32)
    return path


def card(dim: int = 2, times: int = 1, conditions: tuple[str, ...] = (), **more) -> Card:
    in_time = {"times": (0.0, 1.0), "snapshots": times} if times > 1 else {}
    arrays = Arrays(conditions="c" if conditions else None)
    base = {"name": "made-up", "variables": ("u",), "domain": ((0.0, 1.0),) * dim, "arrays": arrays}
    return Card.model_validate({**base, **in_time, "conditions": conditions, **more})


def pixels(path: Path) -> np.ndarray:
    """Return the colors of a picture, and check that it is one with something in it."""
    assert path.stat().st_size > 1000
    with Image.open(path) as image:
        found = np.asarray(image.convert("RGB"))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 20
    return found


@pytest.mark.parametrize("shared", [True, False])
def test_steady_sets_in_two_dimensions(tmp_path: Path, shared: bool) -> None:
    path = write(tmp_path / "a.nc", 2, 1, 2, 1, 1, shared)
    known = card(conditions=("f",), cloud="shared" if shared else "per sample")
    with open_data(path, known) as dataset:
        assert dataset.shared == shared
        sizes = []
        for samples in (1, 2, 9):  # there are only 2
            out = tmp_path / "new" / f"{samples}.png"
            assert plot_data(dataset, out, samples) == [out]
            sizes.append(pixels(out).shape)
    assert sizes[1][0] > 1.6 * sizes[0][0]  # a row per sample
    assert sizes[1] == sizes[2]
    assert sizes[0][1] == sizes[1][1]
    assert plt.get_fignums() == []


def test_a_set_without_conditions_and_with_an_inactive_variable(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 2, 1, 2, 3, 0, True)
    widths = []
    for active in (("a", "c"), ("c",)):
        known = card(variables=("a", "b", "c"), active=active)
        with open_data(path, known) as dataset:
            (out,) = plot_data(dataset, tmp_path / "a.png")
        widths.append(pixels(out).shape[1])
    assert widths[0] > 1.5 * widths[1]


@pytest.mark.parametrize("conditions", [(), ("speed",)])
def test_sets_in_time_give_snapshots_and_an_animation(tmp_path: Path, conditions: tuple[str, ...]) -> None:
    path = write(tmp_path / "a.nc", 2, 5, 2, 1, len(conditions), True)
    with open_data(path, card(times=5, conditions=conditions)) as dataset:
        picture, animation = plot_data(dataset, tmp_path / "b.png", columns=3)
    assert (picture, animation) == (tmp_path / "b.png", tmp_path / "b.gif")
    height, width, _ = pixels(picture).shape
    assert (height > 0.6 * width) == bool(conditions)  # three columns; the condition is a second row
    with Image.open(animation) as image:
        assert getattr(image, "n_frames", 1) == 5
        frames = []
        for k in range(5):
            image.seek(k)
            frames.append(np.asarray(image.convert("RGB")).copy())
    for k in range(4):  # not only the title changes
        bottom = len(frames[k]) // 2
        assert (frames[k][bottom:] != frames[k + 1][bottom:]).any(-1).mean() > 0.1
    assert plt.get_fignums() == []


def test_more_columns_than_snapshots(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 1, 2, 2, 1, 0, True)
    widths = []
    for columns in (2, 6):
        with open_data(path, card(times=2, cloud="shared")) as dataset:
            picture, _ = plot_data(dataset, tmp_path / "b.png", columns=columns)
        widths.append(pixels(picture).shape[1])
    assert widths[0] == widths[1]


def test_three_dimensions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 2, 1, 3, 1, 1, False)
    with open_data(path, card(dim=3, conditions=("f",))) as dataset:
        (out,) = plot_data(dataset, tmp_path / "a.png")
    pixels(out)


def test_three_dimensions_in_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 2, 3, 3, 1, 0, False)
    with open_data(path, card(dim=3, times=3)) as dataset:
        picture, animation = plot_data(dataset, tmp_path / "a.png")
    pixels(picture)
    with Image.open(animation) as image:
        assert getattr(image, "n_frames", 1) == 3


@pytest.mark.parametrize(("suffix", "start"), [(".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_other_kinds_of_pictures(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = write(tmp_path / "a.nc", 1, 1, 2, 1, 0, True)
    with open_data(path, card()) as dataset:
        (out,) = plot_data(dataset, (tmp_path / "a").with_suffix(suffix))
    assert out.read_bytes().startswith(start)
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.gif", "a.txt", ".png"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.nc", 1, 1, 2, 1, 0, True)
    with (
        open_data(path, card()) as dataset,
        pytest.raises(UserError, match=r"a picture is a \.png, \.pdf or \.svg file"),
    ):
        plot_data(dataset, tmp_path / "new" / name)
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]


def test_one_dimension_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 1, 1, 1, 1, 0, True)
    with open_data(path, card(dim=1)) as dataset, pytest.raises(UserError, match="two and three dimensions"):
        plot_data(dataset, tmp_path / "new" / "a.png")
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]


def test_constant_values_can_be_drawn(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["u"], file["x"] = np.full((2, 1, 50, 1), 3.0), RNG.random((1, 1, 50, 2))
    with open_data(tmp_path / "a.nc", card()) as dataset:
        (out,) = plot_data(dataset, tmp_path / "a.png")
    pixels(out)


def test_pixels_show_their_nearest_point() -> None:
    """The picture is 40 pixels wide and 20 high on the box around the points; row 0 is at the bottom."""
    points = np.concatenate([RNG.random((300, 2)), [[0.0, 0.0], [1.0, 1.0]]]) * [4, 2] + [-1, 7]
    values = RNG.random(302)
    image = Canvas(points, 40).image(values)
    assert image.shape == (20, 40)
    for row in range(20):
        for column in range(40):
            center = np.array([-1 + (column + 0.5) * 0.1, 7 + (row + 0.5) * 0.1])
            nearest = int(((points - center) ** 2).sum(1).argmin())
            assert image.data[row, column] == values[nearest]


def test_holes_stay_empty_and_the_rest_is_filled() -> None:
    steps = np.linspace(0, 1, 41)
    grid = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    hole = np.linalg.norm(grid - [0.4, 0.6], axis=1) < 0.2
    canvas = Canvas(grid[~hole], 100)
    empty = np.ma.getmaskarray(canvas.image(np.ones((~hole).sum())))
    centers = (np.arange(100) + 0.5) / 100
    distance = np.hypot(centers[None, :] - 0.4, centers[:, None] - 0.6)
    assert empty[distance < 0.12].all()
    assert not empty[distance > 0.2].any()


def test_a_picture_is_upright(tmp_path: Path) -> None:
    """Large values where y is large: the top of the picture is yellow, the bottom dark."""
    steps = np.linspace(0, 1, 30)
    grid = np.stack(np.meshgrid(steps, steps), -1).reshape(1, 1, -1, 2)
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["x"], file["u"] = grid, grid[..., 1:]
    with open_data(tmp_path / "a.nc", card()) as dataset:
        (out,) = plot_data(dataset, tmp_path / "a.png")
    found = pixels(out).astype(int)
    column = found[:, int(found.shape[1] * 0.4)]
    inside = column[np.ptp(column, axis=1) > 60]  # colored, neither text nor background
    assert len(inside) > 100
    assert inside[5, 0] > 200  # viridis ends in yellow, with red, and starts in violet, without
    assert inside[-5, 0] < 90
