"""How good a surrogate is on samples it has not seen, beside baselines (trivial guesses); and fields to look at.

result = evaluate(Run.open("runs/poisson"))
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ikno.data.problem import Problem
from ikno.errors import UserError
from ikno.evaluation.baselines import baselines
from ikno.evaluation.calibrate import coverage, inside
from ikno.evaluation.rollouts import BATCH, Part, Strategy, measure_of, part, problem_of, rollouts
from ikno.metrics import Sums, mean_and_std, summarize
from ikno.runs import Run, surrogate_of, write_atomic
from ikno.surrogate import Ensemble, Surrogate

FILE = "evaluation.json"
OWN = "released file or data of your own"


@dataclass(frozen=True)
class Fields:
    """One sample with its prediction, in physical units, at all predicted times; the start is none of them.

    ``triangles`` are those of its surface, None if they are unknown or some of their points are not used.
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
    checkpoint: str = "best",
    split: Part = "test",
    data: str | None = None,
    points: int | None = None,
    batch: int = BATCH,
    device: str | None = None,
) -> dict[str, Any]:
    """Return the errors of a trained run on one part of its data as plain numbers; nothing is written.

    The intervals of a calibrated run are measured too.

    Args:
        run: The run.
        checkpoint: The checkpoint, best or last.
        split: The part: train, validation, test, or all samples. Baselines that need training samples are left out for
            all.
        data: Another data set or file. One too small for the split of the run is divided as its card says; make sure
            that it holds no samples of the training.
        points: Another number of points than it was trained on.
        batch: Samples predicted at a time where they share a cloud.
        device: Where to compute. Default: the CPU.

    Returns:
        What is measured and how (benchmark, split, samples, main_metric, ...); ``metrics`` of each rollout, the
        ``best`` one, ``baselines``, ``sample_errors``, ``error_against_time``, and ``intervals`` if calibrated.

    Raises:
        UserError: If the checkpoint or the data cannot be used, or the part has no samples.
    """
    problem = problem_of(run, data, points)
    problem.train.keep(run.config.data.memory_gb * 1e9)  # the baselines go through it several times
    surrogate = surrogate_of([run], checkpoint, device)
    result = evaluate_surrogate(surrogate, problem, split, batch)
    return {**result, "weights": checkpoint, "checkpoint": run.digest(checkpoint), "seed": run.config.seed}


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
        result = _replaced(json.loads(file.read_bytes()), lambda v: math.inf if v is None else v)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: damaged ({error}); evaluate the run again") from None
    return result if result.get("checkpoint") == run.digest(result.get("weights", "best")) else None


def evaluate_surrogate(
    surrogate: Surrogate | Ensemble, problem: Problem, split: Part = "test", batch: int = BATCH, guess: bool = True
) -> dict[str, Any]:
    """Return what ``evaluate`` returns, for a surrogate in eval mode or the mean of an ensemble.

    Pointwise coverage is the mean over samples of the share of points inside, simultaneous coverage the share of
    samples inside everywhere, both at the final time. Without ``guess`` baselines are left out.
    """
    samples, measure, calibration = part(problem, split), measure_of(problem), surrogate.calibration
    totals: dict[str, dict[int, list[Sums]]] = defaultdict(lambda: defaultdict(list))
    measured: dict[str, list[np.ndarray]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    sizes = set()
    for seen in rollouts(surrogate.members, problem, samples, batch):
        sizes.add(len(seen.sample.points))
        seconds[seen.strategy] += seen.seconds
        for j, values in seen.values.items():
            totals[seen.strategy][j].append(measure.sums(seen.sample.values[j], values.mean(0)))
        if calibration is not None:
            measured[seen.strategy].append(inside(calibration, problem, seen, measure.std))
    metrics = {s: summarize(by_time[problem.last], measure.chunks) for s, by_time in totals.items()}
    best = min(metrics, key=lambda s: metrics[s][measure.main.name])
    over_time = {
        s: {
            "times": [problem.times[j] for j in by_time],
            "errors": [measure.main(sums, measure.chunks) for sums in by_time.values()],
        }
        for s, by_time in totals.items()
    }
    made = problem.attributes
    result = {
        "benchmark": problem.card.name,
        "file": str(problem.path),
        "label": str(made.get("label", "")) if made.get("seed") else OWN,
        "source": problem.card.source,
        "split": split,
        "samples": len(samples),
        "points": [min(sizes), max(sizes)],
        "model": surrogate.signature.model["name"],
        "mode": surrogate.signature.mode,
        "parameters": sum(p.numel() for member in surrogate.members for p in member.model.parameters()),
        "main_metric": measure.main.name,
        "metrics": metrics,
        "best": {"strategy": best, "value": metrics[best][measure.main.name]},
        "baselines": baselines(problem, samples, measure, learned=split != "all") if guess else {},
        "sample_errors": measure.each(totals[best][problem.last]),
        "error_against_time": over_time,
        "constants": {"mean": list(measure.mean), "std": list(measure.std), "origin": measure.origin},
        "seconds_per_sample": {s: spent / len(samples) for s, spent in seconds.items()},
    }
    return result if calibration is None else {**result, "intervals": coverage(calibration, measured)}


def collect(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation of every metric over several evaluations, one for each seed.

    ``best`` is over the best rollout of each, whichever that was.
    """
    if not results:
        raise ValueError("no evaluations to collect")
    same = ("benchmark", "split", "model", "main_metric")
    for key in same:
        if len(names := sorted({str(r[key]) for r in results})) > 1:
            raise UserError(f"evaluations of different {key} cannot be collected: {', '.join(names)}")

    def over_seeds(values: Sequence[Any]) -> dict[str, Any]:
        """Return the same for every number in equal nested dictionaries."""
        if isinstance(values[0], dict):
            return {key: over_seeds([v[key] for v in values]) for key in values[0]}
        mean, std = mean_and_std([math.inf if v is None else v for v in values])
        return {"mean": mean, "std": std}

    strategies = [r["best"]["strategy"] for r in results]
    return {
        **{key: results[0][key] for key in same},
        "runs": len(results),
        **{kind: over_seeds([r[kind] for r in results]) for kind in ("metrics", "baselines")},
        "best": {**over_seeds([r["best"]["value"] for r in results]), "strategies": strategies},
    }


def fields(
    surrogate: Surrogate, problem: Problem, split: Part = "test", count: int = 3, strategy: Strategy = "autoregressive"
) -> list[Fields]:
    """Return the first samples of a part with their predictions; steady problems have one time."""
    samples = part(problem, split)
    seen = rollouts([surrogate], problem, samples, 1, (strategy,))
    return [
        Fields(
            sample=samples.indices[k],
            points=one.sample.points,
            inputs=problem.inputs(one.sample),
            truth=one.sample.values[list(one.values)],
            prediction=np.stack([values[0] for values in one.values.values()]),
            times=tuple(problem.times[j] for j in one.values),
            variables=problem.card.targets,
            input_names=surrogate.signature.inputs,
            triangles=one.sample.triangles,
        )
        for k, one in enumerate(islice(seen, count))
    ]


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dictionaries and lists with every number, string or null changed."""
    if isinstance(value, dict):
        return {k: _replaced(v, change) for k, v in value.items()}
    return [_replaced(v, change) for v in value] if isinstance(value, list) else change(value)
