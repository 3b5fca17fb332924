"""Resolvents on a product grid: kernel factors, preparation, application to a grid of width 256, and backward pass.

Each runs in turns with the others. Errors are against the same operator as a full matrix in float64: a direct solve for
vanilla and dense, the Kronecker product of the solved factors for tensor_product, the powers for truncated. Gradients
are those of values, kernel parameters and alpha, the worst of them. The direct inverse is left out where M is above
4096 (24^3 would hold 13,824 x 13,824 entries, 1.5 GB each, several times).
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks import measure
from ikno import cost
from ikno.linalg import RESOLVENTS, Grid, kron_dense
from ikno.models import BaseKernel

GRIDS = ((24, 24), (32, 32), (16, 16, 16), (24, 24, 24))
NAMES = ("vanilla", "tensor_product", "truncated", "dense")
WIDTH, SCALE, ORDER, LARGEST = 256, 2.0, 4, 4096


def prepare(size: tuple[int, ...], name: str, exact: bool = False):
    """Return a call that gives the result and gradients of one resolvent, or of its full matrix in float64."""
    dtype = torch.float64 if exact else torch.float32
    d = len(size)
    grid = Grid(size, (-1.0,) * d, (1.0,) * d)
    kernel = BaseKernel(d, scale_l1=SCALE, scale_l2=SCALE).to(dtype)
    draw = torch.Generator().manual_seed(0)
    v, cotangent = (torch.randn(1, *size, WIDTH, generator=draw).to(dtype) for _ in range(2))
    return partial(_run, name, exact, grid, kernel, v.requires_grad_(), cotangent)


def _run(name: str, exact: bool, grid: Grid, kernel: BaseKernel, v: Tensor, cotangent: Tensor):
    factors = kernel.factors(grid)
    if exact:
        result = _full(name, factors, kernel.alpha, v.flatten(1, -2)).view(v.shape)
    elif name == "truncated":
        result = RESOLVENTS[name](factors, kernel.alpha, order=ORDER)(v)
    else:
        result = RESOLVENTS[name](factors, kernel.alpha)(v)
    gradients = torch.autograd.grad(result, [v, *kernel.parameters()], cotangent)
    return [result.detach()], gradients


def _full(name: str, factors: list[Tensor], alpha: Tensor, v: Tensor) -> Tensor:
    """Return the resolvent applied as a full matrix."""
    if name == "tensor_product":
        return kron_dense([torch.linalg.inv(torch.eye(len(k), dtype=k.dtype) - alpha * k) for k in factors]) @ v
    k = kron_dense(factors)
    if name == "truncated":
        y = v
        for _ in range(ORDER):
            y = v + alpha * (k @ y)
        return y
    return torch.linalg.solve(torch.eye(len(k), dtype=k.dtype) - alpha * k, v[0])[None]


def measured(size: tuple[int, ...], repeats: int, peak: float) -> list[dict[str, str | int | float]]:
    """Return one row per resolvent on this grid."""
    count = torch.Size(size).numel()
    names = [n for n in NAMES if n != "dense" or count <= LARGEST]
    calls = {name: prepare(size, name) for name in names}
    seconds = cost.interleaved(calls, repeats)
    rows: list[dict[str, str | int | float]] = []
    for name in names:
        values = gradients = float("nan")
        if count <= LARGEST:
            found, exact = calls[name](), prepare(size, name, exact=True)()
            values = measure.relative_error(found[0], exact[0])
            gradients = measure.relative_error(found[1], exact[1])
        gigaflop = measure.operations(calls[name])
        rows.append(
            {
                "grid": "x".join(map(str, size)),
                "resolvent": f"truncated({ORDER})" if name == "truncated" else name,
                "wall s": seconds[name].wall,
                "CPU s": seconds[name].cpu,
                "peak MB": cost.peak_memory(prepare, size, name),
                "error: values": values,
                "gradients": gradients,
                "of peak": gigaflop / seconds[name].cpu / peak * torch.get_num_threads(),
            }
        )
    return rows


def main() -> None:
    args = measure.arguments(__doc__, repeats=3, threads=1).parse_args()
    torch.set_num_threads(args.threads)
    peak = measure.product_peak()
    rows = [row for size in GRIDS for row in measured(size, args.repeats, peak)]
    title = f"Resolvents, width {WIDTH}, forward + backward; at 24^3 no direct inverse and no oracle: too large"
    measure.report(title, rows, args.json, threads=torch.get_num_threads(), product_peak_GFLOPs=peak)


if __name__ == "__main__":
    main()
