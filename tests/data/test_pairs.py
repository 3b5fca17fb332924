"""Splits, points, pairs of times and statistics, against brute force."""

import numpy as np
import pytest

from ikno.data.pairs import Accumulator, Mode, Split, farthest_points, snapshots, split, statistics, target, time_pairs
from ikno.data.records import Trajectory
from ikno.errors import UserError

MODES: tuple[Mode, ...] = ("direct", "residual", "derivative")
SIZES = [
    (1, 0, 1),
    (1, 5, 1),
    (1, 0, 100),
    (100, 0, 1),
    (3, 2, 2),
    (8, 2, 4),
    (105, 0, 44),
    (1024, 256, 256),
    (7, 90, 9),
]


def parts(found: Split) -> list[list[int]]:
    return [list(found.train), list(found.validation), list(found.test)]


def check_disjoint_and_ordered(found: Split, count: int) -> None:
    train, validation, test = parts(found)
    together = [*train, *validation, *test]
    assert len(set(together)) == len(together)
    assert set(together) <= set(range(count))
    assert together == sorted(together)
    assert train[0] == 0
    assert test[-1] == count - 1


@pytest.mark.parametrize("sizes", SIZES)
def test_exact_splits_keep_training_and_test_and_never_overlap(sizes: tuple[int, int, int]) -> None:
    train, validation, test = sizes
    for count in [*range(0, 260), 1279, 1280, 1281, 1500, 1535, 1536, 1537, 5000]:
        if count < train + test:
            with pytest.raises(UserError, match=rf"{train} training and {test} test samples, found {count} in all"):
                split(count, sizes)
            continue
        found = split(count, sizes)
        check_disjoint_and_ordered(found, count)
        room = count - train - test
        assert [len(p) for p in parts(found)] == [train, validation if validation < room else room, test]


@pytest.mark.parametrize("sizes", SIZES)
def test_proportional_splits_leave_something_to_train_and_to_test(sizes: tuple[int, int, int]) -> None:
    for count in range(2, 260):
        found = split(count, sizes, exact=False)
        check_disjoint_and_ordered(found, count)
        if count >= sizes[0] + sizes[2]:
            assert found == split(count, sizes)
        else:
            lengths = [len(p) for p in parts(found)]
            assert sum(lengths) == count
            for length, size in zip(lengths, sizes, strict=True):
                assert abs(length - count * size / sum(sizes)) < 2  # rounded, and one each at least


def test_one_sample_cannot_be_split() -> None:
    for count in (0, 1):
        with pytest.raises(UserError, match=f"{count} samples cannot be split"):
            split(count, (8, 2, 2), exact=False)


def test_the_published_wave_c_sines_split_shrinks_validation() -> None:
    """1,500 samples are 36 short of 1,024 + 256 + 256."""
    found = split(1500, (1024, 256, 256))
    assert found == Split(range(0, 1024), range(1024, 1244), range(1244, 1500))
    assert len(found.validation) == 220


def slow_farthest(points: np.ndarray, count: int, start: int) -> list[int]:
    """Take again and again the point whose nearest chosen point is farthest."""
    chosen = [start]
    while len(chosen) < count:
        rest = [i for i in range(len(points)) if i not in chosen]
        gaps = [min(float(((points[i] - points[j]) ** 2).sum()) for j in chosen) for i in rest]
        chosen.append(rest[gaps.index(max(gaps))])
    return chosen


@pytest.mark.parametrize(("dim", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_farthest_points_are_those_of_the_obvious_algorithm(dim: int, seed: int) -> None:
    points = np.random.default_rng(seed).random((60, dim))
    found = farthest_points(points, 17, np.random.default_rng(seed))
    assert found.tolist() == slow_farthest(points, 17, int(found[0]))


def cover(points: np.ndarray, chosen: np.ndarray) -> float:
    """The largest distance of any point to its nearest chosen one."""
    gaps = np.linalg.norm(points[:, None] - points[chosen][None], axis=-1)
    return float(gaps.min(1).max())


def test_farthest_points_spread_better_than_random_ones() -> None:
    points = np.random.default_rng(0).random((400, 2)) ** 2  # crowded in a corner
    for seed in range(5):
        spread = cover(points, farthest_points(points, 40, np.random.default_rng(seed)))
        chance = cover(points, np.random.default_rng(seed).permutation(400)[:40])
        assert spread < 0.7 * chance


def test_points_in_one_place_are_still_taken_once() -> None:
    points = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0]]), 5, axis=0)
    found = farthest_points(points, 7, np.random.default_rng(0))
    assert len(set(found.tolist())) == 7


