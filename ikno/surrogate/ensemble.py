"""Ensemble: several surrogates of one problem, usually of different seeds, used as one."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ikno.errors import UserError
from ikno.surrogate.gradient import gradient
from ikno.surrogate.intervals import Band, Calibration, Estimate, estimate
from ikno.surrogate.signature import Signature
from ikno.surrogate.surrogate import Surrogate

Array = np.ndarray | Tensor
SHARED = ("dim", "variables", "conditions", "times")  # what members have in common; their models may differ


class Ensemble:
    """The mean over members, and their standard deviation as a measure of what they do not know."""

    def __init__(self, members: Sequence[Surrogate], calibration: Calibration | None = None) -> None:
        if not members:
            raise UserError("an ensemble needs at least one run, found none")
        for i, member in enumerate(members[1:], 2):
            for name in SHARED:
                one, other = (getattr(m.signature, name) for m in (members[0], member))
                if one != other:
                    raise UserError(
                        f"member {i} of the ensemble: {name} = {other}, but the first has {one}; "
                        "use runs of the same problem"
                    )
        self.members = tuple(members)
        self.calibration = calibration

    @property
    def signature(self) -> Signature:
        """What the first member takes and gives; the others may have another model."""
        return self.members[0].signature

    def predict(
        self,
        points: Array,
        conditions: Array | None = None,
        queries: Array | None = None,
        time: float | Array | None = None,
        lead: float | Array | None = None,
        start: Array | None = None,
        steps: int = 1,
        spread: bool = False,
        intervals: Band | None = None,
    ) -> Any:
        """Return the mean over the members, everything as ``Surrogate.predict``; in steps each goes its own way."""
        values = [m.predict(points, conditions, queries, time, lead, start, steps) for m in self.members]
        found = estimate(values, self.calibration, intervals, time, lead, steps)
        return found if spread or intervals is not None else found.mean

    gradient = gradient


def stream(
    surrogate: Surrogate | Ensemble,
    points: Array,
    conditions: Array | None = None,
    queries: Array | None = None,
    time: float | Array | None = None,
    lead: float | Array | None = None,
    steps: int = 1,
    intervals: Band | None = None,
) -> Iterator[tuple[slice, Estimate]]:
    """Yield which queries and the estimate there, part by part: what ``predict`` returns with its spread as a whole."""
    members = surrogate.members if isinstance(surrogate, Ensemble) else (surrogate,)
    for found in zip(*(m.stream(points, conditions, queries, time, lead, None, steps) for m in members), strict=True):
        values = [u for _, u in found]
        yield found[0][0], estimate(values, surrogate.calibration, intervals, time, lead, steps)
