"""A data set ready to be learned: parts, box, times and pairs."""

from itertools import combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ikno.config import DataSettings
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError

N = 12


def written(
    folder: Path,
    samples: int = 20,
    snapshots: int = 1,
    shared: bool = False,
    x: np.ndarray | None = None,
    card: str = "",
) -> str:
    """Return the card of a set whose sample s has u = s everywhere."""
    rng = np.random.default_rng(0)
    x = rng.random((samples, 1, N, 2)) if x is None else x
    u = np.broadcast_to(np.arange(samples).reshape(-1, 1, 1, 1), (samples, snapshots, x.shape[2], 1))
    with h5py.File(folder / "mine.nc", "w") as file:
        file["u"], file["x"] = u.astype(np.float32), x.astype(np.float32)
    times = f"times = [0, 2]\nsnapshots = {snapshots}\n" if snapshots > 1 else ""
    text = f'name = "mine"\nfile = "mine.nc"\nvariables = ["u"]\n{times}{card}'
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


def opened(name: str, seed: int = 0, **settings: Any) -> Problem:
    return open_problem(DataSettings(name=name, **settings), seed)


def parts(problem: Problem) -> list[list[int]]:
    """Return the samples of the three parts, as their values tell."""
    return [[int(t.values[0, 0, 0]) for t in p] for p in (problem.train, problem.validation, problem.test)]


@pytest.mark.parametrize("samples", [2, 3, 7, 20, 41])
@pytest.mark.parametrize("card", ["", "split = [1024, 256, 256]", "split = [4, 0, 2]", "split = [1, 100, 1]"])
def test_parts_are_disjoint(tmp_path: Path, samples: int, card: str) -> None:
    """F35: by what is read, not by what the ranges say."""
    found = parts(opened(written(tmp_path, samples, card=card)))
    for one, two in combinations(found, 2):
        assert not set(one) & set(two)
    assert sorted(i for p in found for i in p) == sorted({i for p in found for i in p})
    assert found[0][0] == 0
    assert found[2][-1] == samples - 1


def test_the_split_of_the_card(tmp_path: Path) -> None:
    name = written(tmp_path, 20, card="split = [9, 3, 4]")
    assert parts(opened(name)) == [list(range(9)), [9, 10, 11], [16, 17, 18, 19]]


def test_the_split_of_the_card_shrinks_in_proportion(tmp_path: Path) -> None:
    """4 : 1 : 1 of twelve samples is eight, two and two."""
    name = written(tmp_path, 12, card="split = [1024, 256, 256]")
    assert parts(opened(name)) == [list(range(8)), [8, 9], [10, 11]]


def test_a_card_without_split_is_divided_ten_to_one(tmp_path: Path) -> None:
    assert parts(opened(written(tmp_path, 20))) == [list(range(16)), [16, 17], [18, 19]]
    assert [len(p) for p in parts(opened(written(tmp_path, 2)))] == [1, 0, 1]
    with pytest.raises(UserError, match=r"^[^\n]*1 samples cannot be split[^\n]*$"):
        opened(written(tmp_path, 1))


def test_an_explicit_split_is_exact(tmp_path: Path) -> None:
    name = written(tmp_path, 20, card="split = [9, 3, 4]")
    assert parts(opened(name, split=(2, 1, 3))) == [[0, 1], [2], [17, 18, 19]]
    assert [len(p) for p in parts(opened(name, split=(15, 9, 4)))] == [15, 1, 4]
    with pytest.raises(UserError, match=r"^[^\n]*16 training and 5 test samples, found 20[^\n]*$"):
        opened(name, split=(16, 0, 5))


