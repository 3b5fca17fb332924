"""Which settings are better, measured on three small generated sets: optimizer, initial kernel scales, frequencies.

Trains 21 runs of the `cpu` preset, two to three minutes each on one core. They are kept in --out, and what is there
already is not trained again: the command can be stopped, and several processes can share the work with --only.
"""

from math import ceil
from pathlib import Path

import torch

from benchmarks import measure
from ikno.config import make_config
from ikno.data.generate import Job, generate
from ikno.evaluation import evaluate, load_evaluation, save_evaluation
from ikno.runs import Run
from ikno.training import train

# Options of the generator, samples, their split, settings; times 0, 7, 14 of those in time are three pairs a sample.
IN_TIME = {"data.stride": 7, "surrogate.mode": "derivative"}
SETS = {
    "poisson-gauss": ({"points": 1024}, 384, [256, 64, 64], {}),
    "wave-layer": ({"points": 1024}, 160, [96, 32, 32], IN_TIME),
    "ns-gauss": ({"points": 1024, "resolution": 64}, 160, [96, 32, 32], IN_TIME),
}
EPOCHS = 24


def scaled(factor: float) -> dict[str, list[float]]:
    """Return the base scales of both kernels times a factor."""
    return {key: [factor, 2 * factor, 4 * factor] for key in ("model.init_scales_l1", "model.init_scales_l2")}


CHOICES = {
    "muon, 3e-3": {},
    "adamw, 1e-3": {"train.optimizer": "adamw", "train.learning_rate": 1e-3},
    "adamw, 3e-3": {"train.optimizer": "adamw", "train.learning_rate": 3e-3},
    "scales x 2": scaled(2),
    "scales x 4": scaled(4),
    "scales auto": {"scales": "auto"},
    "one frequency": {"model.nerf_frequencies": 1},
}
FACTORS = {"muon, 3e-3": 1, "scales x 2": 2, "scales x 4": 4}  # what the search of the paper tries


def measured(out: Path, name: str, label: str) -> Run:
    """Return the run of a choice on a set, trained and evaluated."""
    options, samples, split, settings = SETS[name]
    job = Job(name, tuple(options.items()), samples, 0)
    file = out / f"{name}.nc"
    if not file.exists():
        generate(job, file, 1)
    path = out / f"{name}, {label}"
    given = {"data.split": split, "train.epochs": EPOCHS, **settings, **CHOICES[label]}
    run = train(make_config(str(file), given), path, resume=(path / "run.json").exists())
    if load_evaluation(run) is None:
        save_evaluation(run, evaluate(run))
    return run


def early(run: Run) -> float:
    """Return the best validation error of the first fifth of the epochs, by which the search decides."""
    return min(r["validation"] for r in run.log() if "loss" in r and r["epoch"] <= ceil(0.2 * EPOCHS))


def error(run: Run) -> float:
    found = load_evaluation(run)
    assert found is not None
    return found["best"]["value"]


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("choices"), help="folder of the runs (default choices)")
    parser.add_argument("--only", default="", help="only sets and choices whose names hold this text")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    runs = {label: {s: measured(args.out, s, label) for s in SETS if args.only in f"{s}, {label}"} for label in CHOICES}
    rows = [{"choice": label, **{s: error(r) for s, r in found.items()}} for label, found in runs.items() if found]
    if all(len(runs[label]) == len(SETS) for label in FACTORS):
        best = {s: min(FACTORS, key=lambda label, s=s: early(runs[label][s])) for s in SETS}
        rows.append({"choice": "scales by search", **{s: error(runs[label][s]) for s, label in best.items()}})
    title = f"Test error (median relative L1) after {EPOCHS} epochs"
    measure.report(title, rows, args.json, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
