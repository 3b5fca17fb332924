"""Where the time of training goes: the step of the model (forward, backward, update) and everything around it.

Trains the `cpu` preset on a generated Poisson-Gauss for a few epochs with timers around the parts of the loop.
"""

import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from benchmarks import measure
from ikno.config import make_config
from ikno.data.batches import TrainingPairs
from ikno.data.generate import Job, generate
from ikno.training import train
from ikno.training.engine import Training

PARTS = {
    "training, first step to last": (Training, "go"),
    "step: forward, backward, update": (Training, "_step"),
    "of that the norm of the gradient": (torch.nn.utils, "clip_grad_norm_"),
    "validation": (Training, "validate"),
    "reading batches": (TrainingPairs, "batch"),
    "checkpoints": (Training, "_save"),
    "log": (Training, "_record"),
}


def timed(spent: dict[str, float], label: str, function):
    """Return the function with its time added to what was spent under the label."""

    def wrapper(*arguments, **options):
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[label] += time.perf_counter() - began

    return wrapper


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=2)
    parser.add_argument("--samples", type=int, default=256, help="training samples (default 256)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default 3)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    spent: dict[str, float] = defaultdict(float)
    kept = {(owner, name): getattr(owner, name) for owner, name in PARTS.values()}
    with tempfile.TemporaryDirectory() as folder:
        job = Job("poisson-gauss", (("points", 1024), ("resolution", 65)), args.samples + 64, 0)
        path = generate(job, Path(folder) / "poisson-gauss.nc", 1)
        settings = {"data.split": [args.samples, 32, 32], "train.epochs": args.epochs}
        try:
            for label, (owner, name) in PARTS.items():
                setattr(owner, name, timed(spent, label, kept[owner, name]))
            train(make_config(str(path), settings), Path(folder) / "run")
        finally:
            for (owner, name), function in kept.items():
                setattr(owner, name, function)
    whole = spent["training, first step to last"]
    rows = [{"part": label, "seconds": spent[label], "share": spent[label] / whole} for label in PARTS]
    title = f"Training, cpu preset, {args.samples} samples of 1,024 points, {args.epochs} epochs"
    measure.report(title, rows, args.json, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
