"""What is best predicted in time: states, changes or rates of change; and which of them `surrogate.mode=auto` takes.

Trains each model with each mode for the same number of steps, on generated sets and on heat that is conducted out of a
square. Runs are kept in --out, what is there already is not trained again. One thread, some 20 minutes.
"""

from pathlib import Path

import numpy as np
import torch

from benchmarks import measure
from ikno.comparison import Cell, measure_costs
from ikno.config import make_config
from ikno.data.catalog import find_card
from ikno.data.generate import Job, generate
from ikno.data.library import file_name
from ikno.data.problem import open_problem
from ikno.training import complete
from ikno.training.modes import measure_sizes

MODES = ("direct", "residual", "derivative")
SAMPLES, SPLIT = 224, [160, 32, 32]
# Options of the generator of each set; of heat how small its slowest mode is in the end.
HEAT = {"heat-30": 1 / 30, "heat-2": 1 / 2, "heat-1.3": 1 / 1.3, "heat-1.1": 1 / 1.1}
SETS = {
    "wave-layer": {"points": 1024},
    "wave-c-sines": {"points": 1024, "terms": 5},
    "ns-sl": {"points": 1024, "resolution": 64},
    "ns-pwc": {"points": 1024, "resolution": 64},
}


def heat(folder: Path, name: str, final: float) -> Path:
    """Return the card of u_t = k lap u on the unit square, zero at its boundary: sums of sines, known exactly.

    After the time 1 the slowest of them is as small as ``final``, the others are smaller.
    """
    card = folder / f"{name}.toml"
    if card.exists():
        return card
    rng = np.random.default_rng(0)
    x, t = rng.random((1024, 2)), np.linspace(0, 1, 15)
    k, m = (a.ravel() for a in np.meshgrid(np.arange(1, 6), np.arange(1, 6)))
    waves = np.sin(np.pi * np.outer(k, x[:, 0])) * np.sin(np.pi * np.outer(m, x[:, 1]))
    size = rng.normal(size=(SAMPLES, len(k))) / (k**2 + m**2)
    decay = np.exp(np.log(final) / 2 * np.outer(t, k**2 + m**2))
    u = np.einsum("sk,tk,kp->stp", size, decay, waves)
    np.savez(folder / f"{name}.npz", x=x.astype(np.float32), u=u[..., None].astype(np.float32))
    card.write_text(
        f'name = "{name}"\nformat = "npz"\nfile = "{name}.npz"\ncloud = "shared"\nvariables = ["u"]\n'
        "domain = [[0.0, 1.0], [0.0, 1.0]]\ntimes = [0.0, 1.0]\nsnapshots = 15\nstride = 2\nfinal_snapshot = 14\n"
        f"split = {SPLIT}\ngrid = 16\n"
    )
    return card


def data(folder: Path, name: str) -> str:
    """Return the file or card of a set, which is made if it is not there yet."""
    if name in HEAT:
        return str(heat(folder, name, HEAT[name]))
    file = folder / file_name(find_card(name))
    if not file.exists():
        generate(Job(name, tuple(SETS[name].items()), SAMPLES, 0), file, 1)
    return str(file)


def row(out: Path, file: str, name: str, model: str, seconds: float) -> dict[str, str | int | float]:
    """Return the validation error of a model with each mode on a set, after the same number of steps."""
    given = {"data.split": SPLIT, "model": model, "surrogate.mode": "direct"}
    problem = open_problem(make_config(file, given).data, 0)
    first = complete(make_config(file, given), problem)
    cost = measure_costs({model: first}, problem, out / "costs.json")[0][model]
    given["train.steps"] = max(int(seconds / cost.counted("cpu", torch.get_num_threads())), 1)
    errors = {}
    for mode in MODES:
        config = make_config(file, {**given, "surrogate.mode": mode})
        errors[mode] = Cell.of(config, problem, out / name).make().validation
    sizes = measure_sizes(problem)
    return {
        "set": name,
        "model": model,
        "steps": given["train.steps"],
        **errors,
        "change / state": sizes.change,
        "auto": sizes.mode,
        "auto / best": errors[sizes.mode] / min(errors.values()),
    }


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--out", type=Path, default=Path("modes"), help="folder of the runs (default modes)")
    parser.add_argument("--data", type=Path, default=None, help="folder of the sets (default: that of the runs)")
    parser.add_argument("--models", default="fno-dse,gino")
    parser.add_argument("--sets", default=",".join([*HEAT, *SETS]))
    parser.add_argument("--seconds", type=float, default=25.0, help="processor seconds of each training (default 25)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = args.data or args.out
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.sets.split(","):
        for model in args.models.split(","):
            rows.append(row(args.out, data(folder, name), name, model, args.seconds))
            print(" ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    title = f"Validation error (mean relative L1) of each mode after the steps of {args.seconds:g} processor seconds"
    measure.report(title, rows, args.json, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
