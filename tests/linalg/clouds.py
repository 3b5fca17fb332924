"""Grids, and clouds in them, on their lines and around them."""

import torch

from ikno.linalg import Grid

GRIDS = {
    1: Grid((9,), (-1.0,), (1.0,)),
    2: Grid((5, 8), (0.0, -0.3), (1.0, 0.4)),
    3: Grid((4, 3, 6), (0.0, -1.0, 2.0), (1.0, 1.0, 2.7)),
}


def lines(grid, axis):
    """Return the grid coordinates along an axis, one by one."""
    n, a, b = grid.size[axis], grid.lower[axis], grid.upper[axis]
    if n == 1:
        return [(a + b) / 2]
    return [a + (b - a) * i / (n - 1) for i in range(n)]


def draw(grid, kind="inside", clouds=1, points=40, seed=0, dtype=torch.float64):
    """Return points inside the box, up to three box widths outside, or on grid lines along some axes or all."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(clouds, points, grid.dim, generator=g, dtype=torch.float64)
    if kind == "outside":
        x = 7 * x - 3
    low, high = (torch.tensor(b, dtype=torch.float64) for b in (grid.lower, grid.upper))
    x = (low + (high - low) * x).to(dtype)
    if kind == "lines":
        for j in range(grid.dim):
            y = grid.axis(j, x)
            on = torch.rand(clouds, points, generator=g) < 0.6
            x[..., j] = torch.where(on, y[torch.randint(len(y), (clouds, points), generator=g)], x[..., j])
        x[:, 0], x[:, 1] = low.to(dtype), high.to(dtype)
    return x
