"""Predictions from files to files."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ikno.data.files import map_netcdf, read_npy, read_npz
from ikno.data.inputs import read_inputs
from ikno.data.meshes import MESHES, Mesh, is_table, mesh_inputs, read_mesh, write_mesh
from ikno.data.writers import new_arrays
from ikno.errors import UserError
from ikno.runs import Run, surrogate_of
from ikno.surrogate import Band, Ensemble, Surrogate, check_memory, parts_of, prediction_memory, stream


@dataclass(frozen=True)
class Predicted:
    """Values at the queries of each sample, for each lead (one entry if steady).

    Memory maps where the result is a NetCDF file: what is not used is not read.
    """

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
    ignore_memory: bool = False,
) -> Predicted:
    """Predict from the inputs in a file and write ``out``: arrays x, u and the leads (.npz, or .nc as released).

    ``queries``: an npy file, or an npz file whose one array (or the one named ``queries``) is where to predict, by
    default the points themselves. From npy to nc any number of them goes part by part from disk to disk. Without leads
    problems in time are predicted to the last time that was learned. Each lead is reached in ``steps`` equal steps.
    ``given`` are inputs by name, one number for all points. Of several runs u is the mean, and their spread is written
    too; ``intervals`` adds the lower and upper ends of calibrated intervals. Only ``force`` replaces a file.

    A mesh (or csv file) gives a copy of it with the predictions as more point arrays. Its inputs are point arrays with
    the names of the card, or ``given``. The new arrays have the names of the variables, then ``_spread``, ``_lower`` or
    ``_upper``, then the lead of problems in time (``u_lower@0.1``); where the file has an array of that name already,
    it stays and the new one is called ``u_predicted``.

    What needs more memory than there is, is refused before it begins, unless ``ignore_memory``.
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
    clouds = [mesh_inputs(mesh, run.card, given or {})] if mesh else read_inputs(file, run.card, time, given)
    shared = places is not None or all(np.array_equal(x, clouds[0][0]) for x, _ in clouds)
    points = [places] if places is not None else [x for x, _ in clouds[: 1 if shared else None]]
    variables, count = surrogate.signature.variables, len(points[0])
    shape = (len(clouds), len(ahead), count, len(variables))
    shapes = {"x": (len(points), 1, count, points[0].shape[1]), "u": shape, **dict.fromkeys(kept, shape)}
    leads = tuple(lead for lead in ahead if lead is not None)
    if not ignore_memory:
        result = 0.0 if out.suffix == ".nc" else 4.0 * sum(map(prod, shapes.values()))
        _check_memory(surrogate, len(clouds[0][0]), count, result)
    notes = {"model": run.config.model["name"], "variables": ", ".join(variables)}
    if intervals is not None and surrogate.calibration is not None:  # without one the first part is refused
        notes["intervals"] = f"{intervals}, coverage {surrogate.calibration.coverage:g}"
    known = {"lead": np.array(leads)} if leads else {}
    with new_arrays(out, shapes, known, notes) if mesh is None else nullcontext(_empty(shapes)) as arrays:
        for i, x in enumerate(points):
            for part in parts_of(count):
                arrays["x"][i, 0, part] = x[part]
        for i, (x, inputs) in enumerate(clouds):
            for j, lead in enumerate(ahead):
                for part, found in stream(surrogate, x, inputs, places, time, lead, steps, intervals):
                    for name in ("u", *kept):
                        arrays[name][i, j, part] = found.mean if name == "u" else getattr(found, name)
    if mesh is not None:
        if not np.isfinite(arrays["u"]).all():
            raise UserError(
                f"{file}: the prediction has NaN or infinite values; are the inputs in the range of training?"
            )
        columns = {title: arrays[name][0, lead, :, v] for title, (name, lead, v) in names.items()}
        write_mesh(mesh, out, columns)
    made = map_netcdf(out, list(shapes)) if out.suffix == ".nc" else arrays
    return Predicted(made["x"][:, 0], made["u"], leads, variables, **{name: made[name] for name in kept})


def _empty(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    return {name: np.empty(shape, np.float32) for name, shape in shapes.items()}


def _check_memory(surrogate: Surrogate | Ensemble, points: int, queries: int, result: float) -> None:
    """Raise a UserError if there is not enough memory for a prediction and what is kept of its result."""
    members = surrogate.members if isinstance(surrogate, Ensemble) else (surrogate,)
    found = [prediction_memory(member.model, points, queries) for member in members]
    needed = None if None in found else max(f for f in found if f is not None) + result
    remedies = f"fewer points{', a result with the suffix .nc' if result else ''}, or --ignore-memory"
    check_memory(needed, members[0].center.device, f"predicting {queries:,} values from {points:,} points", remedies)


def _names(
    mesh: Mesh, variables: Sequence[str], kept: Sequence[str], ahead: Sequence[float | None]
) -> dict[str, tuple[str, int, int]]:
    """Return the names of new arrays of a mesh, each with what it is: u, spread..., which lead, which variable."""
    names = {}
    for index, lead in enumerate(ahead):
        for number, variable in enumerate(variables):
            for kind in ("u", *kept):
                title = variable if kind == "u" else f"{variable}_{kind}"
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


def _queries(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        name, found = "the array", read_npy(path)
    else:
        arrays = read_npz(path)
        name = "queries" if "queries" in arrays else next(iter(arrays), "")
        if not name or ("queries" not in arrays and len(arrays) > 1):
            raise UserError(
                f"{path}: which array holds the queries? name it 'queries'; found {', '.join(arrays) or 'none'}"
            )
        found = arrays[name]
    if found.ndim != 2:
        raise UserError(f"{path}: {name} has shape {list(found.shape)}, expected [queries, dim]")
    if found.dtype.kind not in "fiu":
        raise UserError(f"{path}: {name} has the type {found.dtype}, expected numbers")
    return found
