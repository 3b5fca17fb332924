"""Sums between points and grid, forward + backward (values and kernel parameters): cell-local against chunked dense.

Times are CPU seconds with one thread, both forms in turns in one run. The interpolation is made before and has its own
column. Errors are against the dense form in float64: of the results, and of the gradients (the worse of values and
kernel parameters). In the 3-D case errors are taken on a part of the points.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks import measure
from ikno import cost
from ikno.linalg import Cloud, Grid, Interpolation, Local, contraction, locate
from ikno.models import BaseKernel

SLICE = 20  # without --full, dense runs on one of so many points where the cloud is large


@dataclass(frozen=True)
class Case:
    dim: int
    points: int
    size: int
    width: int
    scales: tuple[float, ...]
    cloud: str


CASES = ((2, 9216, 32, 256, (1.0,)), (2, 9216, 32, 256, (1.0, 2.0, 4.0)), (3, 440_000, 24, 64, (2.0,)))
DIRECTIONS = ("to grid", "to points")


def sample_points(kind: str, count: int, dim: int) -> Tensor:
    """Return a cloud [1, count, dim] in the box [-1, 1]: uniform, in eight narrow clusters, or on a sphere (circle)."""
    draw = torch.Generator().manual_seed(0)
    if kind == "uniform":
        points = 2 * torch.rand(count, dim, generator=draw) - 1
    elif kind == "clustered":
        centers = 1.4 * torch.rand(8, dim, generator=draw) - 0.7
        owner = torch.randint(8, (count,), generator=draw)
        points = centers[owner] + 0.08 * torch.randn(count, dim, generator=draw)
    else:
        normal = torch.nn.functional.normalize(torch.randn(count, dim, generator=draw), dim=1)
        points = normal * (0.8 + 0.1 * torch.sin(5 * normal[:, :1]))
    return points.clamp(-1, 1)[None]


def prepare(case: Case, direction: str, method: str, part: int = 1, dtype: torch.dtype = torch.float32):
    """Return a call that gives results and gradients; ``part`` > 1 keeps one of so many points."""
    grid = Grid((case.size,) * case.dim, (-1.0,) * case.dim, (1.0,) * case.dim)
    cloud = locate(sample_points(case.cloud, case.points, case.dim)[:, ::part].to(dtype), grid)
    kernels = [BaseKernel(case.dim, scale_l1=s, scale_l2=s).to(dtype) for s in case.scales]
    if method == "local":
        form = contraction(kernels, cloud, method)
        assert isinstance(form, Local)
        Interpolation.of(cloud, form.nodes)
    draw = torch.Generator().manual_seed(1)
    at_points = torch.randn(1, case.points, case.width, generator=draw)[:, ::part].to(dtype)
    on_grid = torch.randn(1, len(kernels), *grid.size, case.width, generator=draw).to(dtype)
    if direction == "to grid":
        return partial(_with_gradients, "to_grid", at_points.requires_grad_(), cloud, kernels, method, on_grid)
    cotangent = at_points[:, :, None].expand(-1, -1, len(kernels), -1)
    return partial(_with_gradients, "to_points", on_grid.requires_grad_(), cloud, kernels, method, cotangent)


def _with_gradients(direction: str, values: Tensor, cloud: Cloud, kernels: list[BaseKernel], method: str, c: Tensor):
    result = getattr(contraction(kernels, cloud, method), direction)(values)
    parameters = [p for k in kernels for name, p in k.named_parameters() if name != "raw_alpha"]
    gradients = torch.autograd.grad(result, [values, *parameters], c)
    return [result.detach()], [gradients[0], torch.cat(gradients[1:])]


def errors(case: Case, direction: str) -> tuple[float, float]:
    """Return the relative errors of results and gradients, on at most some 4,000 points in three dimensions."""
    part = max(case.points // 4_000, 1) if case.dim == 3 else 1
    found = prepare(case, direction, "local", part)()
    exact = prepare(case, direction, "dense", part, torch.float64)()
    return measure.relative_error(found[0], exact[0]), measure.relative_error(found[1], exact[1])


def geometry_seconds(case: Case) -> float:
    """Return the CPU seconds of locating a cloud and making its interpolation."""
    grid = Grid((case.size,) * case.dim, (-1.0,) * case.dim, (1.0,) * case.dim)
    points = sample_points(case.cloud, case.points, case.dim)
    nodes = _form(case).nodes
    return cost.interleaved({"locate": lambda: Interpolation.of(locate(points, grid), nodes)}, 3)["locate"].cpu


def nodes_per_cell(case: Case) -> str:
    """Return the interpolation nodes that the local form takes in each cell."""
    return "x".join(map(str, _form(case).nodes))


def _form(case: Case) -> Local:
    grid = Grid((case.size,) * case.dim, (-1.0,) * case.dim, (1.0,) * case.dim)
    kernels = [BaseKernel(case.dim, scale_l1=s, scale_l2=s) for s in case.scales]
    form = contraction(kernels, locate(torch.zeros(1, 1, case.dim), grid), "local")
    assert isinstance(form, Local)
    return form


def measured(case: Case, direction: str, peak: float, repeats: int, full: bool) -> dict[str, str | int | float]:
    """Return the row of one case and direction."""
    part = SLICE if case.dim == 3 and not full else 1
    values, gradients = errors(case, direction)
    local = prepare(case, direction, "local")
    gigaflop = measure.operations(local)
    calls = {"dense": prepare(case, direction, "dense", part), "local": local}
    # The large case is long enough to be timed once; both forms have run by now.
    seconds = cost.interleaved(calls, 1 if case.dim == 3 else repeats, warm_up=case.dim == 2)
    dense_cpu, local_cpu = seconds["dense"].cpu * part, seconds["local"].cpu
    return {
        "points": f"{case.points:,}",
        "grid": f"{case.size}^{case.dim}",
        "width": case.width,
        "branches": len(case.scales),
        "sum": direction,
        "dense s": dense_cpu,
        "local s": local_cpu,
        "ratio": dense_cpu / local_cpu,
        "geometry s": geometry_seconds(case),
        "dense MB": cost.peak_memory(prepare, case, direction, "dense", part),
        "local MB": cost.peak_memory(prepare, case, direction, "local"),
        "error: values": values,
        "gradients": gradients,
        "nodes": nodes_per_cell(case),
        "of peak": gigaflop / local_cpu / peak * torch.get_num_threads(),
    }


def main() -> None:
    parser = measure.arguments(__doc__, repeats=3, threads=1)
    parser.add_argument("--cloud", choices=["uniform", "clustered", "surface"], default="uniform")
    parser.add_argument("--full", action="store_true", help="dense form on all points of the 3-D case (minutes)")
    parser.add_argument("--dim", type=int, choices=[2, 3], help="only the cases of this dimension")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    peak = measure.product_peak()
    cases = [Case(*c, args.cloud) for c in CASES if args.dim in (None, c[0])]
    rows = [measured(c, direction, peak, args.repeats, args.full) for c in cases for direction in DIRECTIONS]
    note = "" if args.full else f"; 3-D: dense on 1/{SLICE} of the points, its time times {SLICE}, its MB as is"
    title = f"Contraction, {args.cloud} cloud, CPU seconds forward + backward{note}"
    measure.report(title, rows, args.json, threads=torch.get_num_threads(), product_peak_GFLOPs=peak)


if __name__ == "__main__":
    main()
