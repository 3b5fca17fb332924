"""Forward pass of the paper-size 3-D model on 440,000 points of an aircraft-like surface: time and peak memory.

IKNO-TP with width 256, 12 layers, 24^3 latent grid and three branches; six features and the normal per point in, four
fields out. The surface is a deformed ellipsoid (fuselage) with a flat one across it (wing). One pass without gradients.
"""

import time

import torch
from torch import Tensor

from benchmarks import measure
from ikno import cost
from ikno.models import IKNO, build

LIMIT = 6.0  # GB of resident memory


def surface(count: int) -> tuple[Tensor, Tensor]:
    """Return points [1, count, 3] on fuselage and wing, in the box [-1, 1], and the normals of the ellipsoids."""
    draw = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(count, 3, generator=draw), dim=1)
    wing = torch.rand(count, 1, generator=draw) < 0.6
    axes = torch.where(wing, torch.tensor([0.18, 0.9, 0.02]), torch.tensor([0.95, 0.1, 0.1]))
    points = direction * axes
    sweep = torch.where(wing[:, 0], 0.35 * points[:, 1].abs(), torch.zeros(count))
    camber = 0.05 * torch.sin(3 * points[:, 0]) + 0.05 * points[:, 1].square()
    points = points + torch.stack([sweep, torch.zeros(count), camber], 1)
    normals = torch.nn.functional.normalize(direction / axes, dim=1)
    return points[None], normals[None]


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=2)
    parser.add_argument("--points", type=int, default=440_000, help="points of the surface (default 440000)")
    parser.add_argument("--contraction", choices=["auto", "dense", "local"], default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    points, normals = surface(args.points)
    conditions = torch.randn(6, generator=torch.Generator().manual_seed(1)).expand(1, args.points, 6)
    features = torch.cat([normals, conditions], -1)
    settings = {"grid_size": 24, "contraction": args.contraction}
    model = build("ikno-tp", in_channels=6 + 3, out_channels=4, dim=3, seed=0, **settings).eval()
    assert isinstance(model, IKNO)
    base = resident = cost.resident("VmRSS")
    rows: list[dict[str, str | int | float]] = []
    with torch.no_grad():
        for _ in range(args.repeats):
            start = time.perf_counter()
            cloud = model.locate(points)
            state = model.encode(features, cloud)
            encoded, resident = time.perf_counter(), cost.resident("VmHWM")
            values = model.decode(state, cloud)
            decoded = time.perf_counter()
            assert values.shape == (1, args.points, 4)
            assert bool(values.isfinite().all())
            peak = cost.resident("VmHWM") / 1e3
            rows.append(
                {
                    "points": f"{args.points:,}",
                    "contraction": args.contraction,
                    "encode s": encoded - start,
                    "decode s": decoded - encoded,
                    "inputs GB": base / 1e3,
                    "peak after encode GB": resident / 1e3,
                    "peak GB": peak,
                    f"below {LIMIT:g} GB": "yes" if peak < LIMIT else "no",
                }
            )
    title = "Forward pass, IKNO-TP, width 256, 12 layers, 24^3, 3 branches; GB of resident memory of the whole process"
    measure.report(title, rows, args.json, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
