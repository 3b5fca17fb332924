import copy
import math
import sys
from itertools import product

import pytest
import torch
from torch import nn

from ikno.linalg import Dense, Grid, Local, contraction, density_weights, locate
from ikno.models.kernels import BaseKernel, LinearWindow

# Powers of two: grid coordinates are exact in both precisions, and so is which point lies on a line.
GRIDS = {
    1: Grid((33,), (-1.0,), (0.0,)),
    2: Grid((17, 33), (0.0, -1.0), (1.0, 0.0)),
    3: Grid((17, 9, 17), (0.0, -1.0, 0.5), (1.0, 0.0, 1.5)),
}
ODD = Grid((7, 11), (0.1, -2.0), (0.7, 0.3))
SCALES = [0.25, 1.0, 4.0, 16.0, 64.0]


def branches(dim, scale, dtype=torch.float64):
    """Return two kernels around a scale, different along every axis."""
    kernels = [BaseKernel(dim).double() for _ in range(2)]
    for kernel, c, beta, gamma in zip(kernels, (1.0, 0.6), (scale, scale), (scale, scale / 2), strict=True):
        for p, value in ((kernel.raw_c, c), (kernel.raw_beta, beta), (kernel.raw_gamma, gamma)):
            wanted = value * torch.tensor([1.0, 1.1, 0.9], dtype=torch.float64)[:dim]
            p.data = wanted + torch.log(-torch.expm1(-wanted))  # the inverse of softplus
    return [k.to(dtype) for k in kernels]


def parameters(kernels):
    return [p for k in kernels for p in (k.raw_c, k.raw_beta, k.raw_gamma)]


def axis(grid, j):
    """Return the grid coordinates along an axis; one alone is in the middle."""
    n, a, b = grid.size[j], grid.lower[j], grid.upper[j]
    if n == 1:
        return torch.tensor([(a + b) / 2], dtype=torch.float64)
    return a + (b - a) * torch.arange(n, dtype=torch.float64) / (n - 1)


def matrix(kernel, x, grid):
    """Return the kernel formula for all points and grid points, [clouds, points, count]."""
    c, beta, gamma = (nn.functional.softplus(p) for p in (kernel.raw_c, kernel.raw_beta, kernel.raw_gamma))
    full = torch.ones(*x.shape[:2], 1, dtype=x.dtype)
    for j in range(grid.dim):
        u = x[..., j, None] - axis(grid, j)
        k = c[j] * (torch.exp(-((beta[j] * u) ** 2)) + torch.exp(-gamma[j] * u.abs()))
        full = (full[..., :, None] * k[..., None, :]).flatten(-2)
    return full


def oracle(kernels, grid):
    """Return both directions with the full kernel matrix."""

    def to_grid(v, x):
        return [(matrix(k, x, grid).mT @ v).view(len(v), *grid.size, -1) for k in kernels]

    def to_points(w, x):
        return [matrix(k, x, grid) @ f.flatten(1, -2) for k, f in zip(kernels, w, strict=True)]

    return to_grid, to_points


def package(kernels, grid, method, tolerance=1e-5, mask=None):
    def to_grid(v, x):
        return contraction(kernels, locate(x, grid, mask), method, tolerance).to_grid(v).unbind(1)

    def to_points(w, x):
        return contraction(kernels, locate(x, grid, mask), method, tolerance).to_points(torch.stack(w, 1)).unbind(2)

    return to_grid, to_points


def evaluate(forms, kernels, x, v, w, slope):
    """Return values and gradients of both directions, each as one vector in float64."""
    x, v, w = x.clone().requires_grad_(slope), v.clone().requires_grad_(), [f.clone().requires_grad_() for f in w]
    own = parameters(kernels)
    found = {}
    cases = (("to grid", forms[0](v, x), [v], w), ("to points", forms[1](w, x), w, [v, -v]))
    for name, outputs, features, cotangents in cases:
        inputs = [*features, *own, *([x] if slope else [])]
        cotangents = [c.detach().expand_as(y).to(y.dtype) for c, y in zip(cotangents, outputs, strict=True)]
        grads = torch.autograd.grad(outputs, inputs, cotangents)
        groups = {
            "values": outputs,
            "features": grads[: len(features)],
            "parameters": grads[len(features) : len(features) + len(own)],
            "coordinates": grads[len(features) + len(own) :],
        }
        for key, tensors in groups.items():
            if tensors:
                found[f"{key} {name}"] = torch.cat([t.detach().double().flatten() for t in tensors])
    return found


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def compare(found, expected, tolerance):
    assert found.keys() == expected.keys()
    errors = {key: relative(found[key], expected[key]) for key in expected}
    assert {key: e for key, e in errors.items() if not e <= tolerance} == {}


