"""Evaluation against propagators known in closed form, and baselines against brute force."""

import csv
import json
import math
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ikno.config import Config, DataSettings
from ikno.data.pairs import statistics
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.evaluation import (
    STRATEGIES,
    collect,
    evaluate,
    evaluate_surrogate,
    fields,
    load_evaluation,
    save_evaluation,
)
from ikno.evaluation.baselines import CELLS, baselines, nearest
from ikno.evaluation.rollouts import measure_of, part
from ikno.runs import Run, save
from ikno.surrogate import Signature, Surrogate
from ikno.training import complete

TINY = {"name": "ikno-tp", "d_model": 8, "num_heads": 2, "num_layers": 1, "grid_size": 4}
MODES = ("direct", "residual", "derivative")
S, N = 10, 9
FINAL, STRIDE, SNAPSHOTS = 8, 3, 11  # used: 0, 3, 6, 8
VISITED = {"direct": (0, 8), "autoregressive": (0, 3, 6, 8), "star": (0, 6, 8)}
UNSCALED = "metric_mean = [0.0, 0.0]\nmetric_std = [1.0, 1.0]\n"


def write(folder: Path, text: str, name: str = "mine", **arrays: np.ndarray) -> str:
    """Write arrays and their card, and return the name of the card."""
    np.savez(folder / f"{name}.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (folder / f"{name}.toml").write_text(f'name = "{name}"\nformat = "npz"\nfile = "{name}.npz"\n{text}')
    return str(folder / f"{name}.toml")


def decay(
    folder: Path, rate: np.ndarray, constants: str = UNSCALED, name: str = "decay", points: int = N
) -> tuple[str, np.ndarray]:
    """Write solutions of u' = -k u, with k one number per sample [samples, 1] or per snapshot [samples, snapshots]."""
    rng = np.random.default_rng(0)
    times = np.linspace(0, 2, SNAPSHOTS)
    start = rng.normal(size=(S, 1, points, 2))
    k = np.broadcast_to(rate[:, :1], (S, SNAPSHOTS))  # the solution takes the first
    u = start * np.exp(-k * times)[:, :, None, None]
    c = np.broadcast_to(rate[:, :, None, None], (*rate.shape, points, 1))
    text = f"""
cloud = "shared"
times = [0.0, 2.0]
snapshots = {SNAPSHOTS}
final_snapshot = {FINAL}
stride = {STRIDE}
variables = ["a", "b"]
chunks = [["a", "b"]]
conditions = ["rate"]
split = [6, 1, 3]
{constants}
[arrays]
conditions = "c"
"""
    return write(folder, text, name, u=u, c=c, x=rng.random((1, 1, points, 2))), times


def rates(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 0.8, size=(S, 1))


class Propagator(nn.Module):
    """In place of a model: u(t + lead) = step(u, rate, lead), in the normalized units of a surrogate and its mode."""

    def __init__(self, surrogate: Surrogate, step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.around, self.step = [surrogate], step  # in a list: not a part of this module

    def forward(self, features: Tensor, points: Tensor, mask: Tensor | None = None) -> Tensor:
        s = self.around[0]
        u, rate, lead = s.values.inverse(features[..., :2]), features[..., 2:3], features[..., 4:]
        lead = s.lead.inverse(lead)
        end = self.step(u, s.conditions.inverse(rate), lead)
        if s.signature.mode == "residual":
            end = end - u
        if s.signature.mode == "derivative":
            end = (end - u) / lead
        return (end - s.target.mean) / s.target.scale


def exact(u: Tensor, rate: Tensor, lead: Tensor) -> Tensor:
    return u * torch.exp(-rate * lead)


def euler(u: Tensor, rate: Tensor, lead: Tensor) -> Tensor:
    return u * (1 - rate * lead)


def signature(problem: Problem, mode: str = "direct") -> Signature:
    card = problem.card
    return Signature.model_validate(
        {
            "dim": card.dim,
            "variables": card.targets,
            "conditions": card.conditions,
            "box": problem.box(),
            "times": card.times,
            "mode": mode,
            "model": TINY,
        }
    )


def surrogate_of(problem: Problem, mode: str = "direct", step: Callable | None = None) -> Surrogate:
    found = statistics(problem.train, problem.times, problem.pairs, mode)  # type: ignore[arg-type]
    surrogate = Surrogate(signature(problem, mode), found, seed=0).eval()
    if step is not None:
        surrogate.model = Propagator(surrogate, step)
    return surrogate


@pytest.mark.parametrize("mode", MODES)
def test_an_exact_propagator_has_no_error(tmp_path: Path, mode: str) -> None:
    problem = open_problem(DataSettings(name=decay(tmp_path, rates())[0]), 0)
    found = evaluate_surrogate(surrogate_of(problem, mode, exact), problem, batch=2)
    assert set(found["metrics"]) == set(STRATEGIES)
    for strategy in STRATEGIES:
        assert all(0 <= v < 2e-6 for v in found["metrics"][strategy].values())
        assert all(v < 2e-6 for v in found["error_against_time"][strategy]["errors"])
    assert len(found["sample_errors"]) == found["samples"] == 3
    assert max(found["sample_errors"]) < 2e-6
    assert found["baselines"]["no change"]["median L1 per component"] > 0.1


def euler_factor(rate: np.ndarray, times: np.ndarray, visited: tuple[int, ...]) -> float:
    factor = 1.0
    for i, j in pairwise(visited):
        factor *= 1 - rate[i if len(rate) > 1 else 0] * (times[j] - times[i])
    return factor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("changing", [False, True])
def test_rollouts_of_an_inexact_propagator_are_those_of_its_formula(tmp_path: Path, mode: str, changing: bool) -> None:
    """Euler's method: each rollout has another factor. Conditions that change are those where a step starts."""
    k = rates() * (1 + 0.1 * np.arange(SNAPSHOTS)) if changing else rates()
    name, times = decay(tmp_path, k)
    problem = open_problem(DataSettings(name=name), 0)
    found = evaluate_surrogate(surrogate_of(problem, mode, euler), problem, batch=2)
    tests, value = (7, 8, 9), {}
    for strategy, visited in VISITED.items():
        # every value of a sample is wrong by the same factor
        truth = {s: np.exp(-k[s, 0] * times) for s in tests}
        error = {
            j: np.median([abs(euler_factor(k[s], times, to) / truth[s][j] - 1) for s in tests])
            for j, to in (
                {j: (0, j) for j in (3, 6, 8)}
                if strategy == "direct"
                else {j: visited[: n + 1] for n, j in enumerate(visited) if n}
            ).items()
        }
        over_time = found["error_against_time"][strategy]
        assert over_time["times"] == pytest.approx([times[j] for j in error])
        assert over_time["errors"] == pytest.approx(list(error.values()), rel=1e-4)
        for metric in ("median L1 per component", "median L1 per chunk", "median L2 per chunk"):
            assert found["metrics"][strategy][metric] == pytest.approx(error[8], rel=1e-4)
        value[strategy] = error[8]
    best = min(value, key=lambda s: value[s])
    assert found["best"] == {"strategy": best, "value": found["metrics"][best]["median L1 per component"]}
    each = [abs(euler_factor(k[s], times, VISITED[best]) * math.exp(k[s, 0] * times[8]) - 1) for s in tests]
    assert found["sample_errors"] == pytest.approx(each, rel=1e-4)


def test_the_size_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    problem = open_problem(DataSettings(name=decay(tmp_path, rates())[0]), 0)
    surrogate = surrogate_of(problem, "residual")
    one, three = (evaluate_surrogate(surrogate, problem, batch=b) for b in (1, 3))
    for strategy in STRATEGIES:
        assert one["metrics"][strategy] == pytest.approx(three["metrics"][strategy], rel=1e-5)
    assert one["parameters"] == sum(p.numel() for p in surrogate.model.parameters())
    assert min(one["seconds_per_sample"].values()) > 0


def test_constants_of_the_card_or_of_the_training(tmp_path: Path) -> None:
    given = "metric_mean = [0.5, -1.0]\nmetric_std = [2.0, 3.0]\n"
    problem = open_problem(DataSettings(name=decay(tmp_path, rates(), given)[0]), 0)
    measure = measure_of(problem)
    assert (measure.mean, measure.std, measure.origin) == ((0.5, -1.0), (2.0, 3.0), "card")
    assert measure.chunks == {"a, b": [0, 1]}
    problem = open_problem(DataSettings(name=decay(tmp_path, rates(), "")[0]), 0)
    measure = measure_of(problem)
    values = np.load(tmp_path / "decay.npz")["u"][:6, [0, 3, 6, 8]].astype(float).reshape(-1, 2)
    np.testing.assert_allclose(measure.mean, values.mean(0))
    np.testing.assert_allclose(measure.std, values.std(0))
    found = evaluate_surrogate(surrogate_of(problem, "direct", exact), problem)
    assert found["constants"] == {
        "mean": list(measure.mean),
        "std": list(measure.std),
        "origin": "training samples",
    }


def test_a_variable_that_does_not_vary_is_measured_as_it_is(tmp_path: Path) -> None:
    u = np.full((4, 1, 5, 2), 3.0)
    u[..., 1] = np.arange(20).reshape(4, 1, 5)
    name = write(tmp_path, 'variables = ["a", "b"]\nsplit = [2, 1, 1]\n', u=u, x=np.random.rand(1, 5, 2))
    measure = measure_of(open_problem(DataSettings(name=name), 0))
    assert (measure.mean[0], measure.std[0]) == (0.0, 1.0)
    assert measure.mean[1] == pytest.approx(4.5)


def errors_by_hand(truth: np.ndarray, guess: np.ndarray) -> float:
    """The median over samples of the relative L1 error of each variable, and the mean of both."""
    ratio = np.abs(truth - guess).sum(1) / np.abs(truth).sum(1)
    return float(np.median(ratio, 0).mean())


@pytest.mark.parametrize("split", ["test", "train"])
def test_baselines_on_a_shared_cloud_are_those_of_brute_force(tmp_path: Path, split: str) -> None:
    problem = open_problem(DataSettings(name=decay(tmp_path, rates())[0]), 0)
    arrays = np.load(tmp_path / "decay.npz")
    u, c = arrays["u"].astype(float), arrays["c"].astype(float)
    evaluated, training = ((7, 8, 9) if split == "test" else range(6)), range(6)
    std = np.concatenate([u[:6, 0].reshape(-1, 2).std(0), c[:6].reshape(-1, 1).std(0)])
    near = []
    for s in evaluated:
        gaps = {}
        for r in (r for r in training if r != s):
            start = ((u[s, 0] - u[r, 0]) / std[:2]) ** 2
            gaps[r] = start.sum() + (((c[s, 0] - c[r, 0]) / std[2]) ** 2).sum()
        near.append(min(gaps, key=lambda r: gaps[r]))
    samples = part(problem, split)  # type: ignore[arg-type]
    assert nearest(problem, samples).tolist() == near
    found = baselines(problem, samples, measure_of(problem))
    last = u[list(evaluated), FINAL]
    mean = np.broadcast_to(u[:6, FINAL].mean(0), last.shape)
    main = {name: metrics["median L1 per component"] for name, metrics in found.items()}
    expected = {
        "training mean": errors_by_hand(last, mean),
        "nearest training sample": errors_by_hand(last, u[near, FINAL]),
        "no change": errors_by_hand(last, u[list(evaluated), 0]),
    }
    assert main == pytest.approx(expected, rel=1e-5)


def test_many_training_samples_are_compared_in_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    u, c = rng.normal(size=(150, 1, 6, 1)), rng.normal(size=(150, 1, 6, 1))
    c[[141, 145]] = c[[133, 70]] + 0.01
    text = 'variables = ["u"]\nconditions = ["f"]\nsplit = [140, 0, 10]\n[arrays]\nconditions = "c"\n'
    problem = open_problem(DataSettings(name=write(tmp_path, text, u=u, c=c, x=rng.random((1, 6, 2)))), 0)
    gaps = ((c[140:, None] - c[None, :140]) ** 2).sum((2, 3, 4))
    near = nearest(problem, problem.test).tolist()
    assert near == gaps.argmin(1).tolist()
    assert (near[1], near[5]) == (133, 70)  # of the third block and of the second


def tables(folder: Path, conditions: tuple[str, ...] = ("f",), kinds: bool = True) -> tuple[str, list[np.ndarray]]:
    """Write samples with 20 to 29 points of their own: columns x, y, u and conditions."""
    rng = np.random.default_rng(3)
    (folder / "tables").mkdir(exist_ok=True)
    made = []
    for s in range(S):
        table = rng.normal(size=(20 + s, 3 + len(conditions)))
        table[:, :2] = rng.random((20 + s, 2))
        if kinds:  # three of geometry, two of inputs
            table[:, :2] = table[:, :2] * (0.3, 0.2) + (0.35 * (s % 3), 0)
            table[:, 2] += 5 * (s % 3)
            table[:, 3:] = 0.1 * table[:, 3:] + 3 * (s % 2)
        made.append(table.astype(np.float32).astype(float))
        with (folder / "tables" / f"{s}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["x", "y", "u", *conditions])
            rows.writerows(made[-1].tolist())
    (folder / "tables.toml").write_text(
        'name = "tables"\nformat = "csv"\nfile = "tables"\nvariables = ["u"]\nsplit = [7, 0, 3]\n'
        f"domain = [[0.0, 1.0], [0.0, 1.0]]\nconditions = {json.dumps(list(conditions))}\n"
    )
    return str(folder / "tables.toml"), made


def slow_cells(table: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Cell by cell: the share of the points, and the mean of the normalized inputs."""
    result = []
    for i, j in product(range(CELLS), repeat=2):
        x, y = table[:, 0] * CELLS, table[:, 1] * CELLS
        inside = (x >= i) & (x < i + 1) & (y >= j) & (y < j + 1)
        average = ((table[inside, 3:] - mean) / std).mean(0) if inside.any() else np.zeros(len(mean))
        result.append([inside.mean(), *average])
    return np.array(result)


def slow_nearest(made: list[np.ndarray]) -> list[int]:
    """The nearest of the first seven samples to each of the last three."""
    training = np.concatenate(made[:7])
    cells = [slow_cells(t, training[:, 3:].mean(0), training[:, 3:].std(0)) for t in made]
    share = np.concatenate([c[:, 0] for c in cells[:7]]).std()
    for c in cells:
        c[:, 0] /= share
    return [min(range(7), key=lambda r: ((cells[s] - cells[r]) ** 2).sum()) for s in (7, 8, 9)]


def test_geometry_and_inputs_weigh_alike_where_clouds_differ(tmp_path: Path) -> None:
    name, made = tables(tmp_path, kinds=False)
    problem = open_problem(DataSettings(name=name), 0)
    assert nearest(problem, problem.test).tolist() == slow_nearest(made)


@pytest.mark.parametrize("conditions", [("f",), ("f", "g"), ()])
def test_baselines_on_own_clouds_are_those_of_brute_force(tmp_path: Path, conditions: tuple[str, ...]) -> None:
    name, made = tables(tmp_path, conditions)
    problem = open_problem(DataSettings(name=name), 0)
    assert not problem.train.shared
    training = np.concatenate(made[:7])
    near = slow_nearest(made)
    assert nearest(problem, problem.test).tolist() == near
    if not conditions:  # the geometry decides alone
        assert [n % 3 for n in near] == [1, 2, 0]
    measure = measure_of(problem)
    found = baselines(problem, problem.test, measure)
    assert set(found) == {"training mean", "nearest training sample"}
    by_hand = {"training mean": [], "nearest training sample": []}
    for s, r in zip((7, 8, 9), near, strict=True):
        truth = made[s][:, 2]
        gaps = ((made[s][:, None, :2] - made[r][None, :, :2]) ** 2).sum(-1)
        guesses = {"training mean": training[:, 2].mean(), "nearest training sample": made[r][gaps.argmin(1), 2]}
        for kind, guess in guesses.items():
            by_hand[kind].append(np.abs(truth - guess).sum() / np.abs(truth - measure.mean[0]).sum())
    for kind, values in by_hand.items():
        assert found[kind]["median L1 per component"] == pytest.approx(np.median(values), rel=1e-5)
    assert found["training mean"]["median L1 per chunk"] == pytest.approx(1)  # the mean is what is subtracted


@pytest.mark.parametrize("conditions", [("f",), ()])
def test_steady_problems_with_own_clouds(tmp_path: Path, conditions: tuple[str, ...]) -> None:
    name, made = tables(tmp_path, conditions)
    problem = open_problem(DataSettings(name=name), 0)
    surrogate = surrogate_of(problem)
    found = evaluate_surrogate(surrogate, problem)
    assert set(found["metrics"]) == {"direct"}
    assert found["points"] == [27, 29]
    assert found["label"] == "released file or data of your own"
    measure, ratios = measure_of(problem), []
    for s in (7, 8, 9):
        x, c = (a.astype(np.float32) for a in (made[s][:, :2], made[s][:, 3:]))
        guess = surrogate.predict(x, c)[:, 0]
        ratios.append(np.abs(made[s][:, 2] - guess).sum() / np.abs(made[s][:, 2] - measure.mean[0]).sum())
    assert found["sample_errors"] == pytest.approx(ratios, rel=1e-4)
    assert found["metrics"]["direct"]["median L1 per component"] == pytest.approx(np.median(ratios), rel=1e-4)
    assert found["error_against_time"]["direct"] == {"times": [0.0], "errors": [found["best"]["value"]]}


def test_normalized_mse_decides_where_the_card_says_so(tmp_path: Path) -> None:
    constants = UNSCALED + 'metric = "normalized MSE and MAE"\n'
    name, times = decay(tmp_path, rates(), constants)
    problem = open_problem(DataSettings(name=name), 0)
    found = evaluate_surrogate(surrogate_of(problem, "direct", euler), problem)
    u = np.load(tmp_path / "decay.npz")["u"].astype(float)
    k = rates()
    mse = {
        s: np.mean([(u[i, 8] - u[i, 0] * euler_factor(k[i], times, v)) ** 2 for i in (7, 8, 9)])
        for s, v in VISITED.items()
    }
    assert found["main_metric"] == "normalized MSE"
    assert found["best"]["value"] == pytest.approx(min(mse.values()), rel=1e-4)
    assert {s: m["normalized MSE"] for s, m in found["metrics"].items()} == pytest.approx(mse, rel=1e-4)
    assert np.mean(found["sample_errors"]) == pytest.approx(found["best"]["value"])


def test_fields_of_a_rollout(tmp_path: Path) -> None:
    name, times = decay(tmp_path, rates())
    problem = open_problem(DataSettings(name=name), 0)
    surrogate, u, k = surrogate_of(problem, "derivative", euler), np.load(tmp_path / "decay.npz")["u"], rates()
    for strategy in ("direct", "autoregressive", "star"):
        found = fields(surrogate, problem, count=2, strategy=strategy)
        assert [f.sample for f in found] == [7, 8]
        steps = (3, 6, 8) if strategy == "direct" else VISITED[strategy][1:]
        for f in found:
            assert f.times == pytest.approx([times[j] for j in steps])
            assert (f.variables, f.input_names) == (("a", "b"), ("a", "b", "rate"))
            np.testing.assert_array_equal(f.truth, u[f.sample, list(steps)])
            np.testing.assert_array_equal(f.inputs[:, :2], u[f.sample, 0])
            np.testing.assert_allclose(f.inputs[:, 2], np.full(N, k[f.sample, 0]), rtol=1e-6)
            for n, j in enumerate(steps):
                to = (0, j) if strategy == "direct" else VISITED[strategy][: n + 2]
                expected = u[f.sample, 0] * euler_factor(k[f.sample], times, to)
                np.testing.assert_allclose(f.prediction[n], expected, atol=1e-5)
    assert len(fields(surrogate, problem, count=99)) == 3


def test_fields_of_a_steady_problem(tmp_path: Path) -> None:
    name, made = tables(tmp_path)
    problem = open_problem(DataSettings(name=name), 0)
    surrogate = surrogate_of(problem)
    found = fields(surrogate, problem, count=3)
    for f, s in zip(found, (7, 8, 9), strict=True):
        assert f.truth.shape == f.prediction.shape == (1, 20 + s, 1)
        np.testing.assert_allclose(f.points, made[s][:, :2], rtol=1e-6)
        expected = surrogate.predict(f.points, f.inputs)
        np.testing.assert_allclose(f.prediction[0], expected, rtol=1e-4, atol=1e-5)
        assert f.times == (0.0,)


def make_run(folder: Path, name: str, surrogate: Surrogate, **data) -> Run:
    mode = surrogate.signature.mode
    config = Config.model_validate(
        {"data": {"name": name, **data}, "model": TINY, "surrogate": {"mode": mode}, "seed": 4}
    )
    problem = open_problem(config.data, config.seed)
    config = complete(config, problem)
    run = Run.create(folder / "run", config, problem.card, surrogate.signature)
    for which in ("best", "last"):
        save(run.path / f"{which}.safetensors", {f"weights.{k}": v for k, v in surrogate.state_dict().items()}, {})
    return run


def test_a_run_on_its_own_data_on_other_data_and_with_other_points(tmp_path: Path) -> None:
    name, _ = decay(tmp_path, rates())
    problem = open_problem(DataSettings(name=name), 0)
    surrogate = surrogate_of(problem, "residual")
    run = make_run(tmp_path, name, surrogate, split=[6, 1, 3])
    found = evaluate(run)
    expected = evaluate_surrogate(surrogate, problem)
    assert found["metrics"] == expected["metrics"]
    assert (found["benchmark"], found["points"], found["seed"], found["weights"]) == ("decay", [N, N], 4, "best")
    assert [found["mode"], found["model"], found["split"]] == ["residual", "ikno-tp", "test"]

    other, _ = decay(tmp_path, rates(5), name="other", points=30)
    elsewhere = evaluate(run, data=other, checkpoint="last", batch=1)
    direct = evaluate_surrogate(surrogate, open_problem(DataSettings(name=other), 0))
    assert elsewhere["metrics"]["star"] == pytest.approx(direct["metrics"]["star"], rel=1e-5)
    assert (elsewhere["benchmark"], elsewhere["points"], elsewhere["weights"]) == ("other", [30, 30], "last")
    fewer = evaluate(run, data=other, points=12, split="validation")
    assert (fewer["points"], fewer["samples"], fewer["split"]) == ([12, 12], 1, "validation")
    assert not (run.path / "evaluation.json").exists()


def test_another_set_too_small_for_the_split_is_divided_by_its_card(tmp_path: Path) -> None:
    name, _ = tables(tmp_path)
    surrogate = surrogate_of(open_problem(DataSettings(name=name), 0))
    run = make_run(tmp_path, name, surrogate, split=[7, 0, 3])
    (tmp_path / "few" / "tables").mkdir(parents=True)
    (tmp_path / "few" / "tables.toml").write_text((tmp_path / "tables.toml").read_text())
    for s in range(4):
        (tmp_path / "few" / "tables" / f"{s}.csv").write_bytes((tmp_path / "tables" / f"{s}.csv").read_bytes())
    assert evaluate(run, data=str(tmp_path / "few" / "tables.toml"))["samples"] == 1
    with pytest.raises(UserError, match=r"nowhere\.toml: no such card"):
        evaluate(run, data=str(tmp_path / "nowhere.toml"))


def test_the_result_goes_to_a_file_and_back(tmp_path: Path) -> None:
    name, _ = decay(tmp_path, rates())
    run = make_run(tmp_path, name, surrogate_of(open_problem(DataSettings(name=name), 0)))
    assert load_evaluation(run) is None
    result = evaluate(run)
    result["metrics"]["star"]["mean L1 per chunk"] = math.inf
    save_evaluation(run, result)
    assert load_evaluation(run) == result

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    stored = json.loads((run.path / "evaluation.json").read_text(), parse_constant=refuse)
    assert stored["metrics"]["star"]["mean L1 per chunk"] is None
    assert not list(run.path.glob("*.partial"))
    (run.path / "evaluation.json").write_text('{"benchmark"')
    with pytest.raises(UserError, match="evaluate the run again"):
        load_evaluation(run)


def result_of(value: float | None, strategy: str = "star", benchmark: str = "decay") -> dict:
    metrics = {"star": {"m": value, "n": 1.0}, "direct": {"m": 5.0, "n": 2.0}}
    return {
        "benchmark": benchmark,
        "split": "test",
        "model": "ikno-tp",
        "main_metric": "m",
        "metrics": metrics,
        "baselines": {"training mean": {"m": 9.0, "n": 9.0}},
        "best": {"strategy": strategy, "value": value},
    }


def test_seeds_are_collected() -> None:
    found = collect([result_of(1.0), result_of(2.0, "direct"), result_of(6.0)])
    assert found["runs"] == 3
    assert found["metrics"]["star"]["m"] == pytest.approx({"mean": 3.0, "std": math.sqrt(7)})
    assert found["metrics"]["direct"]["n"] == {"mean": 2.0, "std": 0.0}
    assert found["baselines"]["training mean"]["m"] == {"mean": 9.0, "std": 0.0}
    assert found["best"]["mean"] == 3.0
    assert found["best"]["strategies"] == ["star", "direct", "star"]
    assert collect([result_of(1.0)])["best"] == {"mean": 1.0, "std": None, "strategies": ["star"]}
    assert collect([result_of(1.0), result_of(None)])["metrics"]["star"]["m"] == {"mean": math.inf, "std": None}
    with pytest.raises(UserError, match="different benchmark cannot be collected: decay, wave"):
        collect([result_of(1.0), result_of(1.0, benchmark="wave")])
    with pytest.raises(ValueError, match="no evaluations"):
        collect([])


def test_a_prediction_that_blows_up_is_infinitely_wrong(tmp_path: Path) -> None:
    problem = open_problem(DataSettings(name=decay(tmp_path, rates())[0]), 0)
    surrogate = surrogate_of(problem, "direct", lambda u, rate, lead: torch.where(lead < 1, u * math.nan, u))
    found = evaluate_surrogate(surrogate, problem)
    assert found["metrics"]["autoregressive"]["median L1 per component"] == math.inf
    assert found["best"]["strategy"] == "direct"


def test_data_of_another_kind_and_empty_parts_are_refused(tmp_path: Path) -> None:
    moving = open_problem(DataSettings(name=decay(tmp_path, rates())[0]), 0)
    still = open_problem(DataSettings(name=tables(tmp_path)[0]), 0)
    with pytest.raises(UserError, match=r"variables = \('u',\), but the surrogate has \('a', 'b'\)"):
        evaluate_surrogate(surrogate_of(moving, "direct", exact), still)
    with pytest.raises(UserError, match="no samples for validation"):
        evaluate_surrogate(surrogate_of(still), still, "validation")


def test_all_samples_of_a_file(tmp_path: Path) -> None:
    """Every sample is measured; guesses from training samples are left out, since there are none beside them."""
    rng = np.random.default_rng(5)
    name = write(
        tmp_path,
        'variables = ["u"]\nconditions = ["f"]\narrays = { conditions = "c" }\n',
        x=rng.uniform(size=(N, 2)),
        u=rng.normal(size=(S, N, 1)),
        c=rng.normal(size=(S, N, 1)),
    )
    problem = open_problem(DataSettings(name=name), 0)
    box, model = problem.box(), TINY
    signature = Signature(dim=2, variables=("u",), conditions=("f",), box=box, model=model)
    found = statistics(problem.train, problem.times, problem.pairs, "direct")
    surrogate = Surrogate(signature, found, seed=0).eval()
    result = evaluate_surrogate(surrogate, problem, "all")
    assert (result["samples"], len(result["sample_errors"]), result["baselines"]) == (S, S, {})
    test = evaluate_surrogate(surrogate, problem, "test")
    assert result["sample_errors"][-test["samples"] :] == pytest.approx(test["sample_errors"])
