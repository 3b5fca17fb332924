"""Pictures. The only place that knows matplotlib; nothing is shown on a screen, everything is written to files."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from scipy.spatial import KDTree

from ikno.data.catalog import Card
from ikno.data.files import Dataset
from ikno.errors import UserError

SIGNED = "RdBu_r"
PLAIN = "viridis"


def plot_data(dataset: Dataset, out: Path, samples: int = 3, columns: int = 6) -> list[Path]:
    """Draw a data set and return the files: inputs and solutions of some samples, or snapshots and an animation."""
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"{out}: a picture is a .png, .pdf or .svg file")
    if dataset.card.dim == 1:
        raise UserError(f"{dataset.card.name}: pictures are for two and three dimensions")
    out.parent.mkdir(parents=True, exist_ok=True)
    if dataset.card.steady:
        return [_steady(dataset, out, min(samples, len(dataset)))]
    return [_snapshots(dataset, out, columns), _animation(dataset, out.with_suffix(".gif"))]


def _steady(dataset: Dataset, out: Path, samples: int) -> Path:
    card = dataset.card
    names = [*card.conditions[:6], *card.active]
    fields = {}
    for i in range(samples):
        made = dataset[i]
        rows = [made.values[0, :, card.variables.index(v)] for v in card.active]
        if made.conditions is not None:
            rows = [*made.conditions[0].T[: len(card.conditions[:6])], *rows]
        fields[i] = (_canvas(made.points), rows)
    figure, axes = _grid(samples, len(names), card)
    for i, (canvas, rows) in fields.items():
        for j, (name, values) in enumerate(zip(names, rows, strict=True)):
            everywhere = np.concatenate([f[1][j] for f in fields.values()])
            shown = _draw(axes[i][j], canvas, values, _limits(everywhere))
            axes[i][j].set_title(name if i == 0 else "", fontsize=10)
            figure.colorbar(shown, ax=axes[i][j], shrink=0.8)
        axes[i][0].set_ylabel(f"sample {i}")
    return _save(figure, out, f"{card.name}: inputs and solution")


def _snapshots(dataset: Dataset, out: Path, columns: int) -> Path:
    card, made = dataset.card, dataset[0]
    times = _times(card)
    chosen = np.unique(np.linspace(0, len(times) - 1, columns).round().astype(int))
    extra = [] if made.conditions is None else list(card.conditions[:1])
    names = [*extra, *card.active]
    figure, axes = _grid(len(names), len(chosen), card)
    canvas = _canvas(made.points)
    for i, name in enumerate(names):
        if name in extra:
            assert made.conditions is not None
            values = made.conditions[:1, :, 0]
            for axis in axes[i][1:]:
                axis.set_axis_off()
        else:
            values = made.values[..., card.variables.index(name)]
        for j, k in enumerate(chosen[: 1 if name in extra else None]):
            shown = _draw(axes[i][j], canvas, values[k], _limits(values))
            axes[i][j].set_title(f"t = {times[k]:.3g}" if i == 0 else "", fontsize=10)
        figure.colorbar(shown, ax=list(axes[i]), shrink=0.8)
        axes[i][0].set_ylabel(name)
    return _save(figure, out, f"{card.name}: sample 0")


def _animation(dataset: Dataset, out: Path) -> Path:
    card, made = dataset.card, dataset[0]
    times = _times(card)
    figure, axes = _grid(1, len(card.active), card)
    canvas = _canvas(made.points)
    shown = []
    for j, name in enumerate(card.active):
        values = made.values[..., card.variables.index(name)]
        shown.append((_draw(axes[0][j], canvas, values[0], _limits(values)), values))
        figure.colorbar(shown[-1][0], ax=axes[0][j], shrink=0.8)
        axes[0][j].set_title(name, fontsize=10)

    def frame(k: int) -> None:
        for drawn, values in shown:
            drawn.set_array(canvas.image(values[k]) if isinstance(canvas, Canvas) else values[k][_shown(canvas)])
        figure.suptitle(f"{card.name}, t = {times[k]:.3g}")

    FuncAnimation(figure, frame, frames=len(times)).save(out, writer=PillowWriter(fps=5), dpi=60)
    plt.close(figure)
    return out


def _times(card: Card) -> Float[np.ndarray, "times"]:
    assert card.times is not None
    return np.linspace(*card.times, card.snapshots)


def _grid(rows: int, columns: int, card: Card):
    options = {"projection": "3d"} if card.dim == 3 else {}
    size = (3.0 * columns + 0.5, 2.7 * rows + 0.6)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", subplot_kw=options)


def _limits(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """Return the range of colors: symmetric about 0 where values of both signs matter; outliers do not stretch it."""
    low, high = np.quantile(values, [0.002, 0.998])
    if low < -0.05 * abs(high) and high > 0.05 * abs(low):
        high = max(-low, high)
        low = -high
    return float(low), float(high if high > low else low + 1)


class Canvas:
    """A cloud as a picture: every pixel shows its nearest point; pixels far from all points (holes) stay empty."""

    def __init__(self, points: Float[np.ndarray, "points 2"], pixels: int = 220) -> None:
        self.low, self.high = points.min(0), points.max(0)
        spans = np.maximum(self.high - self.low, 1e-30)
        counts = np.maximum((pixels * spans / spans.max()).astype(int), 2)
        axes = [a + (np.arange(n) + 0.5) * s / n for a, s, n in zip(self.low, spans, counts, strict=True)]
        where = np.stack(np.meshgrid(*axes, indexing="xy"), -1)
        tree = KDTree(points)
        distance, self.index = tree.query(where)
        neighbors = tree.query(points, k=min(5, len(points)))[0][:, -1]
        self.empty = distance > 1.6 * neighbors[self.index] + 1e-9 * spans.max()

    def image(self, values: Float[np.ndarray, "points"]) -> np.ma.MaskedArray:
        """Return the pixels."""
        return np.ma.masked_array(values[self.index], self.empty)


def _draw(
    axis: Axes,
    canvas: Canvas | Float[np.ndarray, "points 3"],
    values: Float[np.ndarray, "points"],
    limits: tuple[float, float],
) -> ScalarMappable:
    """Draw one field and return what a color bar needs."""
    colors = SIGNED if limits[0] == -limits[1] else PLAIN
    if isinstance(canvas, Canvas):
        extent = (canvas.low[0], canvas.high[0], canvas.low[1], canvas.high[1])
        options = {"vmin": limits[0], "vmax": limits[1], "cmap": colors, "interpolation": "nearest"}
        axis.set(xticks=[], yticks=[])
        return axis.imshow(canvas.image(values), origin="lower", extent=extent, **options)
    keep = _shown(canvas)
    options = {"c": values[keep], "vmin": limits[0], "vmax": limits[1], "cmap": colors, "linewidths": 0}
    shown = axis.scatter(*canvas[keep].T, s=1, **options)
    spans = np.ptp(canvas, 0)
    axis.set_box_aspect(spans / spans.max())  # pyright: ignore[reportArgumentType]
    axis.set_axis_off()
    return shown


def _shown(points: Float[np.ndarray, "points 3"]) -> slice:
    """Return which points of a large cloud are drawn."""
    return slice(None, None, max(len(points) // 40_000, 1))


def _canvas(points: Float[np.ndarray, "points dim"]) -> "Canvas | Float[np.ndarray, 'points 3']":
    return Canvas(points) if points.shape[1] == 2 else points


def _save(figure, out: Path, title: str) -> Path:
    figure.suptitle(title)
    figure.savefig(out, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return out
