"""Surrogate: a model with its normalizers, its domain and its prediction mode; physical in, physical out. Ensembles."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ikno.data.pairs import MODES, Moments, Statistics
from ikno.errors import UserError
from ikno.linalg import Cloud
from ikno.models import build
from ikno.surrogate.interpolation import interpolator
from ikno.surrogate.intervals import Calibration
from ikno.surrogate.normalize import Normalizer
from ikno.surrogate.predictor import Array, Predictor, Request
from ikno.surrogate.signature import Signature, half_size

QUERIES = 1 << 20  # decoded at a time, which bounds the memory of any number
SHARED = ("dim", "variables", "conditions", "times")  # what members of an ensemble have in common; models may differ


@dataclass(frozen=True)
class State:
    """An encoded input: what ``Surrogate.decode`` needs at any number of queries.

    Attributes:
        latent: The latent grid; the features at the points if the model has no encoder.
        points: The points of the input.
        start: u(t) at the points, None for steady problems.
        lead: How far ahead, None for steady problems.
    """

    latent: Tensor
    points: Float[Tensor, "clouds points dim"]
    start: Float[Tensor, "batch points variables"] | None
    lead: Float[Tensor, "batch"] | None

    @cached_property
    def starts(self) -> list[Callable[[np.ndarray], np.ndarray]]:
        """Interpolation of the start between the points, one function for each input."""
        assert self.start is not None
        clouds, values = self.points.cpu().numpy(), self.start.cpu().numpy()
        return [interpolator(clouds[b if len(clouds) > 1 else 0], v) for b, v in enumerate(values)]


class Surrogate(Predictor, nn.Module):
    """u(x, t + lead) from u(., t), conditions and points: a model between normalizers.

    Users call ``predict``; training calls it with tensors, which returns normalized values. It starts in eval mode.
    Prediction changes nothing in it, so that several threads may share one.

    Args:
        signature: The channels, the domain, the times and the model.
        statistics: The constants of the normalizers. Default: they change nothing.
        seed: The seed of the weights.

    Raises:
        UserError: If the signature names an unknown model or setting.
    """

    def __init__(self, signature: Signature, statistics: Statistics | None = None, seed: int | None = None) -> None:
        super().__init__()
        self.signature = s = signature
        variables, channels = len(s.variables), len(s.inputs) + (0 if s.steady else 2)
        settings = {k: v for k, v in s.model.items() if k != "name"}
        for name in {"in_channels", "out_channels", "dim", "seed"} & settings.keys():
            raise UserError(f"model.{name}: not a setting of a model, it follows from data and config; leave it out")
        self.model = build(
            s.model["name"], in_channels=channels, out_channels=variables, dim=s.dim, seed=seed, **settings
        )
        self.normalize_by(statistics)
        low, high = torch.tensor(s.box, dtype=torch.float64).T
        half = torch.tensor(half_size(s.box, s.coordinates), dtype=torch.float64)
        # Not part of the weights: it follows from the signature.
        self.center: Tensor
        self.extent: Tensor
        self.register_buffer("center", ((low + high) / 2).float(), persistent=False)
        self.register_buffer("extent", half.float().clone(), persistent=False)
        self.eval()

    def normalize_by(self, statistics: Statistics | None) -> None:
        """Set the constants of all normalizers; without statistics they change nothing."""
        s, known, clock = self.signature, statistics, 0 if self.signature.steady else 1
        self.values = _normalizer(known and known.values, len(s.variables) * clock)
        self.conditions = _normalizer(known and known.conditions, len(s.conditions))
        self.time = _normalizer(known and known.time, clock)
        self.lead = _normalizer(known and known.lead, clock)
        self.target = _normalizer(known and known.target, len(s.variables))

    def locate(
        self, points: Float[Tensor, "clouds points dim"], mask: Bool[Tensor, "_ points"] | None = None
    ) -> Cloud | Float[Tensor, "clouds points dim"]:
        """Return points for ``forward``: sorted into cells if the model can do that, else the same physical points."""
        locate = getattr(self.model, "locate", None)
        return points if locate is None else locate(self._mapped(points), mask)

    def _mapped(self, points: Tensor) -> Tensor:
        """Return physical points in the box of the model."""
        return (points - self.center) / self.extent

    def _for_model(self, points: Tensor | Cloud, mask: Tensor | None = None) -> Tensor | Cloud:
        located = points if isinstance(points, Cloud) else self.locate(points, mask)
        return located if isinstance(located, Cloud) else self._mapped(located)

    def features(
        self,
        inputs: Float[Tensor, "batch points channels"],
        time: Float[Tensor, "batch"] | None,
        lead: Float[Tensor, "batch"] | None,
    ) -> Float[Tensor, "batch points features"]:
        """Return normalized u, c, t and lead, the features of the model."""
        split = 0 if self.signature.steady else len(self.signature.variables)
        parts = [self.values(inputs[..., :split]), self.conditions(inputs[..., split:])]
        if time is not None and lead is not None:
            clock = torch.cat([self.time(time[:, None]), self.lead(lead[:, None])], 1)
            parts.append(clock[:, None].expand(-1, inputs.shape[1], -1).to(inputs.dtype))
        return torch.cat(parts, -1)

    def forward(
        self,
        points: Float[Tensor, "clouds points dim"] | Cloud,
        inputs: Float[Tensor, "batch points channels"],
        time: Float[Tensor, "batch"] | None = None,
        lead: Float[Tensor, "batch"] | None = None,
        mask: Bool[Tensor, "batch points"] | None = None,
    ) -> Float[Tensor, "batch points variables"]:
        """Return the normalized target at the points: what is learned."""
        return self.model(self.features(inputs, time, lead), self._for_model(points, mask), mask=mask)

    def targets(
        self,
        inputs: Float[Tensor, "batch points channels"],
        values: Float[Tensor, "batch points variables"],
        lead: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch points variables"]:
        """Return the normalized target of given values: what ``forward`` should return."""
        return self.target(MODES[self.signature.mode].target(*self._start(inputs, values, lead)))

    def physical(
        self,
        inputs: Float[Tensor, "#batch points channels"],
        output: Float[Tensor, "batch points variables"],
        lead: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch points variables"]:
        """Return u(t + lead) for an output of ``forward``: the inverse of ``targets``."""
        return MODES[self.signature.mode].values(*self._start(inputs, self.target.inverse(output), lead))

    def _start(self, inputs: Tensor, values: Tensor, lead: Tensor | None):
        start = inputs[..., : len(self.signature.variables)]
        return start, values, None if lead is None else lead[:, None, None].to(values.dtype)

    @property
    def members(self) -> tuple["Surrogate", ...]:
        """The surrogate itself, as the only member."""
        return (self,)

    def values_of(self, request: Request) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the queries, each with u there."""
        states = self._states(request)
        if request.queries is None or self.signature.mode == "direct":
            states = states[-1:]  # the others are needed only where a change is added to the last
        for part, values in self._decoded(states, request.queries, request.start):
            yield part, values[0] if request.single else values

    def _states(self, request: Request) -> list[State]:
        """Return the latent states along the way."""
        count = request.steps
        if count < 1 or (count > 1 and self.signature.steady):
            raise UserError(f"steps: expected 1 for steady problems and at least 1 for others, found {count}")
        points, inputs, time, lead = self._checked(request.points, request.inputs, request.time, request.lead)
        states = [self._encode(points, inputs, time, lead if lead is None else lead / count)]
        for i in range(1, count):
            assert time is not None
            assert lead is not None
            inputs = torch.cat([self.decode(states[-1]), inputs[..., len(self.signature.variables) :]], -1)
            states.append(self.encode(points, inputs, time + i * lead / count, lead / count))
        return states

    def encode(
        self,
        points: Array,
        inputs: Array | None = None,
        time: float | Array | None = None,
        lead: float | Array | None = None,
    ) -> State:
        """Return the latent state of an input, for any number of ``decode`` calls; arguments as ``predict``."""
        return self._encode(*self._checked(points, inputs, time, lead))

    def _encode(self, points: Tensor, inputs: Tensor, time: Tensor | None, lead: Tensor | None) -> State:
        with self._inference(points, inputs):
            latent = self.features(inputs, time, lead)
            if self._has_encoder:
                latent = getattr(self.model, "encode")(latent, self._for_model(points))  # noqa: B009
        start = None if self.signature.steady else inputs[..., : len(self.signature.variables)]
        return State(latent, points, start, lead)

    def decode(
        self, state: State, queries: Array | None = None, start: Array | None = None
    ) -> Float[Tensor, "batch queries variables"]:
        """Return u at the queries, by default at the points of the input; arguments as ``predict``."""
        return torch.cat([values for _, values in self._decoded([state], queries, start)], 1)

    def _decoded(
        self, states: Sequence[State], queries: Array | None, start: Array | None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the queries, each with u there; every state starts from the result of the last."""
        for part in self._parts(states[0], queries, start):
            values = None if start is None or queries is None else start[..., part, :]
            for state in states:
                values = self._decode(state, queries, part, values)
            assert isinstance(values, Tensor)
            for piece in parts_of(values.shape[1]):  # the same for all models, so that ensembles may mix them
                yield slice(part.start + piece.start, part.start + piece.stop), values[:, piece]

    def _parts(self, state: State, queries: Array | None, start: Array | None) -> list[slice]:
        """Check the shapes and return the parts in which the queries are decoded.

        A model without an encoder would start again for each part: it takes all at once.
        """
        count, batch = state.points.shape[1], state.latent.shape[0]
        if queries is not None:
            self._check_shape(queries, "queries")
            clouds, count = queries.shape[0] if queries.ndim == 3 else 1, queries.shape[-2]
            if clouds not in (1, batch):
                raise UserError(f"queries: {clouds} clouds for {batch} inputs; give one for all or one each")
            expected = (count, len(self.signature.variables))
            if start is not None and (start.shape[-2:] != expected or start.shape[:-2] not in ((), (1,), (batch,))):
                names = ", ".join(self.signature.variables)
                raise UserError(f"start: shape {list(start.shape)}, expected {list(expected)}: {names} at the queries")
        return parts_of(count) if self._has_encoder else [slice(0, count)]

    def _decode(self, state: State, queries: Array | None, part: slice, start: Array | None) -> Tensor:
        """Return u at some of the queries, given the start there (None: between the points of the input)."""
        x = state.points[:, part] if queries is None else self._points(queries[..., part, :], "queries")
        with self._inference(state.latent, state.points, state.start, x, start):
            if self._has_encoder:
                output = getattr(self.model, "decode")(state.latent, self._for_model(x))  # noqa: B009
            else:
                at = None if queries is None else self._mapped(x)
                output = self.model(state.latent, self._mapped(state.points), at)
            if self.signature.mode == "direct":
                return self.target.inverse(output)
            return self.physical(self._start_at(state, queries, part, x, start), output, state.lead)

    @property
    def _has_encoder(self) -> bool:
        """Whether the model works in two halves; one that does not keeps the features as its latent state."""
        return hasattr(self.model, "encode")

    def _inference(self, *given: Array | None) -> torch.set_grad_enabled:
        """Return a context without gradients, unless they are wanted in what is given."""
        if self.training:  # not switched here: other threads may be predicting
            raise ValueError("the surrogate is in training mode, with dropout; call eval() before it predicts")
        wanted = any(isinstance(array, Tensor) and array.requires_grad for array in given)
        return torch.set_grad_enabled(wanted and torch.is_grad_enabled())

    def _start_at(
        self, state: State, queries: Array | None, part: slice, x: Tensor, start: Array | None
    ) -> Float[Tensor, "_ queries variables"]:
        assert state.start is not None
        if queries is None:
            return state.start[:, part]
        if start is not None:
            given = self._tensor(start)
            return given[None] if given.ndim == 2 else given
        if torch.is_grad_enabled():
            raise UserError(
                "start: u(t) at the queries is needed for gradients, as interpolation between the points has none; "
                "give it, or leave the queries out"
            )
        at = x.cpu().numpy()
        values = [start(at[b if len(at) > 1 else 0]) for b, start in enumerate(state.starts)]
        return torch.from_numpy(np.stack(values)).to(state.start)

    def _checked(
        self, points: Array, inputs: Array | None, time: float | Array | None, lead: float | Array | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return the arguments of ``encode`` as tensors with an axis of batches, or raise a UserError."""
        x = self._points(points, "points")
        channels = self._inputs(x, inputs)
        return x, channels, *self._clock(len(channels), time, lead)

    def _tensor(self, values: float | Array) -> Tensor:
        # A copy in native numbers: torch does not take read-only arrays or those of another byte order.
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float64))
        return tensor.to(self.center)

    def _finite(self, values: float | Array, name: str) -> Tensor:
        tensor = self._tensor(values)
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{name}: NaN or infinite values; remove or replace them")
        return tensor

    def _points(self, points: Array, name: str) -> Float[Tensor, "clouds points dim"]:
        self._check_shape(points, name)
        x = self._finite(points, name)
        return x[None] if x.ndim == 2 else x

    def _check_shape(self, points: Array, name: str) -> None:
        if points.ndim not in (2, 3) or points.shape[-1] != self.signature.dim or points.shape[-2] == 0:
            raise UserError(f"{name}: shape {list(points.shape)}, expected [points, {self.signature.dim}]")

    def _inputs(self, x: Tensor, inputs: Array | None) -> Float[Tensor, "batch points channels"]:
        names = self.signature.inputs
        if inputs is None:
            if names:
                raise UserError(f"inputs: {', '.join(names)} are needed at the points, found nothing")
            return x.new_zeros(x.shape[0], x.shape[1], 0)
        c, shape = self._finite(inputs, "inputs"), list(inputs.shape)
        if c.shape[-1:] != (len(names),):
            channels = ", ".join(names) or "(none)"
            raise UserError(f"inputs: shape {shape}, expected [points, {len(names)}] with the channels {channels}")
        if c.ndim < 3:
            c = c.expand(x.shape[0], x.shape[1] if c.ndim == 1 else -1, -1)
        if c.ndim != 3 or c.shape[1] != x.shape[1] or x.shape[0] not in (1, c.shape[0]):
            raise UserError(f"inputs: shape {shape} does not go with points {list(x.shape)}")
        return c

    def _clock(
        self, batch: int, time: float | Array | None, lead: float | Array | None
    ) -> tuple[Tensor | None, Tensor | None]:
        times = self.signature.times
        if times is None:
            if time is not None or lead is not None:
                raise UserError("time: this surrogate is of a steady problem; leave time and lead out")
            return None, None
        if lead is None:
            raise UserError(f"lead: how far ahead to predict is needed; the data spans {times[0]:g} to {times[1]:g}")
        clock = {"time": self._finite(times[0] if time is None else time, "time"), "lead": self._finite(lead, "lead")}
        for name, value in clock.items():
            if value.numel() not in (1, batch):
                raise UserError(f"{name}: expected one number or one for each of {batch} inputs, found {value.numel()}")
        if bool((clock["lead"] <= 0).any()):
            raise UserError(f"lead: must be positive, found {float(clock['lead'].min()):g}")
        return clock["time"].flatten().expand(batch), clock["lead"].flatten().expand(batch)


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


def parts_of(count: int) -> list[slice]:
    """Return slices of at most ``QUERIES`` queries."""
    return [slice(i, min(i + QUERIES, count)) for i in range(0, count, QUERIES)]


def _normalizer(moments: Moments | None, channels: int) -> Normalizer:
    if moments is None or channels == 0:
        return Normalizer(torch.zeros(channels), torch.ones(channels))
    return Normalizer(torch.from_numpy(moments.mean), torch.from_numpy(moments.std))
