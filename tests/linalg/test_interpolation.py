"""W: which points are in which cells, and the sparse matrix against its definition."""

import pytest
import torch

from ikno.linalg import Grid, Interpolation, locate
from ikno.linalg.interpolation import lagrange, lobatto
from tests.linalg.clouds import GRIDS, draw, lines


def slots(cloud):
    """Yield (cloud, point, share, cells) of every slot, the cells counted from grid point 0."""
    w, d = Interpolation.of(cloud, (2,) * cloud.grid.dim), cloud.grid.dim
    n, counts = cloud.points.shape[1], w.node_counts
    share = w.weights.detach().sum(2)  # polynomials sum to one
    for block, corner in enumerate(w.corner.tolist()):
        places = []
        for count in reversed(counts):
            corner, place = divmod(corner, count)
            places.append(place)
        for slot in range(w.source.shape[1]):
            source = int(w.source[block, slot])
            assert source // n == corner
            cell = [places[d - 1 - j] + cloud.cells.first[j] for j in range(d)]
            yield corner, source % n, round(float(share[block, slot]), 6), cell


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


def matrix(cloud, nodes):
    """Return W entry by entry: the product of Lagrange polynomials at the nodes of the cell of each point."""
    grid, d = cloud.grid, cloud.grid.dim
    counts = cloud.cells.node_counts(nodes)
    w = torch.zeros(cloud.shape[1], *counts, dtype=torch.float64)
    for i, x in enumerate(cloud.points[0].tolist()):
        entries = torch.ones((), dtype=torch.float64)
        where = []
        for j in range(d):
            place = (x[j] - lines(grid, j)[0]) / grid.spacing(j)
            cell = min(max(int(place // 1), cloud.cells.first[j]), cloud.cells.first[j] + cloud.cells.count[j] - 1)
            t = torch.tensor(place - cell, dtype=torch.float64)
            entries = entries[..., None] * lagrange(t, nodes[j])
            first = (cell - cloud.cells.first[j]) * (nodes[j] - 1)
            where.append(slice(first, first + nodes[j]))
        w[(i, *where)] = entries
    return w.flatten(1)


@pytest.mark.parametrize("kind", ["inside", "outside", "lines"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_equals_its_definition(d, kind):
    nodes = (3, 2, 4)[:d]
    cloud = locate(draw(GRIDS[d], kind), GRIDS[d])
    w, full = Interpolation.of(cloud, nodes), matrix(cloud, nodes)
    g = torch.Generator().manual_seed(1)
    v = torch.randn(1, 40, 3, generator=g, dtype=torch.float64)
    f = torch.randn(1, *w.node_counts, 3, generator=g, dtype=torch.float64)
    torch.testing.assert_close(w.to_nodes(v).flatten(1, -2)[0], full.mT @ v[0])
    torch.testing.assert_close(w.to_points(f)[0], full @ f.flatten(1, -2)[0])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_polynomials_are_reproduced_with_their_slopes(d):
    """f(x) = x_1^2 + ... is exact with three nodes per axis, on grid lines too; W f has the slope 2 x."""
    x = draw(GRIDS[d], "lines").requires_grad_()
    cloud = locate(x, GRIDS[d])
    w = Interpolation.of(cloud, (3,) * d)
    assert cloud.cells is not None
    axes = []
    for j in range(d):
        first, count = cloud.cells.first[j], cloud.cells.count[j]
        steps = [c + t for c in range(first, first + count) for t in lobatto(3)[:-1]] + [first + count]
        axes.append(torch.tensor([lines(GRIDS[d], j)[0] + GRIDS[d].spacing(j) * s for s in steps], dtype=torch.float64))
    f = torch.stack(torch.meshgrid(*axes, indexing="ij")).square().sum(0)[None, ..., None]
    found = w.to_points(f)
    torch.testing.assert_close(found[..., 0], (x**2).sum(-1))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], 2 * x.detach())


def test_is_made_once_for_a_cloud():
    cloud = locate(draw(GRIDS[2]), GRIDS[2])
    assert Interpolation.of(cloud, (3, 3)) is Interpolation.of(cloud, (3, 3))
    moving = locate(draw(GRIDS[2]).requires_grad_(), GRIDS[2])
    assert Interpolation.of(moving, (3, 3)) is not Interpolation.of(moving, (3, 3))  # of one backward pass each


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


def test_axis_with_a_single_grid_point():
    grid = Grid((3, 1, 2), (0.0, 2.0, 0.0), (1.0, 6.0, 1.0))
    for wanted in (False, True):
        cloud = locate(draw(grid, "lines").requires_grad_(wanted), grid)
        check_slots(cloud)
        assert (totals(cloud) == 1).all()


def test_many_points_in_one_cell():
    """Blocks of one cell hold more points than a block has slots."""
    grid = GRIDS[2]
    x = torch.cat([draw(grid, points=7), 0.01 + 0.001 * draw(grid, points=500)], 1)
    cloud = locate(x, grid)
    check_slots(cloud)
    assert (totals(cloud) == 1).all()
    assert Interpolation.of(cloud, (2, 2)).source.shape[1] < 500


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
