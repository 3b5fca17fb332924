import math

import pytest
import torch

from ikno.linalg.interpolation import lagrange, lobatto
from ikno.models.kernels import nodes_needed

COUNTS = [2, 3, 4, 7, 12, 25, 40]


def product_form(t, nodes):
    """Return the Lagrange polynomials and their derivatives from the textbook products."""
    m = len(nodes)
    values = torch.ones(len(t), m, dtype=torch.float64)
    slopes = torch.zeros(len(t), m, dtype=torch.float64)
    for i in range(m):
        for k in range(m):
            if k != i:
                values[:, i] *= (t - nodes[k]) / (nodes[i] - nodes[k])
        for k in range(m):
            if k != i:
                term = torch.ones_like(t) / (nodes[i] - nodes[k])
                for n in range(m):
                    if n not in (i, k):
                        term = term * (t - nodes[n]) / (nodes[i] - nodes[n])
                slopes[:, i] += term
    return values, slopes


def some_points(count=50):
    """Return random points of [0, 1] and both ends."""
    t = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([t, torch.tensor([0.0, 1.0], dtype=torch.float64)])


@pytest.mark.parametrize("count", COUNTS)
def test_nodes(count):
    """Both ends, symmetric, increasing, and the extrema of a Chebyshev polynomial."""
    nodes = torch.tensor(lobatto(count), dtype=torch.float64)
    assert nodes[0] == 0
    assert nodes[-1] == 1
    assert (nodes.diff() > 0).all()
    torch.testing.assert_close(nodes, 1 - nodes.flip(0), rtol=0, atol=1e-15)
    extrema = torch.cos((count - 1) * torch.acos((2 * nodes - 1).clamp(-1, 1)))
    torch.testing.assert_close(extrema.abs(), torch.ones_like(extrema), rtol=0, atol=1e-6)


def test_one_node_is_too_few():
    with pytest.raises(ValueError, match="two ends"):
        lobatto(1)


@pytest.mark.parametrize("count", COUNTS)
def test_identity_at_the_nodes(count):
    found = lagrange(torch.tensor(lobatto(count), dtype=torch.float64), count)
    torch.testing.assert_close(found, torch.eye(count, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_rows_sum_to_one(count):
    found = lagrange(some_points(), count)
    assert found.shape == (52, count)
    torch.testing.assert_close(found.sum(-1), torch.ones(52, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_polynomials_are_reproduced(count):
    """Every degree below the number of nodes, and no higher one."""
    t, nodes = some_points(), torch.tensor(lobatto(count), dtype=torch.float64)
    basis = lagrange(t, count)
    for degree in range(count):
        torch.testing.assert_close(basis @ nodes**degree, t**degree, rtol=0, atol=1e-12)
    if count < 8:
        assert (basis @ nodes**count - t**count).abs().max() > 1e-6


@pytest.mark.parametrize("count", COUNTS[:-1])
def test_values_and_slopes_equal_the_product_form(count):
    """At random points, at all nodes and at both ends."""
    nodes = torch.tensor(lobatto(count), dtype=torch.float64)
    t = torch.cat([some_points(20), nodes]).requires_grad_()
    values = lagrange(t, count)
    slopes = torch.stack([torch.autograd.grad(values[:, i].sum(), t, retain_graph=True)[0] for i in range(count)], 1)
    expected, expected_slopes = product_form(t.detach(), lobatto(count))
    torch.testing.assert_close(values.detach(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-10, atol=1e-10 * count**2)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_gradcheck(count):
    t = torch.tensor([[0.0, 0.25, 1.0], [0.5, 0.9, lobatto(count)[1]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: lagrange(x, count), (t,))


def test_single_precision():
    t = some_points()
    found = lagrange(t.float(), 8)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), lagrange(t, 8), rtol=0, atol=2e-6)


PROFILES = {
    "gaussian": (lambda s, u: torch.exp(-((s * u) ** 2)), lambda s, u: -2 * s**2 * u * torch.exp(-((s * u) ** 2))),
    "laplace": (lambda s, u: torch.exp(-s * u), lambda s, u: -s * torch.exp(-s * u)),
}


def brute_errors(shape, scale, count):
    """Return the errors of f and u f'(u), and of f'(u) at the worst position in a cell, over all cells in reach.

    Root mean squares, each relative to that of the quantity itself.
    """
    f, df = PROFILES[shape]
    cells = torch.arange(math.ceil(4 / scale) + 1, dtype=torch.float64)
    t = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    nodes = torch.tensor(lobatto(count), dtype=torch.float64)
    # Barycentric form with the known weights of these nodes.
    weights = (-1.0) ** torch.arange(count, dtype=torch.float64)
    weights[0], weights[-1] = weights[0] / 2, weights[-1] / 2
    gaps = t[:, None] - nodes
    terms = weights / gaps
    basis = terms / terms.sum(1, keepdim=True)
    common = terms.sum(1, keepdim=True)
    slopes = basis * ((weights / gaps**2).sum(1, keepdim=True) / common - 1 / gaps)
    u, v = t[:, None] + cells, nodes[:, None] + cells
    exact = f(scale, u), u * df(scale, u), df(scale, u)
    found = basis @ f(scale, v), basis @ (v * df(scale, v)), slopes @ f(scale, v)
    rows = [(a - b).square().mean(1) / b.square().mean() for a, b in zip(found, exact, strict=True)]
    return [math.sqrt(e) for e in (rows[0].mean(), rows[1].mean(), rows[2].max())]


def asked(shape, scale, tolerance, slope):
    return nodes_needed(lambda u: PROFILES[shape][0](scale, u), 4 / scale, tolerance, tolerance, slope)


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("shape", ["gaussian", "laplace"])
def test_node_counts_keep_their_promise(shape, tolerance, slope):
    """For scales per cell from .02 to 6; one node less would not do."""
    for scale in torch.logspace(math.log10(0.02), math.log10(6), 9, dtype=torch.float64).tolist():
        count = asked(shape, scale, tolerance, slope)
        assert count is not None
        used = slice(None) if slope else slice(2)
        assert max(brute_errors(shape, scale, count)[used]) <= 1.02 * tolerance
        if count > 2:
            assert max(brute_errors(shape, scale, count - 1)[used]) > 0.6 * tolerance


@pytest.mark.parametrize("shape", ["gaussian", "laplace"])
@pytest.mark.parametrize(("scale", "tolerance"), [(1e3, 1e-5), (1e6, 1e-5), (1.0, 1e-19)])
def test_hopeless_cases_have_no_count(shape, scale, tolerance):
    assert asked(shape, scale, tolerance, False) is None
