"""Predictions from files to files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data.formats import FORMATS, Mesh, format_of, open_file
from ikno.data.inputs import array_inputs, mesh_inputs
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


@dataclass(frozen=True)
class PredictionRequest:
    """What is predicted from a file, and where it goes.

    Attributes:
        file: arrays under the names of the card (.npz, or .nc as released), or one sample: a mesh or a table, whose
            inputs are point arrays with the names of the card.
        out: of arrays a file of the arrays x, u and the leads (.npz, .nc); of one sample a copy with the predictions as
            more point arrays. These have the names of the variables, then ``_spread``, ``_lower`` or ``_upper``, then
            the lead of problems in time (``u_lower@0.1``); where the file has an array of that name already, it stays
            and the new one is called ``u_predicted``.
        queries: an npy file, or a file whose one array (or the one named ``queries``) is where to predict, by default
            the points themselves. From npy to nc any number of them goes part by part from disk to disk.
        time: the time of the input; None: the first of the data.
        leads: how far ahead to predict; none: to the last time that was learned.
        steps: equal steps in which each lead is reached.
        which: the checkpoint, best or last.
        device: where to predict; None: where the run was made.
        given: inputs by name, one number for all points. They go before arrays.
        force: replace ``out`` if it exists.
        intervals: add the lower and upper ends of calibrated intervals, of this kind.
        ignore_memory: begin even if the memory does not seem to suffice.
    """

    file: Path
    out: Path
    queries: Path | None = None
    time: float | None = None
    leads: Sequence[float] = ()
    steps: int = 1
    which: str = "best"
    device: str | None = None
    given: Mapping[str, float] = field(default_factory=dict)
    force: bool = False
    intervals: Band | None = None
    ignore_memory: bool = False


def predict_file(runs: Run | Sequence[Run], file: Path, out: Path, queries: Path | None = None, **more) -> Predicted:
    """Return what ``predict`` returns; ``more`` are the other fields of the request."""
    return predict(runs, PredictionRequest(file, out, queries, **more))


def predict(runs: Run | Sequence[Run], request: PredictionRequest) -> Predicted:
    """Predict from the inputs in a file, write the result and return it.

    Of several runs u is the mean, and their spread is written too. What needs more memory than there is, is refused
    before it begins.
    """
    members = [runs] if isinstance(runs, Run) else list(runs)
    _free(request)
    with open_file(request.file, result=request.out.suffix.lower()) as source:
        check = _check_mesh if isinstance(source, Mesh) else _check_arrays
        check(request)
        surrogate, run = surrogate_of(members, request.which, request.device), members[0]
        places = None if request.queries is None else _queries(request.queries)
        ahead, variables = _ahead(run, request), surrogate.signature.variables
        kept = [*["u"], *["spread"] * (len(members) > 1), *["lower", "upper"] * (request.intervals is not None)]
        if isinstance(source, Mesh):
            sink = _MeshSink(source, request.out, _names(source, variables, kept, ahead))
            clouds = [mesh_inputs(source, run.card, request.given)]
        else:
            sink = _ArraySink(request.out)
            clouds = array_inputs(source, run.card, request.time, request.given)
        shared = places is not None or all(np.array_equal(x, clouds[0][0]) for x, _ in clouds)
        points = [places] if places is not None else [x for x, _ in clouds[: 1 if shared else None]]
        count = len(points[0])
        shape = (len(clouds), len(ahead), count, len(variables))
        shapes = {"x": (len(points), 1, count, points[0].shape[1]), **dict.fromkeys(kept, shape)}
        if not request.ignore_memory:
            result = 0.0 if sink.on_disk else 4.0 * sum(map(prod, shapes.values()))
            _check_memory(surrogate, len(clouds[0][0]), count, result)
        notes = {"model": run.config.model["name"], "variables": ", ".join(variables)}
        if request.intervals is not None and surrogate.calibration is not None:  # without one the first part is refused
            notes["intervals"] = f"{request.intervals}, coverage {surrogate.calibration.coverage:g}"
        leads = tuple(lead for lead in ahead if lead is not None)
        with sink.open(shapes, {"lead": np.array(leads)} if leads else {}, notes) as arrays:
            for i, x in enumerate(points):
                for part in parts_of(count):
                    arrays["x"][i, 0, part] = x[part]
            for (i, (x, inputs)), (j, lead) in product(enumerate(clouds), enumerate(ahead)):
                asked = (request.time, lead, request.steps, request.intervals)
                for part, found in stream(surrogate, x, inputs, places, *asked):
                    for name in kept:
                        arrays[name][i, j, part] = found.mean if name == "u" else getattr(found, name)
    return Predicted(arrays["x"][:, 0], arrays["u"], leads, variables, **{name: arrays[name] for name in kept[1:]})


class _ArraySink:
    """A result of arrays, in a file of its own."""

    def __init__(self, out: Path) -> None:
        self.out, self.on_disk = out, format_of(out).on_disk

    def open(
        self, shapes: Mapping[str, Sequence[int]], known: Mapping[str, np.ndarray], notes: Mapping[str, str]
    ) -> AbstractContextManager[dict[str, Any]]:
        """Return a context of arrays to be filled; after it they are those of the file."""
        return new_arrays(self.out, shapes, known, notes)


@dataclass(frozen=True)
class _MeshSink:
    """A copy of the mesh with more arrays; ``names`` are theirs, each with what it is: u, spread..., lead, variable."""

    mesh: Mesh
    out: Path
    names: Mapping[str, tuple[str, int, int]]
    on_disk = False

    @contextmanager
    def open(
        self, shapes: Mapping[str, Sequence[int]], known: Mapping[str, np.ndarray], notes: Mapping[str, str]
    ) -> Iterator[dict[str, Any]]:
        """Yield arrays to be filled, which are written if the block ends well; a mesh takes no other ones or notes."""
        arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        yield arrays
        if not np.isfinite(arrays["u"]).all():
            raise UserError(
                f"{self.mesh.path}: the prediction has NaN or infinite values; are the inputs in the range of training?"
            )
        columns = {title: arrays[name][0, lead, :, v] for title, (name, lead, v) in self.names.items()}
        self.mesh.write(self.out, columns)


def _check_mesh(request: PredictionRequest) -> None:
    if request.queries is not None:
        raise UserError(f"--queries: {request.file} is a mesh, whose points are where to predict; leave it out")


def _check_arrays(request: PredictionRequest) -> None:
    able = [s for form in FORMATS.values() for s in form.results]
    if request.out.suffix not in able:
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
    names = {}
    for index, lead in enumerate(ahead):
        for number, variable in enumerate(variables):
            for kind in kept:
                title = variable if kind == "u" else f"{variable}_{kind}"
                name = _free_name(mesh, title if lead is None else f"{title}@{lead:.6g}")
                if name in names:
                    raise UserError(f"--lead: {lead:.6g} is there twice; say each once")
                names[name] = kind, index, number
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


def _free_name(mesh: Mesh, name: str) -> str:
    """Return the name of a new array, another one if the mesh has it."""
    for free in (name, f"{name}_predicted"):
        if free not in mesh.arrays:
            return free
    raise UserError(f"{mesh.path}: has the arrays {name} and {name}_predicted already; remove one of them")


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
    with open_file(path, "arrays") as file:
        items = {} if isinstance(file, Mesh) else file.items
        name = "queries" if "queries" in items else next(iter(items), "")
        if isinstance(file, Mesh) or not name or (name != "queries" and len(items) > 1):
            raise UserError(
                f"{path}: which array holds the queries? name it 'queries'; found {', '.join(items) or 'none'}"
            )
        found = file.array(name)
    if found.ndim != 2:
        raise UserError(f"{path}: {name} has shape {list(found.shape)}, expected [queries, dim]")
    if found.dtype.kind not in "fiu":
        raise UserError(f"{path}: {name} has the type {found.dtype}, expected numbers")
    return found