def test_farthest_points_follow_the_generator() -> None:
    points = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    one, two, other = (farthest_points(points, 20, np.random.default_rng(seed)).tolist() for seed in (3, 3, 5))
    assert len(set(one)) == 20
    assert set(one) <= set(range(50))
    assert one == two != other


def test_all_points_when_no_fewer_are_asked_for() -> None:
    points = np.random.default_rng(0).random((6, 2))
    for count in (6, 7, 9216):
        assert farthest_points(points, count, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4, 5]


def test_pairs_of_the_published_protocol() -> None:
    assert snapshots(14, 2) == (0, 2, 4, 6, 8, 10, 12, 14)
    found = time_pairs(14, 2)
    assert len(found) == 28
    assert set(found) == {(i, j) for i in range(0, 15, 2) for j in range(0, 15, 2) if i < j}
    assert len(set(found)) == 28


@pytest.mark.parametrize(
    ("final", "stride", "used"),
    [(14, 4, (0, 4, 8, 12, 14)), (14, 14, (0, 14)), (5, 3, (0, 3, 5)), (1, 1, (0, 1)), (3, 1, (0, 1, 2, 3))],
)
def test_the_final_snapshot_is_always_used(final: int, stride: int, used: tuple[int, ...]) -> None:
    assert snapshots(final, stride) == used
    assert sorted(time_pairs(final, stride)) == sorted((i, j) for i in used for j in used if i < j)


@pytest.mark.parametrize(("final", "stride"), [(14, 15), (14, 0), (0, 1), (14, -2)])
def test_strides_that_do_not_fit(final: int, stride: int) -> None:
    with pytest.raises(UserError, match=f"stride of {stride} .* {final}"):
        time_pairs(final, stride)


