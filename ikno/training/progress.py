"""Progress of training: as stored in checkpoints, and as reported after each step."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ikno.errors import UserError


@dataclass
class Progress:
    """Progress of training as stored in a checkpoint. A new field needs the default that fits older checkpoints.

    ``records`` is the length of the log in bytes, ``data`` a digest of the data, which must be the same on resume.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss: float = 0.0
    samples: int = 0
    bad: int = 0
    skipped: int = 0
    best: float | None = None
    best_epoch: int = 0
    records: int = 0
    finished: bool = False
    data: str = ""

    @classmethod
    def restored(cls, state: Mapping[str, Any], file: Path) -> "Progress":
        """Return the progress in a checkpoint; fields that were added later have their defaults."""
        if not set(state) >= {"epoch", "step", "data"}:  # in the checkpoints of all versions
            raise UserError(f"{file}: holds no progress of training (best.safetensors has weights only); train again")
        if unknown := sorted(set(state) - {f.name for f in fields(cls)}):
            raise UserError(
                f"{file}: made by a newer version of ikno, {unknown[0]!r} is not known here; update ikno or train again"
            )
        return cls(**state)


@dataclass(frozen=True)
class Report:
    """Progress after a step, for a display."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    validation: float | None
    seconds_per_step: float
