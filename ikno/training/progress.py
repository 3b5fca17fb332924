"""Where training stands: what a checkpoint holds beside weights and optimizer, and what a display may show."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ikno.errors import UserError


@dataclass
class Progress:
    """Where training stands; all of it is in the checkpoint. A new field needs a default that older checkpoints mean.

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
        """Return what the checkpoint in a file holds; fields that are newer than it have their defaults."""
        if not set(state) >= {"epoch", "step", "data"}:  # in the checkpoints of all versions
            raise UserError(f"{file}: holds no progress of training (best.safetensors has weights only); train again")
        if unknown := sorted(set(state) - {f.name for f in fields(cls)}):
            raise UserError(
                f"{file}: made by a newer version of ikno, {unknown[0]!r} is not known here; update ikno or train again"
            )
        return cls(**state)


@dataclass(frozen=True)
class Report:
    """What a progress display may show after a step."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    validation: float | None
    seconds_per_step: float
