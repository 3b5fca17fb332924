import dataclasses

import pytest
import torch

from ikno.linalg import Cells, Grid, locate
from tests.linalg.clouds import GRIDS, draw, lines


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
