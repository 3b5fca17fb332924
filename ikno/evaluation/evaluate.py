"""How good a surrogate is on samples it has not seen, beside what trivial guesses reach; and fields to look at.

result = evaluate(Run.open("runs/poisson"))
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ikno.config import DataSettings, parse
from ikno.data.batches import Samples, in_order
from ikno.data.files import open_data
from ikno.data.pairs import Accumulator, snapshots
from ikno.data.problem import Problem, open_problem
from ikno.data.records import Trajectory
from ikno.errors import UserError
from ikno.evaluation.baselines import baselines
from ikno.linalg import Cloud
from ikno.metrics import Measure, Sums, mean_and_std
from ikno.runs import Run, write_atomic
from ikno.surrogate.rollout import STRATEGIES, Strategy, path, rollout
from ikno.surrogate.surrogate import Surrogate

Part = Literal["train", "validation", "test", "all"]

FILE = "evaluation.json"
OWN = "released file or data of your own"
MAIN = {"relative L1": "median L1 per component", "normalized MSE and MAE": "normalized MSE"}
BATCH = 16


@dataclass(frozen=True)
class Fields:
    """One sample with its prediction, in physical units, at the times that are predicted (the start is not)."""

    sample: int
    points: Float[np.ndarray, "points dim"]
    inputs: Float[np.ndarray, "points channels"]
    truth: Float[np.ndarray, "times points variables"]
    prediction: Float[np.ndarray, "times points variables"]
    times: tuple[float, ...]
    variables: tuple[str, ...]
    input_names: tuple[str, ...]


def evaluate(
    run: Run,
    which: str = "best",
    split: Part = "test",
    data: str | None = None,
    points: int | None = None,
    batch: int | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Return the errors of a trained run on one part of its data, as plain numbers; nothing is written.

    ``data`` and ``points``: another data set or file, another number of points than it was trained on. A set too small
    for the run's own split is divided as its card says; make sure that it holds no samples of the training. The part
    ``all`` is every sample of a file; guesses from training samples are then left out.
    """
    problem = problem_of(run, data, points)
    problem.train.keep(run.config.data.memory_gb * 1e9)  # the baselines go through it several times
    result = evaluate_surrogate(run.surrogate(which, device), problem, split, batch or BATCH)
    return {**result, "weights": which, "checkpoint": run.digest(which), "seed": run.config.seed}


def problem_of(run: Run, data: str | None = None, points: int | None = None) -> Problem:
    """Return the problem that a run has learned, or other data or another number of points for it."""
    changed = {k: v for k, v in (("name", data), ("points", points)) if v is not None}
    settings = parse(DataSettings, {**run.config.data.model_dump(), **changed})
    try:
        return open_problem(settings, run.config.seed)
    except UserError:
        if data is None or settings.split is None:
            raise
        return open_problem(settings.model_copy(update={"split": None}), run.config.seed)


def save_evaluation(run: Run, result: dict[str, Any]) -> None:
    """Write the result to evaluation.json in the run's folder."""
    write_atomic(run.path / FILE, as_json(result).encode())


def as_json(result: dict[str, Any]) -> str:
    """Return a result as strict JSON: errors that are infinite become null."""
    return json.dumps(_replaced(result, lambda v: None if v == math.inf else v), indent=1, allow_nan=False)


def load_evaluation(run: Run) -> dict[str, Any] | None:
    """Return what ``save_evaluation`` wrote, None if there is nothing or the weights have changed since."""
    file = run.path / FILE
    if not file.is_file():
        return None
    try:
        found = _replaced(json.loads(file.read_bytes()), lambda v: math.inf if v is None else v)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: damaged ({error}); evaluate the run again") from None
    return found if found.get("checkpoint") == run.digest(found.get("weights", "best")) else None


def evaluate_surrogate(
    surrogate: Surrogate, problem: Problem, split: Part = "test", batch: int = BATCH
) -> dict[str, Any]:
    """Return the errors of a surrogate (in eval mode) on one part of a problem: each rollout, and the baselines."""
    _check(surrogate, problem)
    samples, measure, final = part(problem, split), measure_of(problem), problem.last
    strategies = STRATEGIES[:1] if problem.steady else STRATEGIES
    totals: dict[str, dict[int, list[Sums]]] = {s: {} for s in strategies}
    seconds, sizes = dict.fromkeys(strategies, 0.0), set()
    for group in _groups(surrogate, samples, batch):
        sizes.add(len(group.made[0].points))
        for strategy in strategies:
            found, spent = _predict(surrogate, problem, group, strategy)
            seconds[strategy] += spent
            for j, guesses in found.items():
                known = totals[strategy].setdefault(j, [])
                known += [measure.sums(made.values[j], g) for made, g in zip(group.made, guesses, strict=True)]
    metrics = {s: measure.summary(totals[s][final]) for s in strategies}
    best = min(strategies, key=lambda s: metrics[s][measure.main])
    over_time: dict[str, dict[str, list[float]]] = {s: {"times": [], "errors": []} for s in strategies}
    for s in strategies:
        for j in sorted(totals[s]):
            over_time[s]["times"].append(problem.times[j])
            over_time[s]["errors"].append(measure.summary(totals[s][j])[measure.main])
    with open_data(problem.path, problem.card) as file:
        label = str(file.attributes.get("label", "")) if file.attributes.get("seed") else OWN
    return {
        "benchmark": problem.card.name,
        "file": str(problem.path),
        "label": label,
        "source": problem.card.source,
        "split": split,
        "samples": len(samples),
        "points": [min(sizes), max(sizes)],
        "model": surrogate.signature.model["name"],
        "mode": surrogate.signature.mode,
        "parameters": sum(p.numel() for p in surrogate.model.parameters()),
        "main_metric": measure.main,
        "metrics": metrics,
        "best": {"strategy": best, "value": metrics[best][measure.main]},
        "baselines": baselines(problem, samples, measure, learned=split != "all"),
        "sample_errors": measure.each(totals[best][final]),
        "error_against_time": over_time,
        "constants": {"mean": list(measure.mean), "std": list(measure.std), "origin": measure.origin},
        "seconds_per_sample": {s: seconds[s] / len(samples) for s in strategies},
    }


