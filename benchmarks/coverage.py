"""How often the truth lies inside calibrated intervals, on test samples of two generated sets.

Trains --seeds small runs on each set (the `cpu` preset with 256 points, width 32 and two layers), calibrates every run
and the ensemble of all on the validation samples, and prints the coverage of the test samples. Runs are kept in --out:
what is there is not trained again.
"""

from pathlib import Path

import torch

from benchmarks import measure
from ikno.config import make_config
from ikno.data.generate import Job, generate
from ikno.evaluation import calibrate, evaluate_surrogate, problem_of
from ikno.runs import Run
from ikno.surrogate import Ensemble
from ikno.training import train

SETS = {"poisson-gauss": {"points": 1024}, "elasticity": {}}
SMALL = {"data.points": 256, "model.d_model": 32, "model.num_layers": 2}


def trained(out: Path, name: str, samples: int, epochs: int, seed: int) -> Run:
    """Return the run of a seed; half of the samples are for training, a quarter for validation, a quarter for test."""
    file = out / f"{name}-{samples}.nc"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        generate(Job(name, tuple(SETS[name].items()), samples, 0), file, 1)
    quarter = samples // 4
    path = out / f"{name}-{samples}-{epochs}-{seed}"
    given = {**SMALL, "data.split": [samples - 2 * quarter, quarter, quarter], "train.epochs": epochs, "seed": seed}
    return train(make_config(str(file), given), path, resume=(path / "run.json").exists())


def measured(runs: list[Run], coverage: float) -> dict[str, str]:
    """Return error, coverage and width on the test samples of a run or of an ensemble."""
    calibration = calibrate(runs, coverage)
    ensemble = Ensemble([run.surrogate() for run in runs], calibration)
    found = evaluate_surrogate(ensemble, problem_of(runs[0]))
    bands = found["intervals"]["strategies"]["direct"]
    row = {"median L1": f"{found['metrics']['direct']['median L1 per component']:.2%}"}
    for band, title in (("pointwise", "points inside"), ("simultaneous", "samples inside")):
        row[title] = f"{bands[band]['coverage']:.1%} ± {bands[band]['standard error']:.1%}"
        row[f"width, {band}"] = f"{bands[band]['width']:.2f} std"
    return row


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument(
        "--out", type=Path, default=Path("coverage-runs"), help="folder of sets and runs (default coverage-runs)"
    )
    parser.add_argument("--samples", type=int, default=320, help="samples of each set (default 320)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each run (default 8)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each set (default 3)")
    parser.add_argument("--coverage", type=float, default=0.9, help="coverage asked for (default 0.9)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    runs = {name: [] for name in SETS}
    for seed in range(args.seeds):
        for name, found in runs.items():
            found.append(trained(args.out, name, args.samples, args.epochs, seed))
    rows = []
    for name, found in runs.items():
        for seed, run in enumerate(found):
            rows.append({"set": name, "runs": f"seed {seed}", **measured([run], args.coverage)})
        if len(found) > 1:
            rows.append({"set": name, "runs": f"all {len(found)}", **measured(found, args.coverage)})
    measure.report("Coverage of calibrated intervals", rows, args.json, asked_for=args.coverage)


if __name__ == "__main__":
    main()
