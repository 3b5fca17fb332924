"""Predictions from files to files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ikno.data.files import read_npz
from ikno.data.inputs import read_inputs
from ikno.data.writers import write_arrays
from ikno.errors import UserError
from ikno.runs import Run, surrogate_of
from ikno.surrogate import Band


@dataclass(frozen=True)
class Predicted:
    """Values at the queries of each sample, for each lead (one entry if steady)."""

    points: Float[np.ndarray, "_ queries dim"]
    values: Float[np.ndarray, "samples leads queries variables"]
    leads: tuple[float, ...]
    variables: tuple[str, ...]
    spread: Float[np.ndarray, "samples leads queries variables"] | None = None
    lower: Float[np.ndarray, "samples leads queries variables"] | None = None
    upper: Float[np.ndarray, "samples leads queries variables"] | None = None


def predict_file(
    runs: Run | Sequence[Run],
    file: Path,
    out: Path,
    queries: Path | None = None,
    time: float | None = None,
    leads: Sequence[float] = (),
    steps: int = 1,
    which: str = "best",
    device: str | None = None,
    intervals: Band | None = None,
) -> Predicted:
    """Predict from the inputs in a file and write ``out`` (.npz, or .nc as released): x, u and the leads.

    ``queries``: an npz file whose one array (or the one named ``queries``) is where to predict, by default the points
    themselves. Without leads problems in time are predicted to the last time that was learned. Each lead is reached in
    ``steps`` equal steps. Of several runs u is the mean, and their spread is written too; ``intervals`` adds the lower
    and upper ends of calibrated intervals.
    """
    if out.suffix not in (".npz", ".nc"):
        raise UserError(f"{out}: the result is an .npz or .nc file; name it so")
    if not next(p for p in out.absolute().parents if p.exists()).is_dir():
        raise UserError(f"{out}: its folder is a file; choose another place with --out")
    if any(given is not None and out.absolute() == given.absolute() for given in (file, queries)):
        raise UserError(f"{out}: is the file that is read; choose another place with --out")
    members = [runs] if isinstance(runs, Run) else list(runs)
    surrogate, run = surrogate_of(members, which, device), members[0]
    places = None if queries is None else _queries(queries)
    if run.card.times is None:
        ahead: list[float | None] = [None]
        if leads or steps > 1:
            raise UserError("--lead: the run is of a steady problem; leave out --lead and --steps")
    else:
        ahead = list(leads) or [_rest(run, time)]
    found, points = [], []
    for x, inputs in read_inputs(file, run.card, time):
        found.append(
            [
                surrogate.predict(x, inputs, places, time, lead, steps=steps, spread=True, intervals=intervals)
                for lead in ahead
            ]
        )
        points.append(x if places is None else places)
    shared = all(np.array_equal(p, points[0]) for p in points)

    def stacked(name: str) -> Float[np.ndarray, "samples leads queries variables"]:
        return np.stack([np.stack([getattr(e, name) for e in each]) for each in found])

    kept = (["spread"] if len(members) > 1 else []) + (["lower", "upper"] if intervals is not None else [])
    made = Predicted(
        np.stack(points[:1] if shared else points),
        stacked("mean"),
        tuple(lead for lead in ahead if lead is not None),
        surrogate.signature.variables,
        **{name: stacked(name) for name in kept},
    )
    arrays = {"x": made.points[:, None], "u": made.values, **{name: getattr(made, name) for name in kept}}
    notes = {"model": run.config.model["name"], "variables": ", ".join(made.variables)}
    if intervals is not None:
        notes["intervals"] = f"{intervals}, coverage {surrogate.calibration.coverage:g}"
    if made.leads:
        arrays["lead"] = np.array(made.leads)
    write_arrays(out, arrays, notes)
    return made


def _rest(run: Run, time: float | None) -> float:
    """Return the lead from a time (None: the first of the data) to the last that was learned."""
    assert run.card.times is not None
    first, last = run.card.times
    final = run.config.data.final_snapshot or run.card.final_snapshot
    end = first + (last - first) * final / (run.card.snapshots - 1)
    lead = end - (first if time is None else time)
    if lead <= 0:
        raise UserError(f"--time: {time:g} is not before {end:g}, the last time that was learned; say --lead")
    return lead


def _queries(path: Path) -> Float[np.ndarray, "queries dim"]:
    arrays = read_npz(path)
    name = "queries" if "queries" in arrays else next(iter(arrays), None)
    if name is None or ("queries" not in arrays and len(arrays) > 1):
        raise UserError(
            f"{path}: which array holds the queries? name it 'queries'; found {', '.join(arrays) or 'none'}"
        )
    if arrays[name].ndim != 2:
        raise UserError(f"{path}: {name} has shape {list(arrays[name].shape)}, expected [queries, dim]")
    if arrays[name].dtype.kind not in "fiu":
        raise UserError(f"{path}: {name} has the type {arrays[name].dtype}, expected numbers")
    return arrays[name].astype(np.float32)
