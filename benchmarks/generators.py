"""Generated data sets: seconds per sample of one process, and their statistics beside the published constants."""

import argparse
import time

from rich.progress import track

from benchmarks import measure
from ikno.data.catalog import CATALOG
from ikno.data.generate import Job
from ikno.data.generators import GENERATORS
from ikno.data.pairs import Accumulator


def measured(name: str, samples: int) -> list[dict[str, str | int | float]]:
    """Return one row per variable."""
    card, job = CATALOG[name], Job(name, (), samples, 0)
    cloud = job.cloud()
    job.sample(samples, cloud)  # compiles and builds what all samples share
    found = Accumulator()
    start = time.process_time()
    made = [job.sample(i, cloud) for i in track(range(samples), name)]
    seconds = (time.process_time() - start) / samples
    for trajectory in made:
        found.add(trajectory.values)
    moments = found.moments()
    rows: list[dict[str, str | int | float]] = []
    for k, variable in enumerate(card.targets):
        place = card.variables.index(variable)
        rows.append(
            {
                "set": name if k == 0 else "",
                "s per sample": round(seconds, 3) if k == 0 else "",
                "points": f"{len(made[0].points):,}" if k == 0 else "",
                "variable": variable,
                "mean": float(moments.mean[place]),
                "std": float(moments.std[place]),
                "published mean": card.metric_mean[k],
                "published std": card.metric_std[k],
                "std ratio": float(moments.std[place]) / card.metric_std[k],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=16, help="samples per set (default 16)")
    parser.add_argument("--sets", nargs="+", default=list(GENERATORS), choices=list(GENERATORS))
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    args = parser.parse_args()
    rows = [row for name in args.sets for row in measured(name, args.samples)]
    measure.report(f"Generated sets, {args.samples} samples each, CPU seconds", rows, args.json)


if __name__ == "__main__":
    main()
