"""Five minutes with ikno: two small problems from data to pictures, each step a command that you can type yourself.

A steady problem (Poisson's equation) and one in time (waves in a disc): generate, train IKNO-TP, evaluate beside
trivial guesses, predict on a cloud that was never seen, draw. Stop it and start it again as you like.

    python examples/demo.py --out demo-output
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

SIZES = {
    # samples of the steady set, its split, steps; the same for the waves; points of both
    "demo": ("2176", "[2048,64,64]", "6500", "576", "[512,32,32]", "2500", "1024", "4096"),
    "smoke": ("12", "[8,2,2]", "2", "4", "[2,1,1]", "2", "64", "128"),
}


def ikno(*words: str, quiet: bool = False) -> str:
    """Run a command as a user would, shown before it runs; return what it printed if it is quiet."""
    command = [sys.executable, "-m", "ikno", *words]
    if not quiet:
        print(f"\n$ ikno {shlex.join(words)}", flush=True)
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE if quiet else None)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


def learn(out: Path, name: str, settings: list[str]) -> Path:
    """Train on a generated set, or go on where an earlier demo stopped; evaluate and draw."""
    run, resume = out / f"run-{name}", []
    if (run / "last.safetensors").exists():
        resume = ["--resume"]
    ikno("train", str(out / f"{name}.nc"), *settings, "--out", str(run), *resume)
    ikno("evaluate", str(run))
    ikno("plot", str(run))
    return run


def evaluation(*words: str) -> dict:
    """Return what `ikno evaluate --json` prints."""
    command = ("evaluate", *words, "--json")
    print(f"\n$ ikno {shlex.join(command)}", flush=True)
    return json.loads(ikno(*command, quiet=True))


def line(label: str, found: dict) -> str:
    """Return the main error of an evaluation, and of the best of the trivial guesses beside it."""
    guesses = [g[found["main_metric"]] for g in found["baselines"].values()]
    return f"  {label:42s} {found['best']['value']:8.2%}   {f'{min(guesses):.0%}' if guesses else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for everything that is made")
    parser.add_argument("--size", choices=SIZES, default="demo")
    args = parser.parse_args()
    samples, split, steps, moving, moving_split, moving_steps, points, fine = SIZES[args.size]
    out: Path = args.out

    steady, waves, other = (str(out / f"{n}.nc") for n in ("poisson-gauss", "wave-c-sines", "poisson-gauss-other"))
    # The files hold more points than are used for training, so that the model can be tried on finer clouds.
    if not Path(steady).exists():
        ikno("data", "generate", "poisson-gauss", "--samples", samples, "--points", fine, "--out", steady)
    settings = [f"data.split={split}", f"data.points={points}", f"train.steps={steps}"]
    first = learn(out, "poisson-gauss", settings)
    finer = evaluation(str(first), "--points", fine)
    if not Path(other).exists():
        ikno("data", "generate", "poisson-gauss", "--samples", "64", "--points", fine, "--seed", "1", "--out", other)
    unseen = evaluation(str(first), "--data", other, "--points", points, "--split", "all")
    ikno("predict", str(first), other, "--out", str(out / "prediction.npz"), "--force")
    if not Path(waves).exists():
        ikno("data", "generate", "wave-c-sines", "--samples", moving, "--points", points, "--out", waves, "terms=5")
    second = learn(out, "wave-c-sines", [f"data.split={moving_split}", "data.stride=7", f"train.steps={moving_steps}"])

    trained, rolled = (json.loads((run / "evaluation.json").read_text()) for run in (first, second))
    print("\nMedian relative L1 error, and the best guess without a model:")
    print(line(f"Poisson, the {points} points of the training", trained))
    print(line(f"Poisson, {fine} points", finer))
    print(line(f"Poisson, {points} other points, other samples", unseen))
    print(line("waves in time, best of three rollouts", rolled))
    print(f"Pictures: {first / 'pictures'} and {second / 'pictures'}")
    print("Next: train longer (train.steps=20000), another model (model=ikno-vanilla, `ikno models`), another")
    print("benchmark (`ikno data list`), or your own data: docs/data.md.")


if __name__ == "__main__":
    main()
