"""Calibration of intervals on validation samples, and how often they hold the truth on others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.evaluation.rollouts import BATCH, STRATEGIES, Rollout, Strategy, measure_of, part, path, problem_of, rollouts
from ikno.runs import Run, check_distinct, weights_of
from ikno.surrogate import BANDS, Calibration, Ensemble, Quantiles, Surrogate, quantile, scale

FLOOR_SAMPLES = 32  # training samples whose spread sets the floor


def calibrate(
    runs: Sequence[Run],
    coverage: float = 0.9,
    checkpoint: str = "best",
    data: str | None = None,
    points: int | None = None,
    batch: int = BATCH,
    device: str | None = None,
) -> Calibration:
    """Return the calibration of a run, or of several as an ensemble; nothing is written.

    Every rollout is calibrated at each time it visits.

    Args:
        runs: The run, or those of the ensemble.
        coverage: The share of the truth that intervals shall hold.
        checkpoint: The checkpoint, best or last.
        data: A file whose samples are all used, none of which may have been trained on. Default: the validation
            samples.
        points: Another number of points than trained on.
        batch: Samples predicted at a time where they share a cloud.
        device: Where to compute. Default: the CPU.

    Raises:
        UserError: If there are too few samples for the coverage, or the runs do not form an ensemble or were trained on
            different samples.
    """
    if not 0 < coverage < 1:
        raise UserError(f"--coverage: a share between 0 and 1 is needed, for instance 0.9, found {coverage:g}")
    check_distinct(runs)
    members = Ensemble([run.surrogate(checkpoint, device) for run in runs]).members
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
    floor = _floor(members, own, batch)
    scores: dict[tuple[Strategy, int], list[np.ndarray]] = {}
    for seen in rollouts(members, problem, samples, batch):
        for j, values in seen.values.items():
            truth = seen.sample.values[j].astype(np.float64)
            error = np.abs(truth - values.mean(0)) / scale(values.std(0), floor)
            known = scores.setdefault((seen.strategy, j), [])
            known.append(np.where(np.isnan(error), np.inf, error).astype(np.float32))
    return Calibration(
        coverage=coverage,
        samples=len(samples),
        source="validation samples" if data is None else problem.path.name,
        variables=problem.card.targets,
        floor=floor,
        start=None if problem.steady else problem.times[0],
        quantiles=tuple(_quantiles(problem, s, j, each, coverage) for (s, j), each in scores.items()),
        members=weights_of(runs, checkpoint),
    )


def inside(
    calibration: Calibration, problem: Problem, seen: Rollout, std: Sequence[float]
) -> Float[np.ndarray, "bands 2 variables"]:
    """Return for both bands which share of a sample is inside the intervals at the final time, and their widths.

    The simultaneous share is 0 or 1. Widths are those of whole intervals, in units of ``std``.
    """
    last, lead = problem.last, _lead(problem, problem.last)
    way = next((q for q in calibration.quantiles if (q.strategy, q.lead) == (seen.strategy, lead)), None)
    if way is None:
        raise UserError(f"intervals: not calibrated for {seen.strategy} to the lead {lead}; calibrate again")
    error = np.abs(seen.sample.values[last].astype(np.float64) - seen.values[last].mean(0))
    halves = [way.of(band) * scale(seen.values[last].std(0), calibration.floor) for band in BANDS]
    shares = [(error <= halves[0]).mean(0), np.full(len(std), float((error <= halves[1]).all()))]
    return np.stack([shares, [(2 * half / np.asarray(std)).mean(0) for half in halves]], 1)


def coverage(calibration: Calibration, measured: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
    """Return coverage and mean width of both bands of each rollout, from what ``inside`` returns for the samples."""
    strategies: dict[str, dict[str, dict[str, Any]]] = {}
    for strategy, samples in measured.items():
        for k, band in enumerate(BANDS):
            shares, widths = (np.stack([sample[k, kind] for sample in samples]) for kind in (0, 1))
            each = shares.mean(1)
            # The standard error: samples are independent, points are not.
            error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0
            summary = {"coverage": float(each.mean()), "standard error": error, "width": float(widths.mean())}
            strategies.setdefault(strategy, {})[band] = summary
            if band == "pointwise":
                variables = zip(calibration.variables, shares.mean(0).tolist(), strict=True)
                strategies[strategy][band]["variables"] = dict(variables)
    about = {"coverage": calibration.coverage, "calibration samples": calibration.samples, "source": calibration.source}
    return {**about, "strategies": strategies}


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
        (seen.values[problem.last].std(0).astype(np.float64) ** 2).mean(0)
        for seen in rollouts(members, problem, some, batch, STRATEGIES[:1])
    ]
    return tuple(np.maximum(np.sqrt(np.mean(squares, 0)), 1e-6 * std).tolist())


def _quantiles(
    problem: Problem, strategy: Strategy, snapshot: int, scores: list[np.ndarray], coverage: float
) -> Quantiles:
    """Return the quantiles of both bands: of the values of each variable, and of the largest score of each sample."""
    each = [quantile([s[:, v] for s in scores], coverage) for v in range(scores[0].shape[1])]
    largest = quantile([np.array([s.max()]) for s in scores], coverage)
    finite = [q if np.isfinite(q) else None for q in (*each, largest)]
    return Quantiles(
        strategy=strategy,
        lead=_lead(problem, snapshot),
        steps=_steps(problem, strategy, snapshot),
        pointwise=tuple(finite[:-1]),
        simultaneous=finite[-1],
    )


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
    seen = []
    for run in runs if len(runs) > 1 else []:
        problem = open_problem(run.config.data.model_copy(update={"points": None, "sampling": None}), 0)
        seen.append((problem.train.indices, problem.validation.indices, problem.digest()))
        if seen[-1] != seen[0]:
            raise UserError(
                f"{run.path}: trained on other samples than {runs[0].path}; "
                "an ensemble is calibrated on samples that no member has seen, use the same data and data.split"
            )
