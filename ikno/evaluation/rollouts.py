"""Rollouts: from the first snapshot of a sample to later ones. The parts of a problem, and the measure of errors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ikno.config import DataSettings, parse
from ikno.data.batches import Samples, in_order
from ikno.data.pairs import Accumulator, snapshots
from ikno.data.problem import Problem, open_problem
from ikno.data.records import Trajectory
from ikno.errors import UserError
from ikno.linalg import Cloud
from ikno.metrics import IN_CARDS, Measure
from ikno.runs import Run
from ikno.surrogate import Surrogate

Part = Literal["train", "validation", "test", "all"]
Strategy = Literal["direct", "autoregressive", "star"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

BATCH = 16


def problem_of(run: Run, data: str | None = None, points: int | None = None) -> Problem:
    """Return the problem of a run.

    Its training samples are at the points of evaluation too, where they serve as baselines.

    Args:
        run: The run.
        data: Another data set or file; its own split is used if that of the run does not fit.
        points: Another number of points.
    """
    changed = {k: v for k, v in (("name", data), ("evaluation_points", points)) if v is not None}
    settings = parse(DataSettings, {**run.config.data.model_dump(), **changed})
    try:
        problem = open_problem(settings, run.config.seed)
    except UserError:
        if data is None or settings.split is None:
            raise
        problem = open_problem(settings.model_copy(update={"split": None}), run.config.seed)
    return replace(problem, train=replace(problem.train, points=problem.test.points))


def part(problem: Problem, split: Part) -> Samples:
    """Return the samples of one part, which must not be empty."""
    if split not in get_args(Part):
        raise UserError(f"split: {split!r} is none of {', '.join(get_args(Part))}")
    if split == "all":
        last = problem.test.indices.stop  # the last samples are those of the test
        return replace(problem.test, indices=range(last))
    samples: Samples = getattr(problem, split)
    if not len(samples):
        raise UserError(f"{problem.card.name}: no samples for {split} in this split; use another part or more samples")
    return samples


def measure_of(problem: Problem) -> Measure:
    """Return the measure of the card, with constants from the card or else from the training samples.

    A variable that is constant there has no scale of its own and is not normalized.
    """
    card = problem.card
    chunks = {", ".join(chunk): [card.targets.index(v) for v in chunk] for chunk in card.metric_groups}
    if card.metric_std:
        return Measure(card.metric_mean, card.metric_std, "card", chunks, IN_CARDS[card.metric])
    values = Accumulator()
    used = [0] if problem.steady else list(snapshots(problem.final, problem.stride))
    for made in problem.train:
        values.add(made.values[used])
    moments = values.moments()
    constant = moments.std <= 1e-6 * np.abs(moments.mean)
    mean, std = np.where(constant, 0.0, moments.mean), np.where(constant, 1.0, moments.std)
    return Measure(tuple(mean.tolist()), tuple(std.tolist()), "training samples", chunks, IN_CARDS[card.metric])


def path(strategy: Strategy, final: int, stride: int) -> tuple[int, ...]:
    """Return the snapshots a rollout visits: the whole interval at once, the smallest steps, or the second smallest.

    With snapshots 0, 2, ..., 14 they are (0, 14), (0, 2, ..., 14) and (0, 4, 8, 12, 14): a last step may be short.
    """
    if strategy == "direct":
        return (0, final)
    step = stride if strategy == "autoregressive" else 2 * stride
    return snapshots(final, min(step, final))


@torch.no_grad()
def rollout(
    surrogate: Surrogate,
    points: Float[Tensor, "clouds points dim"] | Cloud,
    start: Float[Tensor, "batch points variables"],
    conditions: Float[Tensor, "batch _ points conditions"] | None,
    times: Sequence[float],
    visited: Sequence[int],
) -> Float[Tensor, "batch visited points variables"]:
    """Return u at the visited snapshots, the given start first; each prediction is the input of the next.

    Conditions may change in time: each step takes those of the snapshot where it starts.
    """
    cloud = points if isinstance(points, Cloud) else surrogate.locate(points)
    states = [start]
    for i, j in pairwise(visited):
        inputs = states[-1]
        if conditions is not None:
            inputs = torch.cat([inputs, conditions[:, i if conditions.shape[1] > 1 else 0]], -1)
        t = start.new_full((len(start),), times[i])
        lead = start.new_full((len(start),), times[j] - times[i])
        states.append(surrogate.physical(inputs, surrogate(cloud, inputs, t, lead), lead))
    return torch.stack(states, 1)


@dataclass(frozen=True)
class Rollout:
    """One sample with its predictions along one rollout, by snapshot, and the seconds until the last one."""

    sample: Trajectory
    strategy: Strategy
    values: dict[int, Float[np.ndarray, "members points variables"]]
    seconds: float


def rollouts(
    members: Sequence[Surrogate],
    problem: Problem,
    samples: Samples,
    batch: int = BATCH,
    strategies: Sequence[Strategy] = STRATEGIES,
) -> Iterator[Rollout]:
    """Yield the samples in order, each along every rollout; only the direct one if the problem is steady.

    Samples on a shared cloud, which is located once, go several at a time.
    """
    for member in members:
        _check_kind(member, problem)
    clouds: list[Tensor | Cloud] = []
    for chosen in in_order(len(samples), batch if samples.shared else 1):
        made = [samples.get(k) for k in chosen]
        if not clouds or not samples.shared:
            points = torch.from_numpy(made[0].points)[None]
            clouds = [m.locate(points.to(m.center.device)) for m in members]
        start = torch.from_numpy(np.stack([m.values[0] for m in made]))
        known = [m.conditions for m in made if m.conditions is not None]
        conditions = torch.from_numpy(np.stack(known)) if known else None
        for strategy in strategies[:1] if problem.steady else strategies:
            predicted = [
                _predict(m, problem, cloud, start.to(m.center.device), conditions, strategy)
                for m, cloud in zip(members, clouds, strict=True)
            ]
            seconds = sum(spent for _, spent in predicted) / len(made)
            for k, sample in enumerate(made):
                values = {j: np.stack([u[j][k] for u, _ in predicted]) for j in sorted(predicted[0][0])}
                yield Rollout(sample, strategy, values, seconds)


@torch.no_grad()
def _predict(
    surrogate: Surrogate,
    problem: Problem,
    cloud: Tensor | Cloud,
    start: Float[Tensor, "batch points variables"],
    conditions: Float[Tensor, "batch _ points conditions"] | None,
    strategy: Strategy,
) -> tuple[dict[int, Float[np.ndarray, "batch points variables"]], float]:
    """Return u by snapshot along a rollout, and the seconds it took to the last one.

    ``direct`` goes to every used snapshot in one step each, of which only the last is timed.
    """
    conditions = None if conditions is None else conditions.to(start.device)
    began = perf_counter()
    if problem.steady:
        inputs = start[..., :0] if conditions is None else conditions[:, 0]
        return {0: surrogate.physical(inputs, surrogate(cloud, inputs)).cpu().numpy()}, perf_counter() - began
    ways = [path(strategy, problem.final, problem.stride)]
    if strategy == "direct":
        ways += [(0, j) for j in snapshots(problem.final, problem.stride)[1:-1]]
    values, seconds = {}, 0.0
    for visited in ways:
        states = rollout(surrogate, cloud, start, conditions, problem.times, visited)[:, 1:].cpu().numpy()
        values |= dict(zip(visited[1:], states.swapaxes(0, 1), strict=True))
        seconds = seconds or perf_counter() - began
    return values, seconds


def _check_kind(surrogate: Surrogate, problem: Problem) -> None:
    """Raise a UserError if the data has other variables, conditions or axes than the surrogate."""
    signature, card = surrogate.signature, problem.card
    expected = (signature.variables, signature.conditions, signature.dim, signature.steady)
    given = (card.targets, card.conditions, card.dim, card.steady)
    for name, one, other in zip(("variables", "conditions", "dim", "steady"), expected, given, strict=True):
        if one != other:
            raise UserError(f"{problem.path}: {name} = {other}, but the surrogate has {one}; use data of its kind")
