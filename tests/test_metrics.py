"""Every measure against numbers worked out by hand, and against the plain formulas on random fields."""

import math

import numpy as np
import pytest

from ikno.errors import UserError
from ikno.metrics import (
    METRICS,
    Measure,
    Metric,
    Sums,
    find_metric,
    mean_and_std,
    relative_errors,
    summarize,
    sums,
)

ZERO, ONE = (0.0, 0.0), (1.0, 1.0)


def of(truth: list, guess: list, mean=ZERO, std=ONE) -> Sums:
    return sums(np.array(truth, dtype=np.float64), np.array(guess, dtype=np.float64), mean, std)


# Two components. Sample A has two points, B three, C one.
A = of([[3.0, 1.0], [4.0, 1.0]], [[3.0, 2.0], [3.0, 1.0]])  # |e| 1, 1; |t| 7, 2; e^2 1, 1; t^2 25, 2
B = of([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], [[1.0, 2.0], [1.0, 2.0], [4.0, 4.0]])  # 2, 3; 4, 5; 4, 9; 6, 9
C = of([[-2.0, 10.0]], [[-2.0, 5.0]])  # 0, 5; 2, 10; 0, 25; 4, 100
SAMPLES = [A, B, C]
SINGLE, PAIR = [[0], [1]], [[0, 1]]


def test_relative_errors_by_hand_with_different_numbers_of_points() -> None:
    np.testing.assert_allclose(relative_errors(SAMPLES, SINGLE), [[1 / 7, 1 / 2], [1 / 2, 3 / 5], [0, 1 / 2]])
    np.testing.assert_allclose(relative_errors(SAMPLES, PAIR), [[2 / 9], [5 / 9], [5 / 12]])
    squares = [[1 / 25, 1 / 2], [4 / 6, 1], [0, 1 / 4]]
    np.testing.assert_allclose(relative_errors(SAMPLES, SINGLE, 2), np.sqrt(squares))
    np.testing.assert_allclose(relative_errors(SAMPLES, PAIR, 2), np.sqrt([[2 / 27], [13 / 15], [25 / 104]]))


def test_summary_by_hand() -> None:
    found = summarize(SAMPLES, {"both": [0, 1]})
    expected = {
        "median L1 per component": (1 / 7 + 1 / 2) / 2,
        "median L1 per chunk": 5 / 12,
        "mean L1 per chunk": (2 / 9 + 5 / 9 + 5 / 12) / 3,
        "pooled L1 per chunk": 12 / 30,
        "median L2 per component": (math.sqrt(1 / 25) + math.sqrt(1 / 2)) / 2,
        "median L2 per chunk": math.sqrt(25 / 104),
        "normalized MSE": (2 / 4 + 13 / 6 + 25 / 2) / 3,
        "normalized MAE": (2 / 4 + 5 / 6 + 5 / 2) / 3,
    }
    assert found == pytest.approx(expected)
    assert all(type(v) is float for v in found.values())


def test_chunks_have_their_own_mse_and_mae() -> None:
    found = summarize([A, C], {"first": [0], "second": [1]})
    assert found["normalized MSE of first"] == pytest.approx((1 / 2 + 0) / 2)
    assert found["normalized MSE of second"] == pytest.approx((1 / 2 + 25) / 2)
    assert found["normalized MSE"] == pytest.approx((0.25 + 12.75) / 2)
    assert found["normalized MAE of first"] == pytest.approx((1 / 2 + 0) / 2)
    assert found["normalized MAE of second"] == pytest.approx((1 / 2 + 5) / 2)
    # one component each: chunks and components are the same, and the median of two is their mean
    assert found["median L1 per chunk"] == found["median L1 per component"] == pytest.approx((1 / 14 + 1 / 2) / 2)


def test_a_chunk_may_take_components_in_any_order() -> None:
    three = [sums(np.array([[1.0, 10.0, 100.0]]), np.array([[2.0, 10.0, 150.0]]), (0.0,) * 3, (1.0,) * 3)]
    np.testing.assert_allclose(relative_errors(three, [[2, 0], [1]]), [[51 / 101, 0]])


