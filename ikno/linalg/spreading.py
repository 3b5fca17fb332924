"""Interpolation weights applied: point values onto the nodes of their cells (spread) and back (sample).

Both are faces of one trilinear form in point values, node values and weights, so each is the other's gradient. The work
goes strip by strip, a strip being a few rows of cells along the first axis, so that memory is bounded and
node values never exist all at once; within a strip, blocks of points in one cell make small matrix products.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ikno.linalg.geometry import Cloud
from ikno.linalg.interpolation import lagrange

Bases = tuple[Float[Tensor, "slots _"], ...]
Rows = Float[Tensor, "rows branches columns"]
Fine = Float[Tensor, "clouds nodes branches *rest columns"]  # branches after the nodes of the first axis


def interpolation_weights(cloud: Cloud, nodes: tuple[int, ...]) -> Bases:
    """Return the weights of every slot on the nodes of its cell along each axis, its share included in the first.

    In float64 where the coordinates are differentiated.
    """
    blocks = cloud.blocks
    bases = []
    for j, m in enumerate(nodes):
        cell = blocks.cell[:, 1 + j].repeat_interleave(blocks.size)
        bases.append(lagrange(cloud.offsets(j, blocks.source, cell), m))
    return bases[0] * blocks.share[:, None], *bases[1:]


class Room:
    """Buffers used again and again within one call: fresh memory costs more than the arithmetic done in it."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return an uninitialized tensor, valid until the same name is taken again."""
        size = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(shape)

    def forget(self, name: str) -> None:
        """Leave a buffer to whoever holds it."""
        del self._buffers[name]


@dataclass(frozen=True)
class Strip:
    """Rows of cells along the first axis of some clouds (all rows, if more than one cloud), and the blocks in them."""

    clouds: slice
    cells: slice
    blocks: slice


