"""Sums between scattered points and the latent grid, K_GP V and K_PG V', by the form that costs less."""

from collections.abc import Sequence
from math import prod

from ikno.linalg.dense import Dense
from ikno.linalg.geometry import Cells, Cloud, Grid
from ikno.linalg.local import Local
from ikno.linalg.sums import Contraction, Kernel, OnGrid, Values

# Numbers kept per channel: 4 GB in single precision at width 256.
MAX_KEPT = 1 << 22


def contraction(
    kernels: Sequence[Kernel],
    cloud: Cloud,
    method: str = "auto",
    tolerance: float = 1e-5,
    summed: bool = False,
) -> Contraction:
    """Return the contraction for a cloud: ``dense``, ``local``, or with ``auto`` the one that costs less.

    ``tolerance`` bounds the error of ``local``, for values and all derivatives that the cloud asks for, as
    ``Kernel.nodes`` says.
    """
    grid, cells = cloud.grid, cloud.cells
    if method not in ("auto", "dense", "local"):
        raise ValueError(f"the contraction is one of auto, dense, local; found {method!r}")
    if method == "dense":
        return Dense(kernels, grid, summed)
    slope = cloud.points.requires_grad
    counts = [k.nodes(grid, tolerance, slope) for k in kernels]
    known = [c for c in counts if c is not None]
    reason = None
    if cells is None:
        reason = "points lie too far outside the grid"
    elif len(known) < len(counts):
        reason = "a kernel is no product or too narrow for the grid"
    elif len(kernels) * _kept(cells, grid, known) > MAX_KEPT:
        reason = "kernels this narrow need too many interpolation nodes"
    if cells is None or reason is not None:
        if method == "local":
            raise ValueError(f"the cell-local contraction cannot be used: {reason}; use contraction='dense' or 'auto'")
        return Dense(kernels, grid, summed)
    nodes = tuple(max(axis) for axis in zip(*known, strict=True))
    points = cloud.points.shape[1] + cloud.elsewhere  # a team makes the choice that one process would make
    local, dense = _local_cost(cells, grid, nodes, points, len(kernels)), _dense_cost(grid, points, len(kernels))
    if method == "local" or local < dense:
        return Local(kernels, grid, cells, tuple(known), slope, cloud.points.dtype, summed)
    return Dense(kernels, grid, summed)


def _kept(cells: Cells, grid: Grid, nodes: Sequence[tuple[int, ...]]) -> int:
    """Return the numbers per kernel and channel that the local form keeps between points and grid."""
    return grid.size[0] * max(prod(cells.node_counts(n)[1:]) for n in nodes)


def _dense_cost(grid: Grid, points: int, kernels: int) -> float:
    """Return the multiplications per sample and channel of the dense form."""
    return float(kernels * grid.count * points)


def _local_cost(cells: Cells, grid: Grid, nodes: tuple[int, ...], points: int, kernels: int) -> float:
    """Return the same for the local form, with the measured prices of its small products in units of a large one's."""
    sizes = list(cells.node_counts(nodes))
    tables = 0
    for j in range(grid.dim):
        tables += grid.size[j] * prod(sizes)
        sizes[j] = grid.size[j]
    return 8.0 * prod(nodes) * points + 2.5 * kernels * tables


def points_to_grid(
    values: Values, cloud: Cloud, kernels: Sequence[Kernel], method: str = "auto", tolerance: float = 1e-5
) -> tuple[OnGrid, ...]:
    """Return sum_i k(y, x_i) v_i on the grid for each kernel: K_GP V_P."""
    form = contraction(kernels, cloud, method, tolerance)
    return form.collect(form.spread(values, cloud))


def grid_to_points(
    grids: Sequence[OnGrid], cloud: Cloud, kernels: Sequence[Kernel], method: str = "auto", tolerance: float = 1e-5
) -> tuple[Values, ...]:
    """Return sum_y k(x, y) v(y) at the points of the cloud for each kernel and its own grid values: K_PG V_G."""
    form = contraction(kernels, cloud, method, tolerance)
    return form.sample(form.expand(grids, cloud), cloud).unbind(-2)
