"""The cell-local form of the sums between points and grid.

Every axis kernel is smooth inside one grid cell. The values of a point are spread with polynomial weights onto the
interpolation nodes of its cell; the weights depend on geometry alone, and the kernel parameters enter only through
small per-axis tables between nodes and grid points: K_GP ~= (T_1 (x) ... (x) T_d) W^T with T_j = k_j(grid, nodes) and W
sparse. See docs/design.md.

W and T_1 are applied strip by strip, so that node values exist for a few rows of cells at a time (and, unless they are
few, are formed again in the backward pass); what is kept between points and grid has grid points along the first axis,
nodes along the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ikno.linalg.geometry import Cells, Cloud, Grid
from ikno.linalg.interpolation import lobatto
from ikno.linalg.kronecker import kron_apply
from ikno.linalg.spreading import Fine, Interpolation, Rows, Strip, interpolation_weights
from ikno.linalg.sums import Branches, Contraction, Kernel, OnGrid, Values, check_clouds, fold, unfold

Nodes = tuple[int, ...]


@dataclass(frozen=True)
class Local(Contraction):
    """Interpolation inside the cells of the grid; kernel q needs ``nodes[q][j]`` nodes per cell along axis j.

    Where coordinates are differentiated everything runs in float64: slopes of polynomials amplify rounding.
    """

    kernels: Sequence[Kernel]
    grid: Grid
    cells: Cells
    nodes: tuple[Nodes, ...]
    slope: bool
    dtype: torch.dtype
    summed: bool = False

    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]:
        check_clouds(values.shape[0], cloud)
        x = self._working(values)
        x = fold(x, cloud) if self._small(x) else x
        nodes = self.most_nodes  # one pass over the points serves all kernels
        table = torch.cat([self._table(k, 0, nodes, x) for k in self.kernels])
        half = _Spread.apply(x, table, cloud, nodes, *interpolation_weights(cloud, nodes))
        assert isinstance(half, Tensor)
        return (unfold(half, values.shape[0]),)

    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]:
        half = spread[0].unflatten(1, (len(self.kernels), -1))
        return _each_apply(self._other_tables(half), half).to(self.dtype).unbind(1)

    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]:
        if self.summed:
            g = self._working(torch.stack(tuple(grids), 1))
            return (_each_apply([t.mT for t in self._other_tables(g)], g).flatten(1, 2),)
        expanded = []
        for k, nodes, grid in zip(self.kernels, self._nodes_at_points, grids, strict=True):
            g = self._working(grid)
            tables = [self._table(k, j, nodes, g).mT for j in range(1, self.grid.dim)]
            expanded.append(kron_apply(tables, g) if tables else g)
        return tuple(expanded)

    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> Branches:
        batch = expanded[0].shape[0]
        check_clouds(batch, cloud)
        x = [fold(e, cloud) for e in expanded] if self._small(expanded[0]) else expanded
        counts = self._nodes_at_points
        tables = [self._table(k, 0, nodes, x[0]) for k, nodes in zip(self.kernels, counts, strict=True)]
        if self.summed:  # one table of all kernels, as on the way to the grid
            counts, tables = counts[:1], [torch.cat(tables)]
        bases = [b for nodes, _ in _runs(counts) for b in interpolation_weights(cloud, nodes)]
        values = _Sample.apply(cloud, counts, *bases, *x, *tables)
        assert isinstance(values, Tensor)
        return unfold(values, batch).to(self.dtype)

    @property
    def _nodes_at_points(self) -> tuple[Nodes, ...]:
        return (self.most_nodes,) * len(self.nodes) if self.summed else self.nodes

    @property
    def most_nodes(self) -> Nodes:
        """The nodes of the most demanding kernel along each axis."""
        return tuple(max(axis) for axis in zip(*self.nodes, strict=True))

    def _small(self, x: Float[Tensor, "batch *space width"]) -> bool:
        """Tell whether the node values of a whole batch fit together."""
        return prod(self.cells.node_counts(self.most_nodes)) * x.shape[0] * x.shape[-1] <= _floats(x)

    def _working(self, x: Tensor) -> Tensor:
        return x.double() if self.slope else x

    def _other_tables(self, like: Tensor) -> list[Float[Tensor, "kernels _ _"]]:
        """Return the tables of all kernels with the most nodes, for each axis but the first."""
        axes = range(1, self.grid.dim)
        return [torch.stack([self._table(k, j, self.most_nodes, like) for k in self.kernels]) for j in axes]

    def _table(self, kernel: Kernel, axis: int, nodes: Nodes, like: Tensor) -> Float[Tensor, "size nodes"]:
        """Return k_j(grid points, nodes), formed in float64 since slopes amplify noise."""
        exact = torch.empty(0, dtype=torch.float64, device=like.device)
        inside = torch.tensor(lobatto(nodes[axis])[:-1], dtype=torch.float64).to(exact)
        cells = torch.arange(self.cells.count[axis] + 1).to(exact)[:, None]
        steps = (cells + inside).flatten()[: self.cells.node_counts(nodes)[axis]] + self.cells.first[axis]
        x = self.grid.origin(axis) + self.grid.spacing(axis) * steps
        return kernel.factor(axis, self.grid.axis(axis, exact), x).to(like.dtype)


class _Spread(torch.autograd.Function):
    """T_1 W^T V for the tables of all kernels, one below the other."""

    @staticmethod
    def forward(ctx, values, table, cloud, nodes, *bases):
        ctx.cloud, ctx.nodes = cloud, nodes
        values = values.contiguous()
        w = Interpolation(cloud, nodes, bases)
        rows, width = values.view(-1, 1, values.shape[2]), values.shape[2]
        make = _maker(values, cloud)
        half = make(values.shape[0], table.shape[0], *w.node_counts[1:], width)
        # The gradient of the table takes the node values again: if they are few, they are kept.
        keep = ctx.needs_input_grad[1] and prod(w.node_counts) <= 2 * values.shape[1]
        kept = []
        for piece in _pieces(w, values):
            fine = w.spread(rows[piece.at_points], piece.strip)
            _put_product(half[piece.on_grid], table[:, w.node_range(piece.strip)], fine[:, :, 0], piece.first)
            if keep:
                kept.append(fine)
                w.room.forget("spread")
        ctx.kept = len(kept)
        ctx.save_for_backward(values, table, *bases, *kept)
        return half

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        values, table, *others = ctx.saved_tensors
        bases, kept = others[: len(others) - ctx.kept], others[len(others) - ctx.kept :]
        need_values, need_table = ctx.needs_input_grad[:2]
        need_bases = any(ctx.needs_input_grad[4:])
        w = Interpolation(ctx.cloud, ctx.nodes, tuple(bases))
        rows, dhalf = values.view(-1, 1, values.shape[2]), grads[0].contiguous()
        dvalues = _rows_for(w, values, 1) if need_values else None
        dtable = torch.zeros_like(table) if need_table else None
        dbases = [torch.zeros_like(b) for b in bases] if need_bases else []
        for i, piece in enumerate(_pieces(w, values)):
            along = w.node_range(piece.strip)
            part, at_grid = rows[piece.at_points], dhalf[piece.on_grid]
            if dtable is not None:
                fine = kept[i] if kept else w.spread(part, piece.strip)
                dtable[:, along] += _outer(at_grid, fine[:, :, 0])
            if dvalues is not None or need_bases:
                dfine = w.room.take("fine", (len(at_grid), along.stop - along.start, 1, *at_grid.shape[2:]), at_grid)
                _put_product(dfine[:, :, 0], table[:, along].mT, at_grid, True)
                if dvalues is not None:
                    w.sample(dfine, piece.strip, dvalues[piece.from_points])
                if need_bases:
                    w.add_gradients(part, dfine, piece.strip, dbases)
        return (
            None if dvalues is None else dvalues[:-1].view(values.shape),
            dtable,
            None,
            None,
            *(dbases or [None] * len(bases)),
        )


class _Sample(torch.autograd.Function):
    """W T_1^T E for each kernel and its own E: [batch, points, kernels, width]."""

    @staticmethod
    def forward(ctx, cloud, nodes, *tensors):
        ctx.cloud, ctx.nodes = cloud, nodes
        ctx.save_for_backward(*tensors)
        runs, first = _by_run(cloud, nodes, tensors), tensors[-2 * len(nodes)]
        rows = _rows_for(runs[0].w, first, len(nodes))
        for run in runs:
            for piece in _pieces(run.w, first, len(run.halves)):
                run.w.sample(_fine(run, piece), piece.strip, rows[:, run.kernels][piece.from_points])
        return rows[:-1].view(first.shape[0], -1, *rows.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        needed, count, d = ctx.needs_input_grad[2:], len(ctx.nodes), len(ctx.nodes[0])
        tensors = ctx.saved_tensors  # once: under checkpointing they come from running forward again
        found = [torch.zeros_like(t) if n else None for t, n in zip(tensors, needed, strict=True)]
        for i in (i for i in range(-2 * count, -count) if needed[i]):
            found[i] = _maker(tensors[i], ctx.cloud)(tensors[i].shape)  # the first piece of each sample sets it
        rows = grads[0].contiguous().view(-1, *grads[0].shape[2:])
        for i, run in enumerate(_by_run(ctx.cloud, ctx.nodes, tensors)):
            dbases = [b for b in found[i * d : (i + 1) * d] if b is not None]
            dhalves, dtables = found[-2 * count : -count][run.kernels], found[-count:][run.kernels]
            for piece in _pieces(run.w, run.halves[0], len(run.halves)):
                along = run.w.node_range(piece.strip)
                part = rows[:, run.kernels][piece.at_points]
                dfine = run.w.spread(part, piece.strip)
                for q, (dhalf, dtable) in enumerate(zip(dhalves, dtables, strict=True)):
                    if dhalf is not None:
                        _put_product(dhalf[piece.on_grid], run.tables[q][:, along], dfine[:, :, q], piece.first)
                    if dtable is not None:
                        dtable[:, along] += _outer(run.halves[q][piece.on_grid], dfine[:, :, q])
                if dbases:
                    run.w.add_gradients(part, _fine(run, piece), piece.strip, dbases)
        return None, None, *found


@dataclass(frozen=True)
class _Run:
    """Neighboring kernels that take the same nodes: their interpolation, grid values and tables."""

    kernels: slice
    w: Interpolation
    halves: Sequence[Tensor]
    tables: Sequence[Tensor]


def _runs(nodes: tuple[Nodes, ...]) -> list[tuple[Nodes, slice]]:
    """Return the runs of kernels with equal nodes."""
    runs, start = [], 0
    for key, group in groupby(nodes):
        stop = start + len(list(group))
        runs.append((key, slice(start, stop)))
        start = stop
    return runs


def _by_run(cloud: Cloud, nodes: tuple[Nodes, ...], tensors: Sequence[Tensor]) -> list[_Run]:
    """Return the flat arguments of ``_Sample`` (bases per run, grid values, tables) by run."""
    d, count = len(nodes[0]), len(nodes)
    halves, tables = tensors[-2 * count : -count], tensors[-count:]
    found = []
    for i, (n, kernels) in enumerate(_runs(nodes)):
        w = Interpolation(cloud, n, tuple(tensors[i * d : (i + 1) * d]))
        found.append(_Run(kernels, w, halves[kernels], tables[kernels]))
    return found


def _fine(run: _Run, piece: "_Piece") -> Fine:
    """Return the node values of a piece for the kernels of a run, valid until the next call."""
    along, parts = run.w.node_range(piece.strip), [h[piece.on_grid] for h in run.halves]
    shape = (parts[0].shape[0], along.stop - along.start, len(parts), *parts[0].shape[2:])
    fine = run.w.room.take("fine", shape, parts[0])
    for q, (part, table) in enumerate(zip(parts, run.tables, strict=True)):
        _put_product(fine[:, :, q], table[:, along].mT, part, True)
    return fine


@dataclass(frozen=True)
class _Piece:
    """A strip for some columns of some samples: rows of the points, part of the batch, whether it is its first."""

    strip: Strip
    rows: slice
    batch: slice
    columns: slice
    first: bool

    @property
    def on_grid(self) -> tuple:
        return self.batch, ..., self.columns

    @property
    def at_points(self) -> tuple:
        return self.rows, slice(None), self.columns

    @property
    def from_points(self) -> tuple:
        """The same with all rows to the last, which is the one for empty slots."""
        return slice(self.rows.start, None), slice(None), self.columns


def _pieces(w: Interpolation, x: Float[Tensor, "batch *space width"], branches: int = 1) -> Iterator[_Piece]:
    """Yield all pieces; samples that share a cloud come one by one."""
    batch, width = x.shape[0], x.shape[-1]
    clouds, points = w.cloud.points.shape[:2]
    floats = _floats(x) // branches
    lowest = w.nodes[0] * prod(w.node_counts[1:])
    step = min(max(4 * floats // lowest // 16 * 16, 16), width)
    for c in range(0, width, step):
        columns = slice(c, min(c + step, width))
        strips = list(w.strips(columns.stop - c, floats))
        for b in range(1 if clouds == batch else batch):
            done = -1
            for strip in strips:
                first, done = strip.clouds.start > done, strip.clouds.start
                if clouds == batch:
                    yield _Piece(strip, slice(0, batch * points), strip.clouds, columns, first)
                else:
                    yield _Piece(strip, slice(b * points, (b + 1) * points), slice(b, b + 1), columns, first)


def _floats(x: Tensor) -> int:
    """Return how many node values are worked on at a time: enough for large products, few enough to bound memory."""
    return 1 << 23 if x.device.type == "cpu" else 1 << 26


def _maker(like: Tensor, cloud: Cloud) -> Callable[..., Tensor]:
    """Return what makes room for what the pieces of every sample set; a sample may have no points, or all masked."""
    return like.new_empty if cloud.mask is None and cloud.points.shape[1] else like.new_zeros


def _rows_for(w: Interpolation, like: Float[Tensor, "batch *space width"], branches: int) -> Rows:
    """Return room for the rows of all points and one more for empty slots, zero where no slot will write."""
    make = like.new_zeros if w.cloud.blocks.parted or w.cloud.mask is not None else like.new_empty
    return make(like.shape[0] * w.cloud.points.shape[1] + 1, branches, like.shape[-1])


def _product(t: Float[Tensor, "rows cols"], x: Float[Tensor, "batch cols *rest"]) -> Float[Tensor, "batch rows *rest"]:
    """Return the product with the first axis."""
    flat = x.reshape(x.shape[0], x.shape[1], -1)
    y = (t @ flat[0])[None] if len(flat) == 1 else torch.bmm(t.expand(len(flat), *t.shape), flat)
    return y.view(-1, t.shape[0], *x.shape[2:])


def _put_product(
    total: Float[Tensor, "batch rows *rest"],
    t: Float[Tensor, "rows cols"],
    x: Float[Tensor, "batch cols *rest"],
    first: bool,
) -> None:
    """Set the total to the product with the first axis, or add it if it is not the first."""
    if len(total) == 1:
        whole = total.ndim < 4 or total.stride(-2) == total.shape[-1]  # all columns, so that rows are contiguous
        if whole:
            flat = total[0].flatten(1)
            torch.addmm(flat, t, x[0].flatten(1), beta=0 if first else 1, out=flat)
            return
    if first:
        total.copy_(_product(t, x))
    else:
        total += _product(t, x)


def _each_apply(
    tables: Sequence[Float[Tensor, "kernels _ _"]], x: Float[Tensor, "batch kernels *in_space width"]
) -> Float[Tensor, "batch kernels *out_space width"]:
    """Return the products along all axes but the first, each kernel with tables of its own."""
    for j in sorted(range(len(tables)), key=lambda j: tables[j].shape[1] / tables[j].shape[2]):
        shape, axis = x.shape, 3 + j
        before, t = shape[2:axis].numel(), tables[j]
        each = t[None, :, None].expand(shape[0], -1, before, -1, -1).flatten(0, 2)
        x = torch.bmm(each, x.reshape(len(each), shape[axis], -1)).view(*shape[:axis], t.shape[1], *shape[axis + 1 :])
    return x


def _outer(a: Float[Tensor, "batch rows *rest"], b: Float[Tensor, "batch cols *rest"]) -> Float[Tensor, "rows cols"]:
    """Return sum a(., i, ..) b(., j, ..) over all other axes."""
    a, b = a.flatten(2), b.flatten(2)
    return a[0] @ b[0].mT if len(a) == 1 else torch.bmm(a, b.mT).sum(0)