def draw(kind, grid, scale=1.0, points=60, clouds=1, seed=0):
    """Return a cloud of the given kind; with narrow kernels in 3-D, where tables grow, in a part of the box only."""
    g = torch.Generator().manual_seed(seed)
    shape, d = (clouds, points, grid.dim), grid.dim
    steps = torch.tensor([n - 1 for n in grid.size], dtype=torch.float64)
    few = d == 3 and scale >= 4
    few_cells = 2.0 if scale < 64 else 1.0
    first, last = (2 + 0 * steps, 2 + few_cells + 0 * steps) if few else (0 * steps, steps)  # in cells
    t = torch.rand(shape, generator=g, dtype=torch.float64)
    x = first + (last - first) * t
    if kind == "clustered":
        dense = torch.rand(clouds, points, 1, generator=g) < 0.9
        x = torch.where(dense, first + (last - first) * (0.37 + 0.003 * t), x)
    elif kind == "surface":
        z = torch.randn(shape, generator=g, dtype=torch.float64)
        x = first + (last - first) * (0.5 + 0.4 * z / z.norm(dim=-1, keepdim=True))
    elif kind == "lines":
        on = torch.rand(shape, generator=g) < 0.7
        on[..., 0] |= ~on.any(-1)
        x = torch.where(on, x.round(), x)
    elif kind == "corners":
        near = torch.rand(shape, generator=g, dtype=torch.float64) - 0.5
        corner = steps if few else steps * torch.randint(2, shape, generator=g)
        x = corner + torch.where(torch.rand(clouds, points, 1, generator=g) < 0.5, 0 * near, near)
    elif kind == "outside":
        x = steps - 0.9 + 1.8 * t if few else steps * (1.2 * t - 0.1)
    elif kind == "far":
        x[..., 0] = steps[0] * (4 + 0.1 * t[..., 0])
    elif kind == "inside and far":
        x[..., 0] = steps[0] * torch.where(t[..., 0] < 0.5, t[..., 0], 3 + t[..., 0])
    lower, upper = (torch.tensor(b, dtype=torch.float64) for b in (grid.lower, grid.upper))
    return lower + (upper - lower) * x / steps


def features(grid, points, batch=2, width=2, kernels=2, seed=1):
    g = torch.Generator().manual_seed(seed)
    v = torch.randn(batch, points, width, generator=g, dtype=torch.float64)
    return v, [torch.randn(batch, *grid.size, width, generator=g, dtype=torch.float64) for _ in range(kernels)]


KINDS = {
    1: ["uniform", "clustered", "lines", "corners", "outside", "far", "inside and far"],
    2: ["uniform", "clustered", "surface", "lines", "corners", "outside", "far", "inside and far"],
    3: ["uniform", "clustered", "surface", "lines", "corners", "outside", "far"],
}
CASES = [
    (d, kind, scale, slope)
    for d in (1, 2, 3)
    for kind in KINDS[d]
    for slope in (False, True)
    for scale in (SCALES if slope and kind in ("uniform", "clustered", "surface", "lines") else SCALES[::2])
    if slope or kind in ("uniform", "lines", "outside")
]


@pytest.mark.parametrize(("d", "kind", "scale", "slope"), CASES)
def test_local_meets_the_default_tolerance(d, kind, scale, slope):
    """F1, F4: values and all gradients, in both directions, in the relative Frobenius norm."""
    grid, kernels = GRIDS[d], branches(d, scale)
    x = draw(kind, grid, scale)
    v, w = features(grid, x.shape[1])
    found = evaluate(package(kernels, grid, "local"), kernels, x, v, w, slope)
    compare(found, evaluate(oracle(kernels, grid), kernels, x, v, w, slope), 1e-5)


TIGHT = [(d, "lines", s) for d in (1, 2, 3) for s in SCALES if d < 3 or s < 64]
TIGHT += [(d, "outside", s) for d in (1, 2, 3) for s in (1.0, 16.0)]


