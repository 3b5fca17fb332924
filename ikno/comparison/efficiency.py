"""What a training step of each model costs at a given size: time, peak memory, growth, and where the time goes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ikno.comparison.costs import Cost
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
    """Return a row per model: seconds and peak memory of a step (forward, backward, AdamW), and where the time goes.

    All are timed in turns in this process, with clouds located beforehand, as in training. The memory is the median
    of separate processes, one per round, since it varies by some 10 %.

    Args:
        models: Names of the models.
        shape: The sizes of the data.
        repeats: Timed rounds.
        preset: The sizes of the models.
        double: Also measure with twice the points, to see how the time grows.
        say: Receives a line on what is measured.
    """
    for name in models:
        MODELS.find(name)
    if not models:
        raise UserError("efficiency: at least one model is needed")
    say(f"timing {len(models)} models in turns")
    steps = {name: prepare(name, shape, preset) for name in models}
    times = interleaved(steps, repeats)
    rows = []
    for name, step in steps.items():
        say(f"memory and profile of {name}")
        memory = torch.tensor([peak_memory(prepare, name, shape, preset) for _ in range(repeats)]).median().item()
        row: dict[str, Any] = {"model": name, **asdict(Cost.of(step.parameters, times[name], memory))}
        row["profile"] = shares(step)
        if double:
            larger = prepare(name, replace(shape, points=2 * shape.points), preset)
            pair = interleaved({"once": step, "twice": larger}, repeats)
            row["growth"] = pair["twice"].wall / pair["once"].wall
        rows.append(row)
    return rows


def costs_of(rows: list[dict[str, Any]], batch: int, samples: int) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table of costs.

    Args:
        rows: What ``measure_efficiency`` returns.
        batch: Samples of a step.
        samples: Samples of an epoch.
    """
    lines = [
        {
            "model": row["model"],
            "parameters": f"{row['parameters']:,}",
            "s / step": f"{row['seconds']:.3f}",
            "CPU s": f"{row['cpu_seconds']:.3f}",
            "s / epoch": f"{row['seconds'] / batch * samples:,.0f}",
            "peak MB": "-" if row["memory"] is None else f"{row['memory']:.0f}",
            **({"x 2 points": f"{row['growth']:.2f}"} if "growth" in row else {}),
            **{f"% {kind}": f"{100 * share:.0f}" for kind, share in row["profile"].items()},
        }
        for row in rows
    ]
    return list(lines[0]), [list(cells.values()) for cells in lines]


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
    with profile(activities=activities) as profiled:
        call()
    totals = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in profiled.key_averages():
        kind = next((k for k, names in KINDS.items() if any(n in event.key for n in names)), "the rest")
        totals[kind] += event.self_device_time_total if cuda else event.self_cpu_time_total
    return {kind: time / sum(totals.values()) for kind, time in totals.items()}
