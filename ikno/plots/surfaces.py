"""Surfaces in space as they are seen from outside: which points each pixel of a picture shows.

Run as a program this file finds the visible face at each pixel, with pyvista and without a display:

    surfaces.py FACES.npz SEEN.npz

It runs in a process of its own: where VTK cannot draw it may end the process. Nothing of ikno is imported for that.
"""

import logging
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree

# Azimuth and elevation of the views in degrees: from behind above and from the front below. Both are from the side of
# large y: halves of symmetric bodies are open on the other.
VIEWS = ((60.0, 35.0), (150.0, -30.0))
WIDTH = 480  # pixels
MOST = 150_000  # points of a cloud that are drawn: more than a picture has pixels
SIDES = 8  # of a disc
FLAT = 0.2  # thickness over width of a neighborhood, below which a cloud is a surface
SECONDS = 300
_failures: list[str] = []  # why VTK does not draw here: it is asked once

log = logging.getLogger("ikno.plots")


@dataclass(frozen=True)
class Seen:
    """What the pixels show, all views below each other: the weighted sum of three points, and how bright it is."""

    index: Int[np.ndarray, "rows columns 3"]
    weights: Float[np.ndarray, "rows columns 3"]
    shade: Float[np.ndarray, "rows columns"]
    empty: Bool[np.ndarray, "rows columns"]


@dataclass(frozen=True)
class Faces:
    """Triangles with the points they stand for; ``sink`` moves corners away from the viewer.

    Discs are cones that point to the viewer, so that of several which overlap the nearest to its center is seen.
    """

    corners: Float[np.ndarray, "corners 3"]
    triangles: Int[np.ndarray, "faces 3"]
    sink: Float[np.ndarray, " corners"]
    points: Int[np.ndarray, "faces 3"]


def seen(points: Float[np.ndarray, "points 3"], triangles: Int[np.ndarray, "triangles 3"] | None = None) -> Seen | None:
    """Return what is seen of a surface, given by its triangles or as a cloud of points.

    None for clouds that fill a volume, and where VTK cannot be used; the log then says why.
    """
    points = points.astype(np.float64)
    faces = discs(points) if triangles is None else Faces(points, triangles, np.zeros(len(points)), triangles)
    if faces is None or _failures:
        return None
    views = [_projected(faces, points, *view) for view in VIEWS]
    try:
        visible = _visible(views)
    except RuntimeError as error:
        _failures.append(str(error))
        log.warning("surfaces are drawn as dots: %s", error)
        return None
    pictures = [_at_pixels(view, face) for (view, _), face in zip(views, visible, strict=True)]
    return Seen(*(np.concatenate(parts) for parts in zip(*pictures, strict=True)))


