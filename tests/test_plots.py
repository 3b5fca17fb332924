"""Pictures of data sets that the tests write themselves in the released layout, and of made-up runs."""

from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from ikno.data.catalog import Arrays, Card
from ikno.data.files import open_data
from ikno.errors import UserError
from ikno.evaluation import Fields
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.layers import MLP
from ikno.plots import Canvas, plot_data, plot_errors, plot_fields, plot_kernels, plot_rollout, plot_training
from ikno.plots import fields as fields_module
from ikno.plots.canvas import percent
from ikno.plots.fields import plot_errors_of

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
    for targets in (("a", "c"), ("c",)):
        known = card(variables=("a", "b", "c"), targets=targets)
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


def test_conditions_that_are_constant_are_written_not_drawn(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", 2, 1, 2, 1, 3, False)
    known, widths = card(conditions=("f", "speed", "angle")), []
    for constant in (False, True):
        with h5py.File(path, "a") as file:
            if constant:
                file["c"][..., 1:] = [[[[2.5, 30.0]]], [[[3.5, 40.0]]]]  # pyright: ignore[reportIndexIssue]
        with open_data(path, known) as dataset:
            (out,) = plot_data(dataset, tmp_path / "a.png")
        widths.append(pixels(out).shape[1])
    assert widths[1] < 0.7 * widths[0]  # two columns instead of four


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


def test_random_clouds_have_no_holes() -> None:
    for seed in range(5):
        points = np.random.default_rng(seed).random((1024, 2))
        assert not np.ma.getmaskarray(Canvas(points, 150).image(np.ones(1024))).any()


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


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were written and closed, in order, still open to questions."""
    closed = []
    close = plt.close

    def note(figure: Any) -> None:
        closed.append(figure)
        close(figure)

    monkeypatch.setattr(plt, "close", note)
    return closed


def predicted(dim: int = 2, times: int = 1, variables: tuple[str, ...] = ("u",), **more: Any) -> Fields:
    """Return smooth fields and a prediction that is wrong by 0.1 (k + 1) at time k."""
    points = RNG.random((150, dim)).astype(np.float32)
    moments = np.linspace(0.0, 2.0, times)
    phase = moments[:, None, None] + np.arange(len(variables))
    truth = np.sin(5 * points[:, :1] + phase).astype(np.float32)
    prediction = truth + np.float32(0.1) * (1 + np.arange(times, dtype=np.float32))[:, None, None]
    base = {"truth": truth, "prediction": prediction, "times": tuple(moments.tolist()), "variables": variables}
    inputs = {"inputs": points[:, :1] + 3, "input_names": ("a",)}
    return Fields(**{"sample": 7, "points": points, **base, **inputs, **more})


def panels(figure: Any) -> list[Any]:
    """Return the axes that are no color bars, row by row."""
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


def texts(legend: Any) -> list[str]:
    return [t.get_text() for t in legend.get_texts()]


def line(axis: Any, label: str) -> Any:
    """Return the one line whose label starts like this."""
    (found,) = [x for x in axis.lines if str(x.get_label()).startswith(label)]
    return found


def test_fields_show_the_error_computed_by_hand(tmp_path: Path, figures: list[Any]) -> None:
    """|errors| sum to 0.5 + 0 + 1 + 0.25 = 1.75 and |truth| to 1 + 2 + 3 + 4 = 10: 17.5 percent."""
    points = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=np.float32)
    truth, prediction = np.array([1.0, -2, 3, -4]), np.array([1.5, -2, 2, -4.25])
    field = Fields(3, points, points[:, :1], truth[None, :, None], prediction[None, :, None], (0.0,), ("u",), ("a",))
    out = tmp_path / "new" / "a.png"
    assert plot_fields([field], out) == [out]
    pixels(out)
    (figure,) = figures
    titles = [axis.get_title() for axis in panels(figure)]
    assert titles == ["input a", "truth", "prediction", "relative $L^1$ error 17.5 %"]
    assert panels(figure)[0].get_ylabel() == "sample 3"
    shown = [axis.images[0] for axis in panels(figure)]
    assert shown[1].get_clim() == shown[2].get_clim()
    low, high = shown[3].get_clim()
    assert low == -high
    assert 0.9 < high <= 1.0  # the largest error
    corner = [int(i) for i in np.array(shown[3].get_array().shape) // 4]
    assert shown[3].get_array()[corner[0], corner[1]] == 0.5  # below left: too large, by a half
    assert shown[3].get_cmap().name != shown[2].get_cmap().name
    assert len(figure.axes) - len(panels(figure)) == 3  # a bar for the input, one for two, one for the error


def test_a_row_for_each_sample_and_variable_at_the_final_time(tmp_path: Path, figures: list[Any]) -> None:
    names = ("u", "v", "w", "p", "q")
    more = {"inputs": RNG.random((150, 3)).astype(np.float32), "input_names": ("a", "v", "u")}
    fields = [predicted(2, 3, names, **more, sample=k) for k in (4, 5)]
    plot_fields(fields, tmp_path / "a.png")
    axes = panels(figures[0])
    assert len(axes) == 2 * 4 * 4  # four variables at most
    labels = [axis.get_ylabel() for axis in axes[::4]]
    assert labels == [f"sample {k}, {name}" for k in (4, 5) for name in names[:4]]
    assert [axis.get_title() for axis in axes[:16:4]] == ["input u", "input v", "input a", "input a"]
    assert "t = 2" in figures[0].get_suptitle()
    for row, field in ((0, fields[0]), (5, fields[1])):
        v = row % 4
        values = Canvas(field.points).image(field.truth[-1, :, v])
        assert np.ma.allequal(axes[4 * row + 1].images[0].get_array(), values)
        error = 0.3 * 150 / np.abs(field.truth[-1, :, v]).sum()  # 0.3 too large everywhere
        assert axes[4 * row + 3].get_title() == f"relative $L^1$ error {100 * error:.3g} %"


def test_fields_without_inputs(tmp_path: Path, figures: list[Any]) -> None:
    bare = {"inputs": np.zeros((150, 0), np.float32), "input_names": ()}
    plot_fields([predicted(**bare), predicted(**bare)], tmp_path / "a.png")
    assert len(panels(figures[0])) == 6
    assert [axis.get_title() for axis in panels(figures[0])[:2]] == ["truth", "prediction"]


def test_fields_on_a_line(tmp_path: Path, figures: list[Any]) -> None:
    field = predicted(dim=1)
    plot_fields([field], tmp_path / "a.png")
    axes = panels(figures[0])
    assert len(axes) == len(figures[0].axes) == 4  # curves need no color bars
    order = np.argsort(field.points[:, 0])
    x, y = axes[2].lines[0].get_data()
    assert (x == field.points[order, 0]).all()
    assert (y == field.prediction[0, order, 0]).all()
    assert axes[1].get_ylim() == axes[2].get_ylim()
    assert axes[3].get_ylim()[0] == -axes[3].get_ylim()[1]


def test_fields_in_space(tmp_path: Path, figures: list[Any]) -> None:
    field = predicted(dim=3)
    (out,) = plot_fields([field], tmp_path / "a.png")
    pixels(out)
    axes = panels(figures[0])
    dots = [axis.collections[0] for axis in axes]
    assert dots[1].get_clim() == dots[2].get_clim()
    assert np.allclose(dots[3].get_array(), 0.1, atol=1e-6)
    assert "sample 7" in [t.get_text() for t in axes[0].texts]  # the axes and their labels are off


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_a_prediction_that_blew_up_is_drawn_on_the_scale_of_the_truth(
    tmp_path: Path, figures: list[Any], dim: int, bad: float
) -> None:
    field = predicted(dim)
    sound = predicted(dim, truth=field.truth, points=field.points)
    broken = field.prediction.copy()
    broken[:, :40] = bad
    plot_fields([predicted(dim, prediction=broken, truth=field.truth, points=field.points)], tmp_path / "a.png")
    plot_fields([sound], tmp_path / "b.png")
    first, second = (panels(f) for f in figures)
    if dim == 2:
        assert first[2].images[0].get_clim() == second[2].images[0].get_clim()
    if not np.isfinite(bad):
        assert first[3].get_title() == "relative $L^1$ error inf %"


def test_no_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sample to draw"):
        plot_fields([], tmp_path / "a.png")


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_rollout_is_a_row_each_of_truth_prediction_and_error(tmp_path: Path, figures: list[Any], dim: int) -> None:
    field = predicted(dim, 7)
    picture, animation = plot_rollout(field, tmp_path / "new" / "a.png")
    assert (picture, animation) == (tmp_path / "new" / "a.png", tmp_path / "new" / "a.gif")
    pixels(picture)
    still, *frames = figures
    moving = frames[-1]
    axes = panels(still)
    assert len(axes) == 15
    assert [axis.get_title() for axis in axes[:5]] == ["t = 0", "t = 0.6667", "t = 1", "t = 1.333", "t = 2"]
    for axis, k in zip(axes[10:], (0, 2, 3, 4, 6), strict=True):
        error = 0.1 * (k + 1) * 150 / np.abs(field.truth[k]).sum()
        assert axis.get_title() == f"relative $L^1$ error {100 * error:.3g} %"
    if dim == 2:
        assert len({axis.images[0].get_clim() for axis in axes[:10]}) == 1
        assert axes[10].images[0].get_clim()[1] == pytest.approx(0.7, abs=1e-5)  # of all times
    if dim < 3:
        assert [axis.get_ylabel() for axis in axes[::5]] == ["truth u", "prediction u", "error u"]
    assert len(panels(moving)) == 3
    with Image.open(animation) as image:
        assert getattr(image, "n_frames", 1) == 7
    assert moving.get_suptitle() == "sample 7, t = 2"
    last = panels(moving)
    assert last[2].get_title() == axes[14].get_title()
    if dim == 2:
        wanted = Canvas(field.points).image(field.prediction[6, :, 0])
        assert np.ma.allequal(last[1].images[0].get_array(), wanted)
    if dim == 1:
        assert np.allclose(last[2].lines[0].get_ydata(), 0.7, atol=1e-6)


def test_a_rollout_of_several_variables_and_few_times(tmp_path: Path, figures: list[Any]) -> None:
    plot_rollout(predicted(2, 2, ("u", "v")), tmp_path / "a.png")
    assert [len(panels(f)) for f in figures] == [2 * 3 * 2, 2 * 3, 2 * 3]
    labels = [axis.get_ylabel() for axis in panels(figures[0])[::2]]
    assert labels == [f"{part} {v}" for v in "uv" for part in ("truth", "prediction", "error")]


def test_a_steady_prediction_is_no_rollout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="several times, found 1"):
        plot_rollout(predicted(), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def record(epoch: int, loss: float | None, validation: float | None, rate: float = 1e-3) -> dict[str, Any]:
    return {"epoch": epoch, "step": 32 * epoch, "loss": loss, "validation": validation, "learning_rate": rate}


def test_training_curves_and_events(tmp_path: Path, figures: list[Any]) -> None:
    values = [(0.9, None), (0.5, 0.7), (0.4, None), (0.3, 0.2), (0.2, 0.25)]
    log = [record(k + 1, loss, error, 1e-3 / (k + 1)) for k, (loss, error) in enumerate(values)]
    log[2:2] = [{"event": "skipped", "step": 16}, {"event": "resumed", "step": 64}, {"event": "skipped", "step": 176}]
    (out,) = plot_training(log, tmp_path / "a.png")
    pixels(out)
    top, bottom = panels(figures[0])
    assert top.get_yscale() == bottom.get_yscale() == "log"
    assert bottom.get_xlabel() == "epoch"
    loss, validation = line(top, "training loss"), line(top, "validation error")
    assert np.array_equal(loss.get_xdata(), [1, 2, 3, 4, 5])
    assert np.array_equal(loss.get_ydata(), [0.9, 0.5, 0.4, 0.3, 0.2])
    assert np.array_equal(validation.get_xdata(), [2, 4, 5])  # no gap where there was no validation
    assert np.array_equal(validation.get_ydata(), [0.7, 0.2, 0.25])
    assert line(top, "best: 0.2 at epoch 4").get_xdata() == [4]
    assert np.allclose(bottom.lines[0].get_ydata(), 1e-3 / np.arange(1, 6))
    # 32 steps are an epoch, also after the last record.
    assert np.allclose(line(top, "skipped (2)").get_xdata(), [0.5, 5.5])
    assert np.allclose(line(top, "resumed (1)").get_xdata(), [2.0])
    assert max(line(top, "skipped").get_ydata()) < 0.1  # a share of the height
    assert len(texts(top.get_legend())) == 5


@pytest.mark.parametrize(
    "log",
    [
        [record(1, 0.5, None)],
        [record(1, 0.5, None, 0.0), {"epoch": 2, "step": 64, "loss": 0.4}],
        [record(1, None, None), record(2, float("nan"), float("inf"))],
        [record(k, 1 / k, 2 / k) for k in range(1, 200)],
    ],
)
def test_logs_with_missing_numbers(tmp_path: Path, figures: list[Any], log: list[dict[str, Any]]) -> None:
    (out,) = plot_training(log, tmp_path / "a.png")
    assert out.stat().st_size > 1000
    known = [r["loss"] for r in log if r["loss"] is not None and np.isfinite(r["loss"])]
    drawn = [list(x.get_ydata()) for x in panels(figures[0])[0].lines if x.get_label() == "training loss"]
    assert drawn == ([known] if known else [])


@pytest.mark.parametrize("log", [[], [{"event": "skipped", "step": 5}]])
def test_a_log_without_a_loss_is_refused(tmp_path: Path, log: list[dict[str, Any]]) -> None:
    with pytest.raises(UserError, match="no record with a loss"):
        plot_training(log, tmp_path / "a.png")


MAIN = "median L1 per component"


def evaluation(errors: list[Any], **more: Any) -> dict[str, Any]:
    """Return what an evaluation of a steady problem holds, as far as it is drawn."""
    over_time = {"direct": {"times": [0.0], "errors": [0.1]}}
    base = {"main_metric": MAIN, "best": {"strategy": "direct"}, "error_against_time": over_time}
    return {"sample_errors": errors, "baselines": {}, **base, **more}


def test_sorted_errors_and_their_median(tmp_path: Path, figures: list[Any]) -> None:
    baselines = {"training mean": {"mean L1": 0.9, MAIN: 0.5}, "no change": {MAIN: float("inf")}}
    (out,) = plot_errors(evaluation([0.3, 0.1, 0.2, 0.4], baselines=baselines), tmp_path / "a.png")
    pixels(out)
    (axis,) = panels(figures[0])
    curve = line(axis, "4 samples")
    assert np.allclose(curve.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert np.allclose(curve.get_ydata(), [0.1, 0.1, 0.2, 0.3, 0.4])  # below 0.2 lies half of the samples
    assert curve.get_drawstyle() == "steps-pre"
    marked = line(axis, "median 25.00 %")
    assert (*marked.get_xdata(), *marked.get_ydata()) == pytest.approx((0.5, 0.25))
    assert list(line(axis, "training mean 50.00 %").get_ydata()) == [0.5, 0.5]
    assert line(axis, "training mean").is_dashed()
    assert len(axis.lines) == 3  # an infinite baseline is not drawn
    assert axis.get_yscale() == "linear"
    assert axis.get_ylabel() == "relative $L^1$ error, %"
    assert axis.yaxis.get_major_formatter()(0.25) == "25"


def test_errors_against_time(tmp_path: Path, figures: list[Any]) -> None:
    curves = {
        "direct": {"times": [1.0, 2.0], "errors": [0.01, 0.02]},
        "star": {"times": [1.0, 2.0], "errors": [0.02, None]},
    }
    result = evaluation([0.01, 0.03], error_against_time=curves, baselines={"no change": {MAIN: 0.9}})
    plot_errors({**result, "benchmark": "made-up"}, tmp_path / "a.png")
    first, second = panels(figures[0])
    assert "made-up" in figures[0].get_suptitle()
    assert second.get_xlabel() == "time"
    assert np.allclose(line(second, "direct").get_data(), [[1, 2], [0.01, 0.02]])
    assert np.isnan(line(second, "star").get_ydata()[1])  # infinitely wrong
    assert first.get_yscale() == second.get_yscale() == "log"  # 0.9 is 90 times 0.01
    assert [list(axis.lines[-1].get_ydata()) for axis in (first, second)] == [[0.9, 0.9], [0.9, 0.9]]
    assert texts(second.get_legend()) == ["direct", "star"]
    assert line(first, "2 samples, direct")


def test_samples_that_diverged_end_the_curve(tmp_path: Path, figures: list[Any]) -> None:
    plot_errors(evaluation([float("inf"), 0.2, None, 0.1, float("nan")]), tmp_path / "a.png")
    axis = panels(figures[0])[0]
    drawn = line(axis, "5 samples").get_ydata()
    assert np.allclose(drawn[:3], [0.1, 0.1, 0.2])
    assert np.isnan(drawn[3:]).all()
    assert len(axis.lines) == 1  # the median is infinite


def test_errors_that_are_not_relative_are_no_percentages(tmp_path: Path, figures: list[Any]) -> None:
    plot_errors(evaluation([0.02, 0.04], main_metric="normalized MSE"), tmp_path / "a.png")
    axis = panels(figures[0])[0]
    assert axis.get_ylabel() == "normalized MSE"
    assert line(axis, "median 0.03")


@pytest.mark.parametrize("errors", [[0.1], [0.0, 0.0], [float("inf")]])
def test_few_errors_can_be_drawn(tmp_path: Path, errors: list[float]) -> None:
    (out,) = plot_errors(evaluation(errors), tmp_path / "a.png")
    assert out.stat().st_size > 1000


def test_an_evaluation_without_errors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no errors of samples"):
        plot_errors({"main_metric": MAIN}, tmp_path / "a.png")


def small(dim: int, **more: Any) -> IKNO:
    torch.manual_seed(0)
    return IKNO(1, 1, dim, IKNOSettings(d_model=8, num_heads=2, num_layers=1, **more))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_kernels_follow_their_formulas(tmp_path: Path, figures: list[Any], dim: int) -> None:
    sizes, lower, upper = (9, 6, 5)[:dim], (-1.0, 0.0, 0.0)[:dim], (1.0, 3.0, 1.0)[:dim]
    settings = {"grid_size": sizes, "grid_min": lower, "grid_max": upper}
    model = small(dim, num_kernels=2, kernel_alpha=(-0.5, -2.0), **settings)
    for kernel in model.branches:
        for p in kernel.parameters():
            p.data += 0.3 * torch.rand_like(p)  # as if learned: every axis its own
    (out,) = plot_kernels(model, tmp_path / "a.png")
    pixels(out)
    axes = panels(figures[0])
    assert len(axes) == 2 * dim
    for j in range(dim):
        top, bottom = axes[j], axes[dim + j]
        for q, kernel in enumerate(model.branches):
            c, beta, gamma = (getattr(kernel, name)[j].item() for name in ("c", "beta", "gamma"))
            alpha = kernel.alpha.item()
            r, k = (np.asarray(x) for x in top.lines[q].get_data())
            assert (r[0], r[-1]) == (0, upper[j] - lower[j])
            assert np.allclose(k, c * (np.exp(-((beta * r) ** 2)) + np.exp(-gamma * r)))
            y = np.linspace(lower[j], upper[j], sizes[j])
            distance = np.abs(y[:, None] - y)
            gram = c * (np.exp(-((beta * distance) ** 2)) + np.exp(-gamma * distance))
            wanted = np.linalg.inv(np.eye(sizes[j]) - alpha * gram) @ gram
            assert np.allclose(bottom.lines[q].get_xdata(), y)
            assert np.allclose(bottom.lines[q].get_ydata(), wanted[sizes[j] // 2], atol=1e-6)
            numbers = [rf"\beta = {beta:.3g}", rf"\gamma = {gamma:.3g}", f"c = {c:.3g}", rf"\alpha = {alpha:.3g}"]
            label = texts(top.get_legend())[q]
            assert label.startswith(f"branch {q + 1}:")
            assert all(f"${n}$" in label for n in numbers)
        colors = [to_hex(x.get_color()) for x in top.lines]
        assert colors == [to_hex(x.get_color()) for x in bottom.lines]
        assert len(set(colors)) == 2


@pytest.mark.parametrize("model", [MLP(2, 4, 1), small(2, kernel="linear_window", grid_size=4)])
def test_models_without_axis_kernels_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    with pytest.raises(UserError, match="no learned axis kernels"):
        plot_kernels(model, tmp_path / "a.png")


def test_a_singular_resolvent_is_said(tmp_path: Path) -> None:
    """One latent point: K = 2 c, singular at alpha = 1 / (2 c)."""
    model = small(1, num_kernels=1, grid_size=1, alpha_sign="free", kernel_alpha=(0.5,))
    with pytest.raises(UserError, match="singular"):
        plot_kernels(model, tmp_path / "a.png")
    assert plt.get_fignums() == []


def test_pictures_of_runs_have_the_suffix_of_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "a.gif"
    calls = [
        lambda: plot_fields([predicted()], out),
        lambda: plot_rollout(predicted(times=2), out),
        lambda: plot_training([record(1, 0.5, None)], out),
        lambda: plot_errors(evaluation([0.1]), out),
        lambda: plot_kernels(small(1, grid_size=4), out),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"a picture is a \.png, \.pdf or \.svg file"):
            call()
    assert not list(tmp_path.iterdir())


def test_errors_of_several_models(tmp_path: Path) -> None:
    """One scale for all, in which half of the models fit; a prediction that is not finite does not spoil it."""
    rng = np.random.default_rng(0)
    points, truth = rng.random((60, 2)), rng.normal(size=(1, 60, 1))
    made = {}
    for size, name in ((0.01, "good"), (0.1, "fair"), (np.nan, "broken")):
        prediction = truth + size
        made[name] = Fields(3, points, truth[0], truth, prediction, (0.0,), ("u",), ("f",))
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        draw = fields_module.stack
        patch.setattr(fields_module, "stack", lambda rows: shown.extend(rows) or draw(rows))
        (file,) = plot_errors_of(made, tmp_path / "errors.png", columns=2)
    assert file.stat().st_size > 1000
    panels = [p for row in shown for p in row.panels]
    assert [len(row.panels) for row in shown] == [2, 2]
    assert [p.colors[1] for p in panels[1:]] == pytest.approx([0.1] * 3)
    share = np.abs(truth).sum() / 60
    assert panels[1].title == f"good: {percent(0.01 / share)}"
    with pytest.raises(UserError, match="no model to draw"):
        plot_errors_of({}, tmp_path / "none.png")


def test_a_last_row_that_goes_on_has_no_color_bar_of_its_own(tmp_path: Path, figures: list[Any]) -> None:
    plot_errors_of({f"model {k}": predicted() for k in range(6)}, tmp_path / "errors.png", columns=3)
    bars = [axis for axis in figures[0].axes if axis.get_label() == "<colorbar>"]
    assert len(panels(figures[0])) == 9  # three rows, the last with one
    assert len(bars) == 3  # the truth, the errors beside it, those of the second row
