"""Predictions for the samples of a data set: the parts of a problem, its measure, and rollouts of groups of samples."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from ikno.surrogate.rollout import Strategy, path, rollout
from ikno.surrogate.surrogate import Surrogate

Part = Literal["train", "validation", "test", "all"]

BATCH = 16


def problem_of(run: Run, data: str | None = None, points: int | None = None) -> Problem:
    """Return the problem that a run has learned, or other data or another number of points for it.

    Its training samples are at the points of evaluation too, where they serve as guesses.
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
    """Return the measure of the card, its constants from the card or else from the training samples.

    A variable that does not vary there has no scale of its own and is measured as it is.
    """
    card = problem.card
    chunks = {", ".join(chunk): [card.targets.index(v) for v in chunk] for chunk in card.metric_groups}
    if card.metric_std:
        return Measure(card.metric_mean, card.metric_std, "card", chunks, IN_CARDS[card.metric])
    values = Accumulator()
    used = [0] if problem.steady else list(snapshots(problem.final, problem.stride))
    for made in problem.train:
        values.add(made.values[used])
    found = values.moments()
    constant = found.std <= 1e-6 * np.abs(found.mean)
    mean, std = np.where(constant, 0.0, found.mean), np.where(constant, 1.0, found.std)
    return Measure(tuple(mean.tolist()), tuple(std.tolist()), "training samples", chunks, IN_CARDS[card.metric])


@dataclass(frozen=True)
class Group:
    """Samples on one cloud: u at the start and the conditions, where the surrogate is."""

    made: list[Trajectory]
    cloud: Float[Tensor, "1 points dim"] | Cloud
    start: Float[Tensor, "batch points variables"]
    conditions: Float[Tensor, "batch _ points conditions"] | None


def groups(surrogate: Surrogate, samples: Samples, batch: int) -> Iterator[Group]:
    """Yield the samples in order: several at once on a shared cloud, which is located once, else one by one."""
    cloud, device = None, surrogate.center.device
    for chosen in in_order(len(samples), batch if samples.shared else 1):
        made = [samples.get(k) for k in chosen]
        if cloud is None or not samples.shared:
            points = torch.from_numpy(made[0].points)[None].to(device)
            located = surrogate.locate(points)
            cloud = located if isinstance(located, Cloud) else points
        start = torch.from_numpy(np.stack([m.values[0] for m in made])).to(device)
        known = [m.conditions for m in made if m.conditions is not None]
        yield Group(made, cloud, start, torch.from_numpy(np.stack(known)).to(device) if known else None)


@torch.no_grad()
def predict_group(
    surrogate: Surrogate, problem: Problem, group: Group, strategy: Strategy
) -> tuple[dict[int, Float[np.ndarray, "batch points variables"]], float]:
    """Return u by snapshot along a rollout, and the seconds it took to the last one.

    ``direct`` goes to every used snapshot in one step each, of which only the last is timed.
    """
    began = perf_counter()
    if problem.steady:
        inputs = group.start[..., :0] if group.conditions is None else group.conditions[:, 0]
        return {0: surrogate.physical(inputs, surrogate(group.cloud, inputs)).cpu().numpy()}, perf_counter() - began

    def along(visited: tuple[int, ...]) -> dict[int, Float[np.ndarray, "batch points variables"]]:
        states = rollout(surrogate, group.cloud, group.start, group.conditions, problem.times, visited)
        return dict(zip(visited[1:], states[:, 1:].cpu().numpy().swapaxes(0, 1), strict=True))

    found = along(path(strategy, problem.final, problem.stride))
    seconds = perf_counter() - began
    if strategy == "direct":
        for j in snapshots(problem.final, problem.stride)[1:-1]:
            found |= along((0, j))
    return found, seconds


def check_kind(surrogate: Surrogate, problem: Problem) -> None:
    """Raise unless the data is of the kind that the surrogate takes and gives."""
    s, card = surrogate.signature, problem.card
    wanted = (s.variables, s.conditions, s.dim, s.steady)
    found = (card.targets, card.conditions, card.dim, card.steady)
    for name, one, other in zip(("variables", "conditions", "dim", "steady"), wanted, found, strict=True):
        if one != other:
            raise UserError(f"{problem.path}: {name} = {other}, but the surrogate has {one}; use data of its kind")
