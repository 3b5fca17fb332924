"""All systems after equal seconds of training, on eight generated and two real sets: docs/results/equal-time.md.

One thread, preset cpu. Each system tries AdamW and Muon with three rates for a third of the time, at most 20 s; the
pair with the best validation error is trained for all of it, with two seeds. The budget counts processor seconds of
training steps, all systems of a set timed in turns with a yardstick and scaled to a reference machine, on which the
yardstick takes ``YARDSTICK`` ms, so that a slower or busy machine trains every system for the same number of steps.
Results and costs are kept in docs/results by all that decides them: what is there is not made again, and several
processes can share the work. The real sets are files of others, in --real.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from ikno.comparison import FREE, Cell, Schedule, alone, digest_of, markdown_table, with_train
from ikno.config import Config, make_config
from ikno.cost import Call, interleaved
from ikno.data.generate import Job, generate
from ikno.data.problem import Problem, open_problem
from ikno.errors import UserError
from ikno.runs import write_atomic
from ikno.training import complete, prepare_step

PAGES = Path(__file__).parents[1] / "docs" / "results"
COSTS = PAGES / "equal-time-costs.json"
CARDS = Path(__file__).parents[1] / "examples" / "cards"
SYSTEMS = ("fno-dse", "geofno", "gino", "gaot", "transolver", "gnot", "upt", "rigno")
MODELS = ("ikno-tp", *SYSTEMS)
OPTIMIZERS = ("muon", "adamw")
RATES = (1.5e-3, 5e-3, 1.5e-2)
SEEDS = (0, 1)
TRIAL, LONGEST_TRIAL = 1 / 3, 20.0  # share of the budget, seconds
REPEATS = 15
USUAL = (20.0, 60.0, 300.0)  # budgets; shorter ones are for the time to an error
TARGET = 0.15
YARDSTICK = 10.06  # ms of a step of fno-dse with Muon on poisson-gauss
# Both predict states in their papers, and do much worse with rates of change (docs/comparison.md).
OWN = {"upt": {"surrogate.mode": "direct"}, "gnot": {"surrogate.mode": "direct"}}
STEADY, MOVING = (512, 64, 64), (160, 32, 32)
# Options of the generator and the split; None: a real set, by its card.
SETS: dict[str, tuple[dict[str, Any], tuple[int, int, int]] | None] = {
    "poisson-gauss": ({"points": 1024}, STEADY),
    "elasticity": ({}, STEADY),
    "wave-layer": ({"points": 1024}, MOVING),
    "holed-poisson": None,
    "pointnetcfd": None,
    "ns-sl": ({"points": 1024, "resolution": 64}, MOVING),
    "poisson-c-sines": ({"points": 1024, "terms": 6}, STEADY),
    "naca0012": ({"points": 1024, "resolution": 128}, (256, 32, 32)),
    "ns-pwc": ({"points": 1024, "resolution": 64}, MOVING),
    "wave-c-sines": ({"points": 1024, "terms": 5}, MOVING),
}


@dataclass(frozen=True)
class Result:
    """A system on a set after so many seconds: what was chosen on validation, and the errors of all seeds."""

    set: str
    model: str
    seconds: float
    key: str
    optimizer: str
    rate: float
    mode: str
    steps: int
    parameters: int
    milliseconds: float
    validation: list[float]
    test: list[float]

    @property
    def error(self) -> float:
        return sum(self.test) / len(self.test)


def problem_of(name: str, folder: Path, real: Path) -> tuple[str, dict[str, Any]]:
    """Return the file or card of a set, generated if it is not there, and the settings that go with it."""
    chosen = SETS[name]
    if chosen is None:
        found = next(real.glob(f"*/{_file_of(name)}"), None)
        if found is None:
            raise UserError(f"{name}: no file {_file_of(name)} in the folders of {real}; name their folder with --real")
        card = folder / f"{name}.toml"
        text = (CARDS / f"{name}.toml").read_text().replace(f'"{_file_of(name)}"', json.dumps(str(found.resolve())))
        write_atomic(card, text.encode())
        return str(card), {}
    options, split = chosen
    file = folder / f"{name}.nc"
    if not file.exists():
        generate(Job(name, tuple(options.items()), sum(split), 0), file, 2)
    return str(file), {"data.split": list(split)}


def _file_of(name: str) -> str:
    lines = (CARDS / f"{name}.toml").read_text().splitlines()
    return next(line for line in lines if line.startswith("file =")).split('"')[1]


def configs_of(name: str, models: list[str], folder: Path, real: Path) -> tuple[dict[str, Config], Problem]:
    """Return the complete config of each model, and the problem."""
    file, settings = problem_of(name, folder, real)
    base = make_config(file, settings)
    problem = open_problem(base.data, base.seed)
    return {
        m: complete(make_config(file, {**settings, **OWN.get(m, {}), "model": m}), problem) for m in models
    }, problem


def yardstick(folder: Path) -> Call:
    """Return the step that takes ``YARDSTICK`` ms on the machine whose seconds all budgets count."""
    configs, problem = configs_of("poisson-gauss", ["fno-dse"], folder, folder)
    return prepare_step(with_train(configs["fno-dse"], optimizer="muon"), problem)


def milliseconds_of(
    wanted: Mapping[str, Config], problem: Problem, file: Path, make_yardstick: Callable[[], Call]
) -> dict[str, float]:
    """Return the processor time of a step with each config, timed in turns with the yardstick and kept in the file."""
    with alone(file.with_suffix(".lock")):
        kept: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        digests = {label: digest_of(given, problem.digest(), FREE)[:12] for label, given in wanted.items()}
        keys = {label: f"{problem.card.name} {label} {digest}" for label, digest in digests.items()}
        missing = {label: given for label, given in wanted.items() if keys[label] not in kept}
        if missing:
            steps = {label: prepare_step(given, problem) for label, given in missing.items()}
            found = interleaved({"yardstick": make_yardstick(), **steps}, REPEATS)
            scale = YARDSTICK / found["yardstick"].cpu
            kept |= {keys[label]: round(found[label].cpu * scale, 3) for label in missing}
            write_atomic(file, (json.dumps(dict(sorted(kept.items())), indent=1) + "\n").encode())
    return {label: kept[key] for label, key in keys.items()}


def result_of(
    schedule: Schedule,
    name: str,
    model: str,
    config: Config,
    problem: Problem,
    seconds: float,
    costs: dict[str, float],
    folder: Path,
) -> Result | None:
    """Return a system trained with all pairs of optimizer and rate for a part of the time, with the best for all.

    None if another process is at one of its trainings, or the last ones fail.
    """

    def cell(optimizer: str, rate: float, span: float, seed: int) -> Cell:
        steps = max(int(span / costs[f"{model} {optimizer}"] * 1e3), 1)
        given = with_train(config, optimizer=optimizer, learning_rate=rate, steps=steps, epochs=None)
        return Cell.of(given.model_copy(update={"seed": seed}), problem, folder)

    tried = {}
    trial = min(TRIAL * seconds, LONGEST_TRIAL)
    for optimizer, rate in product(OPTIMIZERS, RATES):
        made = schedule.attempt(f"{name}, {model}, {optimizer} {rate:g}", cell(optimizer, rate, trial, 0).make)
        if made is not None:
            tried[optimizer, rate] = made.validation
    if schedule.busy:
        return None
    if not tried:
        raise UserError(f"{name}, {model}: no pair of optimizer and rate can be trained")
    optimizer, rate = min(tried, key=lambda pair: tried[pair])
    label = f"{name}, {model}, {seconds:g} s"
    made = [schedule.attempt(label, cell(optimizer, rate, seconds, seed).make) for seed in SEEDS]
    found = [c for c in made if c is not None]
    if len(found) < len(SEEDS):
        return None
    steps = found[0].config.train.steps
    assert steps is not None
    size = found[0].evaluation["parameters"]
    errors = [c.validation for c in found], [c.error for c in found]
    mode = str(config.surrogate.mode)
    cost = costs[f"{model} {optimizer}"]
    key = key_of(config, problem.digest(), seconds)
    return Result(name, model, seconds, key, optimizer, rate, mode, steps, size, cost, *errors)


def key_of(config: Config, data: str, seconds: float) -> str:
    """Return a digest of what decides a result; optimizer and rate are chosen on the way."""
    return digest_within(config, data, seconds, ("train.learning_rate", "train.optimizer"))


def digest_within(config: Config, data: str, seconds: float, chosen: tuple[str, ...] = ()) -> str:
    """Return a digest of a config without what is ``chosen``, its seed and its length, and of a budget."""
    digest = digest_of(config, data, (*chosen, "train.epochs", "train.steps", "seed"))
    return hashlib.sha256(f"{digest} {seconds}".encode()).hexdigest()[:12]


def kept_results(file: Path) -> list[Result]:
    """Return all results of the file."""
    return [Result(**r) for r in json.loads(file.read_text())] if file.exists() else []


def keep(file: Path, result: Result, lock: Path) -> None:
    """Add a result to the file, in place of an older one for the same system, set and budget."""
    with alone(lock):
        others = [
            r for r in kept_results(file) if (r.set, r.model, r.seconds) != (result.set, result.model, result.seconds)
        ]
        results = sorted([*others, result], key=lambda r: (r.seconds, list(SETS).index(r.set), r.error))
        write_atomic(file, (json.dumps([asdict(r) for r in results], indent=1) + "\n").encode())


def page(results: list[Result]) -> str:
    """Return the tables: one for each budget, a row for each set, errors in percent, and the choices below."""
    text = [
        "# Equal seconds of training",
        "",
        "Made by `python -m benchmarks.equal_time`. Test errors in %, mean of two seeds.",
    ]
    for seconds in sorted({r.seconds for r in results}):
        found = {(r.set, r.model): r for r in results if r.seconds == seconds}
        models = [m for m in MODELS if any(model == m for _, model in found)]
        lines = []
        for name in (s for s in SETS if any(found_set == s for found_set, _ in found)):
            row = {m: found[name, m].error for m in models if (name, m) in found}
            others = [e for m, e in row.items() if m != "ikno-tp"]
            ratio = f"{row['ikno-tp'] / min(others):.2f}" if "ikno-tp" in row and others else "-"
            lines.append([name, *(f"{100 * row[m]:.2f}" if m in row else "-" for m in models), ratio])
        text += ["", f"## {seconds:g} seconds", "", markdown_table(["", *models, "of the best other"], lines)]
        rows = [
            [
                r.set,
                r.model,
                r.optimizer,
                f"{r.rate:g}",
                r.mode,
                f"{r.steps:,}",
                f"{r.milliseconds:.1f}",
                f"{r.parameters:,}",
            ]
            + [" ".join(f"{100 * e:.2f}" for e in errors) for errors in (r.validation, r.test)]
            for r in found.values()
        ]
        header = ["", "model", "optimizer", "rate", "mode", "steps", "ms / step", "parameters", "validation", "test"]
        text += ["", markdown_table(header, rows)]
    return "\n".join([*text, *_times(results)]) + "\n"


def _times(results: list[Result]) -> list[str]:
    """Return the table of the shortest budgets that get the systems below ``TARGET``, for sets with short ones."""
    short = [r for r in results if r.seconds < min(USUAL)]
    sets = [s for s in SETS if any(r.set == s for r in short)]
    models = [m for m in MODELS if any(r.model == m for r in short)]
    lines = []
    for name in sets:
        reached = {
            m: [r.seconds for r in results if (r.set, r.model) == (name, m) and r.error <= TARGET] for m in models
        }
        lines.append([name, *(f"{min(reached[m]):g}" if reached[m] else "-" for m in models)])
    title = f"## Seconds to {100 * TARGET:g} %"
    said = "The shortest budget, a whole training of its own, after which the mean test error is at most that."
    return ["", title, "", said, "", markdown_table(["", *models], lines)] if lines else []


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("equal-time"), help="folder of data and runs")
    parser.add_argument("--real", type=Path, default=Path("real"), help="folder that holds those of the real sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), help="these sets only")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="these models only")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0], help="budgets (default 60)")
    parser.add_argument("--costs", action="store_true", help="measure the costs of a step only, without training")
    parser.add_argument("--results", type=Path, default=PAGES / "equal-time.json", help="file of all results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    schedule = Schedule(say=partial(print, flush=True))
    for name in args.sets:
        configs, problem = configs_of(name, args.models, args.out, args.real)
        wanted = {f"{m} {o}": with_train(c, optimizer=o) for m, c in configs.items() for o in OPTIMIZERS}
        costs = milliseconds_of(wanted, problem, COSTS, lambda: yardstick(args.out))
        if args.costs:
            continue
        jobs = [(s, m, c) for s in args.seconds for m, c in configs.items()]
        for seconds, model, config in schedule.turns(jobs):
            if key_of(config, problem.digest(), seconds) in {r.key for r in kept_results(args.results)}:
                continue
            runs = args.out / "runs" / name
            result = result_of(schedule, name, model, config, problem, seconds, costs, runs)
            if result is None:
                continue
            keep(args.results, result, args.out / "results.lock")
            validation = sum(result.validation) / len(result.validation)
            choice = f"{result.optimizer} {result.rate:g}"
            print(f"{name}, {model}, {seconds:g} s: {choice}, validation {validation:.4f}", flush=True)
    if args.results == PAGES / "equal-time.json":
        (PAGES / "equal-time.md").write_text(page(kept_results(args.results)))


if __name__ == "__main__":
    main()
