"""Making data sets: one seed per sample, any number of workers or shards, resumable, the same bytes every time."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np
from jaxtyping import Float32

from ikno.atomic import whole_file
from ikno.config import parse
from ikno.data.catalog import CATALOG, Card
from ikno.data.files import AXES
from ikno.data.formats.hdf5 import Group, NetCDF, write_groups
from ikno.data.formats.npz import Npz
from ikno.data.generators import GENERATORS, Generator
from ikno.data.records import Trajectory
from ikno.errors import UserError

Points = Float32[np.ndarray, "points dim"]


@dataclass(frozen=True)
class Job:
    """What is to be made: the first ``samples`` samples of a benchmark's endless, seeded sequence."""

    name: str
    settings: tuple[tuple[str, object], ...]
    samples: int
    seed: int

    @property
    def generator(self) -> Generator:
        return parse(GENERATORS.find(self.name)(), dict(self.settings), self.name)

    def cloud(self) -> np.ndarray | None:
        return self.generator.cloud(np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0,))))

    def sample(self, index: int, cloud: np.ndarray | None) -> Trajectory:
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, index)))
        return self.generator.sample(rng, cloud)

    def label(self) -> str:
        """Return the label of the benchmark; with other settings than its own (but for the points) it is only kin."""
        published, made = CATALOG.find(self.name).label, self.generator.model_dump(mode="json")
        usual = parse(GENERATORS.find(self.name)(), {}, self.name).model_dump(mode="json")
        changed = ", ".join(f"{k} = {v}" for k, v in made.items() if k != "points" and v != usual[k])
        remark = published.partition(": ")[2]
        return f"kin of: {changed}{'; ' * bool(remark)}{remark}" if changed else published

    def attributes(self) -> dict[str, str]:
        """Return what the file says about itself."""
        packages = {name: version(name) for name in ("ikno", "numpy", "scipy")}
        return {
            "benchmark": self.name,
            "label": self.label(),
            "seed": str(self.seed),
            "generator": json.dumps(self.generator.model_dump(mode="json"), sort_keys=True),
            "times": json.dumps(list(self.generator.times)),
            "versions": json.dumps(packages, sort_keys=True),
        }


