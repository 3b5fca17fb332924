"""A better hole: the shape of a hole in an elastic cell by gradient descent through a surrogate, checked by the solver.

The cell is pulled at the top and clamped below; the stress at the edge of its hole decides what it can bear. A small
IKNO-TP learns the stress from some hundred random holes. Then the shape of new ones is improved: coordinates and
distances follow from few numbers, the prediction from these, and torch differentiates through all of it. The area of
the hole stays as it is. At the end the true problem is solved for the holes before and after.

    python examples/shape.py --out shape-output
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import ikno
from ikno.data.generators.elasticity import Elasticity, hole, rays, solve, stress, von_mises
from ikno.plots.canvas import canvas_of, charts, colors_of, save
from ikno.surrogate import Surrogate

SIZES = {
    # samples, their split, points and resolution of the solver, epochs, steps of the descent, starts
    "full": (384, "[320,32,32]", 240, 24, 40, 60, 5),
    "smoke": (8, "[4,2,2]", 48, 8, 1, 3, 2),
}
MODES, TRACTION = 5, 100.0
FARTHEST = 4.0  # norm of the coefficients; 90 % of the random holes that were learned have a smaller one
POWER = 12  # of the norm that stands for the largest stress


def command(*words: str) -> None:
    """Run a command as a user would, shown before it runs."""
    print(f"\n$ ikno {shlex.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "ikno", *words])
    if done.returncode:
        sys.exit(done.returncode)


def radius(coefficients: Float[Tensor, "holes modes 2"], theta: Float[Tensor, " n"]) -> Float[Tensor, "holes n"]:
    """Return r(theta) of each hole, as ``ikno.data.generators.elasticity.hole`` has it, in torch."""
    k = torch.arange(1, MODES + 1, dtype=theta.dtype)
    scaled = coefficients * (4 / torch.sqrt(torch.pi * (k**2 + 9)))[:, None]
    phase = theta[:, None] * k
    series = torch.cos(phase) @ scaled[..., 0].mT + torch.sin(phase) @ scaled[..., 1].mT
    return 0.2 + 0.2 * torch.sigmoid(-series.mT)


def area(coefficients: Float[Tensor, "holes modes 2"]) -> Float[Tensor, " holes"]:
    """Return the area of each hole, the integral of r^2 / 2."""
    theta = 2 * torch.pi * torch.arange(256, dtype=coefficients.dtype) / 256
    return torch.pi * radius(coefficients, theta).square().mean(1)


class Cell:
    """The points of the cell as the generator places them, a function of the shape of its hole."""

    def __init__(self, around: int, layers: int, growth: float = 2.0) -> None:
        self.theta = torch.from_numpy(rays(4 * np.arange(around) / around))
        self.direction = torch.stack([torch.cos(self.theta), torch.sin(self.theta)], 1)
        self.edge = 0.5 / self.direction.abs().amax(1)  # from the center to the square
        self.share = (growth ** torch.linspace(0, 1, layers + 1, dtype=torch.float64) - 1) / (growth - 1)

    def points(self, coefficients: Float[Tensor, "holes modes 2"]) -> Float[Tensor, "holes n 2"]:
        """Return all points, ray by ray, each from the hole outward."""
        r = radius(coefficients, self.theta)[..., None]
        length = r * (1 - self.share) + self.edge[:, None] * self.share
        return (0.5 + length[..., None] * self.direction[:, None]).flatten(1, 2)

    def distance(self, coefficients: Float[Tensor, "holes modes 2"], count: int = 2048) -> Float[Tensor, "holes n 1"]:
        """Return the distance of all points to the edge of the hole, the condition of the surrogate.

        It moves with the points and with the edge: both are part of the gradient.
        """
        theta = 2 * torch.pi * torch.arange(count, dtype=torch.float64) / count
        circle = torch.stack([torch.cos(theta), torch.sin(theta)], 1)
        curve = 0.5 + radius(coefficients, theta)[..., None] * circle
        points = self.points(coefficients).unflatten(1, (len(self.theta), -1))
        outer = torch.cdist(points[:, :, 1:].flatten(1, 2), curve).amin(2).unflatten(1, (len(self.theta), -1))
        return torch.cat([torch.zeros_like(outer[..., :1]), outer], 2).flatten(1)[..., None]

    def at_edge(self, values: Float[Tensor, "holes n 1"]) -> Float[Tensor, "holes around"]:
        """Return the values at the edge of the hole."""
        return values[..., 0].unflatten(1, (len(self.theta), -1))[..., 0]


def peak(values: Float[Tensor, "holes around"]) -> Float[Tensor, " holes"]:
    """Return a smooth stand-in for the largest value: (mean of v^p)^(1/p)."""
    return values.clamp(min=1e-3).pow(POWER).mean(1).pow(1 / POWER)


def improved(
    surrogate: Surrogate, cell: Cell, start: Float[Tensor, "holes modes 2"], steps: int
) -> tuple[Float[Tensor, "holes modes 2"], list[Float[Tensor, " holes"]]]:
    """Return coefficients of holes of the same area with a lower predicted peak, and the peaks on the way.

    The shapes stay among those that were learned: a surrogate knows nothing of others.
    """
    shape = start.clone().requires_grad_()
    wanted = area(start)
    optimizer, way = torch.optim.Adam([shape], lr=0.08), []
    for _ in range(steps):
        peaks = peak(cell.at_edge(surrogate.predict(cell.points(shape), cell.distance(shape))))
        way.append(peaks.detach())
        optimizer.zero_grad()
        peaks.sum().backward()
        optimizer.step()
        with torch.no_grad():
            shape *= (FARTHEST / shape.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
        for _ in range(2):  # Newton steps back to the area
            now = area(shape)
            (slope,) = torch.autograd.grad(now.sum(), shape)
            with torch.no_grad():
                shape -= ((now - wanted) / slope.square().sum((1, 2)))[:, None, None] * slope
    return shape.detach(), way


class Truth(NamedTuple):
    """Points, the stress at them, and its largest value at the edge of the hole."""

    points: Float[np.ndarray, "n 2"]
    stress: Float[np.ndarray, " n"]
    largest: float


def solved(coefficients: Float[Tensor, "modes 2"], resolution: int) -> Truth:
    """Return what the solver finds for a hole."""
    layers = max(2, round(resolution / 3))
    found = solve(hole(coefficients.numpy()), 4 * resolution, layers, traction=TRACTION, plane="stress")
    values = von_mises(stress(found), np.zeros_like(found.pressure))
    vertices = found.bases[0].mesh.p.T[: len(values)]  # the rest are middles of edges
    return Truth(vertices, values, float(values.reshape(4 * resolution, -1)[:, 0].max()))


def draw(truth: list[list[Truth]], out: Path) -> Path:
    """Write a picture of the stress, the holes before above those after."""
    figure, axes = charts(2, len(truth[0]), (2.3 * len(truth[0]) + 0.8, 5.2))
    colors = colors_of(np.concatenate([found.stress for row in truth for found in row]))
    for row, line, when in zip(truth, axes, ("before", "after"), strict=True):
        for found, axis in zip(row, line, strict=True):
            shown = canvas_of(found.points).draw(axis, found.stress, colors)
            axis.set_title(f"{when}: {found.largest:.0f}", fontsize=10)
            axis.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes, shrink=0.8, label="von Mises stress")
    return save(figure, out, "stress from the solver, and its largest value at the hole")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("shape-output"), help="folder for everything that is made")
    parser.add_argument("--size", choices=SIZES, default="full")
    args = parser.parse_args()
    samples, split, points, resolution, epochs, steps, starts = SIZES[args.size]
    data, run = args.out / "elasticity.nc", args.out / "run"
    if not data.exists():
        sizes = {"--samples": samples, "--points": points, "--resolution": resolution, "--out": data}
        command("data", "generate", "elasticity", *(str(word) for pair in sizes.items() for word in pair))
    resume = ["--resume"] if (run / "last.safetensors").exists() else []
    settings = (f"data.split={split}", f"train.epochs={epochs}", "scales=auto")
    command("train", str(data), *settings, "--out", str(run), *resume)
    command("evaluate", str(run))

    side, layers = Elasticity(points=points, resolution=resolution).grid
    surrogate, cell = ikno.load(run), Cell(4 * side, layers)
    start = torch.from_numpy(np.random.default_rng(1).standard_normal((starts, MODES, 2)))
    start *= (FARTHEST / start.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
    end, way = improved(surrogate, cell, start, steps)

    print(f"\nLargest stress at the edge of the hole, from the solver, before and after {steps} steps:")
    print("  start    before     after    change    area: before    after    predicted norm: before    after")
    truth = [[solved(c[i], 2 * resolution) for i in range(starts)] for c in (start, end)]
    areas, norms = [area(c).tolist() for c in (start, end)], [peaks.tolist() for peaks in (way[0], way[-1])]
    changes = [after.largest / before.largest - 1 for before, after in zip(*truth, strict=True)]
    for i, change in enumerate(changes):
        stresses = f"{truth[0][i].largest:9.1f} {truth[1][i].largest:9.1f} {change:+9.1%}"
        print(f"  {i:5d} {stresses} {areas[0][i]:15.4f} {areas[1][i]:8.4f} {norms[0][i]:25.1f} {norms[1][i]:8.1f}")
    lower = sum(change < 0 for change in changes)
    print(f"The largest stress is lower for {lower} of {starts} starts, on average by {-np.mean(changes):.1%}.")
    print(f"Picture: {draw(truth, args.out / 'shapes.png')}")


if __name__ == "__main__":
    main()
