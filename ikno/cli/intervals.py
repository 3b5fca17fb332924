"""The command calibrate, and how intervals are shown."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ikno.cli.options import Device, Json

if TYPE_CHECKING:
    from rich.table import Table


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The folder of a run, or of several that form an ensemble.")
    ],
    coverage: Annotated[float, typer.Option(help="The share of the truth that intervals shall hold.")] = 0.9,
    data: Annotated[
        str | None, typer.Option(help="All samples of this file, none of them trained on (default: validation).")
    ] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Another number of points.")] = None,
    checkpoint: Annotated[str, typer.Option(help="The checkpoint: best or last.")] = "best",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure on validation samples how wide intervals must be, and keep the result in the runs (docs/uncertainty.md).

    Then `ikno predict --intervals` writes them, and `ikno evaluate` measures them on test samples.
    """
    from rich.console import Console
    from rich.table import Table

    from ikno.evaluation import calibrate as fit
    from ikno.runs import Run, save_calibration

    opened = [Run.open(path) for path in runs]
    found = fit(opened, coverage, checkpoint, data, points, device=device)
    save_calibration(opened, found, checkpoint)
    if as_json:
        print(json.dumps(found.model_dump(mode="json"), indent=2))
        return
    console, several = Console(), len(runs) > 1
    what = f"an ensemble of {len(runs)} runs" if several else str(runs[0])
    console.print(
        f"{what}: {found.coverage:.4g} coverage from {found.samples} samples ({found.source})", highlight=False
    )
    unit = "times sqrt(spread² + floor²)" if several else "half width"
    table = Table("prediction", "variable", f"pointwise, {unit}", f"whole field, {unit}", box=None)
    for q in found.quantiles:
        way = q.strategy if q.lead is None else f"{q.strategy} to {q.lead:g}"
        for variable, each, floor in zip(found.variables, q.pointwise, found.floor, strict=True):
            numbers = [
                "unbounded" if v is None else f"{v * (1 if several else floor):.4g}" for v in (each, q.whole_field)
            ]
            table.add_row(way, variable, *numbers)
    console.print(table)


def intervals_table(found: dict[str, Any]) -> "Table":
    """Return the coverage of a result with intervals, both bands of each rollout."""
    from rich.table import Table

    of = found["intervals"]
    names = (f"intervals of {of['coverage']:.4g}", "points inside", "width", "whole fields inside", "width")
    table = Table(*names, box=None)
    for strategy, bands in of["strategies"].items():
        label = f"{found['model']} {strategy}" if len(of["strategies"]) > 1 else found["model"]
        cells = [
            text
            for band in bands.values()
            for text in (f"{band['coverage']:.1%} ± {band['standard error']:.1%}", f"{band['width']:.3g} std")
        ]
        table.add_row(label, *cells)
    return table
