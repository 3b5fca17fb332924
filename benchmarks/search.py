"""Which settings of IKNO are better after equal seconds of training, by validation error: docs/results/search.md.

Each choice changes one thing of the preset cpu. Sets, budget in processor seconds, optimizer and rate are the same for
all; a costlier step means fewer of them. Results are kept in docs/results/search.json by all that decides them: what is
there is not made again. No test error is looked at.
"""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.equal_time import COSTS, PAGES, SETS, digest_within, milliseconds_of, problem_of, yardstick
from ikno.comparison import Cell, Schedule, alone, markdown_table, with_train
from ikno.config import Config, make_config
from ikno.data.problem import Problem, open_problem
from ikno.runs import write_atomic
from ikno.training import complete

USUAL = ("poisson-gauss", "elasticity", "wave-layer", "holed-poisson", "pointnetcfd", "poisson-c-sines", "naca0012")
CHOICES: dict[str, dict[str, Any]] = {
    "preset": {},
    "free none": {"model.free": "none"},
    "free profile": {"model.free": "profile"},
    "free added": {"model.free": "added"},
    "free only": {"model.free": "only"},
    "free_decay 0.2": {"model.free_decay": 0.2},
    "free_decay 2": {"model.free_decay": 2.0},
    "attention, patches of 2": {
        "model.processor": "attention",
        "model.positions": "rotary",
        "model.patch_size": 2,
        "model.num_heads": 4,
    },
    "regular grid": {"model.stretching": None},
    "grid 12": {"model.grid_size": 12, "model.first_scale": 1.375},
    "grid 20": {"model.grid_size": 20, "model.first_scale": 2.375},
    "2 layers": {"model.num_layers": 2},
    "4 layers": {"model.num_layers": 4},
    "width 48": {"model.d_model": 48},
    "width 96": {"model.d_model": 96},
    "4 heads": {"model.num_heads": 4},
    "ff_mult 2": {"model.ff_mult": 2},
    "point_width 8": {"model.point_width": 8},
    "point_width 32": {"model.point_width": 32},
    "2 kernels": {"model.num_kernels": 2},
    "4 kernels": {"model.num_kernels": 4},
    "4 frequencies": {"model.nerf_frequencies": 4},
    "uniform weights": {"model.point_weights": "uniform"},
    "tolerance 1e-3": {"model.tolerance": 1e-3},
    "batch 8": {"train.batch": 8},
    "batch 2": {"train.batch": 2},
    "rate 5e-3": {"train.learning_rate": 5e-3},
    "rate 2e-2": {"train.learning_rate": 2e-2},
    "ema .99": {"train.ema": 0.99},
    "no conditions": {"model.conditions": 0},
}


@dataclass(frozen=True)
class Tried:
    """The validation error of a choice on a set after so many seconds, with one seed."""

    set: str
    choice: str
    seconds: float
    seed: int
    key: str
    steps: int
    milliseconds: float
    validation: float


def configs_of(name: str, choices: list[str], folder: Path, real: Path) -> tuple[dict[str, Config], Problem]:
    """Return the complete config of each choice, and the problem."""
    file, settings = problem_of(name, folder, real)
    base = make_config(file, settings)
    problem = open_problem(base.data, base.seed)
    return {c: complete(make_config(file, {**settings, **CHOICES[c]}), problem) for c in choices}, problem


def kept_results(file: Path) -> list[Tried]:
    """Return all results of the file."""
    return [Tried(**t) for t in json.loads(file.read_text())] if file.exists() else []


def page(results: list[Tried]) -> str:
    """Return a table for each budget: a row for each choice, mean validation errors in % and milliseconds of a step."""
    text = ["# Settings of IKNO", "", "Made by `python -m benchmarks.search`. Validation errors in %, mean over seeds."]
    for seconds in sorted({t.seconds for t in results}):
        found = [t for t in results if t.seconds == seconds]
        sets = [s for s in SETS if any(t.set == s for t in found)]
        lines = []
        for choice in (c for c in CHOICES if any(t.choice == c for t in found)):
            cells = []
            for name in sets:
                errors = [t.validation for t in found if (t.set, t.choice) == (name, choice)]
                cells.append(f"{100 * sum(errors) / len(errors):.2f} ({len(errors)})" if errors else "-")
            times = [t.milliseconds for t in found if t.choice == choice]
            lines.append([choice, f"{sum(times) / len(times):.1f}", *cells])
        text += ["", f"## {seconds:g} seconds", "", markdown_table(["", "ms / step", *sets], lines)]
    return "\n".join([*text, "", "In parentheses: the number of seeds.", ""])


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("equal-time"), help="folder of data and runs")
    parser.add_argument("--real", type=Path, default=Path("real"), help="folder that holds those of the real sets")
    parser.add_argument("--sets", nargs="+", default=list(USUAL), choices=list(SETS), help="these sets only")
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), choices=list(CHOICES), help="these choices only")
    parser.add_argument("--seconds", type=float, nargs="+", default=[20.0, 60.0], help="budgets (default 20 60)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds (default 2)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = PAGES / "search.json"
    schedule = Schedule(say=partial(print, flush=True))
    for name in args.sets:
        configs, problem = configs_of(name, args.choices, args.out, args.real)
        costs = milliseconds_of(configs, problem, COSTS, lambda: yardstick(args.out))
        jobs = [(s, seed, c) for s in args.seconds for seed in range(args.seeds) for c in configs]
        for seconds, seed, choice in schedule.turns(jobs):
            config, cost = configs[choice], costs[choice]
            key = digest_within(config, problem.digest(), seconds)
            if (key, seed) in {(t.key, t.seed) for t in kept_results(file)}:
                continue
            steps = max(int(1e3 * seconds / cost), 1)
            given = with_train(config, steps=steps, epochs=None).model_copy(update={"seed": seed})
            label = f"{name}, {choice}, {seconds:g} s, seed {seed}"
            cell = schedule.attempt(label, Cell.of(given, problem, args.out / "search" / name).make)
            if cell is None:
                continue
            found = Tried(name, choice, seconds, seed, key, steps, cost, cell.validation)
            place = (name, choice, seconds, seed)
            with alone(args.out / "search.lock"):
                others = [t for t in kept_results(file) if (t.set, t.choice, t.seconds, t.seed) != place]
                write_atomic(file, (json.dumps([asdict(t) for t in [*others, found]], indent=1) + "\n").encode())
            print(f"{label}: {100 * found.validation:.2f} %", flush=True)
    (PAGES / "search.md").write_text(page(kept_results(file)))


if __name__ == "__main__":
    main()
