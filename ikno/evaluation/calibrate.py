"""Calibration of intervals on validation samples, and how often they hold the truth on others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data.batches import Samples
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.evaluation.rollouts import BATCH, Part, check_kind, groups, measure_of, part, predict_group, problem_of
from ikno.metrics import Sums
from ikno.runs import Run, check_distinct, weights_of
from ikno.surrogate import BANDS, STRATEGIES, Band, Calibration, Ensemble, Quantiles, Surrogate, path, quantile, scale
from ikno.surrogate.rollout import Strategy

FLOOR_SAMPLES = 32  # training samples whose spread sets the floor


@dataclass(frozen=True)
class _Seen:
    """One sample at one time: the truth, and mean and spread of the predictions."""

    strategy: Strategy
    snapshot: int
    truth: Float[np.ndarray, "points variables"]
    mean: Float[np.ndarray, "points variables"]
    spread: Float[np.ndarray, "points variables"]


def calibrate(
    runs: Sequence[Run],
    coverage: float = 0.9,
    which: str = "best",
    data: str | None = None,
    points: int | None = None,
    batch: int | None = None,
    device: str | None = None,
) -> Calibration:
    """Return the calibration of a run, or of several as an ensemble, on its validation samples; nothing is written.

    ``data``: all samples of another file instead, none of which may have been trained on. ``points``: another number of
    points than trained on. Every rollout is calibrated at each time it visits.
    """
    if not 0 < coverage < 1:
        raise UserError(f"--coverage: a share between 0 and 1 is needed, for instance 0.9, found {coverage:g}")
    check_distinct(runs)
    members = Ensemble([run.surrogate(which, device) for run in runs]).members
    problem = problem_of(runs[0], data, points)
    samples = part(problem, "validation" if data is None else "all")
    least = ceil(coverage / (1 - coverage) - 1e-9)
    if len(samples) < least:
        raise UserError(
            f"{problem.path}: {len(samples)} samples to calibrate on, {coverage:.4g} coverage needs at least {least}; "
            "ask for less coverage, or name a file of more samples that were not trained on with --data"
        )
    own = problem if data is None and points is None else problem_of(runs[0])
    _check_same_parts(runs)
    floor = _floor(members, own, batch or BATCH)
    scores: dict[tuple[Strategy, int], list[np.ndarray]] = {}
    for seen in _predictions(members, problem, samples, batch or BATCH):
        error = np.abs(seen.truth.astype(np.float64) - seen.mean) / scale(seen.spread, floor)
        known = scores.setdefault((seen.strategy, seen.snapshot), [])
        known.append(np.where(np.isnan(error), np.inf, error).astype(np.float32))
    return Calibration(
        coverage=coverage,
        samples=len(samples),
        source="validation samples" if data is None else problem.path.name,
        variables=problem.card.targets,
        floor=floor,
        start=None if problem.steady else problem.times[0],
        quantiles=tuple(_quantiles(problem, s, j, found, coverage) for (s, j), found in scores.items()),
        members=weights_of(runs, which),
    )


def measure_intervals(
    members: Sequence[Surrogate], calibration: Calibration, problem: Problem, split: Part = "test", batch: int = BATCH
) -> dict[str, Any]:
    """Return the errors of the members' mean and the coverage of the intervals at the final time, for each rollout.

    Pointwise coverage is the mean over samples of the share of points inside, that of whole fields the share of samples
    inside everywhere. Widths are those of whole intervals, relative to the spread of the truth.
    """
    samples, measure = part(problem, split), measure_of(problem)
    known = {(q.strategy, q.lead): q for q in calibration.quantiles}
    inside: dict[Strategy, dict[Band, list[np.ndarray]]] = {}
    widths: dict[Strategy, dict[Band, list[np.ndarray]]] = {}
    errors: dict[Strategy, list[Sums]] = {}
    for seen in _predictions(members, problem, samples, batch, only=problem.last):
        key = (seen.strategy, _lead(problem, seen.snapshot))
        if key not in known:
            raise UserError(f"intervals: not calibrated for {seen.strategy} to the lead {key[1]}; calibrate again")
        errors.setdefault(seen.strategy, []).append(measure.sums(seen.truth, seen.mean))
        for band, factors in zip(BANDS, (known[key].pointwise, (known[key].whole_field,)), strict=True):
            half = calibration.width(seen.spread, np.array([np.inf if q is None else q for q in factors]))
            held = np.abs(seen.truth.astype(np.float64) - seen.mean) <= half
            inside.setdefault(seen.strategy, {b: [] for b in BANDS})[band].append(
                held.mean(0) if band == "pointwise" else np.array([held.all()])
            )
            width = (2 * half / np.asarray(measure.std)).mean(0)
            widths.setdefault(seen.strategy, {b: [] for b in BANDS})[band].append(width)
    found = {
        strategy: {band: _summary(inside[strategy][band], widths[strategy][band]) for band in BANDS}
        for strategy in inside
    }
    for strategy, each in inside.items():
        shares = np.mean(each["pointwise"], 0)
        found[strategy]["pointwise"]["variables"] = dict(zip(calibration.variables, shares.tolist(), strict=True))
    about = {"coverage": calibration.coverage, "calibration samples": calibration.samples, "source": calibration.source}
    return {"metrics": {s: measure.summary(e) for s, e in errors.items()}, "intervals": {**about, "strategies": found}}


def measure_ensemble(
    runs: Sequence[Run],
    calibration: Calibration,
    which: str = "best",
    split: Part = "test",
    data: str | None = None,
    points: int | None = None,
    batch: int | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Return errors and coverage of a calibrated ensemble on one part of the data of its first run."""
    members = [run.surrogate(which, device) for run in runs]
    found = measure_intervals(members, calibration, problem_of(runs[0], data, points), split, batch or BATCH)
    return {"runs": len(runs), **found}


