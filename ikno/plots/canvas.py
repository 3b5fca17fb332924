"""Where figures are made. The only file that knows matplotlib; nothing is shown on a screen, all goes to files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from PIL import Image
from scipy.spatial import KDTree

from ikno.errors import UserError
from ikno.plots.surfaces import Seen, seen

# All are safe for the color-blind; errors have their own map, so that they are not taken for values.
SIGNED, PLAIN, ERRORS = "RdBu_r", "viridis", "PuOr_r"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

Colors = tuple[float, float, str]  # the values at both ends of a color map, and its name


class Canvas:
    """A cloud as a picture: every pixel shows its nearest point; pixels far from all points (holes) stay empty."""

    projection = None

    def __init__(self, points: Float[np.ndarray, "points 2"], pixels: int = 220) -> None:
        self.low, self.high = points.min(0), points.max(0)
        spans = np.maximum(self.high - self.low, 1e-30)
        self.aspect = float(np.clip(spans[1] / spans[0], 0.2, 3))
        counts = np.maximum((pixels * spans / spans.max()).astype(int), 2)
        axes = [a + (np.arange(n) + 0.5) * s / n for a, s, n in zip(self.low, spans, counts, strict=True)]
        where = np.stack(np.meshgrid(*axes, indexing="xy"), -1)
        tree = KDTree(points)
        distance, self.index = tree.query(where)
        reach, near = tree.query(points, k=min(7, len(points)))
        spacing = reach[:, -1][near].max(1)  # of the point and its neighbors: random points come in clumps
        self.empty = distance > 1.6 * spacing[self.index] + 1e-9 * spans.max()

    def image(self, values: Float[np.ndarray, "points"]) -> np.ma.MaskedArray:
        """Return the pixels; values that are not finite stay empty too."""
        shown = values[self.index].astype(np.float64)  # matplotlib adds to values, which may be near the end of float32
        return np.ma.masked_array(shown, self.empty | ~np.isfinite(shown))

    def draw(self, axis: Any, values: Float[np.ndarray, "points"], colors: Colors) -> Any:
        """Draw one field and return what a color bar needs."""
        axis.set(xticks=[], yticks=[])
        options = {"origin": "lower", "extent": (self.low[0], self.high[0], self.low[1], self.high[1])}
        (low, high, name), image = colors, self.image(values)
        return axis.imshow(image, interpolation="nearest", cmap=name, vmin=low, vmax=high, **options)


class Curve:
    """A cloud on a line as a curve; the ends of the colors are those of the value axis."""

    projection, aspect = None, 0.75

    def __init__(self, points: Float[np.ndarray, "points 1"]) -> None:
        self.order = np.argsort(points[:, 0])
        self.x = points[self.order, 0]

    def draw(self, axis: Any, values: Float[np.ndarray, "points"], colors: Colors) -> Any:
        low, high, name = colors
        margin = 0.15 * (high - low)  # room for predictions beyond the truth
        axis.set(ylim=(low - margin, high + margin), xlim=(self.x[0], self.x[-1]), xlabel="x")
        axis.grid(alpha=0.3)
        return axis.plot(self.x, values[self.order], color=LINES[int(name == ERRORS)])[0]


class Scatter:
    """A cloud in space as dots, not all of them if there are many."""

    projection, aspect = "3d", 0.9

    def __init__(self, points: Float[np.ndarray, "points 3"]) -> None:
        self.kept = slice(None, None, max(len(points) // 40_000, 1))
        self.points, self.spans = points[self.kept], np.ptp(points, 0)

    def draw(self, axis: Any, values: Float[np.ndarray, "points"], colors: Colors) -> Any:
        axis.set_box_aspect(self.spans / self.spans.max(), zoom=1.1)
        axis.set_proj_type("ortho")
        axis.view_init(elev=35, azim=60)  # from the side of large y: that of an aircraft's half
        axis.set_axis_off()
        low, high, name = colors
        size = float(np.clip(20_000 / len(self.points), 1, 12))
        options = {"linewidths": 0, "depthshade": False, "cmap": name, "vmin": low, "vmax": high}
        return axis.scatter(*self.points.T, s=size, c=values[self.kept], **options)


class Surface:
    """A surface in space from two sides, one view below the other, colored like a map and shaded like a body."""

    projection = None

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.aspect = float(np.clip(seen.empty.shape[0] / seen.empty.shape[1], 0.2, 3))

    def image(self, values: Float[np.ndarray, "points"], colors: Colors) -> Float[np.ndarray, "rows columns 4"]:
        """Return the colors of the pixels; values that are not finite stay empty."""
        with np.errstate(invalid="ignore", over="ignore"):
            shown = (values.astype(np.float64)[self.seen.index] * self.seen.weights).sum(-1)
        image = ScalarMappable(Normalize(*colors[:2]), colors[2]).to_rgba(shown)
        image[..., :3] *= self.seen.shade[..., None]
        image[self.seen.empty | ~np.isfinite(shown)] = (1, 1, 1, 0)
        return image

    def draw(self, axis: Any, values: Float[np.ndarray, "points"], colors: Colors) -> Any:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        low, high, name = colors
        return axis.imshow(self.image(values, colors), cmap=name, vmin=low, vmax=high)  # these are for the color bar


Drawing = Canvas | Curve | Scatter | Surface


@dataclass
class Panel:
    """One field to draw; ``name`` is written along its color bar, ``note`` in place of its title."""

    values: Float[np.ndarray, "points"]
    colors: Colors
    title: str = ""
    name: str = ""
    note: str = ""


@dataclass
class Strip:
    """Fields on one cloud, side by side."""

    canvas: Drawing
    label: str
    panels: list[Panel]


def canvas_of(
    points: Float[np.ndarray, "points dim"], triangles: Int[np.ndarray, "triangles 3"] | None = None
) -> Drawing:
    """Return what draws fields on these points: in space a surface if they lie on one and it can be drawn, else dots.

    Without its triangles a surface is made of discs.
    """
    if points.shape[1] == 3 and (pixels := seen(points, triangles)) is not None:
        return Surface(pixels)
    return (Curve, Canvas, Scatter)[points.shape[1] - 1](points)


def colors_of(values: Float[np.ndarray, "..."]) -> Colors:
    """Return the range of colors: symmetric about 0 where values of both signs matter; outliers do not stretch it."""
    low, high = np.quantile(values, [0.002, 0.998])
    signed = bool(low < -0.05 * abs(high) and high > 0.05 * abs(low))
    if signed:
        high = max(-low, high)
        low = -high
    return float(low), float(high if high > low else low + 1), SIGNED if signed else PLAIN


def percent(share: float) -> str:
    """Return a fraction in percent, as text."""
    return f"{100 * share:.3g} %"


def charts(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, rows by columns, for curves."""
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def stack(strips: Sequence[Strip]) -> Any:
    """Return a figure of the strips, one below the other."""
    columns, first = max(len(strip.panels) for strip in strips), strips[0].canvas
    size = (3.0 / max(first.aspect, 1) * columns + 0.5, (2.7 * min(first.aspect, 1) + 0.15) * len(strips) + 0.6)
    options = {"squeeze": False, "layout": "constrained", "subplot_kw": {"projection": first.projection}}
    figure, axes = plt.subplots(len(strips), columns, figsize=size, **options)
    above = None
    for line, strip in zip(axes, strips, strict=True):
        for axis in line[len(strip.panels) :]:
            axis.set_axis_off()
        drawn = [strip.canvas.draw(a, p.values, p.colors) for a, p in zip(line, strip.panels, strict=False)]
        # Neighbors with the same colors share a bar; curves have none, nor has a last strip that only goes on.
        for used, group in groupby(zip(strip.panels, line, drawn, strict=False), lambda cell: cell[0].colors):
            panels, members, shown = zip(*group, strict=True)
            goes_on = used == above and len(strip.panels) < columns
            if isinstance(shown[0], ScalarMappable) and not goes_on:
                figure.colorbar(shown[0], ax=members, shrink=0.8, label=panels[0].name)
        for axis, panel in zip(line, strip.panels, strict=False):
            axis.set_title(panel.note or panel.title, fontsize=10)
        if strip.canvas.projection == "3d":  # axes in space are switched off, and their labels with them
            line[0].text2D(0, 0.5, strip.label, transform=line[0].transAxes, rotation=90, ha="right", va="center")
        else:
            line[0].set_ylabel(strip.label)
        above = strip.panels[-1].colors
    return figure


def movie(strips: Callable[[int], list[Strip]], titles: Sequence[str], out: Path) -> Path:
    """Write an animation, a frame of strips for each title, and return the file."""
    frames = []
    for k, title in enumerate(titles):
        figure = stack(strips(k))
        figure.suptitle(title)
        figure.set_dpi(60)
        figure.canvas.draw()
        frames.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))
        plt.close(figure)
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=200, loop=0)
    return out


def check_name(out: Path) -> None:
    """Raise unless this is the name of a picture."""
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"{out}: a picture is a .png, .pdf or .svg file")


def save(figure: Any, out: Path, title: str) -> list[Path]:
    """Write a figure to a file, forget it, and return the file."""
    figure.suptitle(title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return [out]
