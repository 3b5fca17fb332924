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

from ikno.data.formats import FORMATS, Format, Mesh, format_of
from ikno.data.inputs import array_inputs, mesh_inputs
from ikno.errors import UserError
from ikno.runs import Run, surrogate_of
from ikno.surrogate import Band, Ensemble, Surrogate, check_available, parts_of, prediction_memory


@dataclass(frozen=True)
class Predicted:
    """Values at the queries of each sample, for each lead (one entry if steady).

    Arrays are memory maps if the result is a NetCDF file: what is not used is not read.
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
    ``_upper``, then the lead of problems in time (``u_lower@0.1``). Where the file has an array of that name, it stays
    and the new one is called ``u_predicted``.

    Args:
        file: Arrays, or the point arrays of one sample, under the names of the card.
        out: The result: .npz or .nc for arrays, for one sample any file that can hold a copy of it.
        queries: .npy, or a file with one array or one of this name. Default: the points.
        time: Time of the inputs. Default: the first time of the data.
        leads: How far ahead. Default: to the last time that was learned.
        steps: Equal steps to each lead.
        checkpoint: The checkpoint, best or last.
        device: Where to compute. Default: the CPU.
        given: Inputs that are one number for all points, by name.
        force: Replace ``out`` if it exists.
        intervals: Write the ends of intervals too, pointwise or simultaneous.
        ignore_memory: Start even if the memory does not seem to suffice.
    """

    file: Path
    out: Path
    queries: Path | None = None
    time: float | None = None
    leads: Sequence[float] = ()
    steps: int = 1
    checkpoint: str = "best"
    device: str | None = None
    given: Mapping[str, float] = field(default_factory=dict)
    force: bool = False
    intervals: Band | None = None
    ignore_memory: bool = False


def predict(runs: Run | Sequence[Run], request: PredictionRequest) -> Predicted:
    """Return predictions from the inputs in a file, after writing them to another.

    u is the mean over several runs, and their spread is written too. From npy to nc any number of queries is read,
    predicted and written part by part.

    Args:
        runs: The run, or those of an ensemble.
        request: The files, and what to predict.

    Raises:
        UserError: If a file cannot be read or written, its content does not fit the run, or the prediction would exceed
            the available memory. Nothing is written then.
    """
    members = [runs] if isinstance(runs, Run) else list(runs)
    _check_out(request)
    with closing(format_of(request.file).open(request.file, result=request.out.suffix.lower())) as source:
        surrogate, run = surrogate_of(members, request.checkpoint, request.device), members[0]
        ahead, variables = _ahead(run, request), surrogate.signature.variables
        kept = ["u", *["spread"] * (len(members) > 1), *["lower", "upper"] * (request.intervals is not None)]
        if isinstance(source, Mesh):
            if request.queries is not None:
                raise UserError(f"--queries: {request.file} is a mesh, whose points are where to predict; leave it out")
            sink, on_disk = partial(_mesh_sink, source, _names(source, variables, kept, ahead)), False
            clouds = [mesh_inputs(source, run.card, request.given)]
        else:
            form = _form_of_result(request.out)
            sink, on_disk = form.create, form.on_disk
            clouds = array_inputs(source, run.card, request.time, request.given)
        places = None if request.queries is None else _queries(request.queries)
        shared = places is not None or all(np.array_equal(x, clouds[0][0]) for x, _ in clouds)
        points = [places] if places is not None else [x for x, _ in clouds[: 1 if shared else None]]
        count = len(points[0])
        shape = (len(clouds), len(ahead), count, len(variables))
        shapes = {"x": (len(points), 1, count, points[0].shape[1]), **dict.fromkeys(kept, shape)}
        if not request.ignore_memory:
            result = 0.0 if on_disk else 4.0 * sum(map(prod, shapes.values()))
            _check_memory(surrogate, len(clouds[0][0]), count, result)
        notes = {"model": run.config.model["name"], "variables": ", ".join(variables)}
        if request.intervals is not None and surrogate.calibration is not None:  # without one stream raises
            notes["intervals"] = f"{request.intervals}, coverage {surrogate.calibration.coverage:g}"
        leads = tuple(lead for lead in ahead if lead is not None)
        with sink(request.out, shapes, {"lead": np.array(leads)} if leads else {}, notes) as arrays:
            for i, x in enumerate(points):
                for part in parts_of(count):
                    arrays["x"][i, 0, part] = x[part]
            for (i, (x, inputs)), (j, lead) in product(enumerate(clouds), enumerate(ahead)):
                how = {"time": request.time, "lead": lead, "steps": request.steps, "intervals": request.intervals}
                for part, estimate in surrogate.stream(x, inputs, places, spread=True, **how):
                    for name in kept:
                        arrays[name][i, j, part] = estimate.mean if name == "u" else getattr(estimate, name)
    return Predicted(arrays["x"][:, 0], arrays["u"], leads, variables, **{name: arrays[name] for name in kept[1:]})


@contextmanager
def _mesh_sink(
    mesh: Mesh, names: Mapping[str, tuple[str, int, int]], out: Path, shapes: Mapping[str, Sequence[int]], *_: object
) -> Iterator[dict[str, Any]]:
    """Yield arrays to be filled, which are written in a copy of the mesh; the other sink is ``Format.create``."""
    arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    yield arrays
    if not np.isfinite(arrays["u"]).all():
        wrong = "the prediction has NaN or infinite values"
        raise UserError(f"{mesh.path}: {wrong}; are the inputs in the range of training?")
    mesh.write(out, {title: arrays[name][0, lead, :, v] for title, (name, lead, v) in names.items()})


def _form_of_result(out: Path) -> Format:
    able = {suffix: form for form in FORMATS.values() for suffix in form.results}
    if out.suffix not in able:
        raise UserError(f"{out}: the result is an {' or '.join(able)} file; name it so")
    return able[out.suffix]


def _check_memory(surrogate: Surrogate | Ensemble, points: int, queries: int, result: float) -> None:
    """Raise a UserError if there is not enough memory for a prediction and its result."""
    members = surrogate.members
    needs = [prediction_memory(member.model, points, queries) for member in members]
    needed = None if None in needs else max(need for need in needs if need is not None) + result
    remedies = f"fewer points{', a result with the suffix .nc' if result else ''}, or --ignore-memory"
    check_available(needed, members[0].center.device, f"predicting {queries:,} values from {points:,} points", remedies)


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


def _check_out(request: PredictionRequest) -> None:
    """Raise a UserError if the result cannot be written, or would replace a file without ``force``."""
    out, read = request.out, [p for p in (request.file, request.queries) if p is not None and p.exists()]
    if not next(p for p in out.absolute().parents if p.exists()).is_dir():
        raise UserError(f"{out}: its folder is a file; choose another place with --out")
    if out.is_dir() or request.force:
        return  # writing raises for a folder
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
        names = ["queries"] if "queries" in items else list(items)
        if isinstance(file, Mesh) or len(names) != 1:
            wrong = "which array holds the queries? name it 'queries'"
            raise UserError(f"{path}: {wrong}; found {', '.join(items) or 'none'}")
        queries = file.array(names[0])
    if queries.ndim != 2:
        raise UserError(f"{path}: {names[0]} has shape {list(queries.shape)}, expected [queries, dim]")
    if queries.dtype.kind not in "fiu":
        raise UserError(f"{path}: {names[0]} has the type {queries.dtype}, expected numbers")
    return queries