def _summary(inside: list[np.ndarray], widths: list[np.ndarray]) -> dict[str, Any]:
    """Return the coverage with its standard error (samples are independent, points are not) and the mean width."""
    shares = np.array([np.mean(v) for v in inside])
    error = float(shares.std(ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return {"coverage": float(shares.mean()), "standard error": error, "width": float(np.mean(widths))}


def _predictions(
    members: Sequence[Surrogate], problem: Problem, samples: Samples, batch: int, only: int | None = None
) -> Iterator[_Seen]:
    """Yield the samples in order, for each rollout and time (or only one snapshot)."""
    for member in members:
        check_kind(member, problem)
    for group in zip(*(groups(m, samples, batch) for m in members), strict=True):
        for strategy in STRATEGIES[:1] if problem.steady else STRATEGIES:
            found = [predict_group(m, problem, g, strategy)[0] for m, g in zip(members, group, strict=True)]
            for j in sorted(found[0]) if only is None else [only]:
                values = np.stack([f[j] for f in found])
                for made, mean, spread in zip(group[0].made, values.mean(0), values.std(0), strict=True):
                    yield _Seen(strategy, j, made.values[j], mean, spread)


def _floor(members: Sequence[Surrogate], problem: Problem, batch: int) -> tuple[float, ...]:
    """Return the floor of the spread per variable, from training samples, so that the score of others stays fair.

    One run has no spread: its floor is the standard deviation of the truth. Members may agree by chance where they are
    wrong: the floor of an ensemble is its root-mean-square spread at the end of some training samples.
    """
    std = np.asarray(measure_of(problem).std)
    if len(members) == 1:
        return tuple(std.tolist())
    some = replace(problem.train, indices=problem.train.indices[:FLOOR_SAMPLES])
    squares = [
        (seen.spread.astype(np.float64) ** 2).mean(0)
        for seen in _predictions(members, problem, some, batch, only=problem.last)
        if seen.strategy == "direct"
    ]
    return tuple(np.maximum(np.sqrt(np.mean(squares, 0)), 1e-6 * std).tolist())


def _quantiles(
    problem: Problem, strategy: Strategy, snapshot: int, scores: list[np.ndarray], coverage: float
) -> Quantiles:
    """Return the quantiles of both bands: of the values of each variable, and of the largest score of each sample."""
    each = [quantile([s[:, v] for s in scores], coverage) for v in range(scores[0].shape[1])]
    whole = quantile([np.array([s.max()]) for s in scores], coverage)
    return Quantiles(
        strategy=strategy,
        lead=_lead(problem, snapshot),
        steps=_steps(problem, strategy, snapshot),
        pointwise=tuple(_bounded(q) for q in each),
        whole_field=_bounded(whole),
    )


def _bounded(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _lead(problem: Problem, snapshot: int) -> float | None:
    return None if problem.steady else problem.times[snapshot] - problem.times[0]


def _steps(problem: Problem, strategy: Strategy, snapshot: int) -> int | None:
    """Return the number of steps to a snapshot, None if they are not equal or conditions change between them."""
    if problem.steady or strategy == "direct":
        return 1
    visited = [j for j in path(strategy, problem.final, problem.stride) if j <= snapshot]
    conditions = problem.test.get(0).conditions
    fixed = conditions is None or len(conditions) == 1
    equal = len({j - i for i, j in pairwise(visited)}) == 1
    return len(visited) - 1 if equal and (fixed or len(visited) == 2) else None


def _check_same_parts(runs: Sequence[Run]) -> None:
    """Raise unless all runs were trained on the same samples: what one has seen cannot calibrate the others."""
    found = []
    for run in runs if len(runs) > 1 else []:
        problem = open_problem(run.config.data.model_copy(update={"points": None, "sampling": None}), 0)
        found.append((problem.train.indices, problem.validation.indices, problem.digest()))
        if found[-1] != found[0]:
            raise UserError(
                f"{run.path}: trained on other samples than {runs[0].path}; "
                "an ensemble is calibrated on samples that no member has seen, use the same data and data.split"
            )
