"""What a training step costs each model at a given size: time in turns, peak memory, how it grows, where it goes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ikno.cost import Step, interleaved, peak_memory
from ikno.device import find_device
from ikno.errors import UserError
from ikno.models import MODELS, build, complete_model

# Kinds of work, by the operators of torch that do it; what fits nowhere is pointwise (or our own functions).
KINDS = {
    "attention": ("scaled_dot_product", "flash_attention"),
    "products": ("::mm", "::addmm", "::bmm", "::baddbmm", "::einsum"),
    "inverses": ("linalg", "::lu", "inverse", "eigh", "cholesky"),
    "Fourier": ("fft",),
    "gathers": ("::index", "::gather", "::scatter", "::take", "sort", "unique"),
    "copies": ("::copy_", "::cat", "::clone", "::fill_", "::zero_", "::empty"),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a measurement, by default those of Wave-C-Sines: u, t and tau in, du/dt out, points in a disc."""

    points: int = 16431
    batch: int = 1
    grid: int = 32
    in_channels: int = 3
    out_channels: int = 1
    device: str = "cpu"


def measure_efficiency(
    models: Sequence[str],
    shape: Shape,
    repeats: int = 3,
    preset: str = "paper",
    double: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Return a row per model: one step (forward, backward, AdamW) in seconds, its peak memory, and where time goes.

    All are timed in turns in this process. Their memory is the median of as many processes, each its own, since it
    differs by some 10 % from one to the next. ``double``: also with twice the points, which shows how the time grows.
    Graphs and cells of the cloud are made before, as in training.
    """
    for name in models:
        MODELS.find(name)
    if not models:
        raise UserError("efficiency: at least one model is needed")
    say(f"timing {len(models)} models in turns")
    steps = {name: prepare(name, shape, preset) for name in models}
    seconds = interleaved(steps, repeats)
    rows = []
    for name in models:
        say(f"memory and profile of {name}")
        memory = torch.tensor([peak_memory(prepare, name, shape, preset) for _ in range(repeats)]).median().item()
        row: dict[str, Any] = {
            "model": name,
            "parameters": steps[name].parameters,
            "seconds": seconds[name].wall,
            "cpu_seconds": seconds[name].cpu,
            "memory": None if math.isnan(memory) else memory,
            "profile": shares(steps[name]),
        }
        if double:
            pair = {"once": steps[name], "twice": prepare(name, replace(shape, points=2 * shape.points), preset)}
            found = interleaved(pair, repeats)
            row["growth"] = found["twice"].wall / found["once"].wall
        rows.append(row)
    return rows


def costs_of(rows: list[dict[str, Any]], batch: int, samples: int) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table of costs; an epoch has so many samples."""
    growth = ["x 2 points"] if "growth" in rows[0] else []
    shares = [f"% {kind}" for kind in rows[0]["profile"]]
    header = ["model", "parameters", "s / step", "CPU s", "s / epoch", "peak MB", *growth, *shares]
    lines = []
    for row in rows:
        line = [row["model"], f"{row['parameters']:,}", f"{row['seconds']:.3f}", f"{row['cpu_seconds']:.3f}"]
        line += [f"{row['seconds'] / batch * samples:,.0f}", "-" if row["memory"] is None else f"{row['memory']:.0f}"]
        line += [f"{row['growth']:.2f}"] if growth else []
        lines.append([*line, *(f"{100 * share:.0f}" for share in row["profile"].values())])
    return header, lines


def prepare(name: str, shape: Shape, preset: str) -> Step:
    """Return a training step of a model on random values at random points in a disc."""
    device = find_device(shape.device)
    settings = complete_model({"name": name}, preset, [shape.grid] * 2)
    del settings["name"]
    channels = {"in_channels": shape.in_channels, "out_channels": shape.out_channels}
    model = build(name, dim=2, seed=0, **channels, **settings).to(device)
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(shape.batch, shape.points, shape.in_channels, generator=draw).to(device)
    target = torch.randn(shape.batch, shape.points, shape.out_channels, generator=draw).to(device)
    points: Any = disc(shape.points, draw).to(device)
    if hasattr(model, "locate"):
        points = getattr(model, "locate")(points)  # noqa: B009
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        loss = (model(features, points) - target).norm() / target.norm()
        loss.backward()
        optimizer.step()

    return Step(run, sum(p.numel() for p in model.parameters()))


def disc(count: int, draw: torch.Generator) -> Float[Tensor, "1 points 2"]:
    """Return points spread evenly at random in the unit disc."""
    radius, angle = torch.rand(count, generator=draw).sqrt(), 2 * math.pi * torch.rand(count, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1)[None]


def shares(call: Callable[[], object]) -> dict[str, float]:
    """Return the share of each kind of work in the time of a call."""
    cuda = torch.cuda.is_initialized()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as found:
        call()
    totals = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in found.key_averages():
        kind = next((k for k, names in KINDS.items() if any(n in event.key for n in names)), "the rest")
        totals[kind] += event.self_device_time_total if cuda else event.self_cpu_time_total
    return {kind: time / sum(totals.values()) for kind, time in totals.items()}