def discs(points: Float[np.ndarray, "points 3"]) -> Faces | None:
    """Return a disc for each point, tangent to its neighbors and as wide as the distance to them; None in a volume."""
    kept = np.arange(len(points))[:: -(-len(points) // MOST)]
    x = points[kept]
    if len(x) < 13:
        return None
    reach, near = KDTree(x).query(x, k=13)
    spread = x[near] - x[near].mean(1, keepdims=True)
    sizes, axes = np.linalg.eigh(spread.swapaxes(1, 2) @ spread)
    if np.median(np.sqrt(np.maximum(sizes[:, 0], 0) / np.maximum(sizes[:, 1], 1e-300))) > FLAT:
        return None
    radius = reach[:, 7]
    if not radius.any():
        return None
    turn = 2 * np.pi * np.arange(SIDES) / SIDES
    rim = np.cos(turn)[:, None] * axes[:, None, :, 2] + np.sin(turn)[:, None] * axes[:, None, :, 1]
    corners = np.concatenate([x[:, None], x[:, None] + radius[:, None, None] * rim], 1)
    sink = np.concatenate([np.zeros((len(x), 1)), np.repeat(0.2 * radius[:, None], SIDES, 1)], 1)
    k = np.arange(SIDES)
    fan = np.stack([0 * k, 1 + k, 1 + (k + 1) % SIDES], 1) + (SIDES + 1) * np.arange(len(x))[:, None, None]
    owner = np.repeat(kept, SIDES)
    return Faces(corners.reshape(-1, 3), fan.reshape(-1, 3), sink.ravel(), np.stack([owner] * 3, 1))


def _projected(
    faces: Faces, points: Float[np.ndarray, "points 3"], azimuth: float, elevation: float
) -> tuple[Faces, int]:
    """Return faces with corners in pixels to the right, up and to the viewer, and the rows of a picture of all points.

    The picture has no perspective; the angles of the view are in degrees.
    """
    a, e = np.deg2rad([azimuth, elevation])
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    viewer = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    axes = np.stack([right, np.cross(viewer, right), viewer])
    low, high = (points @ axes.T).min(0), (points @ axes.T).max(0)
    span = np.maximum(1.04 * (high - low), 1e-30)
    pixel = float(max(span[0] / WIDTH, span[1] / (2 * WIDTH)))
    corners = (faces.corners @ axes.T - (low + high) / 2) / pixel
    return replace(faces, corners=corners, sink=faces.sink / pixel), max(int(np.ceil(span[1] / pixel - 1e-3)), 8)


def _visible(views: Sequence[tuple[Faces, int]]) -> list[Int[np.ndarray, "rows columns"]]:
    """Return the face at each pixel of each view, -1 where there is none; raise a RuntimeError if VTK cannot tell."""
    if find_spec("pyvista") is None:
        raise RuntimeError("pyvista is not installed; get it with: pip install 'ikno[vtk]'")
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "faces.npz", Path(folder) / "seen.npz"
        arrays = {f"view{k}": f.corners - f.sink[:, None] * (0, 0, 1) for k, (f, _) in enumerate(views)}
        rows = np.array([rows for _, rows in views])
        np.savez(given, triangles=views[0][0].triangles, rows=rows, **arrays)  # type: ignore[arg-type]
        # -P: modules beside the program must not hide others.
        command = [sys.executable, "-P", str(Path(__file__).resolve()), str(given), str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"VTK did not end within {SECONDS} s") from None
        if done.returncode or not made.is_file():
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise RuntimeError(f"VTK cannot draw here (exit code {done.returncode}: {lines[-1][:200]})")
        with np.load(made, allow_pickle=False) as arrays:
            return [arrays[f"view{k}"] for k in range(len(views))]


def _at_pixels(faces: Faces, visible: Int[np.ndarray, "rows columns"]) -> tuple[np.ndarray, ...]:
    """Return what is seen in one view: each pixel's place in its triangle gives the weights of the three points."""
    empty, face = visible < 0, np.maximum(visible, 0)
    a, b, c = np.moveaxis(faces.corners[faces.triangles[face]], 2, 0)
    rows, columns = visible.shape
    y, x = np.meshgrid(rows / 2 - 0.5 - np.arange(rows), np.arange(columns) - columns / 2 + 0.5, indexing="ij")
    p = np.stack([x, y], -1) - a[..., :2]
    normal = np.cross(b - a, c - a)
    area = np.where(normal[..., 2] == 0, 1e-300, normal[..., 2])
    v = (p[..., 0] * (c - a)[..., 1] - p[..., 1] * (c - a)[..., 0]) / area
    w = (p[..., 1] * (b - a)[..., 0] - p[..., 0] * (b - a)[..., 1]) / area
    # A pixel that a triangle seen edge-on covers in part has its middle outside.
    weights = np.clip(np.stack([1 - v - w, v, w], -1), 0, 1)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    toward = np.abs(normal[..., 2]) / np.maximum(np.linalg.norm(normal, axis=-1), 1e-300)
    return faces.points[face], weights, 0.6 + 0.4 * toward, empty


def _draw(given: Path, made: Path) -> None:
    """Write the number of the visible face at each pixel of each view: each face is painted in a color of its own."""
    import pyvista

    with np.load(given, allow_pickle=False) as file:
        arrays = dict(file)
    triangles = arrays.pop("triangles")
    number = np.arange(1, len(triangles) + 1)
    colors = np.stack([number >> 16 & 255, number >> 8 & 255, number & 255], 1).astype(np.uint8)
    if number[-1] >> 24:
        sys.exit(f"{number[-1]:,} faces are too many for a picture")
    visible = {}
    for rows, (name, corners) in zip(arrays.pop("rows").tolist(), arrays.items(), strict=True):
        plotter: Any = pyvista.Plotter(off_screen=True, window_size=[WIDTH, rows])
        plotter.disable_anti_aliasing()
        plotter.set_background("black")
        mesh = pyvista.PolyData.from_regular_faces(corners, triangles)
        mesh.cell_data["color"] = colors
        plotter.add_mesh(mesh, scalars="color", rgb=True, lighting=False, show_scalar_bar=False)
        plotter.enable_parallel_projection()
        far = 2 * float(np.linalg.norm(corners, axis=1).max())
        plotter.camera_position = [(0.0, 0.0, far), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)]
        plotter.camera.parallel_scale = rows / 2
        plotter.camera.clipping_range = (0.01 * far, 2 * far)
        image = plotter.screenshot(return_img=True)
        plotter.close()
        if image is None or list(image.shape[:2]) != [rows, WIDTH] or not image.any():
            sys.exit("VTK drew nothing")
        red, green, blue = np.moveaxis(image[..., :3].astype(np.int64), 2, 0)
        visible[name] = (red << 16 | green << 8 | blue) - 1
        if visible[name].max() >= len(triangles):
            sys.exit("VTK changes colors")
    np.savez(made, **visible)


if __name__ == "__main__":
    _draw(Path(sys.argv[1]), Path(sys.argv[2]))