@pytest.mark.parametrize(("d", "kind", "scale"), TIGHT)
def test_local_meets_a_tight_tolerance(d, kind, scale):
    """F1: 1e-10 in float64."""
    grid, kernels = GRIDS[d], branches(d, scale)
    x = draw(kind, grid, max(scale, 4.0), points=40)
    v, w = features(grid, x.shape[1], batch=1, width=1)
    found = evaluate(package(kernels, grid, "local", 1e-11), kernels, x, v, w, True)
    compare(found, evaluate(oracle(kernels, grid), kernels, x, v, w, True), 1e-10)


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("scale", SCALES[::2])
@pytest.mark.parametrize("kind", ["lines", "outside"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_single_precision(d, kind, scale, slope):
    """F1: against the oracle in float64 with the same rounded inputs."""
    grid, kernels = GRIDS[d], branches(d, scale, torch.float32)
    exact = [copy.deepcopy(k).double() for k in kernels]
    x = draw(kind, grid, scale).float()
    v, w = features(grid, x.shape[1])
    v, w = v.float(), [f.float() for f in w]
    expected = evaluate(oracle(exact, grid), exact, x.double(), v.double(), [f.double() for f in w], slope)
    for method in ("dense", "local"):
        forms = package(kernels, grid, method)
        assert forms[0](v, x)[0].dtype == torch.float32
        compare(evaluate(forms, kernels, x, v, w, slope), expected, 1e-5)


@pytest.mark.parametrize("scale", SCALES[:4])
@pytest.mark.parametrize("kind", ["uniform", "lines", "outside"])
def test_uneven_grid(kind, scale):
    """F4: box widths and spacings that are no powers of two; points on lines take the grid's own coordinates."""
    kernels = branches(2, scale)
    x = draw("outside" if kind == "outside" else "uniform", ODD)
    if kind == "lines":
        g = torch.Generator().manual_seed(4)
        x = torch.stack([axis(ODD, j)[torch.randint(n, (1, 60), generator=g)] for j, n in enumerate(ODD.size)], -1)
    v, w = features(ODD, 60)
    for slope in (False, True):
        if kind == "lines" and slope:
            assert all(torch.equal(ODD.axis(j, x), axis(ODD, j)) for j in range(2))  # or the kink is elsewhere
        found = evaluate(package(kernels, ODD, "local"), kernels, x, v, w, slope)
        compare(found, evaluate(oracle(kernels, ODD), kernels, x, v, w, slope), 1e-5)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_gradcheck_of_the_local_form(d):
    """F1: the gradients are those of the interpolant itself, points on lines aside."""
    grid = Grid((3, 2, 2)[:d], (0.0,) * d, (1.0,) * d)
    kernels = branches(d, 1.0)[:1]
    g = torch.Generator().manual_seed(3)
    x = torch.rand(1, 2, d, generator=g, dtype=torch.float64).requires_grad_()
    v, w = features(grid, 2, batch=1, width=1, kernels=1)
    inputs = [x, v.requires_grad_(), w[0].requires_grad_()]

    def both(x, v, w):
        form = contraction(kernels, locate(x, grid), "local", 1e-3)
        return form.to_grid(v), form.to_points(w[:, None])

    assert torch.autograd.gradcheck(both, inputs)


def by_loops(value, x, grid, v, w):
    """Return both sums term by term, for a kernel given as a function of two coordinate lists."""
    places = list(product(*(axis(grid, j).tolist() for j in range(grid.dim))))
    up = torch.zeros(len(v), len(places), v.shape[2], dtype=torch.float64)
    down = torch.zeros_like(v)
    for b in range(len(v)):
        for i, point in enumerate(x[b % len(x)].tolist()):
            for m, place in enumerate(places):
                k = value(point, place)
                up[b, m] += k * v[b, i]
                down[b, i] += k * w[b].flatten(0, -2)[m]
    return up.view(len(v), *grid.size, -1), down


@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_dense_equals_explicit_loops(d, clouds):
    """F1: one cloud for the batch, and one per sample; the kernel with axes and the window without."""
    grid = Grid((3, 2, 4)[:d], (0.0, -1.0, 2.0)[:d], (1.0, 0.5, 2.5)[:d])
    kernels = [*branches(d, 2.0), LinearWindow(radius=0.6)]
    x = draw("outside", grid, points=5, clouds=clouds)
    v, w = features(grid, 5, kernels=3)
    to_grid, to_points = package(kernels, grid, "dense")
    up, down = to_grid(v, x), to_points(w, x)

    def base(kernel):
        c, beta, gamma = (p.tolist() for p in (kernel.c, kernel.beta, kernel.gamma))

        def value(a, b):
            total = 1.0
            for j, (p, q) in enumerate(zip(a, b, strict=True)):
                total *= c[j] * (math.exp(-((beta[j] * (p - q)) ** 2)) + math.exp(-gamma[j] * abs(p - q)))
            return total

        return value

    values = [base(kernels[0]), base(kernels[1]), lambda a, b: max(1 - math.dist(a, b) / 0.6, 0)]
    for q, value in enumerate(values):
        expected = by_loops(value, x, grid, v, w[q])
        torch.testing.assert_close(up[q].detach(), expected[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(down[q].detach(), expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("chunk", [1, 500, 1 << 40])
def test_any_chunk_gives_the_same(chunk, clouds):
    """F7: values and all gradients."""
    grid, kernels = ODD, branches(2, 2.0)
    x = draw("outside", grid, points=12, clouds=clouds)
    v, w = features(grid, 12)

    def to_grid(v, x):
        return Dense(kernels, locate(x, grid), chunk).to_grid(v).unbind(1)

    def to_points(w, x):
        return Dense(kernels, locate(x, grid), chunk).to_points(torch.stack(w, 1)).unbind(2)

    found = evaluate((to_grid, to_points), kernels, x, v, w, True)
    compare(found, evaluate(oracle(kernels, grid), kernels, x, v, w, True), 1e-12)
    rounded = branches(2, 2.0, torch.float32)
    x, v = x.float(), v.float()
    whole, parts = (Dense(rounded, locate(x, grid), c).to_grid(v) for c in (1 << 40, chunk))
    assert relative(parts.detach(), whole.detach()) < 1e-6


@pytest.mark.parametrize("clouds", [1, 2])
@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("method", ["dense", "local"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_one_sum_over_all_kernels_at_the_points(d, method, slope, clouds):
    """Kernels of unlike widths, which need different nodes: their sum and its gradients are those of the parts."""
    grid, kernels = GRIDS[d], [*branches(d, 1.0), *branches(d, 6.0)]
    x = torch.cat([draw("uniform", grid, points=30), draw("clustered", grid, points=30)])[:clouds]
    v, w = features(grid, 30, kernels=len(kernels))
    x, w = x.requires_grad_(slope), [g.requires_grad_() for g in w]
    found = []
    for summed in (True, False):
        branches_at_points = contraction(kernels, locate(x, grid), method).to_points(torch.stack(w, 1), summed)
        assert branches_at_points.shape[2] == (1 if summed else len(kernels))
        y = branches_at_points.sum(2)
        grads = torch.autograd.grad(y, [*w, *parameters(kernels), *([x] if slope else [])], v)
        found.append([y.detach(), *grads])
    for a, b in zip(*found, strict=True):
        assert relative(a, b) < (1e-5 if method == "local" else 1e-12)


@pytest.mark.parametrize("method", ["dense", "local"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_shared_and_own_clouds(d, method):
    """F6: a batch of three with one cloud, or with one each, equals the samples alone."""
    grid, kernels = GRIDS[d], branches(d, 1.0)
    for clouds in (1, 3):
        x = draw("lines", grid, points=30, clouds=clouds)
        v, w = features(grid, 30, batch=3)
        forms = package(kernels, grid, method)
        up, down = forms[0](v, x.clone().requires_grad_()), forms[1](w, x.clone().requires_grad_())
        for b in range(3):
            own = x[b % clouds : b % clouds + 1].clone().requires_grad_()
            for q in range(2):
                alone = forms[0](v[b : b + 1], own)[q]
                assert relative(up[q][b].detach(), alone[0].detach()) < 1e-12
                alone = forms[1]([f[b : b + 1] for f in w], own)[q]
                assert relative(down[q][b].detach(), alone[0].detach()) < 1e-12


def test_own_clouds_meet_the_tolerance():
    """F1: gradients as well, with different clouds in a batch."""
    grid, kernels = GRIDS[2], branches(2, 4.0)
    x = torch.cat([draw(kind, grid) for kind in ("uniform", "clustered", "lines", "surface")])
    v, w = features(grid, 60, batch=4)
    found = evaluate(package(kernels, grid, "local"), kernels, x, v, w, True)
    compare(found, evaluate(oracle(kernels, grid), kernels, x, v, w, True), 1e-5)


def padded(grid, sizes, method, slope):
    """Return results and gradients of a padded batch, and of its samples alone."""
    kernels = branches(grid.dim, 2.0)
    most = max(sizes)
    x = draw("lines", grid, points=most, clouds=len(sizes))
    v, w = features(grid, most, batch=len(sizes))
    mask = torch.arange(most) < torch.tensor(sizes)[:, None]
    x[~mask] = 1e9
    v[~mask] = 1e3
    x.requires_grad_(slope)
    v.requires_grad_()
    for f in w:
        f.requires_grad_()
    inputs = [v, *w, *parameters(kernels), *([x] if slope else [])]
    g = torch.Generator().manual_seed(9)
    dy = [torch.randn(f.shape, generator=g, dtype=torch.float64) for f in w]
    dx = torch.randn(v.shape, generator=g, dtype=torch.float64) * mask[..., None]

    forms = package(kernels, grid, method, mask=mask)
    up, down = forms[0](v, x), forms[1](w, x)
    assert all(y.isfinite().all() for y in down)
    down = [y * mask[..., None] for y in down]
    found = [*up, *down, *torch.autograd.grad([*up, *down], inputs, [*dy, dx, dx])]

    forms = package(kernels, grid, method)
    ups, downs = [[] for _ in w], [[] for _ in w]
    for b, n in enumerate(sizes):
        own = x[b : b + 1, :n]
        for q, y in enumerate(forms[0](v[b : b + 1, :n], own)):
            ups[q].append(y)
        for q, y in enumerate(forms[1]([f[b : b + 1] for f in w], own)):
            downs[q].append(nn.functional.pad(y, (0, 0, 0, most - n)))
    up, down = ([torch.cat(parts) for parts in side] for side in (ups, downs))
    expected = [*up, *down, *torch.autograd.grad([*up, *down], inputs, [*dy, dx, dx])]
    return found, expected


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("method", ["dense", "local"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_masked_points_count_for_nothing(d, method, slope):
    """F6: clouds of different sizes in a batch equal the clouds alone, whatever the padding contains."""
    for f, e in zip(*padded(GRIDS[d], (7, 20, 1), method, slope), strict=True):
        torch.testing.assert_close(f.detach(), e.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", ["dense", "local"])
def test_empty_sample_in_a_batch(method):
    """F8: a sample with every point masked gives zero."""
    grid, kernels = GRIDS[2], branches(2, 1.0)
    x, mask = draw("uniform", grid, points=5, clouds=2), torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    v, _ = features(grid, 5)
    up = package(kernels, grid, method, mask=mask)[0](v, x)
    for q, y in enumerate(up):
        assert relative(y[0].detach(), oracle(kernels, grid)[0](v[:1], x[:1])[q][0].detach()) < 1e-5
        assert (y[1] == 0).all()


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("size", [(1,), (1, 9), (5, 1, 3)])
def test_axis_of_size_one(size, slope):
    """F8."""
    d = len(size)
    grid, kernels = Grid(size, (-1.0,) * d, (1.0,) * d), branches(d, 1.5)
    g = torch.Generator().manual_seed(2)
    x = 2.4 * torch.rand(1, 50, d, generator=g, dtype=torch.float64) - 1.2
    x[0, :5] = 0  # on the single line
    v, w = features(grid, 50)
    expected = evaluate(oracle(kernels, grid), kernels, x, v, w, slope)
    for method in ("dense", "local"):
        compare(evaluate(package(kernels, grid, method), kernels, x, v, w, slope), expected, 1e-5)


@pytest.mark.parametrize("place", ["inside", "line", "corner", "outside"])
@pytest.mark.parametrize("points", [1, 50])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_one_point_and_equal_points(d, points, place):
    """F8: the tolerance on coordinate gradients holds on average over a cell, at one place roughly."""
    grid, kernels = GRIDS[d], branches(d, 4.0)
    t = {"inside": 0.37, "line": 0.25, "corner": 1.0, "outside": 1.3}[place]
    lower, upper = (torch.tensor(b, dtype=torch.float64) for b in (grid.lower, grid.upper))
    x = (lower + t * (upper - lower)).expand(1, points, d).clone()
    v, w = features(grid, points)
    found = evaluate(package(kernels, grid, "local"), kernels, x, v, w, True)
    expected = evaluate(oracle(kernels, grid), kernels, x, v, w, True)
    rough = [{k: r.pop(k) for k in list(r) if "coordinates" in k} for r in (found, expected)]
    compare(found, expected, 1e-5)
    compare(rough[0], rough[1], 1e-4)


@pytest.mark.parametrize("method", ["dense", "local"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_directions_are_adjoint(d, method):
    """<K v, w> = <v, K^T w>, to rounding although the local form approximates K."""
    grid, kernels = GRIDS[d], branches(d, 2.0)
    x = draw("outside", grid)
    v, w = features(grid, 60)
    to_grid, to_points = package(kernels, grid, method, 1e-2)
    for up, down, f in zip(to_grid(v, x), to_points(w, x), w, strict=True):
        left, right = (up.detach() * f).sum(), (v * down.detach()).sum()
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("method", ["dense", "local"])
def test_permuted_points(method):
    """F6: sums over points stay, values at points follow."""
    grid, kernels = GRIDS[2], branches(2, 4.0)
    x = draw("lines", grid)
    v, w = features(grid, 60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    to_grid, to_points = package(kernels, grid, method)
    for a, b in zip(to_grid(v, x), to_grid(v[:, order], x[:, order]), strict=True):
        assert relative(b.detach(), a.detach()) < 1e-12
    for a, b in zip(to_points(w, x), to_points(w, x[:, order]), strict=True):
        assert relative(b.detach(), a[:, order].detach()) < 1e-12


@pytest.mark.parametrize("method", ["dense", "local"])
def test_same_without_gradients(method):
    grid, kernels = GRIDS[2], branches(2, 4.0)
    x = draw("uniform", grid)
    v, w = features(grid, 60)
    forms = package(kernels, grid, method)
    with torch.inference_mode():
        quiet = [*forms[0](v, x), *forms[1](w, x)]
    for a, b in zip([*forms[0](v, x), *forms[1](w, x)], quiet, strict=True):
        assert relative(b, a.detach()) < 1e-14


def test_auto_takes_the_cheaper_form():
    small, large = Grid((5, 5), (0.0, 0.0), (1.0, 1.0)), Grid((32, 32), (0.0, 0.0), (1.0, 1.0))
    kernels = branches(2, 1.0)
    few, many = draw("uniform", small, points=5), draw("uniform", large, points=20000)
    assert isinstance(contraction(kernels, locate(few, small)), Dense)
    assert isinstance(contraction(kernels, locate(many, large)), Local)
    assert isinstance(contraction(kernels, locate(few, small), "local"), Local)
    assert isinstance(contraction(kernels, locate(many, large), "dense"), Dense)


def test_kernels_that_are_no_products_are_dense():
    grid = GRIDS[2]
    cloud = locate(draw("uniform", grid, points=20000), grid)
    for kernels in ([LinearWindow()], [*branches(2, 1.0), LinearWindow()]):
        assert isinstance(contraction(kernels, cloud), Dense)
        with pytest.raises(ValueError, match="no product"):
            contraction(kernels, cloud, "local")


def test_kernels_too_narrow_for_the_grid_are_dense():
    grid = GRIDS[2]
    cloud = locate(draw("uniform", grid, points=20000), grid)
    assert isinstance(contraction(branches(2, 1e4), cloud), Dense)
    with pytest.raises(ValueError, match="too narrow"):
        contraction(branches(2, 1e4), cloud, "local")


def test_unknown_method_is_refused():
    grid = GRIDS[1]
    with pytest.raises(ValueError, match="auto, dense, local; found 'sparse'"):
        contraction(branches(1, 1.0), locate(draw("uniform", grid), grid), "sparse")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_very_far_away(dtype):
    """F4: served by the dense form, with finite gradients; the local form says why it cannot."""
    grid, kernels = GRIDS[2], branches(2, 1.0, dtype)
    x = draw("uniform", grid, points=3000)
    x[0, 0] = 1e9
    x[0, 1, 1] = -1e9
    x = x.to(dtype)
    v, w = features(grid, 3000)
    v, w = v.to(dtype), [f.to(dtype) for f in w]
    cloud = locate(x, grid)
    assert isinstance(contraction(kernels, cloud), Dense)
    with pytest.raises(ValueError, match="too far outside"):
        contraction(kernels, cloud, "local")
    found = evaluate(package(kernels, grid, "auto"), kernels, x, v, w, True)
    assert all(y.isfinite().all() for y in found.values())
    exact = [copy.deepcopy(k).double() for k in kernels]
    inputs = x.double(), v.double(), [f.double() for f in w]
    compare(found, evaluate(oracle(exact, grid), exact, *inputs, True), 1e-5)


def stored(forms, x, v, w):
    """Return how many numbers each tensor kept for the backward pass holds in memory, and run that pass."""
    sizes = []

    def pack(t):
        sizes.append(t.untyped_storage().nbytes() // t.element_size())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = [*forms[0](v, x), *forms[1](w, x)]
    torch.stack([y.square().sum() for y in outputs]).sum().backward()
    return sizes


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("method", ["dense", "local"])
def test_nothing_of_size_points_times_grid_is_stored(method, slope):
    grid, kernels = Grid((32, 32), (0.0, 0.0), (1.0, 1.0)), branches(2, 1.0)
    x = draw("uniform", grid, points=4000).requires_grad_(slope)
    v, w = features(grid, 4000)
    inputs = [v.requires_grad_(), *(f.requires_grad_() for f in w)]
    product = x.shape[1] * grid.count
    assert max(stored(oracle(kernels, grid), x, v, w)) >= product  # the measurement can see it
    sizes = stored(package(kernels, grid, method), x, v, w)
    assert max(sizes, default=0) < product / 4
    assert all(f.grad is not None and f.grad.isfinite().all() for f in inputs)


class Counting(BaseKernel):
    """A kernel that remembers the largest matrix it was asked for."""

    largest = 0

    def matrix(self, points, grid):
        result = super().matrix(points, grid)
        self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("clouds", [1, 2])
def test_dense_forms_at_most_one_chunk(clouds):
    """Forwards and backwards."""
    grid, kernel = ODD, Counting(2).double()
    x = draw("uniform", grid, points=50, clouds=clouds).requires_grad_()
    v, w = features(grid, 50, kernels=1)
    form = Dense([kernel], locate(x, grid), 1000)
    outputs = [form.to_grid(v), form.to_points(torch.stack(w, 1))]
    torch.stack([y.square().sum() for y in outputs]).sum().backward()
    assert 500 < kernel.largest <= 1000


def hats(x, grid):
    """Return the values at the points of the hat functions on all lines, the ones beyond the box included."""
    weights = torch.ones(x.shape[0], 1, dtype=torch.float64)
    for j in range(grid.dim):
        width = (grid.upper[j] - grid.lower[j]) / (grid.size[j] - 1)
        lines = grid.lower[j] + width * torch.arange(-grid.size[j], 2 * grid.size[j], dtype=torch.float64)
        hat = (1 - (x[:, j, None] - lines).abs() / width).clamp(min=0)
        weights = (weights[:, :, None] * hat[:, None, :]).flatten(1)
    return weights


@pytest.mark.parametrize("kind", ["clustered", "lines", "outside"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_density_weights_equal_their_formula(d, kind):
    grid = Grid((6, 4, 5)[:d], (0.0, -1.0, 2.0)[:d], (1.0, 1.0, 4.0)[:d])
    x = draw(kind, grid, clouds=2)
    mask = torch.ones(2, 60, dtype=torch.bool)
    mask[1, 40:] = False
    found = density_weights(locate(x, grid, mask))
    assert (found[1, 40:] == 0).all()
    for b, n in ((0, 60), (1, 40)):
        weights = hats(x[b, :n], grid)
        torch.testing.assert_close(found[b, :n], 1 / (weights @ weights.sum(0)), rtol=1e-11, atol=0)


@pytest.mark.parametrize("kind", ["uniform", "lines"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_density_weights_have_the_gradients_of_their_formula(d, kind):
    """On a grid line, a kink of the hats, it is the mean of both sides."""
    grid = Grid((5, 3, 9)[:d], (0.0, -1.0, 2.0)[:d], (1.0, 1.0, 4.0)[:d])
    x = draw(kind, grid, clouds=2, points=20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1, 15:] = False
    factors = torch.linspace(1, 2, 20, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    (density_weights(locate(leaf, grid, mask)) * factors).sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad[1, 15:] == 0).all()

    def formula(y, n):
        weights = hats(y, grid)
        return (factors[:n] / (weights @ weights.sum(0))).sum()

    step = 1e-6
    for b, n in ((0, 20), (1, 15)):
        expected = torch.zeros(n, d, dtype=torch.float64)
        for i, j in product(range(n), range(d)):
            up, down = x[b, :n].clone(), x[b, :n].clone()
            up[i, j] += step
            down[i, j] -= step
            expected[i, j] = (formula(up, n) - formula(down, n)) / (2 * step)
        torch.testing.assert_close(leaf.grad[b, :n], expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("d", [1, 2])
def test_density_weights_integrate(d):
    """Half of the points in a hundredth of the box hardly change a weighted mean, but spoil the plain one."""
    grid = Grid((17,) * d, (0.0,) * d, (1.0,) * d)
    g = torch.Generator().manual_seed(0)
    side = 1000 if d == 1 else 40
    count = side**d
    lattice = torch.stack(torch.meshgrid(*[torch.arange(side, dtype=torch.float64)] * d, indexing="ij"), -1).view(-1, d)
    spread = (lattice + torch.rand(count, d, generator=g, dtype=torch.float64)) / side
    cluster = 0.2 + 0.1 * torch.rand(count, d, generator=g, dtype=torch.float64)
    x = torch.cat([spread, cluster])
    f = (1 + torch.cos(math.pi * x)).prod(-1)  # its integral is 1
    w = density_weights(locate(x[None], grid))[0]
    error = abs(float((w * f).sum() / w.sum()) - 1)
    plain = abs(float(f.mean()) - 1)
    assert plain > 0.3
    assert error < plain / 10


def test_density_weights_need_cells():
    x = draw("uniform", GRIDS[2])
    x[0, 0] = 1e9
    with pytest.raises(ValueError, match="too far outside"):
        density_weights(locate(x, GRIDS[2]))


def test_too_many_nodes_are_refused_or_avoided(monkeypatch):
    """What the local form would keep is bounded; auto takes the dense form instead."""
    monkeypatch.setattr(sys.modules["ikno.linalg.contraction"], "MAX_NODES", 1000)
    cloud = locate(draw("uniform", GRIDS[2], points=5000), GRIDS[2])
    kernels = branches(2, 1.0)
    assert isinstance(contraction(kernels, cloud), Dense)
    with pytest.raises(ValueError, match=r"too narrow for the grid.*dense"):
        contraction(kernels, cloud, "local")


@pytest.mark.parametrize("clouds", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("floats", [1, 400, 5000])
def test_any_number_of_columns_at_a_time_gives_the_same(monkeypatch, floats, d, slope, masked, clouds):
    """F7: one column, some, or everything at once; a masked sample too."""
    grid = Grid((5, 4, 3)[:d], (0.0, -1.0, 2.0)[:d], (1.0, 0.5, 2.5)[:d])
    kernels = [*branches(d, 0.5), *branches(d, 3.0)]
    x = draw("outside", grid, points=25, clouds=clouds)
    mask = None
    if masked:
        mask = torch.rand(clouds, 25, generator=torch.Generator().manual_seed(2)) < 0.6
        mask[-1] = False
    v, w = features(grid, 25, batch=3, width=20, kernels=4)
    forms = package(kernels, grid, "local", mask=mask)

    def evaluated():
        y = x.clone().requires_grad_(slope)
        up, down = forms[0](v.requires_grad_(), y), forms[1]([f.requires_grad_() for f in w], y)
        inputs = [v, *w, *parameters(kernels), *([y] if slope else [])]
        total = torch.stack([(o * torch.sin(torch.arange(o.numel()).view(o.shape))).sum() for o in (*up, *down)]).sum()
        return [*up, *down, *torch.autograd.grad(total, inputs, allow_unused=True)]

    whole = evaluated()
    monkeypatch.setattr(sys.modules["ikno.linalg.contraction"], "AT_A_TIME", floats)
    monkeypatch.setattr(sys.modules["ikno.linalg.contraction"], "KEPT", floats)
    for a, b in zip(whole, evaluated(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)
