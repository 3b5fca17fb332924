"""Making data sets: one seed per sample, any number of workers or shards, resumable, the same bytes every time."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np
from jaxtyping import Float32

from ikno.atomic import whole_file
from ikno.config import parse
from ikno.data.catalog import CATALOG
from ikno.data.generators import GENERATORS
from ikno.data.records import Generator, Trajectory
from ikno.data.writers import files_of, group_of, write_data, write_groups
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
    """
    index, count = shard
    if not 0 <= index < count:
        raise UserError(f"shard {index}/{count}: the first number counts from 0 and is below the second")
    card = CATALOG.find(job.name)
    files = files_of(card, out, job.samples)
    for path in files:  # a second file may be left by a call that was stopped before it wrote the first
        if path.exists() and (path == out or not _place(out).exists()):
            raise UserError(f"{path}: exists already; remove it or name another file with --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{out.parent}: cannot be used as a folder ({error.strerror}); name another file with --out"
        ) from None
    parts = _folder(job, out)
    wanted = range(index, job.samples, count)
    missing = [i for i in wanted if not _part(parts, i).exists()]
    done = len(wanted) - len(missing)
    progress(done, len(wanted))
    for _ in _made(job, parts, missing, workers):
        done += 1
        progress(done, len(wanted))
    names = [_part(parts, i) for i in range(job.samples)]
    if not all(n.exists() for n in names):
        return None
    cloud = job.cloud()
    shared = None if cloud is None else cloud.astype(np.float32)
    attributes = job.attributes() | _draws(names)
    for path, part in reversed(files.items()):  # the one that was asked for comes last: when it is there, all are
        if card.format == "groups":
            write_groups(path, (group_of(card, _read(n, shared)) for n in names[part]), attributes)
        else:
            write_data(path, shared, names[part], lambda path: _read(path, shared), attributes)
    shutil.rmtree(parts)
    return out


def _place(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def _folder(job: Job, out: Path) -> Path:
    """Return the folder of finished samples, after checking that it belongs to this job."""
    parts = _place(out)
    parts.mkdir(exist_ok=True)
    text = json.dumps({k: v for k, v in job.attributes().items() if k != "versions"}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    label = parts / "job.json"
    if label.exists() and json.loads(label.read_text())["digest"] != digest:
        raise UserError(f"{parts}: holds samples made with other settings; remove it or name another file with --out")
    _replace(label, lambda file: file.write(json.dumps({"digest": digest, "job": json.loads(text)}).encode()))
    return parts


def _made(job: Job, parts: Path, missing: list[int], workers: int) -> Iterator[int]:
    """Make the missing samples, in this process or in several, and yield each when it is on disk."""
    if workers <= 1 or len(missing) <= 1:
        cloud = job.cloud()
        for i in missing:
            yield _make(job, parts, i, cloud)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker) as pool:
        waiting = iter(missing)
        running = {pool.submit(_make, job, parts, i, None) for i in islice(waiting, 2 * workers)}
        while running:
            finished = next(as_completed(running))
            running.remove(finished)
            running |= {pool.submit(_make, job, parts, i, None) for i in islice(waiting, 1)}
            yield finished.result()


def _start_worker() -> None:
    """Keep worker processes from fighting over cores, and from living on when their parent is killed.

    Solvers are serial, so the result does not depend on the number of threads.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(job: Job, parts: Path, index: int, cloud: np.ndarray | None) -> int:
    """Make one sample and put it on disk; the file appears only when it is complete."""
    made = job.sample(index, job.cloud() if cloud is None else cloud)
    arrays = {"u": made.values, "x": made.points}
    arrays |= {k: v for k, v in (("c", made.conditions), ("areas", made.areas)) if v is not None}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(f"{job.name}: sample {index} has NaN or infinite {name}; the solver failed with this seed")
    arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
    if made.draws is not None:
        arrays["draws"] = np.array(made.draws)
    _replace(_part(parts, index), lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]
    return index


def _part(parts: Path, index: int) -> Path:
    return parts / f"{index:06d}.npz"


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


def _replace(path: Path, write: Callable) -> None:
    """Write a file so that it is either complete or not there."""
    with whole_file(path, mark=f".{os.getpid()}") as partial, partial.open("wb") as file:
        write(file)
