"""Ten minutes with ikno: two small problems from data to pictures, each step a command that you can type yourself.

A steady problem (Poisson's equation) and one in time (incompressible flow): generate, train IKNO-TP, evaluate beside
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
    # samples of the steady set, its split, epochs; the same for the flow; points of both
    "demo": ("640", "[512,64,64]", "40", "40", "[28,4,8]", "6", "1024", "4096"),
    "smoke": ("12", "[8,2,2]", "1", "4", "[2,1,1]", "1", "64", "128"),
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


def line(label: str, found: dict) -> str:
    """Return the main error of an evaluation, and of the best of the trivial guesses beside it."""
    guesses = [g[found["main_metric"]] for g in found["baselines"].values()]
    return f"  {label:42s} {found['best']['value']:8.2%}   {f'{min(guesses):.0%}' if guesses else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for everything that is made")
    parser.add_argument("--size", choices=SIZES, default="demo")
    args = parser.parse_args()
    samples, split, epochs, flows, flow_split, flow_epochs, points, fine = SIZES[args.size]
    out: Path = args.out

    steady, flow, other = (str(out / f"{n}.nc") for n in ("poisson-gauss", "ns-sl", "poisson-gauss-fine"))
    if not Path(steady).exists():
        ikno("data", "generate", "poisson-gauss", "--samples", samples, "--points", points, "--resolution", "65",
             "--out", steady)  # fmt: skip
    first = learn(out, "poisson-gauss", [f"data.split={split}", f"train.epochs={epochs}"])
    if not Path(flow).exists():
        ikno("data", "generate", "ns-sl", "--samples", flows, "--points", points, "--resolution", "64", "--out", flow)
    second = learn(out, "ns-sl", [f"data.split={flow_split}", f"train.epochs={flow_epochs}"])
    # Other samples on another, finer cloud: the same weights, nothing is trained again.
    if not Path(other).exists():
        ikno("data", "generate", "poisson-gauss", "--samples", "32", "--points", fine, "--resolution", "129",
             "--seed", "1", "--out", other)  # fmt: skip
    words = ("evaluate", str(first), "--data", other, "--points", fine, "--split", "all", "--json")
    print(f"\n$ ikno {shlex.join(words)}", flush=True)
    unseen = json.loads(ikno(*words, quiet=True))
    ikno("predict", str(first), other, "--out", str(out / "prediction.npz"))

    trained, rolled = (json.loads((run / "evaluation.json").read_text()) for run in (first, second))
    print("\nMedian relative L1 error, and the best guess without a model:")
    print(line(f"Poisson, {points} points, trained on them", trained))
    print(line(f"Poisson, {fine} other points, never seen", unseen))
    print(line("flow in time, best of three rollouts", rolled))
    print(f"Pictures: {first / 'pictures'} and {second / 'pictures'}")
    print("Next: train longer (train.epochs=100), another model (model=ikno-vanilla, `ikno models`), another benchmark")
    print("(`ikno data list`), or your own data: docs/data.md.")


if __name__ == "__main__":
    main()
