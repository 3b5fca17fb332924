"""Half a million points and more: the paper-size aircraft model, and what a point costs as clouds grow.

aircraft: IKNO-TP as published (width 256, 12 layers, 24^3 latent grid, three branches) on a generated aircraft surface.
One training step (forward + backward, checkpointed) and one prediction, each in a process of its own; encoder (points
to latent grid) and decoder (latent grid to points) with the cell-local against the chunked dense contraction. The dense
form runs on one of so many points, its time multiplied.

points: encoder and decoder without gradients on clouds of growing size, memory included; the transformer between them
does not see the points and is left out. The grid has a price of its own, that of a cloud of 1,000 points; what a point
costs beyond it is the column to look at.

stream: what `ikno predict` does with queries in a .npy file and the result in a .nc file, with untrained weights of the
preset cpu, from 440,000 points to ten million.

All times are CPU seconds, memory is the peak of the whole process. Each part is kept in --out as soon as it is
measured: scale.json, and from it scale.md and scale.png.
"""

import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.aircraft import surface
from ikno import cost
from ikno.atomic import whole_file
from ikno.comparison import markdown_table
from ikno.config import CompleteConfig
from ikno.data.catalog import CATALOG
from ikno.data.generators.aircraft import Aircraft
from ikno.evaluation import PredictionRequest, predict
from ikno.linalg import Cloud
from ikno.memory import reused_memory
from ikno.models import IKNO, build, complete_model
from ikno.plots.canvas import LINES, charts, save
from ikno.runs import Run
from ikno.runs import save as save_weights
from ikno.surrogate import Signature, Surrogate

SLICE = 20  # the dense form runs on one of so many points
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
LIMITS = {"prediction": 6.0, "training step": 16.0}  # GB
GRIDS = {2: 32, 3: 24}


def paper_model(dim: int, features: int, variables: int, **more: object) -> IKNO:
    """Return the published model for so many features and variables."""
    settings = complete_model({"name": "ikno-tp", **more}, "paper", [GRIDS[dim]] * dim)
    del settings["name"]
    model = build("ikno-tp", in_channels=features, out_channels=variables, dim=dim, seed=0, **settings)
    assert isinstance(model, IKNO)
    return model


def save_aircraft(path: Path, points: int) -> None:
    """Write one generated sample, coordinates in the box [-1, 1] and channels of unit variance."""
    made = Aircraft(points=points).sample(np.random.default_rng(0), None)
    assert made.conditions is not None
    low, high = made.points.min(0), made.points.max(0)
    flight = np.random.default_rng(1).normal(size=(1, 6)).repeat(points, 0)  # what is constant has no variance
    conditions, values = np.concatenate([made.conditions[0, :, :3], flight], 1), made.values[0]
    arrays = {"x": 2 * (made.points - low) / (high - low) - 1, "c": conditions, "u": values / values.std(0)}
    np.savez(path, **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]


