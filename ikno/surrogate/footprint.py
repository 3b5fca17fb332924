"""How much memory training and prediction will take, before they begin: a count of the tensors that live at the peak.

Numbers of 4 bytes. Only IKNO models are counted; of the others nothing is known.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ikno.errors import UserError
from ikno.linalg import Cells, Cloud, Local, contraction
from ikno.memory import available_memory
from ikno.models import IKNO
from ikno.surrogate.surrogate import QUERIES

BUFFER = 1 << 23  # of the contraction at most, see ``linalg.local``
SMALL = 1e7  # bytes of all that is not counted
PER_POINT = 40  # coordinates, order, cells, slots and interpolation weights


@dataclass(frozen=True)
class _Parts:
    """Numbers of each kind of tensor for one batch."""

    grid: int  # one branch on the latent grid
    nodes: int  # all branches between points and grid
    block: int  # what a transformer block keeps for the backward pass
    encoder: int  # of a point in the encoder
    decoder: int  # of a point in the decoder
    buffer: int  # of the contraction, which has two, with gradients three, and uses them again
    chunk: int  # points at a time
    inputs: int  # of a point, kept throughout


def _parts(model: IKNO, batch: int, points: int) -> _Parts:
    s, grid = model.settings, model.grid
    width, branches = s.d_model, len(model.branches)
    cells = Cells((0,) * grid.dim, tuple(max(n - 1, 1) for n in grid.size))
    cloud = Cloud(torch.zeros(1, 1, grid.dim).expand(1, points, grid.dim), None, grid, cells)
    form = contraction(model.branches, cloud, s.contraction, s.tolerance)
    along = cells.node_counts(form.nodes) if isinstance(form, Local) else grid.size
    features = model.nerf.width(grid.dim) + model.in_channels
    at_points = 2 * branches + 5 if s.normalize_branches else 6
    return _Parts(
        grid=batch * grid.count * width,
        nodes=batch * branches * grid.size[0] * math.prod(along[1:]) * width,
        block=batch * grid.count * width * (9 + 2 * s.ff_mult),
        encoder=batch * (features + 3 * width),
        decoder=batch * (at_points * width + 3 * model.out_channels),
        buffer=min(BUFFER, batch * math.prod(along) * width),
        chunk=min(s.point_chunk, points),
        inputs=batch * (2 * model.in_channels + 4 * model.out_channels) + PER_POINT,
    )


def training_memory(model: nn.Module, points: int, batch: int) -> float | None:
    """Return the bytes that a step on so many samples takes beyond weights and data, None if it is not known."""
    if not isinstance(model, IKNO):
        return None
    s, p, branches = model.settings, _parts(model, batch, points), len(model.branches)
    weights = 3 * sum(w.numel() for w in model.parameters())  # gradients, and two moments of the optimizer
    kept = weights + points * p.inputs + 2 * p.nodes + 8 * branches * p.grid
    if s.checkpointing:
        kept += s.num_layers * p.grid
        at_points = 2 * p.chunk * p.decoder  # recomputed, and its gradients
        return SMALL + 4.0 * (kept + max(2 * p.block, 3 * p.nodes + 3 * p.buffer + at_points))
    kept += s.num_layers * p.block + points * (p.encoder + p.decoder)
    return SMALL + 4.0 * (kept + max(p.block, 2 * p.nodes + 3 * p.buffer + p.chunk * p.decoder))


def prediction_memory(model: nn.Module, points: int, queries: int, batch: int = 1) -> float | None:
    """Return the bytes that a prediction takes beyond weights, inputs and result, None if it is not known."""
    if not isinstance(model, IKNO):
        return None
    s, branches = model.settings, len(model.branches)
    here, there = _parts(model, batch, points), _parts(model, batch, min(queries, QUERIES))
    mixing = here.grid * (3 + 2 * s.ff_mult)
    encoding = 1.3 * here.nodes + 2 * here.buffer + here.chunk * here.encoder + 2 * branches * here.grid
    decoding = 1.3 * there.nodes + 2 * there.buffer + there.chunk * there.decoder + 2 * branches * there.grid
    at_queries = min(queries, QUERIES) * there.inputs
    return SMALL + 4.0 * (points * here.inputs + max(mixing, encoding, decoding + at_queries))


def check_memory(needed: float | None, device: torch.device, what: str, remedies: str, ignore: bool = False) -> str:
    """Return a sentence on the memory that is needed, or raise a UserError if it is more than there is."""
    available = available_memory(device)
    there = f"{available / 1e9:.1f} GB are available on {device}"
    if needed is None:
        return f"{what} needs an unknown amount of memory (only IKNO models are counted), {there}"
    text = f"{what} needs about {needed / 1e9:.1f} GB of memory, {there}"
    if needed > available and not ignore:
        raise UserError(f"{text}; use {remedies} to begin anyway")
    return text