@dataclass(frozen=True)
class Interpolation:
    """The sparse matrix W between the points of a cloud and the nodes of its range of cells.

    Rows are points, those of all clouds one after the other.
    """

    cloud: Cloud
    nodes: tuple[int, ...]
    bases: Bases
    room: Room = field(default_factory=Room)

    @property
    def node_counts(self) -> tuple[int, ...]:
        assert self.cloud.cells is not None
        return self.cloud.cells.node_counts(self.nodes)

    def strips(self, columns: int, floats: int, empty: bool = False) -> Iterator[Strip]:
        """Yield strips with some ``floats`` node values each, for so many columns; ``empty`` ones only if asked for."""
        assert self.cloud.cells is not None
        clouds, count = self.cloud.points.shape[0], self.cloud.cells.count[0]
        starts = self.cloud.blocks.starts
        rows = max(floats // ((self.nodes[0] - 1) * prod(self.node_counts[1:]) * columns), 1)
        whole = max(rows // count, 1)
        rows = -(-count // -(-count // min(rows, count)))  # strips of nearly equal height
        for c in range(0, clouds, whole):
            for r in range(0, count, rows):
                stop = min(c + whole, clouds), min(r + rows, count)
                blocks = slice(starts[c * count + r], starts[(stop[0] - 1) * count + stop[1]])
                if blocks.start < blocks.stop or empty:
                    yield Strip(slice(c, stop[0]), slice(r, stop[1]), blocks)

    def node_range(self, strip: Strip) -> slice:
        """Return the nodes of a strip along the first axis."""
        return slice(strip.cells.start * (self.nodes[0] - 1), strip.cells.stop * (self.nodes[0] - 1) + 1)

    def spread(self, rows: Rows, strip: Strip) -> Fine:
        """Return sum_i w_i(node) v_i on the nodes of a strip, valid until the next call."""
        branches, columns = rows.shape[1:]
        along = self.node_range(strip)
        clouds = strip.clouds.stop - strip.clouds.start
        shape = (clouds, along.stop - along.start, branches, *self.node_counts[1:], columns)
        fine = self.room.take("spread", shape, rows).zero_()
        flat = fine.view(-1, columns)
        for slots, index, weights in self._chunks(strip, branches, columns):
            block = self._at_points(rows, slots).view(*weights.shape[:2], -1)
            cell = self.room.take("cells", (len(weights), weights.shape[2], block.shape[2]), rows)
            flat.index_add_(0, index, torch.bmm(weights.mT, block, out=cell).view(-1, columns))
        return fine

    def sample(self, fine: Fine, strip: Strip, rows: Rows) -> None:
        """Set the rows of the strip's points to sum_node w_i(node) f(node); the last row is for empty slots.

        Where the cloud has parts of points, they are added: the rows must be zero before.
        """
        (branches, columns), blocks = rows.shape[1:], self.cloud.blocks
        flat = fine.reshape(-1, columns)
        for slots, index, weights in self._chunks(strip, branches, columns):
            cell = self._at_nodes(flat, index).view(len(weights), -1, branches * columns)
            values = self.room.take("points", (*weights.shape[:2], branches * columns), rows)
            values = torch.bmm(weights, cell, out=values).view(-1, branches, columns)
            source = blocks.source[slots]
            if blocks.parted:
                rows.index_add_(0, source, values)
            else:
                rows.index_copy_(0, source.masked_fill(blocks.share[slots] == 0, rows.shape[0] - 1), values)

    def add_gradients(self, rows: Rows, fine: Fine, strip: Strip, gradients: Sequence[Tensor]) -> None:
        """Add the gradient in the weights: <v_i, f(node)> contracted with the weights of the other axes."""
        (branches, columns), d = rows.shape[1:], len(self.nodes)
        flat = fine.reshape(-1, columns)
        letters = "ijk"[:d]
        for slots, index, weights in self._chunks(strip, branches, columns):
            block = self._at_points(rows, slots).view(*weights.shape[:2], -1)
            cell = self._at_nodes(flat, index).view(len(weights), -1, branches * columns)
            products = torch.bmm(block, cell.mT).view(-1, *self.nodes)
            for j in range(d):
                others = [k for k in range(d) if k != j]
                terms = "".join(f",s{letters[k]}" for k in others)
                equation = f"s{letters}{terms}->s{letters[j]}"
                gradients[j][slots] += torch.einsum(equation, products, *(self.bases[k][slots] for k in others))

    def _at_points(self, rows: Rows, slots: slice) -> Tensor:
        source = self.cloud.blocks.source[slots]
        return torch.index_select(rows, 0, source, out=self.room.take("points", (len(source), *rows.shape[1:]), rows))

    def _at_nodes(self, flat: Float[Tensor, "nodes columns"], index: Int[Tensor, "targets"]) -> Tensor:
        return torch.index_select(flat, 0, index, out=self.room.take("cells", (len(index), flat.shape[1]), flat))

    def _chunks(
        self, strip: Strip, branches: int, columns: int
    ) -> Iterator[tuple[slice, Int[Tensor, "targets"], Float[Tensor, "blocks size nodes"]]]:
        """Yield a few blocks at a time: the slots they cover, their nodes in the strip and the weights between both."""
        blocks, counts = self.cloud.blocks, self.node_counts
        device = blocks.source.device
        # Small enough to stay in a processor's cache, large enough to keep an accelerator busy.
        floats = 1 << 21 if device.type == "cpu" else 1 << 26
        step = max(floats // ((blocks.size + prod(self.nodes)) * branches * columns), 1)
        along = self.node_range(strip)
        strides = [prod(counts[j + 1 :]) * (branches if j == 0 else 1) for j in range(len(counts))]
        local = torch.zeros(1, dtype=torch.long, device=device)
        for m, stride in zip(self.nodes, strides, strict=True):
            local = (local[:, None] + torch.arange(m, device=device) * stride).flatten()
        local = (local[:, None] + torch.arange(branches, device=device) * prod(counts[1:])).flatten()
        cell = blocks.cell[strip.blocks]
        corner = (cell[:, 0] - strip.clouds.start) * (along.stop - along.start) * strides[0]
        corner = corner - strip.cells.start * (self.nodes[0] - 1) * strides[0]
        for j, (m, stride) in enumerate(zip(self.nodes, strides, strict=True)):
            corner = corner + cell[:, 1 + j] * ((m - 1) * stride)
        start = strip.blocks.start * blocks.size
        for part in corner.split(step):
            slots = slice(start, start + len(part) * blocks.size)
            start = slots.stop
            weights = self.bases[0][slots]
            for b in self.bases[1:]:
                weights = (weights[:, :, None] * b[slots][:, None, :]).flatten(1)
            yield slots, (part[:, None] + local).flatten(), weights.view(len(part), blocks.size, -1)
