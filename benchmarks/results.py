"""The tables of docs/results: all systems on three small generated sets, with AdamW and with Muon.

Generates the sets, trains what is not trained yet and writes docs/results/SET.md and SET.png. Hours on two cores. All
runs are kept in --out: the command can be stopped, and several processes can share the work. The kernels of IKNO start
with the scales that its variogram finds in the training samples (scales=auto). With --quick: a small IKNO with a cheap
step beside the quickest systems.
"""

from pathlib import Path

import torch

from benchmarks import measure
from ikno.comparison import (
    Budget,
    Plan,
    Shape,
    Shown,
    compare,
    cost_of,
    costs_of,
    markdown,
    markdown_table,
    measure_efficiency,
)
from ikno.data.generate import Job, generate
from ikno.models import MODELS as MODELS_OF
from ikno.plots import plot_comparison

MODELS = ("ikno-tp", "fno-dse", "geofno", "gino", "gaot", "upt", "transolver", "gnot", "rigno", "ikno-vanilla")
ABLATIONS = ("ikno-first-order", "ikno-cross-attention")  # on sets in time: docs/results/cpu/encoders.md
# Rates of change as in the paper, but for two that predict states in their own papers, and do much worse with rates of
# change (docs/comparison.md).
MODES = {"surrogate.mode": "derivative", "upt.surrogate.mode": "direct", "gnot.surrogate.mode": "direct"}
# Options of the generator, samples, their split, settings, the error to be reached.
SETS = {
    "poisson-gauss": ({"points": 1024}, 384, [256, 64, 64], {}, 0.15),
    "elasticity": ({}, 384, [256, 64, 64], {}, 0.15),
    "wave-layer": ({"points": 1024}, 160, [96, 32, 32], {"data.stride": 7, **MODES}, 0.5),
}
# An IKNO that comes close to the quickest systems in the time of a step.
QUICK = {"d_model": 32, "num_heads": 2, "num_layers": 1, "grid_size": 8}
QUICKEST = ("ikno-tp", "fno-dse", "geofno", "gino")
EFFICIENT = ("ikno-tp", "gaot", "transolver", "ikno-dense")  # the paper's table
PAIRS = 1024 * 28  # samples of an epoch of Wave-C-Sines
RATES = (1.5e-3, 5e-3, 1.5e-2)
EPOCHS, SEEDS = 12, 2


def plan_of(name: str, out: Path, quick: bool = False) -> Plan:
    """Return the comparison on a set, which is generated if it is not there yet."""
    options, samples, split, settings, target = SETS[name]
    file = out / f"{name}.nc"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        generate(Job(name, tuple(options.items()), samples, 0), file, 2)
    overrides = {"data.split": split, "scales": "auto", **settings}
    models = MODELS if name == "wave-layer" else MODELS + ABLATIONS
    optimizers = ("adamw", "muon")
    if quick:
        models, optimizers = QUICKEST, ("muon",)
        overrides = {k: v for k, v in overrides.items() if k.partition(".")[0] not in MODELS}
        overrides |= {f"ikno-tp.{k}": v for k, v in QUICK.items()}
    return Plan(str(file), models, overrides, Budget(epochs=EPOCHS), optimizers, RATES, range(SEEDS), target)


def efficiency_page() -> str:
    """Return the tables of costs at the published sizes: the paper's, and all models on 9,216 points."""
    text = ["# Efficiency", "", "Made by `python -m benchmarks.results --efficiency --threads 2`.", ""]
    for models, shape in ((EFFICIENT, Shape()), (list(MODELS_OF), Shape(points=9216))):
        rows = measure_efficiency(models, shape, double=len(models) > len(EFFICIENT), say=print)
        threads = torch.get_num_threads()
        title = f"{shape.points:,} points in a disc, batch {shape.batch}, published sizes, {threads} threads."
        text += [title, "", markdown_table(*costs_of(rows, shape.batch, PAIRS)), ""]
    return "\n".join(text)


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of all runs (default results)")
    parser.add_argument("--only", nargs="+", default=list(SETS), choices=list(SETS), help="these sets only")
    parser.add_argument("--efficiency", action="store_true", help="write docs/results/efficiency.md, and train nothing")
    parser.add_argument("--quick", action="store_true", help="an IKNO that is cheap, beside the quickest systems")
    parser.add_argument("--costs", action="store_true", help="measure what a step of each costs, and train nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pages = Path(__file__).parents[1] / "docs" / "results"
    pages.mkdir(exist_ok=True)
    if args.efficiency:
        (pages / "efficiency.md").write_text(efficiency_page())
        return
    option, suffix = (" --quick", "-quick") if args.quick else ("", "")
    plans = {name: plan_of(name, args.out, args.quick) for name in args.only}
    for name, plan in plans.items():
        title = name + suffix
        if args.costs:
            cost_of(plan, args.out / title, print)
            continue
        result, runs = compare(plan, args.out / title, _show, print)
        plot_comparison(runs, pages / f"{title}.png")
        text, made_by = markdown(result), f"python -m benchmarks.results{option} --only {name}"
        page = f"# {title}\n\nMade by `{made_by}`.\n\n{text}\n![errors]({title}.png)\n"
        (pages / f"{title}.md").write_text(page)
        print(text)


def _show(shown: Shown) -> None:
    report = shown.report
    if report.step % (report.steps // report.epochs) == 0:
        print(f"{shown.number}/{shown.count} {shown.label}: epoch {report.epoch}/{report.epochs} {report.loss:.4f}")


if __name__ == "__main__":
    main()