def collect(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation of every metric over several evaluations, one for each seed.

    ``best`` is over the best rollout of each, whichever that was.
    """
    if not results:
        raise ValueError("no evaluations to collect")
    for key in ("benchmark", "split", "model", "main_metric"):
        if len(names := sorted({str(r[key]) for r in results})) > 1:
            raise UserError(f"evaluations of different {key} cannot be collected: {', '.join(names)}")

    def over_seeds(values: Sequence[float | None]) -> dict[str, float | None]:
        mean, std = mean_and_std([math.inf if v is None else v for v in values])
        return {"mean": mean, "std": std}

    first = results[0]
    tables = {
        kind: {
            name: {metric: over_seeds([r[kind][name][metric] for r in results]) for metric in measures}
            for name, measures in first[kind].items()
        }
        for kind in ("metrics", "baselines")
    }
    same = {key: first[key] for key in ("benchmark", "split", "model", "main_metric")}
    best = {**over_seeds([r["best"]["value"] for r in results]), "strategies": [r["best"]["strategy"] for r in results]}
    return {**same, "runs": len(results), **tables, "best": best}


@torch.no_grad()
def fields(
    surrogate: Surrogate, problem: Problem, split: Part = "test", count: int = 3, strategy: Strategy = "autoregressive"
) -> list[Fields]:
    """Return the first samples of a part with their predictions; steady problems have one time."""
    _check(surrogate, problem)
    samples, result = part(problem, split), []
    for k, group in enumerate(islice(_groups(surrogate, samples, 1), count)):
        made = group.made[0]
        found, _ = _predict(surrogate, problem, group, "direct" if problem.steady else strategy)
        visited = sorted(found)
        result.append(
            Fields(
                samples.indices[k],
                made.points,
                problem.inputs(made),
                made.values[visited],
                np.stack([found[j][0] for j in visited]),
                tuple(problem.times[j] for j in visited),
                problem.card.active,
                surrogate.signature.inputs,
            )
        )
    return result


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
    chunks = {", ".join(chunk): [card.active.index(v) for v in chunk] for chunk in card.chunks}
    if card.metric_std:
        return Measure(card.metric_mean, card.metric_std, "card", chunks, MAIN[card.metric])
    values = Accumulator()
    used = [0] if problem.steady else list(snapshots(problem.final, problem.stride))
    for made in problem.train:
        values.add(made.values[used])
    found = values.moments()
    constant = found.std <= 1e-6 * np.abs(found.mean)
    mean, std = np.where(constant, 0.0, found.mean), np.where(constant, 1.0, found.std)
    return Measure(tuple(mean.tolist()), tuple(std.tolist()), "training samples", chunks, MAIN[card.metric])


@dataclass(frozen=True)
class _Group:
    """Samples on one cloud: u at the start and the conditions, where the surrogate is."""

    made: list[Trajectory]
    cloud: Float[Tensor, "1 points dim"] | Cloud
    start: Float[Tensor, "batch points variables"]
    conditions: Float[Tensor, "batch _ points conditions"] | None


def _groups(surrogate: Surrogate, samples: Samples, batch: int) -> Iterator[_Group]:
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
        yield _Group(made, cloud, start, torch.from_numpy(np.stack(known)).to(device) if known else None)


@torch.no_grad()
def _predict(
    surrogate: Surrogate, problem: Problem, group: _Group, strategy: Strategy
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


def _check(surrogate: Surrogate, problem: Problem) -> None:
    """Raise unless the data is of the kind that the surrogate takes and gives."""
    s, card = surrogate.signature, problem.card
    wanted = (s.variables, s.conditions, s.dim, s.steady)
    found = (card.active, card.conditions, card.dim, card.steady)
    for name, one, other in zip(("variables", "conditions", "dim", "steady"), wanted, found, strict=True):
        if one != other:
            raise UserError(f"{problem.path}: {name} = {other}, but the surrogate has {one}; use data of its kind")


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dictionaries and lists with every number, string or null changed."""
    if isinstance(value, dict):
        return {k: _replaced(v, change) for k, v in value.items()}
    return [_replaced(v, change) for v in value] if isinstance(value, list) else change(value)
