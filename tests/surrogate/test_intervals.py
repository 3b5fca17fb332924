"""Conformal quantiles against brute force and known distributions; ensembles against numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from ikno.errors import UserError
from ikno.models import complete_model
from ikno.surrogate import Calibration, Ensemble, Estimate, Quantiles, Signature, Surrogate, quantile, scale

TINY = {"name": "ikno-tp", "d_model": 4, "num_heads": 2, "num_layers": 1, "grid_size": 3}
rng = np.random.default_rng(0)
POINTS, C, QUERIES = rng.random((11, 2)), rng.random((3, 11, 1)), rng.random((4, 2))


def surrogate(seed: int = 0, **changed: Any) -> Surrogate:
    given = {"dim": 2, "variables": ("u", "v"), "conditions": ("f",), "box": ((0.0, 1.0), (0.0, 1.0)), "model": TINY}
    return Surrogate(Signature.model_validate(given | changed), seed=seed).eval()


def by_hand(scores: list[np.ndarray], coverage: float) -> float:
    """The smallest score that enough weight does not exceed, by trying all of them."""
    n = len(scores)
    for q in sorted(np.concatenate(scores)):
        if sum(np.mean(s <= q) for s in scores) >= coverage * (n + 1) - 1e-9:
            return float(q)
    return float("inf")


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("n", [1, 2, 4, 9, 10, 19, 33])
def test_quantiles_are_those_of_brute_force(n: int, coverage: float) -> None:
    rng = np.random.default_rng(n)
    clouds = [rng.integers(0, 12, size=rng.integers(1, 9)).astype(float) for _ in range(n)]  # ties, any sizes
    assert quantile(clouds, coverage) == by_hand(clouds, coverage)
    single = [rng.normal(size=1) for _ in range(n)]
    place = int(np.ceil(coverage * (n + 1) - 1e-9))
    expected = np.sort(np.concatenate(single))[place - 1] if place <= n else np.inf
    assert quantile(single, coverage) == expected


def test_quantiles_of_nothing() -> None:
    for scores, coverage in (([], 0.9), ([np.ones(0)], 0.9), ([np.ones(3)], 0.0), ([np.ones(3)], 1.0)):
        with pytest.raises(ValueError, match="needs samples with scores"):
            quantile(scores, coverage)


def test_nine_samples_are_needed_for_ninety_percent() -> None:
    scores = [np.arange(5.0) + i for i in range(9)]
    assert quantile(scores, 0.9) == 12.0  # all of them
    assert quantile(scores[:8], 0.9) == np.inf


@pytest.mark.parametrize("dependent", [False, True])
def test_coverage_of_a_known_error_is_between_its_bounds(dependent: bool) -> None:
    """Each trial calibrates anew and draws one point of a new sample: a coin with the probability of the coverage.

    Points of one sample share their size, so that one sample of a hundred points is nearly one number.
    """
    rng, n, points, coverage, trials = np.random.default_rng(1), 39, 20, 0.8, 1000
    size = rng.lognormal(0, 1, (trials, n + 1, 1)) if dependent else np.ones((trials, n + 1, 1))
    errors = np.abs(size * rng.normal(size=(trials, n + 1, points)))
    inside = whole = 0
    for e in errors:
        inside += e[-1, 0] <= quantile(list(e[:-1]), coverage)
        whole += e[-1].max() <= quantile([np.array([s.max()]) for s in e[:-1]], coverage)
    slack = 3 * np.sqrt(coverage * (1 - coverage) / trials)
    assert coverage - slack <= inside / trials <= coverage + 1 / (n + 1) + slack
    assert coverage - slack <= whole / trials <= coverage + 1 / (n + 1) + slack


def test_an_ensemble_is_mean_and_standard_deviation_over_its_members() -> None:
    members = [surrogate(seed) for seed in range(3)]
    ensemble = Ensemble(members)
    for queries in (None, QUERIES):
        each = np.stack([m.predict(POINTS, C, queries) for m in members])
        found = ensemble.predict(POINTS, C, queries, spread=True)
        assert isinstance(found, Estimate)
        np.testing.assert_allclose(found.mean, each.mean(0), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found.spread, each.std(0), rtol=1e-4, atol=1e-7)
        assert found.spread.min() > 0
        assert found.lower is None
        np.testing.assert_array_equal(ensemble.predict(POINTS, C, queries), found.mean)
    tensors = ensemble.predict(torch.tensor(POINTS), torch.tensor(C[0]), spread=True)
    assert isinstance(tensors.spread, torch.Tensor)
    assert tensors.mean.shape == (11, 2)
    assert ensemble.signature == members[0].signature


def test_one_member_has_no_spread() -> None:
    member = surrogate()
    for one in (member, Ensemble([member])):
        found = one.predict(POINTS, C[0], spread=True)
        np.testing.assert_array_equal(found.mean, member.predict(POINTS, C[0]))
        assert not found.spread.any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"variables": ("u",)}, r"member 2 of the ensemble: variables = \('u',\), but the first has \('u', 'v'\)"),
        ({"conditions": ()}, r"conditions = \(\), but the first has \('f',\); use runs of the same problem"),
        ({"dim": 1, "box": ((0.0, 1.0),)}, r"dim = 1, but the first has 2"),
        ({"times": (0.0, 1.0)}, r"times = \(0\.0, 1\.0\), but the first has None"),
    ],
)
def test_members_of_different_kinds_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Ensemble([surrogate(), surrogate(1, **changed)])
    with pytest.raises(UserError, match="at least one run, found none"):
        Ensemble([])


def test_members_may_have_other_models() -> None:
    other = surrogate(1, model={**TINY, "d_model": 8}, coordinates="one scale")
    assert Ensemble([surrogate(), other]).predict(POINTS, C).shape == (3, 11, 2)


def test_members_with_and_without_an_encoder_give_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [surrogate(), surrogate(1, model=complete_model({"name": "transolver"}, "smoke"))]
    whole = Ensemble(members).predict(POINTS, C, QUERIES)
    monkeypatch.setattr("ikno.surrogate.surrogate.QUERIES", 3)
    parts = list(Ensemble(members).stream(POINTS, C, QUERIES, spread=True))
    assert [part for part, _ in parts] == [slice(0, 3), slice(3, 4)]
    np.testing.assert_allclose(np.concatenate([e.mean for _, e in parts], 1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(Ensemble(members).predict(POINTS, C, QUERIES), whole, rtol=1e-5, atol=1e-6)


def calibration(**changed: Any) -> Calibration:
    steady = Quantiles(strategy="direct", lead=None, steps=1, pointwise=(2.0, 3.0), simultaneous=5.0)
    given = {"coverage": 0.9, "samples": 20, "source": "here", "variables": ("u", "v"), "floor": (0.5, 0.1)}
    return Calibration.model_validate(given | {"start": None, "quantiles": (steady,), "members": ("a",)} | changed)


def test_intervals_are_the_mean_and_quantiles_of_the_scale() -> None:
    ensemble = Ensemble([surrogate(seed) for seed in range(3)], calibration())
    for band, factors in (("pointwise", (2, 3)), ("simultaneous", (5, 5))):
        found = ensemble.predict(POINTS, C, intervals=band)  # type: ignore[arg-type]
        half = np.array(factors) * np.sqrt(found.spread**2 + np.array([0.5, 0.1]) ** 2)
        np.testing.assert_allclose(found.lower, found.mean - half, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.upper, found.mean + half, rtol=1e-5, atol=1e-6)
        assert found.lower.dtype == np.float32
    np.testing.assert_array_equal(scale(np.zeros((4, 2)), (0.5, 0.1)), np.tile([0.5, 0.1], (4, 1)))
    with pytest.raises(UserError, match="not calibrated, or the weights have changed since; `ikno calibrate RUN`"):
        surrogate().predict(POINTS, C, intervals="pointwise")


def test_intervals_in_time_are_those_of_the_lead_and_the_steps() -> None:
    ways = [
        Quantiles(strategy=s, lead=lead, steps=steps, pointwise=(q, q), simultaneous=None if q == 4 else 2 * q)
        for s, lead, steps, q in (("direct", 1.0, 1, 1), ("direct", 2.0, 1, 2), ("autoregressive", 2.0, 2, 4))
    ]
    ways.append(Quantiles(strategy="star", lead=3.0, steps=None, pointwise=(9, 9), simultaneous=9))
    member = surrogate(times=(0.0, 2.0))
    member.calibration = calibration(start=0.0, quantiles=tuple(ways), floor=(1.0, 10.0))
    inputs = rng.random((3, 11, 3))
    for lead, steps, q in ((1.0, 1, 1), (2.0 + 1e-9, 1, 2), (2.0, 2, 4), (np.array([1.0, 2.0, 1.0]), 1, None)):
        found = member.predict(POINTS, inputs, lead=lead, steps=steps, intervals="pointwise")
        rows = np.array([1, 2, 1])[:, None, None] if q is None else q
        half = np.broadcast_to(rows * np.array([1.0, 10.0]), found.mean.shape)
        np.testing.assert_allclose(found.upper - found.mean, half, rtol=1e-4)
    for lead, time, steps in ((1.5, None, 1), (1.0, 0.5, 1), (1.0, None, 2), (3.0, None, 2)):
        with pytest.raises(UserError, match=r"for the leads \(steps\) 1 \(1\), 2 \(1\), 2 \(2\); use one of these"):
            member.predict(POINTS, inputs, time=time, lead=lead, steps=steps, intervals="pointwise")
    with pytest.raises(UserError, match="autoregressive predictions were not finite on the calibration samples"):
        member.predict(POINTS, inputs, lead=2.0, steps=2, intervals="simultaneous")


def test_calibrations_hold_no_infinite_numbers() -> None:
    with pytest.raises(ValueError, match="finite"):
        calibration(floor=(np.inf, 1.0))
