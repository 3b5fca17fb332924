"""Training step with memory that the process keeps (``ikno.memory``) against the usual way, in turns.

The small models of the preset cpu on 1,024 points, batch 8, and IKNO-TP at its published size on 9,216 points. Each
turn is a process of its own, since the C library changes its ways while it runs. Faults are pages that the kernel had
to provide in one step.
"""

import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context

import torch

from benchmarks import measure
from ikno.comparison import Shape
from ikno.comparison.efficiency import prepare
from ikno.cost import resident
from ikno.memory import reused_memory

CASES = [(name, "cpu", Shape(points=1024, batch=8, grid=12)) for name in ("ikno-tp", "gaot", "gino", "rigno")]
CASES.append(("ikno-tp", "paper", Shape(points=9216)))
STEPS = 4


def steps(name: str, preset: str, shape: Shape, kept: bool, threads: int) -> tuple[float, float, float]:
    """Return CPU seconds and faults of a step, and the peak of the process in MB."""
    torch.set_num_threads(threads)
    step = prepare(name, shape, preset)
    with reused_memory() if kept else nullcontext():
        for _ in range(3):
            step()
        cpu, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(STEPS):
            step()
        spent, more = time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return spent / STEPS, more / STEPS, resident("VmHWM")


def main() -> None:
    args = measure.arguments(__doc__, repeats=3, threads=1).parse_args()
    rows = []
    for name, preset, shape in CASES:
        found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        for _ in range(args.repeats):
            for kept, values in found.items():
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    values.append(pool.submit(steps, name, preset, shape, kept, args.threads).result())
        usual, kept = ([statistics.median(v) for v in zip(*found[k], strict=True)] for k in (False, True))
        row = {"model": name, "preset": preset, "points": shape.points, "ratio of CPU s": kept[0] / usual[0]}
        for way, numbers in (("usual", usual), ("kept", kept)):
            row |= dict(zip((f"{way} CPU s", f"{way} faults", f"{way} peak MB"), numbers, strict=True))
        rows.append(row)
    measure.report("Training step, memory used again", rows, args.json, threads=args.threads)


if __name__ == "__main__":
    main()
