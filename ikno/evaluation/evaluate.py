"""How good a surrogate is on samples it has not seen, beside what trivial guesses reach; and fields to look at.

result = evaluate(Run.open("runs/poisson"))
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ikno.data.problem import Problem
from ikno.errors import UserError
from ikno.evaluation.baselines import baselines
from ikno.evaluation.calibrate import measure_intervals
from ikno.evaluation.rollouts import BATCH, Part, check_kind, groups, measure_of, part, predict_group, problem_of
from ikno.metrics import Sums, mean_and_std
from ikno.runs import Run, load_calibration, write_atomic
from ikno.surrogate.rollout import STRATEGIES, Strategy
from ikno.surrogate.surrogate import Surrogate

FILE = "evaluation.json"
OWN = "released file or data of your own"


@dataclass(frozen=True)
class Fields:
    """One sample with its prediction, in physical units, at the times that are predicted (the start is not).

    ``triangles``: those of its surface, if they are known and all their points are here.
    """

    sample: int
    points: Float[np.ndarray, "points dim"]
    inputs: Float[np.ndarray, "points channels"]
    truth: Float[np.ndarray, "times points variables"]
    prediction: Float[np.ndarray, "times points variables"]
    times: tuple[float, ...]
    variables: tuple[str, ...]
    input_names: tuple[str, ...]
    triangles: Int[np.ndarray, "triangles 3"] | None = None


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
    ``all`` is every sample of a file; guesses from training samples are then left out. A run that is calibrated has its
    intervals measured too.
    """
    problem = problem_of(run, data, points)
    problem.train.keep(run.config.data.memory_gb * 1e9)  # the baselines go through it several times
    surrogate = run.surrogate(which, device)
    result = evaluate_surrogate(surrogate, problem, split, batch or BATCH)
    if (calibration := load_calibration([run], which)) is not None:
        found = measure_intervals([surrogate], calibration, problem, split, batch or BATCH)
        result["intervals"] = found["intervals"]
    return {**result, "weights": which, "checkpoint": run.digest(which), "seed": run.config.seed}


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
    check_kind(surrogate, problem)
    samples, measure, final = part(problem, split), measure_of(problem), problem.last
    strategies = STRATEGIES[:1] if problem.steady else STRATEGIES
    totals: dict[str, dict[int, list[Sums]]] = {s: {} for s in strategies}
    seconds, sizes = dict.fromkeys(strategies, 0.0), set()
    for group in groups(surrogate, samples, batch):
        sizes.add(len(group.made[0].points))
        for strategy in strategies:
            found, spent = predict_group(surrogate, problem, group, strategy)
            seconds[strategy] += spent
            for j, guesses in found.items():
                known = totals[strategy].setdefault(j, [])
                known += [measure.sums(made.values[j], g) for made, g in zip(group.made, guesses, strict=True)]
    metrics = {s: measure.summary(totals[s][final]) for s in strategies}
    best = min(strategies, key=lambda s: metrics[s][measure.main.name])
    over_time: dict[str, dict[str, list[float]]] = {s: {"times": [], "errors": []} for s in strategies}
    for s in strategies:
        for j in sorted(totals[s]):
            over_time[s]["times"].append(problem.times[j])
            over_time[s]["errors"].append(measure.main(totals[s][j], measure.chunks))
    made = problem.attributes
    label = str(made.get("label", "")) if made.get("seed") else OWN
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
        "main_metric": measure.main.name,
        "metrics": metrics,
        "best": {"strategy": best, "value": metrics[best][measure.main.name]},
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
    check_kind(surrogate, problem)
    samples, result = part(problem, split), []
    for k, group in enumerate(islice(groups(surrogate, samples, 1), count)):
        made = group.made[0]
        found, _ = predict_group(surrogate, problem, group, "direct" if problem.steady else strategy)
        visited = sorted(found)
        result.append(
            Fields(
                samples.indices[k],
                made.points,
                problem.inputs(made),
                made.values[visited],
                np.stack([found[j][0] for j in visited]),
                tuple(problem.times[j] for j in visited),
                problem.card.targets,
                surrogate.signature.inputs,
                made.triangles,
            )
        )
    return result


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dictionaries and lists with every number, string or null changed."""
    if isinstance(value, dict):
        return {k: _replaced(v, change) for k, v in value.items()}
    return [_replaced(v, change) for v in value] if isinstance(value, list) else change(value)
