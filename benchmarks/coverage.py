"""How often the truth lies inside calibrated intervals, on test samples of two generated sets.

Trains --seeds runs of the `cpu` preset on each set, calibrates every run and the ensemble of all on the validation
samples, and prints the coverage of the test samples. Runs are kept in --out: what is there is not trained again.
"""

from pathlib import Path

import torch

from benchmarks import measure
from ikno.config import make_config
from ikno.data.generate import Job, generate
from ikno.runs import Run
from ikno.training import train

SETS = {"poisson-gauss": {"points": 1024}, "elasticity": {}}


def trained(out: Path, name: str, samples: int, epochs: int, seed: int) -> Run:
    """Return the run of a seed; half of the samples are for training, a quarter for validation, a quarter for test."""
    file = out / f"{name}-{samples}.nc"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        generate(Job(name, tuple(SETS[name].items()), samples, 0), file, 1)
    quarter = samples // 4
    path = out / f"{name}-{samples}-{epochs}-{seed}"
    given = {"data.split": [samples - 2 * quarter, quarter, quarter], "train.epochs": epochs, "seed": seed}
    return train(make_config(str(file), given), path, resume=(path / "run.json").exists())


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("coverage"), help="folder of sets and runs (default coverage)")
    parser.add_argument("--samples", type=int, default=320, help="samples of each set (default 320)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each run (default 8)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each set (default 3)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for seed in range(args.seeds):
        for name in SETS:
            trained(args.out, name, args.samples, args.epochs, seed)


if __name__ == "__main__":
    main()