def test_the_box_is_that_of_the_training_points(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((10, 1, N, 2)) * [2, 3] - [1, 5]
    x[3, 0, 4] = [7.5, -9.25]
    x[8:] *= 100  # validation and test
    name = written(tmp_path, 10, x=x, card="split = [8, 1, 1]")
    train = x[:8].reshape(-1, 2).astype(np.float32)
    for sampling in ("first", "random", "farthest"):
        found = opened(name, sampling=sampling).box()
        assert found == tuple((float(a), float(b)) for a, b in zip(train.min(0), train.max(0), strict=True))
    assert found[0][1] == 7.5
    assert found[1][0] == -9.25


@pytest.mark.parametrize("shared", [True, False])
def test_the_box_of_random_points_is_that_of_all_steps(tmp_path: Path, shared: bool) -> None:
    """Each step sees others of the points, so all belong to the box; fixed points are their own box."""
    x = np.random.default_rng(0).random((1 if shared else 10, 1, 50, 2)).astype(np.float32)
    name = written(tmp_path, 10, x=x)
    problem = opened(name, sampling="random", points=3)
    low, high = np.array(problem.box()).T
    for number in range(60):
        points = problem.train.get(0, (0, number)).points
        assert (points >= low).all()
        assert (points <= high).all()
    fixed = np.array(opened(name, sampling="first", points=3).box())
    train = x[:8, 0, :3].reshape(-1, 2)
    np.testing.assert_array_equal(fixed, np.stack([train.min(0), train.max(0)], 1))


def test_the_box_of_the_card_goes_first(tmp_path: Path) -> None:
    name = written(tmp_path, card="domain = [[-3, 4], [0, 9]]")
    assert opened(name).box() == ((-3.0, 4.0), (0.0, 9.0))


def test_a_flat_box_gets_a_thickness(tmp_path: Path) -> None:
    """Points in a plane, or a single point."""
    x = np.random.default_rng(0).random((10, 1, N, 2))
    x[..., 1] = 3
    (a, b), flat = opened(written(tmp_path, 10, x=x)).box()
    assert 0 <= a < b <= 1
    assert flat == (2.5, 3.5)
    assert opened(written(tmp_path, 10, x=np.ones((1, 1, 1, 2)))).box() == ((0.5, 1.5), (0.5, 1.5))


def test_pairs_and_times(tmp_path: Path) -> None:
    """Snapshots 0 to 8 from time 0 to 2, every second of them."""
    name = written(tmp_path, snapshots=9)
    problem = opened(name)
    np.testing.assert_allclose(problem.times, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2])
    assert problem.pairs == tuple((i, j) for i in (0, 2, 4, 6, 8) for j in (0, 2, 4, 6, 8) if i < j)
    assert not problem.steady
    assert opened(name, stride=4).pairs == ((0, 4), (0, 8), (4, 8))
    assert opened(name, final_snapshot=5).pairs == ((0, 2), (0, 4), (0, 5), (2, 4), (2, 5), (4, 5))
    assert opened(name, final_snapshot=3, stride=3).pairs == ((0, 3),)
    assert opened(name, final_snapshot=1, stride=1).pairs == ((0, 1),)
    from_card = written(tmp_path, snapshots=9, card="stride = 3\nfinal_snapshot = 6")
    assert opened(from_card).pairs == ((0, 3), (0, 6), (3, 6))
    assert opened(from_card, stride=6).pairs == ((0, 6),)


def test_items_of_a_part(tmp_path: Path) -> None:
    problem = opened(written(tmp_path, 10, snapshots=9), stride=4)
    items = problem.items(problem.train)
    assert len(items) == 8 * 3
    start = problem.items(problem.test, from_start=True)
    assert len(start) == 2
    found = start.batch([0, 1])
    assert found.time is not None
    assert found.lead is not None
    assert found.time.tolist() == [0, 0]
    assert found.lead.tolist() == [1, 2]
    assert found.samples == (9, 9)


def test_a_steady_problem_has_no_pairs(tmp_path: Path) -> None:
    problem = opened(written(tmp_path, 10), stride=4)
    assert problem.steady
    assert problem.pairs == ()
    assert problem.times == (0.0,)
    assert len(problem.items(problem.validation, from_start=True)) == 1
    assert problem.items(problem.train).batch([3]).values.unique().tolist() == [3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 9}, "a stride of 9 does not fit between snapshot 0 and 8"),
        ({"stride": 4, "final_snapshot": 3}, "a stride of 4 does not fit between snapshot 0 and 3"),
        ({"final_snapshot": 1}, "a stride of 2 does not fit"),
        ({"final_snapshot": 9}, r"data\.final_snapshot: 9 is not one of the snapshots 0 to 8"),
        ({"final_snapshot": 100, "stride": 50}, r"data\.final_snapshot: 100"),
    ],
)
def test_times_that_do_not_fit(tmp_path: Path, settings: dict[str, int], message: str) -> None:
    name = written(tmp_path, snapshots=9)
    with pytest.raises(UserError, match=rf"^[^\n]*{message}[^\n]*$"):
        opened(name, **settings)


def test_points_come_from_the_settings_or_the_card(tmp_path: Path) -> None:
    name = written(tmp_path, 10, card="points = 7")
    assert opened(name).test.get(0).points.shape == (7, 2)
    assert opened(name, points=3).test.get(0).points.shape == (3, 2)
    assert opened(name, points=100).test.get(0).points.shape == (N, 2)


def test_random_points_are_for_training(tmp_path: Path) -> None:
    """Validation and test see all points, or the number that is stated, always the same ones."""
    name = written(tmp_path, 10, card="points = 7")
    problem = opened(name, points=3, sampling="random")
    assert [len(s.get(0).points) for s in (problem.train, problem.validation, problem.test)] == [3, N, N]
    stated = opened(name, points=3, sampling="random", evaluation_points=4)
    assert [len(s.get(0).points) for s in (stated.train, stated.validation, stated.test)] == [3, 4, 4]
    first, second = (b.points for b in stated.items(stated.test).loader([[0], [0]], 0))
    assert torch.equal(first, second)
    fixed = opened(name, evaluation_points=4)
    assert [len(s.get(0).points) for s in (fixed.train, fixed.validation, fixed.test)] == [7, 4, 4]


def test_the_seed_decides_on_random_points(tmp_path: Path) -> None:
    name = written(tmp_path, 10)
    one, two, other = (opened(name, seed, points=5, sampling="random").train.get(1).points for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*none\.toml[^\n]*$"):
        opened(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match=r"^[^\n]*ikno data generate wave-layer[^\n]*$"):
        opened("wave-layer", folder=str(tmp_path))
    name = written(tmp_path)
    (tmp_path / "mine.nc").unlink()
    with pytest.raises(UserError, match=r"^[^\n]*mine\.nc: no such file$"):
        opened(name)
