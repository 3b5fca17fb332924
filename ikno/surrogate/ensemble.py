"""Ensemble: several surrogates of one problem, usually of different seeds, used as one."""

from collections.abc import Sequence

from ikno.errors import UserError
from ikno.surrogate.intervals import Calibration
from ikno.surrogate.predictor import Predictor
from ikno.surrogate.surrogate import Surrogate

SHARED = ("dim", "variables", "conditions", "times")  # what members have in common; their models may differ


class Ensemble(Predictor):
    """The mean over surrogates of one problem, and their standard deviation as a measure of what they do not know.

    In several steps each member continues from its own result. ``signature`` is that of the first member.

    Args:
        members: Surrogates with the same dimension, variables, conditions and times.
        calibration: What intervals need.

    Raises:
        UserError: If there is no member, or one differs from the first.
    """

    def __init__(self, members: Sequence[Surrogate], calibration: Calibration | None = None) -> None:
        if not members:
            raise UserError("an ensemble needs at least one run, found none")
        self.members, self.signature, self.calibration = tuple(members), members[0].signature, calibration
        for i, member in enumerate(members[1:], 2):
            for name in SHARED:
                one, other = getattr(self.signature, name), getattr(member.signature, name)
                if one != other:
                    raise UserError(
                        f"member {i} of the ensemble: {name} = {other}, but the first has {one}; "
                        "use runs of the same problem"
                    )