def trajectories(count: int, times: int, seed: int, conditions: int | None = None) -> list[Trajectory]:
    """Made-up simulations with 2 variables, 5 points and perhaps 3 conditions at some times."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        c = None if conditions is None else rng.normal(5, 3, (conditions, 5, 3)).astype(np.float32)
        values = rng.normal([1, -4], [2, 0.5], (times, 5, 2)).astype(np.float32)
        made.append(Trajectory(rng.random((5, 2)).astype(np.float32), values, c))
    return made


def test_targets_follow_their_formulas() -> None:
    one = trajectories(1, 4, 0)[0]
    times = (0.0, 0.1, 0.4, 0.5)
    for i, j in [(0, 1), (0, 3), (1, 2)]:
        u, v = one.values[i], one.values[j]
        np.testing.assert_array_equal(target(one, (i, j), times, "direct"), v)
        np.testing.assert_array_equal(target(one, (i, j), times, "residual"), v - u)
        slope = target(one, (i, j), times, "derivative")
        np.testing.assert_allclose(u + (times[j] - times[i]) * slope, v, rtol=1e-5, atol=1e-5)


def test_steady_targets_are_the_values() -> None:
    one = trajectories(1, 1, 0)[0]
    np.testing.assert_array_equal(target(one, None, (0.0,), "direct"), one.values[0])
    for mode in ("residual", "derivative"):
        with pytest.raises(UserError, match=f"no {mode} target"):
            target(one, None, (0.0,), mode)


@pytest.mark.parametrize("sizes", [(300,), (1, 299), (299, 1), (1,) * 300, (7, 0, 93, 150, 50), (0, 300)])
def test_accumulator_is_mean_and_std_of_everything(sizes: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal([0, 3, -50], [1, 0.01, 20], (300, 3))
    found = Accumulator()
    for chunk in np.split(values, np.cumsum(sizes)[:-1]):
        found.add(chunk)
    moments = found.moments()
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(moments.std, values.std(0), rtol=1e-12)


def test_accumulator_takes_any_leading_axes_and_starts_empty() -> None:
    values = np.random.default_rng(0).normal(2, 3, (4, 5, 6, 2)).astype(np.float32)
    found = Accumulator()
    assert found.moments().mean.shape == found.moments().std.shape == (0,)
    found.add(values)
    np.testing.assert_allclose(found.moments().std, values.astype(np.float64).std((0, 1, 2)), rtol=1e-12)


def test_accumulator_is_accurate_far_from_zero() -> None:
    """The mean of squares minus the square of the mean would lose five or more digits here."""
    values = np.random.default_rng(0).normal(1e6, 1, (20_000, 1))
    found = Accumulator()
    for chunk in np.array_split(values, 173):
        found.add(chunk)
    exact = (values - 1e6).std()
    assert abs(found.moments().std[0] / exact - 1) < 1e-10
    assert abs(found.moments().mean[0] / values.mean() - 1) < 1e-14


def test_accumulator_sums_single_precision_in_double() -> None:
    values = np.random.default_rng(0).normal(1000, 1, (200_000, 1)).astype(np.float32)
    found = Accumulator()
    found.add(values)
    np.testing.assert_allclose(found.moments().std, values.astype(np.float64).std(0), rtol=1e-10)
    np.testing.assert_allclose(found.moments().mean, values.astype(np.float64).mean(0), rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_pairs(mode: Mode) -> None:
    """Every pair of every trajectory counts once; snapshot 3 is in no pair and does not count."""
    times, pairs = (0.0, 0.1, 0.3, 0.7, 0.8), ((0, 2), (0, 4), (2, 4))
    made = trajectories(6, 5, 1)
    for one in made:
        one.values[3] = 1e9
    found = statistics(made, times, pairs, mode)
    inputs, outputs = [], []
    for one in made:
        u = one.values.astype(np.float64)
        inputs += [u[0], u[2], u[4]]
        for i, j in pairs:
            change = u[j] - u[i]
            outputs.append({"direct": u[j], "residual": change, "derivative": change / (times[j] - times[i])}[mode])
    for moments, stacked in ((found.values, np.concatenate(inputs)), (found.target, np.concatenate(outputs))):
        np.testing.assert_allclose(moments.mean, stacked.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(moments.std, stacked.std(0), rtol=1e-5)
    np.testing.assert_allclose([found.time.mean[0], found.time.std[0]], [np.mean([0, 0, 0.3]), np.std([0, 0, 0.3])])
    lead = [0.3, 0.8, 0.5]
    np.testing.assert_allclose([found.lead.mean[0], found.lead.std[0]], [np.mean(lead), np.std(lead)])
    assert found.conditions.mean.shape == (0,)


@pytest.mark.parametrize("mode", MODES)
def test_statistics_come_from_the_training_part_only(mode: Mode) -> None:
    """Whatever the samples outside the training range hold, the statistics are the same."""
    times, pairs = (0.0, 0.5, 1.0), time_pairs(2, 1)
    made, other = trajectories(10, 3, 1, conditions=1), trajectories(10, 3, 2, conditions=1)
    train = split(10, (5, 2, 3)).train
    mixed = [made[i] if i in train else other[i] for i in range(10)]
    one = statistics((made[i] for i in train), times, pairs, mode)
    two = statistics((mixed[i] for i in train), times, pairs, mode)
    everything = statistics(made, times, pairs, mode)
    for part in ("values", "conditions", "target"):
        np.testing.assert_array_equal(getattr(one, part).mean, getattr(two, part).mean)
        np.testing.assert_array_equal(getattr(one, part).std, getattr(two, part).std)
        assert (getattr(one, part).mean != getattr(everything, part).mean).all()


@pytest.mark.parametrize("of_time", [1, 3])
def test_statistics_of_conditions_with_and_without_time(of_time: int) -> None:
    made = trajectories(4, 3, 5, conditions=of_time)
    found = statistics(made, (0.0, 0.5, 1.0), ((0, 1), (0, 2), (1, 2)), "direct")
    stacked = np.concatenate([m.conditions.reshape(-1, 3) for m in made if m.conditions is not None]).astype(np.float64)
    assert len(stacked) == 4 * of_time * 5
    np.testing.assert_allclose(found.conditions.mean, stacked.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.conditions.std, stacked.std(0), rtol=1e-12)


def test_statistics_of_a_steady_problem() -> None:
    made = trajectories(4, 1, 6, conditions=1)
    found = statistics(made, (0.0,), (), "direct")
    stacked = np.concatenate([m.values[0] for m in made]).astype(np.float64)
    for moments in (found.target, found.values):
        np.testing.assert_allclose(moments.mean, stacked.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.std, stacked.std(0), rtol=1e-12)
    assert found.conditions.mean.shape == (3,)
    assert found.time.mean.shape == found.lead.std.shape == (0,)
    with pytest.raises(UserError, match="steady"):
        statistics(made, (0.0,), (), "residual")
