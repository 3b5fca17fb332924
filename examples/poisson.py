"""Learn the solution operator of -lap u = f on the unit square, u = 0 on the boundary, from points scattered at random.

The sources are random sums of sines, so that the solutions are known exactly. Trains a small IKNO-TP, reports its error
beside two trivial predictions, evaluates the trained model on a cloud it has never seen, and draws a picture.

    python examples/poisson.py --out demo-output
"""

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

import ikno
from ikno.surrogate import Normalizer

MODES = 6


def poisson(coefficients: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return f = sum a_ij sin(pi i x) sin(pi j y) and u, the same with a_ij / (pi^2 (i^2 + j^2)), in [0, 1]^2."""
    k = torch.arange(1, MODES + 1)
    sx, sy = torch.sin(math.pi * k * points[:, :1]), torch.sin(math.pi * k * points[:, 1:])
    inverse = 1 / (math.pi**2 * (k[:, None] ** 2 + k**2))
    field = "bij,pi,pj->bp"
    return torch.einsum(field, coefficients, sx, sy)[..., None], torch.einsum(field, coefficients * inverse, sx, sy)[
        ..., None
    ]


def relative(prediction: Tensor, truth: Tensor, order: int) -> Tensor:
    """Return |prediction - truth| / |truth| per sample in the norm of the given order."""
    return (prediction - truth).flatten(1).norm(order, dim=1) / truth.flatten(1).norm(order, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for the picture")
    parser.add_argument("--model", default="ikno-tp", help="a name from `ikno models`")
    parser.add_argument("--samples", type=int, default=256, help="training samples")
    parser.add_argument("--points", type=int, default=1024, help="points of the cloud")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    console = Console()
    random = torch.Generator().manual_seed(args.seed)

    cloud = torch.rand(args.points, 2, generator=random)
    decay = 1 / torch.arange(1, MODES + 1)
    coefficients = torch.randn(args.samples + 64, MODES, MODES, generator=random) * decay[:, None] * decay
    sources, solutions = poisson(coefficients, cloud)
    inputs, targets = Normalizer.fit(sources[: args.samples]), Normalizer.fit(solutions[: args.samples])
    train = inputs(sources[: args.samples]), targets(solutions[: args.samples])
    test_source, test_solution = sources[args.samples :], solutions[args.samples :]

    model = ikno.models.build(
        args.model,
        in_channels=1,
        out_channels=1,
        dim=2,
        d_model=64,
        num_heads=4,
        num_layers=3,
        grid_size=16,
        seed=args.seed,
    )
    assert isinstance(model, ikno.models.IKNO)
    matrices = [p for p in model.get_submodule("transformer").parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    optimizers = [
        torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=2e-3, weight_decay=1e-5),
    ]
    batch = 16
    steps = args.epochs * math.ceil(args.samples / batch)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            o, lambda i: min(1, (i + 1) / 20) * (0.51 + 0.49 * math.cos(math.pi * i / steps))
        )
        for o in optimizers
    ]
    points = 2 * cloud[None] - 1  # the latent grid covers [-1, 1]^2
    size = sum(p.numel() for p in model.parameters())
    console.print(
        f"{args.model}, {size:,} parameters; {args.samples} samples of {args.points} points; {args.epochs} epochs"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps)
        for _ in range(args.epochs):
            total = 0.0
            for rows in torch.randperm(args.samples, generator=random).split(batch):
                for o in optimizers:
                    o.zero_grad()
                loss = relative(model(train[0][rows], points), train[1][rows], 2).mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for o, s in zip(optimizers, schedules, strict=True):
                    o.step()
                    s.step()
                total += float(loss.detach()) * len(rows)
                progress.update(bar, advance=1, description=f"training, relative L2 error {total / args.samples:.2%}")

    with torch.no_grad():
        state = model.encode(inputs(test_source), points)
        prediction = targets.inverse(model.decode(state, points))
        other_cloud = torch.rand(4 * args.points, 2, generator=random)
        other_source, other_solution = poisson(coefficients[args.samples :], other_cloud)
        other = targets.inverse(model(inputs(other_source), 2 * other_cloud[None] - 1))
        mean = solutions[: args.samples].mean(0, keepdim=True).expand_as(test_solution)
        nearest = solutions[torch.cdist(test_source[..., 0], sources[: args.samples, :, 0]).argmin(1)]

    table = Table("prediction", "median relative L1 error on 64 test samples", box=None)
    table.add_row(f"{args.model}, the training cloud", f"{relative(prediction, test_solution, 1).median():.2%}")
    table.add_row(
        f"{args.model}, another cloud of {4 * args.points} points", f"{relative(other, other_solution, 1).median():.2%}"
    )
    table.add_row("nearest training sample", f"{relative(nearest, test_solution, 1).median():.2%}")
    table.add_row("mean of the training solutions", f"{relative(mean, test_solution, 1).median():.2%}")
    console.print(table)

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "poisson.png"
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
    fields = {
        "source f": other_source,
        "solution u": other_solution,
        "prediction": other,
        "error": other - other_solution,
    }
    for axis, (title, values) in zip(axes, fields.items(), strict=True):
        # Solution and prediction share their scale, so that they can be compared by eye.
        limit = float((other_solution if title == "prediction" else values)[0].abs().max())
        dots = axis.scatter(*other_cloud.T, c=values[0, :, 0], s=4, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set(title=title, aspect="equal", xlabel="x")
        figure.colorbar(dots, ax=axis)
    axes[0].set_ylabel("y")
    figure.savefig(path, dpi=120)
    console.print(f"Picture: {path}")
    console.print("Next: try --model ikno-vanilla or --model ikno-first-order, more --samples, or read README.md.")


if __name__ == "__main__":
    main()
