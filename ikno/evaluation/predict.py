"""Predictions from files to files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ikno.data.files import read_npz
from ikno.data.inputs import read_inputs
from ikno.data.meshes import MESHES, Mesh, is_table, mesh_inputs, read_mesh, write_mesh
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
    given: Mapping[str, float] | None = None,
    force: bool = False,
    intervals: Band | None = None,
) -> Predicted:
    """Predict from the inputs in a file and write ``out``: arrays x, u and the leads (.npz, or .nc as released).

    ``queries``: an npz file whose one array (or the one named ``queries``) is where to predict, by default the points
    themselves. Without leads problems in time are predicted to the last time that was learned. Each lead is reached in
    ``steps`` equal steps. ``given`` are inputs by name, one number for all points. Of several runs u is the mean, and
    their spread is written too; ``intervals`` adds the lower and upper ends of calibrated intervals. Only ``force``
    replaces a file.

    A mesh (or csv file) gives a copy of it with the predictions as more point arrays. Its inputs are point arrays with
    the names of the card, or ``given``. The new arrays have the names of the variables, then ``_spread``, ``_lower`` or
    ``_upper``, then the lead of problems in time (``u_lower@0.1``); where the file has an array of that name already,
    it stays and the new one is called ``u_predicted``.
    """
    is_mesh = file.suffix.lower() in MESHES or is_table(file)
    if is_mesh and queries is not None:
        raise UserError(f"--queries: {file} is a mesh, whose points are where to predict; leave it out")
    if not is_mesh and out.suffix not in (".npz", ".nc"):
        raise UserError(f"{out}: the result is an .npz or .nc file; name it so")
    _free(out, [file] if queries is None else [file, queries], force)
    mesh = read_mesh(file, out.suffix.lower()) if is_mesh else None
    members = [runs] if isinstance(runs, Run) else list(runs)
    surrogate, run = surrogate_of(members, which, device), members[0]
    places = None if queries is None else _queries(queries)
    ahead = _ahead(run, time, leads, steps)
    kept = (["spread"] if len(members) > 1 else []) + (["lower", "upper"] if intervals is not None else [])
    names = {} if mesh is None else _names(mesh, surrogate.signature.variables, kept, ahead)
    found: dict[str, list[Float[np.ndarray, "leads queries variables"]]] = {name: [] for name in ("mean", *kept)}
    points = []
    clouds = [mesh_inputs(mesh, run.card, given or {})] if mesh else read_inputs(file, run.card, time, given)
    for x, inputs in clouds:
        each = [
            surrogate.predict(x, inputs, places, time, lead, steps=steps, spread=True, intervals=intervals)
            for lead in ahead
        ]
        for name, values in found.items():
            values.append(np.stack([getattr(e, name) for e in each]))
        points.append(x if places is None else places)
    shared = all(np.array_equal(p, points[0]) for p in points)
    arrays = {name: np.stack(values) for name, values in found.items()}
    made = Predicted(
        np.stack(points[:1] if shared else points),
        arrays.pop("mean"),
        tuple(lead for lead in ahead if lead is not None),
        surrogate.signature.variables,
        **arrays,
    )
    if mesh is not None:
        columns = {"mean": made.values, **arrays}
        if not np.isfinite(made.values).all():
            raise UserError(
                f"{file}: the prediction has NaN or infinite values; are the inputs in the range of training?"
            )
        write_mesh(mesh, out, {title: columns[name][0, lead, :, v] for title, (name, lead, v) in names.items()})
        return made
    notes = {"model": run.config.model["name"], "variables": ", ".join(made.variables)}
    if intervals is not None:
        notes["intervals"] = f"{intervals}, coverage {surrogate.calibration.coverage:g}"
    arrays = {"x": made.points[:, None], "u": made.values, **arrays}
    if made.leads:
        arrays["lead"] = np.array(made.leads)
    write_arrays(out, arrays, notes)
    return made


def _names(
    mesh: Mesh, variables: Sequence[str], kept: Sequence[str], ahead: Sequence[float | None]
) -> dict[str, tuple[str, int, int]]:
    """Return the names of new arrays of a mesh, each with what it is: mean, spread..., which lead, which variable."""
    names = {}
    for index, lead in enumerate(ahead):
        for number, variable in enumerate(variables):
            for kind in ("mean", *kept):
                title = variable if kind == "mean" else f"{variable}_{kind}"
                name = _free_name(mesh, title if lead is None else f"{title}@{lead:.6g}")
                if name in names:
                    raise UserError(f"--lead: {lead:.6g} is there twice; say each once")
                names[name] = kind, index, number
    return names


def _free(out: Path, read: Sequence[Path], force: bool) -> None:
    """Raise a UserError if the result has no place, or would take that of a file without being told so."""
    if not next(p for p in out.absolute().parents if p.exists()).is_dir():
        raise UserError(f"{out}: its folder is a file; choose another place with --out")
    if out.is_dir() or force:
        return  # what writes says that it is a folder
    if any(
        out.absolute() == path.absolute() or (out.exists() and out.samefile(path)) for path in read if path.exists()
    ):
        raise UserError(f"{out}: is the file that is read; choose another place with --out, or --force to replace it")
    if out.exists():
        raise UserError(f"{out}: exists already; choose another place with --out, or --force to replace it")


def _free_name(mesh: Mesh, name: str) -> str:
    """Return the name of a new array, another one if the mesh has it."""
    for free in (name, f"{name}_predicted"):
        if free not in mesh.arrays:
            return free
    raise UserError(f"{mesh.path}: has the arrays {name} and {name}_predicted already; remove one of them")


def _ahead(run: Run, time: float | None, leads: Sequence[float], steps: int) -> list[float | None]:
    """Return how far ahead to predict: [None] for steady problems."""
    if run.card.times is None:
        if leads or steps > 1:
            raise UserError("--lead: the run is of a steady problem; leave out --lead and --steps")
        return [None]
    return [*leads] or [_rest(run, time)]


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
