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
from ikno.runs import Run


@dataclass(frozen=True)
class Predicted:
    """Values at the queries of each sample, for each lead (one entry if steady)."""

    points: Float[np.ndarray, "_ queries dim"]
    values: Float[np.ndarray, "samples leads queries variables"]
    leads: tuple[float, ...]
    variables: tuple[str, ...]


def predict_file(
    run: Run,
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
) -> Predicted:
    """Predict from the inputs in a file and write ``out``: arrays x, u and the leads (.npz, or .nc as released).

    ``queries``: an npz file whose one array (or the one named ``queries``) is where to predict, by default the points
    themselves. Without leads problems in time are predicted to the last time that was learned. Each lead is reached in
    ``steps`` equal steps. ``given`` are inputs by name, one number for all points. A mesh (or csv file) gives a copy of
    it with the predictions as more point arrays: see ``predict_mesh``. Only ``force`` replaces a file.
    """
    if file.suffix.lower() in MESHES or is_table(file):
        if queries is not None:
            raise UserError(f"--queries: {file} is a mesh, whose points are where to predict; leave it out")
        return predict_mesh(run, file, out, time, leads, steps, which, device, given, force)
    if out.suffix not in (".npz", ".nc"):
        raise UserError(f"{out}: the result is an .npz or .nc file; name it so")
    _free(out, [file] if queries is None else [file, queries], force)
    surrogate = run.surrogate(which, device)
    places = None if queries is None else _queries(queries)
    ahead = _ahead(run, time, leads, steps)
    values, points = [], []
    for x, inputs in read_inputs(file, run.card, time, given):
        each = [surrogate.predict(x, inputs, places, time, lead, steps=steps) for lead in ahead]
        values.append(np.stack(each))
        points.append(x if places is None else places)
    shared = all(np.array_equal(p, points[0]) for p in points)
    made = Predicted(
        np.stack(points[:1] if shared else points),
        np.stack(values),
        tuple(lead for lead in ahead if lead is not None),
        surrogate.signature.variables,
    )
    arrays = {"x": made.points[:, None], "u": made.values}
    notes = {"model": run.config.model["name"], "variables": ", ".join(made.variables)}
    if made.leads:
        arrays["lead"] = np.array(made.leads)
    write_arrays(out, arrays, notes)
    return made


def predict_mesh(
    run: Run,
    file: Path,
    out: Path,
    time: float | None = None,
    leads: Sequence[float] = (),
    steps: int = 1,
    which: str = "best",
    device: str | None = None,
    given: Mapping[str, float] | None = None,
    force: bool = False,
) -> Predicted:
    """Predict at the points of a mesh and write a copy of it with the predictions as point arrays.

    Inputs are point arrays of the file with the names of the card, or ``given``. The new arrays have the names of the
    variables, with the lead of problems in time behind (``u@0.1``); where the file has an array of that name already,
    it stays and the new one is called ``u_predicted``.
    """
    _free(out, [file], force)
    mesh = read_mesh(file, out.suffix.lower())
    surrogate = run.surrogate(which, device)
    ahead = _ahead(run, time, leads, steps)
    variables = surrogate.signature.variables
    names = [_free_name(mesh, v if lead is None else f"{v}@{lead:.6g}") for lead in ahead for v in variables]
    if len(set(names)) < len(names):
        raise UserError(f"--lead: {', '.join(f'{lead:.6g}' for lead in leads)} has a number twice; say each once")
    x, inputs = mesh_inputs(mesh, run.card, given or {})
    values = np.stack([surrogate.predict(x, inputs, None, time, lead, steps=steps) for lead in ahead])
    if not np.isfinite(values).all():
        raise UserError(f"{file}: the prediction has NaN or infinite values; are the inputs in the range of training?")
    columns = np.moveaxis(values, 2, 1).reshape(len(names), -1)
    write_mesh(mesh, out, dict(zip(names, columns, strict=True)))
    return Predicted(x[None], values[None], tuple(lead for lead in ahead if lead is not None), variables)


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
