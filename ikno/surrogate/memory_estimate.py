"""How much memory training and prediction will take, before they begin: a count of the tensors that live at the peak.

Numbers of 4 bytes. Only IKNO models are counted; of the others nothing is known.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn

from ikno.errors import UserError
from ikno.linalg import Cells, Cloud, Local, contraction
from ikno.linalg.contraction import AT_A_TIME
from ikno.memory import available_memory
from ikno.models import IKNO
from ikno.surrogate.surrogate import QUERIES

SMALL = 1e7  # bytes of all that is not counted
PER_POINT = 30  # coordinates, cells and slots
SLOTS = 1.3  # of the blocks of an interpolation, for each point


def _parts(model: IKNO, batch: int, points: int) -> SimpleNamespace:
    """Return the numbers of each kind of tensor for one batch."""
    s, grid = model.settings, model.grid
    width, kernels = s.d_model, len(model.branches)
    cells = Cells((0,) * grid.dim, tuple(max(n - 1, 1) for n in grid.size))
    cloud = Cloud(torch.zeros(1, 1, grid.dim).expand(1, points, grid.dim), None, grid, cells)
    form = contraction(model.branches, cloud, s.contraction, s.tolerance)
    along = cells.node_counts(form.nodes) if isinstance(form, Local) else grid.size
    features = model.nerf.width(grid.dim) + model.in_channels
    travels = s.point_width or width + 1
    arrives = kernels * width if s.point_width is None and s.normalize_branches else travels
    per_column = (along[0] + kernels * grid.size[0]) * math.prod(along[1:]) * isinstance(form, Local)
    at_points = 4 * width + arrives if s.point_width is None else 2 * width + travels
    in_block = getattr(model.processor, "kept", 12) + 2 * s.ff_mult
    slots = round(SLOTS * math.prod(form.nodes)) if isinstance(form, Local) else 0
    return SimpleNamespace(
        grid=batch * grid.count * width,
        branches=batch * kernels * grid.count * travels,  # all kernels on the grid, with the channels that travel
        nodes=per_column * batch * travels,  # node values, and for all kernels with grid points along the first axis
        part=per_column * min(batch * travels, max(AT_A_TIME // math.prod(along), 16)),  # channels worked on at a time
        block=batch * grid.count * width * in_block,  # what a block of the processor keeps for the backward pass
        # Of a point: in the encoder, in the decoder, channels that go to the grid, channels that come back.
        encoder=batch * (features + 2 * width + 2 * travels),
        decoder=batch * (at_points + 3 * model.out_channels),
        travels=batch * travels,
        arrives=batch * arrives,
        chunk=min(s.point_chunk, points),  # points at a time
        # Of a point, kept throughout, with its weights of the interpolation.
        inputs=batch * (2 * model.in_channels + 4 * model.out_channels) + PER_POINT + slots,
    )


def training_memory(model: nn.Module, points: int, batch: int) -> float | None:
    """Return the bytes that a step on a batch takes beyond weights and data; None if the model is not IKNO."""
    if not isinstance(model, IKNO):
        return None
    s, p = model.settings, _parts(model, batch, points)
    kept = 3 * sum(w.numel() for w in model.parameters())  # gradients, and two moments of the optimizer
    kept += points * p.inputs + 2 * p.nodes + 4 * p.branches + 4 * p.grid
    working = p.nodes + 2 * p.part
    if s.checkpointing:
        kept += s.num_layers * p.grid + points * (3 * p.travels + 2 * p.arrives)
        return SMALL + 4.0 * (kept + max(2 * p.block, working, 2 * p.chunk * (p.encoder + p.decoder)))
    kept += s.num_layers * p.block + points * (p.encoder + p.decoder)
    return SMALL + 4.0 * (kept + max(p.block, working + points * p.arrives, p.chunk * p.decoder))


def prediction_memory(model: nn.Module, points: int, queries: int, batch: int = 1) -> float | None:
    """Return the bytes that a prediction takes beyond weights, inputs and result; None if the model is not IKNO."""
    if not isinstance(model, IKNO):
        return None
    s, count = model.settings, min(queries, QUERIES)
    here, there = _parts(model, batch, points), _parts(model, batch, count)
    mixing = here.grid * (3 + 2 * s.ff_mult)
    encoding = 1.5 * here.part + points * 3 * here.travels + here.chunk * here.encoder + 2 * here.branches
    decoding = 1.5 * there.part + count * 2 * there.arrives + there.chunk * there.decoder + 2 * there.branches
    return SMALL + 4.0 * (points * here.inputs + max(mixing, encoding, decoding + count * there.inputs))


def check_available(needed: float | None, device: torch.device, what: str, remedies: str, ignore: bool = False) -> str:
    """Return a sentence on the memory that is needed.

    Args:
        needed: Bytes, None if unknown.
        device: Where they are needed.
        what: What needs them.
        remedies: How to need less, for the error.
        ignore: Whether more than is available is accepted.

    Raises:
        UserError: If more is needed than is available.
    """
    available = available_memory(device)
    there = f"{available / 1e9:.1f} GB are available on {device}"
    if needed is None:
        return f"{what} needs an unknown amount of memory (only IKNO models are counted), {there}"
    text = f"{what} needs about {needed / 1e9:.1f} GB of memory, {there}"
    if needed > available and not ignore:
        raise UserError(f"{text}; use {remedies} to begin anyway")
    return text