def generate(
    job: Job,
    out: Path,
    workers: int = 1,
    shard: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path | None:
    """Make a data set and return its (first) file; None if other shards still have samples to make.

    Finished samples are kept beside ``out`` until the file is complete, so that an interrupted call goes on where it
    stopped and several machines can each make a shard of them.

    Args:
        job: What is made.
        out: The file.
        workers: How many processes.
        shard: (i, n): the i-th of n parts, counted from 0.
        progress: Called with the number of samples that are done and of all.

    Raises:
        UserError: The file exists, or the samples beside it are those of another job.
    """
    index, count = shard
    if not 0 <= index < count:
        raise UserError(f"shard {index}/{count}: the first number counts from 0 and is below the second")
    card, parts = CATALOG.find(job.name), out.with_name(f"{out.name}.parts")
    files = _files(card, out, job.samples)
    for path in files:  # a second file may be left by a call that was stopped before it wrote the first
        if path.exists() and (path == out or not parts.exists()):
            raise UserError(f"{path}: exists already; remove it or name another file with --out")
    _open_folder(job, parts)
    names = [parts / f"{i:06d}.npz" for i in range(job.samples)]
    wanted = range(job.samples)[index::count]
    missing = [i for i in wanted if not names[i].exists()]
    before = len(wanted) - len(missing)
    progress(before, len(wanted))
    for done, _ in enumerate(_made(job, missing, [names[i] for i in missing], workers), before + 1):
        progress(done, len(wanted))
    if not all(name.exists() for name in names):
        return None
    cloud = job.cloud()
    shared = None if cloud is None else cloud.astype(np.float32)
    attributes = job.attributes() | _draws(names)
    for path, part in reversed(files.items()):  # the one that was asked for comes last: when it is there, all are
        if card.format == "groups":
            write_groups(path, (_group(card, _read(n, shared)) for n in names[part]), attributes)
        else:
            _write_arrays(path, names[part], shared, attributes)
    shutil.rmtree(parts)
    return out


def _open_folder(job: Job, parts: Path) -> None:
    """Make the folder of finished samples, or check that the one there belongs to this job."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        wrong = f"cannot be used as a folder ({error.strerror}); name another file with --out"
        raise UserError(f"{parts.parent}: {wrong}") from None
    label, made = parts / "job.json", {k: v for k, v in job.attributes().items() if k != "versions"}
    if label.exists() and json.loads(label.read_text())["job"] != made:
        raise UserError(f"{parts}: holds samples made with other settings; remove it or name another file with --out")
    with whole_file(label, mark=f".{os.getpid()}") as place:
        place.write_text(json.dumps({"job": made}))


def _made(job: Job, missing: list[int], names: list[Path], workers: int) -> Iterator[None]:
    """Make the missing samples, in this process or in several, and yield when each is on disk."""
    if workers <= 1 or len(missing) <= 1:
        yield from map(partial(_make, job, job.cloud()), missing, names)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker) as pool:
        yield from pool.map(partial(_make, job, None), missing, names)


def _start_worker() -> None:
    """Keep worker processes from fighting over cores, and from living on when their parent is killed.

    Solvers are serial, so the result does not depend on the number of threads.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    parent = parent_process()
    assert parent is not None
    Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _make(job: Job, cloud: np.ndarray | None, index: int, path: Path) -> None:
    """Make one sample and put it on disk; the file appears only when it is complete."""
    made = job.sample(index, job.cloud() if cloud is None else cloud)
    fields = {"u": made.values, "x": made.points, "c": made.conditions, "areas": made.areas}
    arrays = {name: array.astype(np.float32) for name, array in fields.items() if array is not None}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(f"{job.name}: sample {index} has NaN or infinite {name}; the solver failed with this seed")
    if made.draws is not None:
        arrays["draws"] = np.array(made.draws)
    with whole_file(path, mark=f".{os.getpid()}") as place:
        Npz().write(place, arrays)


def _draws(names: list[Path]) -> dict[str, str]:
    """Return how many random cases all samples took, if they can fail and be drawn again."""
    total = 0
    for name in names:
        with np.load(name, allow_pickle=False) as arrays:
            if "draws" not in arrays:
                return {}
            total += int(arrays["draws"])
    return {"draws": str(total)}


def _read(path: Path, cloud: Points | None) -> Trajectory:
    with np.load(path, allow_pickle=False) as arrays:
        return Trajectory(arrays["x"] if cloud is None else cloud, arrays["u"], arrays.get("c"), arrays.get("areas"))


def _files(card: Card, out: Path, samples: int) -> dict[Path, slice]:
    """Return which samples go to which file: all to ``out``, or the last ones to the card's ``test_file`` beside it.

    The second file has the share of the test samples in the published split.
    """
    if card.test_file is None or samples == 1:
        return {out: slice(0, samples)}
    training, _, test = card.split or (1, 0, 1)
    first = min(max(round(samples * training / (training + test)), 1), samples - 1)
    return {out: slice(0, first), out.with_name(f"{card.test_file}{out.suffix}"): slice(first, samples)}


def _group(card: Card, made: Trajectory) -> Group:
    """Return a sample as the aircraft's file has it; conditions that are the same at all points are numbers."""
    assert made.conditions is not None
    columns = dict(zip(AXES, made.points.T, strict=True))
    columns |= zip(card.variables, made.values[0].T, strict=True)
    known = dict(zip(card.conditions, made.conditions[0].T, strict=True))
    numbers = {name: float(values[0]) for name, values in known.items() if not np.ptp(values)}
    columns |= {name: values for name, values in known.items() if name not in numbers}
    return columns if made.areas is None else {**columns, "Surface": made.areas}, numbers


def _write_arrays(path: Path, names: list[Path], cloud: Points | None, attributes: dict[str, str]) -> None:
    """Write samples in the released layout (NetCDF4), one at a time; ``cloud`` is what all share."""
    first, own = _read(names[0], cloud), cloud is None
    axes = {"u": ("sample", "time", "node", "variable")}
    axes["x"] = ("sample" if own else "shared", "constant", "node", "axis")
    shapes = {"u": (len(names), *first.values.shape), "x": (len(names) if own else 1, 1, *first.points.shape)}
    if first.conditions is not None:
        axes["c"] = ("sample", "constant" if len(first.conditions) == 1 else "time", "node", "condition")
        shapes["c"] = (len(names), *first.conditions.shape)
    with NetCDF().create(path, shapes, {}, attributes, axes) as arrays:
        for i, made in enumerate(_read(name, cloud) for name in names):
            arrays["u"][i] = made.values
            if own or i == 0:
                arrays["x"][i, 0] = made.points
            if made.conditions is not None:
                arrays["c"][i] = made.conditions