def test_fields_are_normalized_first() -> None:
    """truth 12, 8 around 10 with std 2 is 1, -1; a guess of 13 is off by a half."""
    made = sums(np.array([[12.0], [8.0]]), np.array([[13.0], [8.0]]), (10.0,), (2.0,))
    assert relative_errors([made], [[0]]).item() == pytest.approx(0.5 / 2)
    assert relative_errors([made], [[0]], 2).item() == pytest.approx(math.sqrt(0.25 / 2))
    assert summarize([made], {"u": [0]})["normalized MSE"] == pytest.approx(0.125)
    assert summarize([made], {"u": [0]})["normalized MAE"] == pytest.approx(0.25)
    # pooled components weigh by their std: errors 1/.1 and 1/10 against truths 1/.1 and 1/10 * 3
    pooled = of([[1.0, 3.0]], [[2.0, 4.0]], std=(0.1, 10.0))
    assert relative_errors([pooled], PAIR).item() == pytest.approx(10.1 / 10.3)


def test_truth_of_norm_zero() -> None:
    exact = of([[0.0, 1.0]], [[0.0, 1.0]])
    missed = of([[0.0, 1.0]], [[0.1, 1.0]])
    for order in (1, 2):
        assert relative_errors([exact, missed], SINGLE, order).tolist() == [[0, 0], [math.inf, 0]]
    assert relative_errors([missed], PAIR).item() == pytest.approx(0.1)
    # the truth is at the mean: nothing is left after normalization
    assert relative_errors([of([[5.0, 1.0]], [[5.5, 1.0]], mean=(5.0, 0.0))], SINGLE).tolist() == [[math.inf, 0]]
    assert summarize([exact, missed, exact], {"u": [0], "v": [1]})["median L1 per component"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_no_numbers_are_infinitely_wrong(bad: float) -> None:
    broken = sums(np.array([[1.0], [2.0]]), np.array([[1.0], [bad]]), (0.0,), (1.0,))
    found = summarize([broken, broken, broken], {"u": [0]})
    assert set(found.values()) == {math.inf}


def test_pooled_errors_sum_over_batches_before_the_median() -> None:
    """Batches of two: (1 + 2) / (7 + 4) and 0 / 2 in the first component; a small last batch counts as much."""
    np.testing.assert_allclose(relative_errors(SAMPLES, SINGLE, pool=2), [[3 / 11, 4 / 7], [0, 1 / 2]])
    one = sums(np.array([[1.0]]), np.array([[2.0]]), (0.0,), (1.0,))
    big = sums(np.array([[100.0]]), np.array([[100.0]]), (0.0,), (1.0,))
    many = [one, big] * 32 + [one] * 3  # 64 in the first batch: 32 / 3232; three in the second: 1
    assert summarize(many, {"u": [0]})["pooled L1 per chunk"] == pytest.approx((32 / 3232 + 1) / 2)
    assert summarize(many, {"u": [0]})["median L1 per chunk"] == 1


def test_against_the_plain_formulas_on_stacked_arrays() -> None:
    rng = np.random.default_rng(0)
    truth, guess = rng.normal(size=(2, 70, 30, 4)).astype(np.float32)
    mean, std = rng.normal(size=4), rng.uniform(0.5, 2, size=4)
    made = [sums(t, g, mean.tolist(), std.tolist()) for t, g in zip(truth, guess, strict=True)]
    t, g = (truth.astype(float) - mean) / std, (guess.astype(float) - mean) / std
    found = summarize(made, {"a": [0], "b": [1, 2], "c": [3]})

    def l1(x, y):
        return np.abs(x - y).sum((1, 2)) / np.abs(x).sum((1, 2))

    def l2(x, y):
        return np.linalg.norm((x - y).reshape(70, -1), axis=1) / np.linalg.norm(x.reshape(70, -1), axis=1)

    chunks = [slice(0, 1), slice(1, 3), slice(3, 4)]
    for name, of_one in (("L1", l1), ("L2", l2)):
        components = [np.median(of_one(t[..., i : i + 1], g[..., i : i + 1])) for i in range(4)]
        assert found[f"median {name} per component"] == pytest.approx(np.mean(components))
        assert found[f"median {name} per chunk"] == pytest.approx(
            np.mean([np.median(of_one(t[..., c], g[..., c])) for c in chunks])
        )
    assert found["mean L1 per chunk"] == pytest.approx(np.mean([l1(t[..., c], g[..., c]).mean() for c in chunks]))
    batches = [
        [np.abs(t[b, :, c] - g[b, :, c]).sum() / np.abs(t[b, :, c]).sum() for b in (slice(0, 64), slice(64, 70))]
        for c in chunks
    ]
    assert found["pooled L1 per chunk"] == pytest.approx(np.mean(np.median(batches, 1)))
    squares = [((t - g)[..., c] ** 2).mean() for c in chunks]
    assert found["normalized MSE"] == pytest.approx(np.mean(squares))
    assert found["normalized MSE of b"] == pytest.approx(squares[1])


def test_values_are_printed_in_the_unit_of_their_metric() -> None:
    relative, squared = find_metric("median L1 per component"), find_metric("normalized MSE of cfx, cfy")
    assert (relative.text(0.12345), relative.text(0.5, 0.25)) == ("12.35 %", "50.00 ± 25.00 %")
    assert (squared.text(0.528), squared.chunk, squared.unit) == ("0.528", "cfx, cfy", "")
    assert squared([A], {"cfx, cfy": [0], "other": [1]}) == pytest.approx(1 / 2)
    with pytest.raises(UserError, match="no such metric; known are median L1"):
        find_metric("median L1 per component of u")


def test_a_new_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    worst = Metric("worst L1", "worst", np.max)
    monkeypatch.setitem(METRICS, worst.name, worst)
    assert summarize(SAMPLES, {"both": [0, 1]})["worst L1"] == pytest.approx(5 / 9)


def test_each_sample_alone() -> None:
    relative = Measure(ZERO, ONE, "", {"both": [0, 1]}, find_metric("median L1 per component"))
    np.testing.assert_allclose(relative.each(SAMPLES), [(1 / 7 + 1 / 2) / 2, (1 / 2 + 3 / 5) / 2, 1 / 4])
    squared = Measure(ZERO, ONE, "", {"a": [0], "b": [1]}, find_metric("normalized MSE"))
    np.testing.assert_allclose(squared.each(SAMPLES), [1 / 2, 13 / 6, 25 / 2])
    made = squared.sums(np.array([[3.0, 1.0], [4.0, 1.0]]), np.array([[3.0, 2.0], [3.0, 1.0]]))
    np.testing.assert_array_equal(made.errors, A.errors)


def test_mean_and_std_over_seeds() -> None:
    assert mean_and_std([1.0, 2.0, 6.0]) == pytest.approx((3, math.sqrt((4 + 1 + 9) / 2)))
    assert mean_and_std([0.25]) == (0.25, None)
    assert mean_and_std([0.25, math.inf]) == (math.inf, None)
    with pytest.raises(ValueError, match="no values"):
        mean_and_std([])


def test_misuse_is_named() -> None:
    field = np.ones((3, 2))
    for truth, guess, mean, std in (
        (field, np.ones((3, 1)), ZERO, ONE),
        (field, np.ones((2, 2)), ZERO, ONE),
        (field, field, (0.0,), (1.0,)),
        (field, field, ZERO, (1.0, 0.0)),
        (field[:0], field[:0], ZERO, ONE),
    ):
        with pytest.raises((ValueError, TypeError)):  # shapes are checked by their types too under pytest
            sums(truth, guess, mean, std)
    with pytest.raises(ValueError, match="order is 1 or 2"):
        relative_errors(SAMPLES, SINGLE, 3)
    with pytest.raises(ValueError, match="nothing to measure"):
        summarize([], {"u": [0]})
