"""Predictions from files to files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data.formats import FORMATS, DataFile, Mesh, format_of
from ikno.data.inputs import array_inputs, mesh_inputs
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


@dataclass(frozen=True)
class PredictionRequest:
    """What is predicted from a file, and where it goes.

    The result of arrays has the arrays x, u and the leads. That of one sample (a mesh or a table) is a copy of it with
    the predictions as more point arrays. These have the names of the variables, then ``_spread``, ``_lower`` or
    ``_upper``, then the lead of problems in time (``u_lower@0.1``); where the file has an array of that name, it stays
    and the new one is called ``u_predicted``.
    """

    file: Path  # arrays, or point arrays of one sample, under the names of the card
    out: Path  # of arrays .npz or .nc, of one sample any file that can hold a copy of it
    queries: Path | None = None  # .npy, or a file with one array or one named so; None: the points themselves
    time: float | None = None  # of the input; None: the first of the data
    leads: Sequence[float] = ()  # how far ahead; none: to the last time that was learned
    steps: int = 1  # equal ones, to each lead
    checkpoint: str = "best"  # or last
    device: str | None = None  # None: that of the run
    given: Mapping[str, float] = field(default_factory=dict)  # inputs that are one number for all points
    force: bool = False  # replace ``out``
    intervals: Band | None = None  # add their lower and upper ends
    ignore_memory: bool = False  # begin even if it does not seem to suffice


def predict_file(runs: Run | Sequence[Run], file: Path, out: Path, queries: Path | None = None, **more) -> Predicted:
    """Return what ``predict`` returns; ``more`` are the other fields of the request."""
    return predict(runs, PredictionRequest(file, out, queries, **more))


def predict(runs: Run | Sequence[Run], request: PredictionRequest) -> Predicted:
    """Predict from the inputs in a file, write the result and return it.

    Of several runs u is the mean, and their spread is written too. What needs more memory than there is, is refused
    before it begins. From npy to nc any number of queries goes part by part from disk to disk.
    """
    members = [runs] if isinstance(runs, Run) else list(runs)
    _free(request)
    with closing(format_of(request.file).open(request.file, result=request.out.suffix.lower())) as source:
        _check_result(source, request)
        surrogate, run = surrogate_of(members, request.checkpoint, request.device), members[0]
        places = None if request.queries is None else _queries(request.queries)
        ahead, variables = _ahead(run, request), surrogate.signature.variables
        kept = ["u", *["spread"] * (len(members) > 1), *["lower", "upper"] * (request.intervals is not None)]
        if isinstance(source, Mesh):
            sink, on_disk = partial(_mesh_sink, source, _names(source, variables, kept, ahead)), False
            clouds = [mesh_inputs(source, run.card, request.given)]
        else:
            form = format_of(request.out)
            sink, on_disk = form.create, form.on_disk
            clouds = array_inputs(source, run.card, request.time, request.given)
        shared = places is not None or all(np.array_equal(x, clouds[0][0]) for x, _ in clouds)
        points = [places] if places is not None else [x for x, _ in clouds[: 1 if shared else None]]
        count = len(points[0])
        shape = (len(clouds), len(ahead), count, len(variables))
        shapes = {"x": (len(points), 1, count, points[0].shape[1]), **dict.fromkeys(kept, shape)}
        if not request.ignore_memory:
            result = 0.0 if on_disk else 4.0 * sum(map(prod, shapes.values()))
            _check_memory(surrogate, len(clouds[0][0]), count, result)
        notes = {"model": run.config.model["name"], "variables": ", ".join(variables)}
        if request.intervals is not None and surrogate.calibration is not None:  # without one the first part is refused
            notes["intervals"] = f"{request.intervals}, coverage {surrogate.calibration.coverage:g}"
        leads = tuple(lead for lead in ahead if lead is not None)
        with sink(request.out, shapes, {"lead": np.array(leads)} if leads else {}, notes) as arrays:
            for i, x in enumerate(points):
                for part in parts_of(count):
                    arrays["x"][i, 0, part] = x[part]
            for (i, (x, inputs)), (j, lead) in product(enumerate(clouds), enumerate(ahead)):
                asked = (request.time, lead, request.steps, request.intervals)
                for part, found in stream(surrogate, x, inputs, places, *asked):
                    for name in kept:
                        arrays[name][i, j, part] = found.mean if name == "u" else getattr(found, name)
    return Predicted(arrays["x"][:, 0], arrays["u"], leads, variables, **{name: arrays[name] for name in kept[1:]})


@contextmanager
def _mesh_sink(
    mesh: Mesh, names: Mapping[str, tuple[str, int, int]], out: Path, shapes: Mapping[str, Sequence[int]], *_: object
) -> Iterator[dict[str, Any]]:
    """Yield arrays to be filled, which are written in a copy of the mesh; the other sink is ``Format.create``.

    ``names`` are those of the new arrays, each with what it is: u, spread..., which lead, which variable.
    """
    arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    yield arrays
    if not np.isfinite(arrays["u"]).all():
        wrong = "the prediction has NaN or infinite values"
        raise UserError(f"{mesh.path}: {wrong}; are the inputs in the range of training?")
    mesh.write(out, {title: arrays[name][0, lead, :, v] for title, (name, lead, v) in names.items()})


def _check_result(source: Mesh | DataFile, request: PredictionRequest) -> None:
    able = [s for form in FORMATS.values() for s in form.results]
    if isinstance(source, Mesh) and request.queries is not None:
        raise UserError(f"--queries: {request.file} is a mesh, whose points are where to predict; leave it out")
    if isinstance(source, DataFile) and request.out.suffix not in able:
        raise UserError(f"{request.out}: the result is an {' or '.join(able)} file; name it so")


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
    names: dict[str, tuple[str, int, int]] = {}
    for (j, lead), (v, variable), kind in product(enumerate(ahead), enumerate(variables), kept):
        title = variable if kind == "u" else f"{variable}_{kind}"
        title += "" if lead is None else f"@{lead:.6g}"
        free = [name for name in (title, f"{title}_predicted") if name not in mesh.arrays]
        if not free:
            raise UserError(f"{mesh.path}: has the arrays {title} and {title}_predicted already; remove one of them")
        if free[0] in names:
            raise UserError(f"--lead: {lead:.6g} is there twice; say each once")
        names[free[0]] = kind, j, v
    return names


def _free(request: PredictionRequest) -> None:
    """Raise a UserError if the result has no place, or would take that of a file without being told so."""
    out, read = request.out, [p for p in (request.file, request.queries) if p is not None and p.exists()]
    if not next(p for p in out.absolute().parents if p.exists()).is_dir():
        raise UserError(f"{out}: its folder is a file; choose another place with --out")
    if out.is_dir() or request.force:
        return  # what writes says that it is a folder
    if any(out.absolute() == path.absolute() or (out.exists() and out.samefile(path)) for path in read):
        raise UserError(f"{out}: is the file that is read; choose another place with --out, or --force to replace it")
    if out.exists():
        raise UserError(f"{out}: exists already; choose another place with --out, or --force to replace it")


def _ahead(run: Run, request: PredictionRequest) -> list[float | None]:
    """Return how far ahead to predict: [None] for steady problems."""
    if run.card.times is None:
        if request.leads or request.steps > 1:
            raise UserError("--lead: the run is of a steady problem; leave out --lead and --steps")
        return [None]
    if request.leads:
        return [*request.leads]
    first, last = run.card.times
    final = run.config.data.final_snapshot or run.card.final_snapshot
    end = first + (last - first) * final / (run.card.snapshots - 1)
    time = first if request.time is None else request.time
    if end <= time:
        raise UserError(f"--time: {time:g} is not before {end:g}, the last time that was learned; say --lead")
    return [end - time]


def _queries(path: Path) -> np.ndarray:
    with closing(format_of(path).open(path, "arrays")) as file:
        items = {} if isinstance(file, Mesh) else file.items
        name = "queries" if "queries" in items else next(iter(items), "")
        if isinstance(file, Mesh) or not name or (name != "queries" and len(items) > 1):
            wrong = "which array holds the queries? name it 'queries'"
            raise UserError(f"{path}: {wrong}; found {', '.join(items) or 'none'}")
        found = file.array(name)
    if found.ndim != 2:
        raise UserError(f"{path}: {name} has shape {list(found.shape)}, expected [queries, dim]")
    if found.dtype.kind not in "fiu":
        raise UserError(f"{path}: {name} has the type {found.dtype}, expected numbers")
    return found
