"""Samples prepared for learning, and batches of them: what one training step eats."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.data import DataLoader

from ikno.config import Sampling
from ikno.data.catalog import Card
from ikno.data.files import Dataset, all_rows, open_data
from ikno.data.formats import FORMATS
from ikno.data.pairs import farthest_points
from ikno.data.records import Trajectory
from ikno.errors import UserError

Step = tuple[int, int]  # of training: the epoch, and the number of the batch in it


@dataclass(frozen=True)
class Batch:
    """Samples in physical units. Clouds of different sizes are padded, and ``mask`` says which points are real.

    ``inputs`` are u(t) and the conditions, in this order; steady problems have conditions only. ``values``: u(t+lead).
    Batches with the same ``cloud`` number share their one cloud; None where each sample has its own.
    """

    points: Float[Tensor, "clouds points dim"]
    inputs: Float[Tensor, "batch points channels"]
    values: Float[Tensor, "batch points variables"]
    time: Float[Tensor, "batch"] | None
    lead: Float[Tensor, "batch"] | None
    mask: Bool[Tensor, "batch points"] | None
    samples: tuple[int, ...]
    cloud: int | None

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on a device."""
        moved = {k: v.to(device, non_blocking=True) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def parts(self, size: int | None) -> "list[Batch]":
        """Return the batch in parts of at most ``size`` samples."""
        if size is None or len(self) <= size:
            return [self]
        parts = []
        for i in range(0, len(self), size):
            rows = slice(i, i + size)
            cut = {k: v[rows] for k, v in vars(self).items() if isinstance(v, Tensor) and len(v) == len(self)}
            parts.append(replace(self, **cut, samples=self.samples[rows]))
        return parts


@dataclass
class Samples:
    """Some trajectories of a data set, reduced to the targets and to the points that are used.

    The points follow from the seed and, with ``random`` sampling, from the step of the training; samples that share a
    cloud share the choice. ``share`` = (i, n) uses only the i-th of n parts of these points. ``file`` is the open data
    set, which several ``Samples`` share if it is in memory; without it the path is opened.
    """

    path: Path
    card: Card
    indices: range
    points: int | None
    sampling: Sampling
    seed: int
    share: tuple[int, int] = (0, 1)
    file: Dataset | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._kept: list[Trajectory] | None = None
        self._choice: dict[int, np.ndarray] = {}
        given, lazy = self.file, FORMATS[self.card.format].on_disk
        file = open_data(self.path, self.card) if given is None else given
        self.shared = file.shared
        self.file = None if lazy else file  # what is on the disk is opened again when it is read, and free until then
        if lazy and given is None:
            file.close()

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, number: int, count: int) -> "Samples":
        """Return the same samples, each with one of ``count`` parts of its points; together the parts are the whole."""
        return self if count == 1 else replace(self, share=(number, count))

    def keep(self, limit: float) -> bool:
        """Read all samples into memory if they take at most ``limit`` bytes; return whether they are there."""
        if self._kept is not None:
            return True
        kept: list[Trajectory] = []
        for k in range(len(self)):  # clouds differ in size: the first does not tell all
            made = self._read(k)
            if _bytes(made) * (1 if kept else len(self)) > limit:
                return False
            limit -= _bytes(made)
            kept.append(replace(made, points=kept[0].points) if self.shared and kept else made)  # one copy of the cloud
        self._kept = kept
        return True

    def most_points(self) -> int:
        """Return the points of the largest sample as it is learned: of all if they are in memory, else of the first."""
        known = self._kept or [self.whole(k) for k in range(min(len(self), 1))]
        most = max((len(made.points) for made in known), default=0)
        return most if self.points is None else min(most, self.points)

    def whole(self, k: int) -> Trajectory:
        """Return the k-th sample with all points that any step may choose."""
        return self._kept[k] if self._kept is not None else self._read(k)

    def get(self, k: int, step: Step | None = None) -> Trajectory:
        """Return the k-th sample at the points of a step; without one, random points are always the same."""
        made = self.whole(k)
        if self.sampling != "random" or self.points is None:
            return made
        rng = np.random.default_rng((self.seed, 2, *(step or (0, 0)), self._cloud_of(k)))
        return self._at(made, rng.permutation(len(made.points))[: self.points])

    def __iter__(self) -> Iterator[Trajectory]:
        return (self.get(k) for k in range(len(self)))

    def cloud_number(self, step: Step | None) -> int | None:
        """Return the number of the shared cloud in a step, None where each sample has its own."""
        if not self.shared:
            return None
        if step is None or self.sampling != "random" or self.points is None:
            return 0
        return 1 + (step[0] << 32) + step[1]

    def _read(self, k: int) -> Trajectory:
        if self.file is None or self._process != os.getpid():  # an open file is not shared with a forked process
            self.file, self._process = open_data(self.path, self.card), os.getpid()
        leading = self.points is None or self.sampling == "first"  # others are chosen among all points
        made = self.file.read(self.indices[k], self._rows if leading else all_rows)
        if self.card.targets != self.card.variables:
            columns = [self.card.variables.index(v) for v in self.card.targets]
            made = replace(made, values=np.ascontiguousarray(made.values[..., columns]))
        if self.points is None or self.sampling != "farthest":
            return made
        cloud = self._cloud_of(k)
        if cloud not in self._choice:
            rng = np.random.default_rng((self.seed, 1, cloud))
            self._choice[cloud] = farthest_points(made.points, self.points, rng)
        return self._at(made, self._choice[cloud])

    def _rows(self, count: int) -> slice:
        """Return which of so many chosen points belong to this part; they are all unless there are several parts."""
        count, (number, parts) = min(count, self.points or count), self.share
        if count < parts:
            raise UserError(f"{self.path}: {count} points cannot be divided among {parts} processes; use fewer")
        return slice(count * number // parts, count * (number + 1) // parts)

    def _at(self, made: Trajectory, index: np.ndarray) -> Trajectory:
        """Return a sample at those of the chosen points that belong to this part."""
        index = index[self._rows(len(index))]
        conditions = None if made.conditions is None else made.conditions[:, index]
        return Trajectory(made.points[index], made.values[:, index], conditions)

    def _cloud_of(self, k: int) -> int:
        """Return a number of the cloud for random choices: 0 if it is shared, else by the number of the sample."""
        return 0 if self.shared else self.indices[k] + 1

    def __getstate__(self) -> dict:
        return {**self.__dict__, "file": None}  # an open file does not go to another process


def _bytes(made: Trajectory) -> int:
    return sum(a.nbytes for a in (made.points, made.values, made.conditions) if a is not None)


@dataclass(frozen=True)
class TrainingPairs:
    """Everything a model learns from: each sample of a steady problem, each pair of times of the others.

    Entry i depends on nothing but this number and the step, whichever process asks for it.
    """

    samples: Samples
    pairs: Sequence[tuple[int, int]]
    times: Sequence[float]

    def __len__(self) -> int:
        return len(self.samples) * max(len(self.pairs), 1)

    def sample(self, i: int) -> int:
        """Return the number in the file of the sample that an entry is of."""
        return self.samples.indices[i // max(len(self.pairs), 1)]

    def batch(self, chosen: Sequence[int], step: Step | None = None) -> Batch:
        """Return some entries as one batch.

        Args:
            chosen: Their numbers.
            step: That of the training, which random points follow; without one they are always the same.
        """
        entries = [self._entry(i, step) for i in chosen]
        points, inputs, values, time, lead = (list(part) for part in zip(*entries, strict=True))
        sizes, cloud, mask = [len(p) for p in points], self.samples.cloud_number(step), None
        if cloud is not None:
            points = points[:1]
        if len(set(sizes)) > 1:
            count = max(sizes)
            mask = torch.arange(count) < torch.tensor(sizes)[:, None]
            points = [np.concatenate([p, np.repeat(p[:1], count - len(p), 0)]) for p in points]
            inputs, values = ([np.pad(a, ((0, count - len(a)), (0, 0))) for a in part] for part in (inputs, values))
        time, lead = (torch.tensor(part, dtype=torch.float32) if self.pairs else None for part in (time, lead))
        x, u, y = (torch.from_numpy(np.stack(part)) for part in (points, inputs, values))
        return Batch(x, u, y, time, lead, mask, tuple(map(self.sample, chosen)), cloud)

    def _entry(self, i: int, step: Step | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
        """Return points, inputs, values, time and lead."""
        k, pair = divmod(i, max(len(self.pairs), 1))
        made = self.samples.get(k, step)
        start, end = self.pairs[pair] if self.pairs else (0, 0)
        inputs, lead = made.inputs(start if self.pairs else None), self.times[end] - self.times[start]
        return made.points, inputs, made.values[end], self.times[start], lead

    def loader(self, batches: Sequence[Sequence[int]], workers: int, first: Step | None = None) -> Iterator[Batch]:
        """Yield the given batches in order.

        Args:
            batches: The entries of each.
            workers: How many processes prepare them; 0: this one.
            first: The step of the first batch; without it random points are always the same.
        """
        asked: Any = [(chosen, first and (first[0], first[1] + i)) for i, chosen in enumerate(batches)]
        loader = DataLoader(asked, batch_size=None, num_workers=workers, collate_fn=self._batch_or_error)
        for batch in loader if workers else map(self._batch_or_error, asked):
            if isinstance(batch, UserError):
                raise batch
            yield batch

    def _batch_or_error(self, asked: Any) -> Batch | UserError:
        """Return a batch or an error for people: one raised in another process would carry its traceback as text."""
        try:
            return self.batch(*asked)
        except UserError as error:
            return error


def shuffled(count: int, batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Return all indices in the random order of an epoch, in batches; the last may be smaller."""
    order = np.random.default_rng((seed, 3, epoch)).permutation(count).tolist()
    return [order[i : i + batch] for i in range(0, count, batch)]


def in_order(count: int, batch: int) -> list[list[int]]:
    """Return all indices in batches."""
    return [list(range(i, min(i + batch, count))) for i in range(0, count, batch)]
