"""A data set ready to be learned: its three parts, its times and the pairs of them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.config import DataSettings
from ikno.data.batches import Samples, TrainingPairs
from ikno.data.catalog import Card
from ikno.data.files import open_data
from ikno.data.formats import FORMATS
from ikno.data.library import find_data
from ikno.data.pairs import split, time_pairs
from ikno.data.records import Trajectory
from ikno.errors import UserError

DEFAULT_SPLIT = (8, 1, 1)  # proportions for cards that name none


@dataclass(frozen=True)
class Problem:
    """Training, validation and test samples; the times of all snapshots; those used are 0, stride, ..., final."""

    card: Card
    path: Path
    train: Samples
    validation: Samples
    test: Samples
    times: tuple[float, ...]
    final: int
    stride: int
    attributes: dict[str, Any]  # what the file says about how it was made

    @property
    def steady(self) -> bool:
        return self.card.steady

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All pairs of used snapshots, none for steady problems."""
        return () if self.steady else time_pairs(self.final, self.stride)

    @property
    def last(self) -> int:
        """The snapshot that is measured: the final one."""
        return 0 if self.steady else self.final

    def inputs(self, made: Trajectory) -> Float[np.ndarray, "points channels"]:
        """Return u at the start (of problems in time) and the conditions there."""
        return made.inputs(None if self.steady else 0)

    def digest(self) -> str:
        """Return a digest of the first and the last training sample, which tells data sets apart."""
        digest = hashlib.sha256()
        for k in (0, len(self.train) - 1):
            made = self.train.whole(k)
            for array in (made.points, made.values, made.conditions):
                digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def items(self, samples: Samples, from_start: bool = False) -> TrainingPairs:
        """Return what is learned from some samples; ``from_start``: only pairs that begin with the first snapshot."""
        pairs = [p for p in self.pairs if p[0] == 0 or not from_start]
        return TrainingPairs(samples, pairs, self.times)

    def box(self) -> tuple[tuple[float, float], ...]:
        """Return the domain of the card, or the box of the training points."""
        if self.card.domain is not None:
            return self.card.domain
        low, high = np.full(self.card.dim, np.inf), np.full(self.card.dim, -np.inf)
        for k in range(1 if self.train.shared else len(self.train)):
            points = self.train.whole(k).points
            low, high = np.minimum(low, points.min(0)), np.maximum(high, points.max(0))
        flat = high <= low  # all points in a plane
        return tuple((float(a), float(b)) for a, b in zip(low - 0.5 * flat, high + 0.5 * flat, strict=True))


def open_problem(settings: DataSettings, seed: int) -> Problem:
    """Return the problem that the settings name, with what they leave open taken from the card.

    Sets smaller than the card's split (small generated ones) are divided in the same proportions.
    """
    card, path = find_data(settings.name, Path(settings.folder) if settings.folder else None)
    file = open_data(path, card)  # once for all samples, which keep what is in memory
    count = len(file)
    if FORMATS[card.format].on_disk:
        file.close()
    sizes = settings.split or card.split or [count * share for share in DEFAULT_SPLIT]
    parts = split(count, sizes, exact=settings.split is not None)
    points = settings.points or card.points
    sampling = settings.sampling or ("first" if card.points else "farthest")
    measured = settings.evaluation_points or (None if sampling == "random" else points)
    final = settings.final_snapshot or card.final_snapshot
    stride = settings.stride or card.stride
    if not card.steady and final >= card.snapshots:
        raise UserError(f"data.final_snapshot: {final} is not one of the snapshots 0 to {card.snapshots - 1} of {path}")
    times = (0.0,) if card.times is None else tuple(float(t) for t in np.linspace(*card.times, card.snapshots))
    train, validation, test = (
        Samples(path, card, indices, most, sampling, seed, file=file)
        for indices, most in zip(parts, (points, measured, measured), strict=True)
    )
    problem = Problem(card, path, train, validation, test, times, final, stride, file.attributes)
    _ = problem.pairs  # stride and final snapshot are checked before anything is read
    return problem
