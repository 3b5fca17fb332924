import dataclasses

import pytest
import torch

from ikno.linalg import Cells, Grid, locate
from ikno.linalg.geometry import Blocks

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


def slots(cloud):
    """Yield (cloud, point, share, cells) of every slot, the cells counted from grid point 0."""
    blocks, n = cloud.blocks, cloud.points.shape[1]
    assert isinstance(blocks, Blocks)
    assert len(blocks.source) == len(blocks.share) == len(blocks.cell) * blocks.size
    for i, (source, share) in enumerate(zip(blocks.source.tolist(), blocks.share.tolist(), strict=True)):
        owner, *cell = blocks.cell[i // blocks.size].tolist()
        assert source // n == owner
        yield owner, source % n, share, [c + f for c, f in zip(cell, cloud.cells.first, strict=True)]


def totals(cloud):
    """Return the total share of every point."""
    total = torch.zeros(cloud.points.shape[:2], dtype=torch.float64)
    for owner, point, share, _ in slots(cloud):
        total[owner, point] += share
    return total


def check_slots(cloud):
    """Assert that every slot's point lies in the closed cell of its block and that this cell is in the range."""
    grid = cloud.grid
    x = cloud.points.detach()
    eps = 8 * torch.finfo(x.dtype).eps
    for owner, point, _, cell in slots(cloud):
        for j, c in enumerate(cell):
            assert cloud.cells.first[j] <= c < cloud.cells.first[j] + cloud.cells.count[j]
            width, start = grid.spacing(j), lines(grid, j)[0]
            at = float(x[owner, point, j])
            slack = eps * (abs(at) + abs(start) + width)
            assert start + c * width - slack <= at <= start + (c + 1) * width + slack


@pytest.mark.parametrize("d", [1, 2, 3])
def test_grid_coordinates(d):
    grid = GRIDS[d]
    like = torch.zeros((), dtype=torch.float64)
    assert grid.dim == d
    for j in range(d):
        y = grid.axis(j, like)
        torch.testing.assert_close(y, torch.tensor(lines(grid, j), dtype=torch.float64), rtol=0, atol=1e-15)
        assert grid.axis(j, like.float()).dtype == torch.float32
        assert grid.spacing(j) == pytest.approx(lines(grid, j)[1] - lines(grid, j)[0])
    expected = [[]]
    for j in range(d):
        expected = [[*row, y] for row in expected for y in lines(grid, j)]
    assert grid.count == len(expected)
    torch.testing.assert_close(grid.points(like), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


def test_axis_of_size_one():
    """A single grid point sits in the middle of its axis, wherever that axis stands."""
    grid = Grid((3, 1, 2), (0.0, 2.0, 0.0), (1.0, 6.0, 1.0))
    like = torch.zeros((), dtype=torch.float64)
    assert grid.count == 6
    assert grid.axis(1, like).tolist() == [4.0]
    assert grid.points(like)[:, 1].tolist() == [4.0] * 6
    assert grid.points(like)[:3].tolist() == [[0.0, 4.0, 0.0], [0.0, 4.0, 1.0], [0.5, 4.0, 0.0]]
    for wanted in (False, True):
        cloud = locate(draw(grid, "lines").requires_grad_(wanted), grid)
        check_slots(cloud)
        assert (totals(cloud) == 1).all()


@pytest.mark.parametrize(
    ("size", "lower", "upper", "message"),
    [
        ((), (), (), "one size and two bounds per axis"),
        ((4,), (0.0, 0.0), (1.0, 1.0), "one size and two bounds per axis"),
        ((4, 4), (0.0, 0.0), (1.0,), "one size and two bounds per axis"),
        ((0,), (0.0,), (1.0,), "axis 0"),
        ((4, -1), (0.0, 0.0), (1.0, 1.0), "axis 1"),
        ((4, 4), (0.0, 1.0), (1.0, 1.0), "axis 1.*lower < upper"),
        ((4,), (2.0,), (1.0,), "lower < upper"),
        ((4,), (float("nan"),), (1.0,), "lower < upper"),
    ],
)
def test_grid_refuses(size, lower, upper, message):
    with pytest.raises(ValueError, match=message):
        Grid(size, lower, upper)


def test_grid_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRIDS[1].size = (3,)  # pyright: ignore[reportAttributeAccessIssue]


def test_node_counts_share_cell_ends():
    assert Cells((0, -2), (5, 1)).node_counts((2, 7)) == (6, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("kind", ["inside", "outside", "lines"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_blocks_hold_every_point_once(d, kind, wanted, dtype):
    """F4: with and without gradients of the coordinates, one cloud and several."""
    for clouds in (1, 3):
        cloud = locate(draw(GRIDS[d], kind, clouds, dtype=dtype).requires_grad_(wanted), GRIDS[d])
        check_slots(cloud)
        assert (totals(cloud) == 1).all()


def test_many_points_in_one_cell():
    """Blocks of one cell hold more points than a block has slots."""
    grid = GRIDS[2]
    x = torch.cat([draw(grid, points=7), 0.01 + 0.001 * draw(grid, points=500)], 1)
    cloud = locate(x, grid)
    check_slots(cloud)
    assert (totals(cloud) == 1).all()
    assert cloud.blocks.size < 500


@pytest.mark.parametrize("d", [1, 2, 3])
def test_points_on_lines_are_halves_where_coordinates_are_differentiated(d):
    """F4: a point on k grid lines is 2^k equal parts in 2^k cells, otherwise whole."""
    x = draw(GRIDS[d], "lines")
    on = torch.stack([(x[0, :, j, None] == GRIDS[d].axis(j, x)).any(-1) for j in range(d)]).sum(0)
    for wanted in (False, True):
        cloud = locate(x.clone().requires_grad_(wanted), GRIDS[d])
        parts = {}
        for _, point, share, cell in slots(cloud):
            if share:
                parts.setdefault(point, []).append((share, tuple(cell)))
        for point, found in parts.items():
            count = 2 ** int(on[point]) if wanted else 1
            assert [share for share, _ in found] == [1 / count] * count
            assert len({cell for _, cell in found}) == count


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("kind", ["inside", "outside", "lines"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_masked_points_never_appear(d, kind, wanted):
    x = draw(GRIDS[d], kind, clouds=3)
    mask = torch.rand(3, 40, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[1] = True
    mask[2] = False  # an empty sample
    x[~mask] = 1e9
    cloud = locate(x.requires_grad_(wanted), GRIDS[d], mask)
    assert cloud.cells is not None  # what lies far away is not there
    check_slots(cloud)
    assert torch.equal(totals(cloud), mask.double())
    for owner, point, _, _ in slots(cloud):
        assert mask[owner, point]  # not even as the name of an empty slot


@pytest.mark.parametrize("kind", ["inside", "outside", "lines"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_range_is_tight(d, kind):
    """No row of cells at either end of the range is empty, and no point is outside it."""
    x = draw(GRIDS[d], kind)
    cloud = locate(x, GRIDS[d])
    cells = [cell for _, _, _, cell in slots(cloud)]
    assert cloud.cells is not None
    for j in range(d):
        used = [c[j] for c in cells]
        assert min(used) == cloud.cells.first[j]
        assert max(used) == cloud.cells.first[j] + cloud.cells.count[j] - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbors_of_a_line_are_on_their_own_side(dtype):
    """The next number below a grid coordinate belongs to the cell before it, although rounding says otherwise."""
    grid = Grid((8,), (0.1,), (0.7,))
    y = grid.axis(0, torch.zeros((), dtype=dtype))
    below = torch.nextafter(y, torch.full_like(y, -1))
    cloud = locate(torch.cat([y, below])[None, :, None], grid)
    found = {}
    for _, point, share, (cell,) in slots(cloud):
        if share:
            found[point] = cell
    assert [found[i] for i in range(7)] == list(range(7))
    assert found[7] in (6, 7)  # the last line may close the range
    assert [found[8 + i] for i in range(8)] == list(range(-1, 7))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("size", [1, 7, 39, 40, 100])
def test_split_covers_all_points(size, wanted, masked):
    x = draw(GRIDS[2], "lines", clouds=2).requires_grad_(wanted)
    mask = torch.rand(2, 40, generator=torch.Generator().manual_seed(2)) < 0.7 if masked else None
    cloud = locate(x, GRIDS[2], mask)
    parts = cloud.split(size)
    assert [p.points.shape[1] for p in parts[:-1]] == [size] * (len(parts) - 1)
    assert 1 <= parts[-1].points.shape[1] <= size
    if len(parts) == 1:
        assert parts[0] is cloud
        return
    order = torch.cat([p.index for p in parts if p.index is not None], 1)
    assert torch.equal(order.sort(1)[0], torch.arange(40).expand(2, 40))
    for c in range(2):
        assert torch.equal(torch.cat([p.points for p in parts], 1)[c], cloud.points[c, order[c]])
    rows = (x.detach() - lines(GRIDS[2], 0)[0])[..., 0].div(GRIDS[2].spacing(0)).floor().gather(1, order)
    assert cloud.cells is not None
    last = cloud.cells.first[0] + cloud.cells.count[0] - 1  # its upper end is no cell of its own
    assert (rows.clamp(max=last).diff(dim=1) >= 0).all() or masked  # neighbors in space
    assert all(p.cells == cloud.cells and p.grid == cloud.grid for p in parts)
    if mask is not None:
        found = [p.mask for p in parts if p.mask is not None]
        assert torch.equal(torch.cat(found, 1), mask.gather(1, order))
    for part in parts:
        check_slots(part)
    total = torch.cat([totals(p) for p in parts], 1)
    expected = torch.ones(2, 40, dtype=torch.float64) if mask is None else mask.gather(1, order).double()
    assert torch.equal(total, expected)


@pytest.mark.parametrize("wanted", [False, True])
def test_permuted_points_are_permuted_slots(wanted):
    """F6: the same points with the same shares in the same cells."""
    x = draw(GRIDS[2], "lines")
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    a, b = (locate(y.clone().requires_grad_(wanted), GRIDS[2]) for y in (x, x[:, order]))
    assert a.cells == b.cells
    names = order.tolist()
    first = sorted((point, share, cell) for _, point, share, cell in slots(a) if share)
    second = sorted((names[point], share, cell) for _, point, share, cell in slots(b) if share)
    assert first == second


@pytest.mark.parametrize("d", [1, 2, 3])
def test_offsets_are_positions_in_the_cell(d):
    """t = (x - left end) / width, with slope 1 / width."""
    grid = GRIDS[d]
    x = draw(grid, "outside").requires_grad_()
    cloud = locate(x, grid)
    blocks = cloud.blocks
    assert cloud.cells is not None
    for j in range(d):
        cell = blocks.cell[:, 1 + j].repeat_interleave(blocks.size)
        t = cloud.offsets(j, blocks.source, cell)
        assert t.min() > -1e-12
        assert t.max() < 1 + 1e-12
        width = grid.spacing(j)
        expected = [
            (float(x.detach()[o, p, j]) - (lines(grid, j)[0] + width * c[j])) / width for o, p, _, c in slots(cloud)
        ]
        torch.testing.assert_close(t.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
        (slope,) = torch.autograd.grad((t * blocks.share).sum(), x)
        torch.testing.assert_close(slope[..., j], torch.full((1, 40), 1 / width, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("axis", [0, 1])
def test_infinite_coordinates_are_refused(axis, bad):
    x = draw(GRIDS[2])
    x[0, 7, axis] = bad
    with pytest.raises(ValueError, match=f"coordinate {axis} .*finite"):
        locate(x, GRIDS[2])
    mask = torch.ones(1, 40, dtype=torch.bool)
    mask[0, 3] = False
    with pytest.raises(ValueError, match=f"coordinate {axis} .*finite"):
        locate(x, GRIDS[2], mask)


@pytest.mark.parametrize("dim", [1, 3])
def test_wrong_dimension_is_refused(dim):
    with pytest.raises(ValueError, match=f"{dim} coordinates.*2 axes"):
        locate(torch.zeros(1, 5, dim), GRIDS[2])


def test_no_points_are_refused():
    with pytest.raises(ValueError, match="at least one point"):
        locate(torch.zeros(1, 0, 2), GRIDS[2])


def test_far_points_have_no_cells():
    """Coordinates far outside need no table of cells: the dense form serves them."""
    x = draw(GRIDS[2])
    x[0, 0, 1] = 1e9
    assert locate(x, GRIDS[2]).cells is None