def load_aircraft(path: Path, part: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return points, features and values of the sample, one of ``part`` points."""
    with np.load(path) as arrays:
        return tuple(torch.from_numpy(arrays[name][::part].copy())[None] for name in "xcu")  # type: ignore[return-value]


def timed(call: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def whole_step(path: Path, checkpointing: bool) -> tuple[float, float]:
    """Return seconds and peak GB of one training step."""
    points, features, target = load_aircraft(path)
    model = paper_model(3, features.shape[2], target.shape[2], checkpointing=checkpointing)
    with reused_memory():
        seconds = timed(lambda: (model(features, points) - target).square().mean().backward())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    return seconds, cost.resident("VmHWM") / 1e3


@torch.no_grad()
def whole_prediction(path: Path) -> tuple[float, float]:
    """Return seconds and peak GB of one prediction at all points."""
    points, features, target = load_aircraft(path)
    model = paper_model(3, features.shape[2], target.shape[2]).eval()
    seconds = timed(lambda: model(features, points))
    return seconds, cost.resident("VmHWM") / 1e3


def halves(path: Path, form: str, training: bool, part: int) -> tuple[float, float, float]:
    """Return seconds of encoder and decoder, and the peak in GB; with gradients if training."""
    points, features, target = load_aircraft(path, part)
    model = paper_model(3, features.shape[2], target.shape[2], contraction=form, checkpointing=training)
    cloud = model.locate(points)
    draw = torch.Generator().manual_seed(0)
    state = torch.randn(1, *model.grid.size, 256, generator=draw).requires_grad_(training)
    with torch.set_grad_enabled(training), reused_memory():
        encode, decode = (lambda: to_latent(model, features, cloud)), (lambda: model.decode(state, cloud))
        seconds = [timed((lambda c=c: c().square().mean().backward()) if training else c) for c in (encode, decode)]
    return seconds[0] * part, seconds[1] * part, cost.resident("VmHWM") / 1e3


def to_latent(model: IKNO, features: Tensor, cloud: Cloud) -> Tensor:
    """Return what the encoder hands to the transformer."""
    return model._to_latent(features, cloud, model._weights(cloud, None, None), None)


@torch.no_grad()
def growing(dim: int, count: int) -> tuple[float, float, float]:
    """Return seconds of encoder and decoder on so many points, sorting them included, and the peak in GB.

    Small clouds, whose cost beyond the grid is a small difference, have the best of five; all have a call before.
    """
    draw = torch.Generator().manual_seed(0)
    points = surface(count)[0] if dim == 3 else 2 * torch.rand(1, count, 2, generator=draw) - 1
    features = torch.randn(1, count, 4, generator=draw)
    model = paper_model(dim, 4, 4, contraction="local").eval()
    state = torch.randn(1, *model.grid.size, 256, generator=draw)

    def encode(n: int) -> None:
        to_latent(model, features[:, :n], model.locate(points[:, :n]))

    def decode(n: int) -> None:
        model.decode(state, model.locate(points[:, :n]))

    with reused_memory():
        seconds = []
        for half in (encode, decode):
            half(SIZES[0])
            seconds.append(min(timed(lambda half=half: half(count)) for _ in range(5 if count <= 100_000 else 1)))
    return *seconds, cost.resident("VmHWM") / 1e3


def alone(function, *arguments, threads: int):
    """Return what the function returns in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        return pool.submit(function, *arguments).result()


def streamed(folder: Path, points: int, queries: int) -> tuple[float, float]:
    """Return seconds and peak GB of a prediction from disk to disk."""
    card = CATALOG["nasa-crm"]
    model = complete_model({"name": "ikno-tp"}, "cpu", dim=3)
    box = ((-1.0, 1.0),) * 3
    signature = Signature(dim=3, variables=card.targets, conditions=card.conditions, box=box, model=model)
    settings = {
        "data": {"name": card.name, "split": card.split, "sampling": "first"},
        "surrogate": {"mode": "direct"},
        "train": {"epochs": card.epochs},
        "model": model,
    }
    run = Run.create(folder / "run", CompleteConfig.model_validate(settings), card, signature)
    weights = Surrogate(signature, seed=0).state_dict()
    save_weights(run.path / "best.safetensors", {f"weights.{k}": v for k, v in weights.items()}, {})
    np.savez(folder / "in.npz", x=surface(points)[0][0].numpy(), c=np.zeros((points, 9), np.float32))
    places = np.lib.format.open_memmap(folder / "queries.npy", "w+", np.float32, (queries, 3))
    for i in range(0, queries, SIZES[-2]):
        places[i : i + SIZES[-2]] = surface(min(SIZES[-2], queries - i))[0][0].numpy()
    places.flush()
    before = cost.resident("VmHWM") / 1e3
    seconds = timed(
        lambda: predict(run, PredictionRequest(folder / "in.npz", folder / "out.nc", folder / "queries.npy"))
    )
    peak = cost.resident("VmHWM") / 1e3
    assert peak > before  # what was made before is not what is measured
    return seconds, peak


def measure_aircraft(points: int, threads: int) -> list[measure.Row]:
    rows: list[measure.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "aircraft.npz"
        save_aircraft(path, points)
        for what in LIMITS:
            training = what == "training step"
            seconds, peak = alone(
                *((whole_step, path, True) if training else (whole_prediction, path)), threads=threads
            )
            row: dict[str, str | int | float] = {"": what, "points": f"{points:,}", "whole: CPU s": seconds}
            row |= {"peak GB": peak, "allowed GB": LIMITS[what]}
            forms = {"local": 1, "dense": SLICE}
            found = {f: alone(halves, path, f, training, part, threads=threads) for f, part in forms.items()}
            for k, half in enumerate(("encoder", "decoder")):
                row |= {f"{half}: {form} s": found[form][k] for form in forms}
                row[f"{half}: ratio"] = found["dense"][k] / found["local"][k]
            rows.append(row)
    return rows


def measure_points(dim: int, largest: int, threads: int) -> list[measure.Row]:
    rows: list[measure.Row] = []
    base = (0.0, 0.0)
    for count in (n for n in SIZES if n <= largest):
        encode, decode, peak = alone(growing, dim, count, threads=threads)
        row: dict[str, str | int | float] = {"latent grid": f"{GRIDS[dim]}^{dim}", "points": f"{count:,}"}
        row |= {"encoder s": encode, "decoder s": decode, "peak GB": peak}
        row["us per point"] = 1e6 * (encode + decode) / count
        if count == SIZES[0]:
            base = (encode, decode)
        else:
            row["beyond the grid"] = 1e6 * (encode + decode - sum(base)) / (count - SIZES[0])
            rows.append(row)
    return rows


def measure_stream(points: int, queries: int, threads: int) -> list[measure.Row]:
    with tempfile.TemporaryDirectory() as folder:
        seconds, peak = alone(streamed, Path(folder), points, queries, threads=threads)
        size = (Path(folder) / "out.nc").stat().st_size / 1e9
    row: dict[str, str | int | float] = {"points": f"{points:,}", "queries": f"{queries:,}", "CPU s": seconds}
    return [row | {"us per query": 1e6 * seconds / queries, "peak GB": peak, "result GB": size}]


TITLES = {
    "aircraft": f"Aircraft, IKNO-TP as published; the dense form on 1/{SLICE} of the points, its time times {SLICE}.",
    "points 2": "Encoder and decoder on growing clouds in the plane, IKNO-TP as published, without the transformer.",
    "points 3": "The same on surfaces in space.",
    "stream": "Queries from disk to disk, IKNO-TP of the preset cpu.",
}


def keep(out: Path, name: str, rows: list[measure.Row]) -> None:
    """Add what was measured to the folder, and draw and write everything that is there."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "scale.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    found[name] = rows
    with whole_file(file) as partial:
        partial.write_text(json.dumps(found, indent=1) + "\n")
    lines = ["# Scale", "", "Made by `python -m benchmarks.scale --out docs/results`, one thread, CPU seconds."]
    for key in (k for k in TITLES if k in found):
        cells = [[measure.text(v) for v in row.values()] for row in found[key]]
        lines += ["", TITLES[key], "", markdown_table(list(found[key][0]), cells)]
    clouds = {k: found[k] for k in ("points 2", "points 3") if k in found}
    if clouds:
        figure, ((axis,),) = charts(1, 1, (6.4, 4.2))
        for color, rows in zip(LINES, clouds.values(), strict=False):
            x = [int(str(row["points"]).replace(",", "")) for row in rows]
            grid = rows[0]["latent grid"]
            axis.plot(x, [r["us per point"] for r in rows], "--", color=color, marker=".", label=f"{grid}: all")
            axis.plot(
                x, [r["beyond the grid"] for r in rows], color=color, marker="o", label=f"{grid}: beyond the grid"
            )
        axis.set(xlabel="points", ylabel="CPU microseconds per point", xscale="log", yscale="log")
        axis.set_ylim(bottom=1)
        axis.legend(fontsize=9)
        lines += ["", f"![cost per point]({save(figure, out / 'scale.png', 'encoder and decoder')[0].name})"]
    with whole_file(out / "scale.md") as partial:
        partial.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--only", choices=list(TITLES), nargs="+", default=list(TITLES), help="some parts")
    parser.add_argument("--points", type=int, default=440_000, help="points of the aircraft (default 440000)")
    parser.add_argument(
        "--largest", type=int, default=SIZES[-1], help="points of the largest cloud (default 10 million)"
    )
    parser.add_argument("--out", type=Path, help="folder for tables and picture (default: only print)")
    args = parser.parse_args()
    calls: dict[str, Callable[[], list[measure.Row]]] = {
        "aircraft": lambda: measure_aircraft(args.points, args.threads),
        "points 2": lambda: measure_points(2, args.largest, args.threads),
        "points 3": lambda: measure_points(3, args.largest, args.threads),
        "stream": lambda: measure_stream(args.points, args.largest, args.threads),
    }
    for name in args.only:
        rows = calls[name]()
        measure.report(TITLES[name], rows, args.json, threads=args.threads)
        if args.out is not None:
            keep(args.out, name, rows)


if __name__ == "__main__":
    main()
