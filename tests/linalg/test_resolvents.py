import warnings

import pytest
import torch
from torch import nn

from ikno.linalg import Grid, dense, tensor_product, truncated, vanilla
from ikno.models.kernels import BaseKernel

SIZES = {1: (6,), 2: (4, 3), 3: (2, 4, 3)}
SMALL = {1: (4,), 2: (3, 2), 3: (2, 3, 2)}
ALPHAS = [-1.0, -0.1, 0.01]
KINDS = ["vanilla", "tensor_product", "dense", "truncated"]


def resolvent(kind, factors, alpha, order=3):
    if kind == "truncated":
        return truncated(factors, alpha, order)
    return {"vanilla": vanilla, "tensor_product": tensor_product, "dense": dense}[kind](factors, alpha)


def kron(factors):
    matrix = factors[0]
    for k in factors[1:]:
        matrix = torch.kron(matrix, k)
    return matrix


def oracle(kind, factors, alpha, v, order=3):
    """Return the resolvent of the full matrix applied with torch.linalg.solve, or the sum of its powers."""
    d = len(factors)
    flat = v.flatten(-d - 1, -2)
    if kind == "truncated":
        step, term = alpha * kron(factors), flat
        total = flat
        for _ in range(order):
            term = step @ term
            total = total + term
        return total.reshape(v.shape)
    if kind == "tensor_product":
        matrix = kron([torch.eye(len(k), dtype=k.dtype) - alpha * k for k in factors])
    else:
        matrix = torch.eye(flat.shape[-2], dtype=v.dtype) - alpha * kron(factors)
    return torch.linalg.solve(matrix, flat).reshape(v.shape)


def gram(size, c, beta, gamma):
    """Return the kernel formula on ``size`` points of [0, 1]."""
    y = torch.linspace(0, 1, size, dtype=torch.float64)
    u = y[:, None] - y
    return c * (torch.exp(-((beta * u) ** 2)) + torch.exp(-gamma * u.abs()))


def grams(sizes, c, beta, gamma):
    return [gram(n, c[j], beta[j], gamma[j]) for j, n in enumerate(sizes)]


def draw(d, scale=None, batch=(2,), width=2, seed=0, sizes=None):
    """Return Gram matrices with random parameters, or with one scale for all, and a tensor on their grid."""
    g = torch.Generator().manual_seed(seed)

    def rand(low, high):
        return low + (high - low) * torch.rand(d, generator=g, dtype=torch.float64)

    c, beta, gamma = rand(0.5, 1.5), rand(0.5, 4), rand(0.5, 4)
    if scale is not None:
        beta, gamma = torch.full_like(c, scale), torch.full_like(c, scale)
    sizes = sizes or SIZES[d]
    return grams(sizes, c, beta, gamma), torch.randn(*batch, *sizes, width, generator=g, dtype=torch.float64)


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_equals_dense_form(kind, d, alpha, batch):
    """F1: with alpha as a number and as a tensor."""
    factors, v = draw(d, batch=batch)
    expected = oracle(kind, factors, alpha, v)
    assert relative(resolvent(kind, factors, alpha)(v), expected) < 1e-10
    found = resolvent(kind, factors, torch.tensor(alpha, dtype=torch.float64))(v)
    assert found.shape == v.shape
    assert relative(found, expected) < 1e-10


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_truncated_equals_sum_of_powers(d, alpha, order):
    """F1."""
    factors, v = draw(d)
    assert relative(truncated(factors, alpha, order)(v), oracle("truncated", factors, alpha, v, order)) < 1e-10


def test_truncated_refuses_negative_order():
    factors, _ = draw(1)
    with pytest.raises(ValueError, match="order"):
        truncated(factors, -1.0, -1)


@pytest.mark.parametrize("scale", [300.0, 1e-3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_scales_equal_dense_form(kind, d, scale):
    """F2."""
    factors, v = draw(d, scale)
    for alpha in (-1.0, 1e-3):
        assert relative(resolvent(kind, factors, alpha)(v), oracle(kind, factors, alpha, v)) < 1e-10


@pytest.mark.parametrize("d", [1, 2, 3])
def test_linear_operator_agrees(d):
    """F1: an independent implementation of (c K_1 (x) ... (x) K_d + I)^-1 v."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; the package still uses it
        from linear_operator.operators import DenseLinearOperator, KroneckerProductLinearOperator

        factors, v = draw(d, batch=())
        for alpha in (-1.0, -0.05):
            scaled = [-alpha * factors[0], *factors[1:]]
            operator = KroneckerProductLinearOperator(*(DenseLinearOperator(k) for k in scaled))
            shifted = operator.add_diagonal(torch.ones((), dtype=torch.float64))
            expected = shifted.solve(v.flatten(0, -2)).reshape(v.shape)
            assert relative(vanilla(factors, alpha)(v), expected) < 1e-10


@pytest.mark.parametrize("d", [1, 2, 3])
def test_vanilla_and_tensor_product_meet_in_one_dimension_only(d):
    factors, v = draw(d)
    difference = relative(vanilla(factors, -1.0)(v), tensor_product(factors, -1.0)(v))
    assert difference < 1e-12 if d == 1 else difference > 0.05


@pytest.mark.parametrize(("alpha", "scale"), [(0.01, None), (-1.0, 300.0), (-1.0, 1e-3)])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_features_factors_and_alpha(kind, d, alpha, scale):
    """F1, F2: every factor is a leaf, so each of its entries is moved alone."""
    factors, v = draw(d, scale, batch=(), width=1, sizes=SMALL[d])
    inputs = [x.requires_grad_() for x in (v, torch.tensor(alpha, dtype=torch.float64), *factors)]
    assert torch.autograd.gradcheck(lambda v, a, *f: resolvent(kind, f, a)(v), inputs, fast_mode=d == 3)


@pytest.mark.parametrize("scale", [2.0, 300.0, 1e-3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_kernel_parameters(kind, d, scale):
    """F1, F2: through the Gram matrices down to amplitudes and scales."""
    g = torch.Generator().manual_seed(d)
    _, v = draw(d, batch=(), width=1, sizes=SMALL[d])
    c = 0.5 + torch.rand(d, generator=g, dtype=torch.float64)
    beta, gamma = (scale * (0.9 + 0.2 * torch.rand(d, generator=g, dtype=torch.float64)) for _ in range(2))
    alpha = torch.tensor(-0.7, dtype=torch.float64)
    # Steps well below the smallest scale; the values are exact enough for them.
    inputs = [x.requires_grad_() for x in (c, beta, gamma, alpha)]
    assert torch.autograd.gradcheck(
        lambda c, b, g, a: resolvent(kind, grams(SMALL[d], c, b, g), a)(v),
        inputs,
        eps=1e-7,
        atol=1e-5,
        fast_mode=d == 3,
    )


def gradients(outputs, inputs, cotangent):
    return torch.autograd.grad(outputs, inputs, cotangent)


@pytest.mark.parametrize("scale", [None, 300.0, 1e-3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_the_dense_form(kind, d, scale):
    """F2: finite and equal to autograd through torch.linalg.solve; ``vanilla`` reads the symmetric part of a factor."""
    factors, v = draw(d, scale)
    alpha = torch.tensor(-0.8, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (v, alpha, *factors)]
    dy = torch.randn(v.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = gradients(resolvent(kind, factors, alpha)(v), inputs, dy)
    parts = [(k + k.mT) / 2 for k in factors] if kind == "vanilla" else factors
    expected = gradients(oracle(kind, parts, alpha, v), inputs, dy)
    for f, e in zip(found, expected, strict=True):
        assert f.isfinite().all()
        assert relative(f, e) < 1e-9


@pytest.mark.parametrize("scale", [1.0, 300.0, 1e-3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_base_kernel_equal_those_of_the_dense_form(kind, d, scale):
    """F2: the package's kernel and resolvent together against the typed-out formula and a dense solve."""
    kernel = BaseKernel(d, alpha=-0.6, scale_l1=scale, scale_l2=scale, amplitude=0.9).double()
    grid = Grid(SIZES[d], (0.0,) * d, (1.0,) * d)
    raw = [kernel.raw_c, kernel.raw_beta, kernel.raw_gamma, kernel.raw_alpha]
    _, v = draw(d)
    found = resolvent(kind, kernel.factors(grid), kernel.alpha)(v)
    c, beta, gamma, size = (nn.functional.softplus(p) for p in raw)
    expected = oracle(kind, grams(SIZES[d], c, beta, gamma), -size, v)
    assert relative(found.detach(), expected.detach()) < 1e-10
    dy = torch.randn(v.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    for f, e in zip(gradients(found, raw, dy), gradients(expected, raw, dy), strict=True):
        assert f.isfinite().all()
        # With scales of 300 the derivative in a scale is zero to rounding.
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-11 * float(dy.norm()))


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_spectrum(kind):
    """F2: exact multiples of the identity, where eigenvector derivatives are 0 / 0."""
    factors = [2 * torch.eye(4, dtype=torch.float64), 2 * torch.eye(3, dtype=torch.float64)]
    _, v = draw(2)
    inputs = [x.requires_grad_() for x in (v, *factors)]
    dy = torch.ones_like(v)
    found = gradients(resolvent(kind, factors, -0.5)(v), inputs, dy)
    parts = [(k + k.mT) / 2 for k in factors] if kind == "vanilla" else factors
    expected = gradients(oracle(kind, parts, -0.5, v), inputs, dy)
    for f, e in zip(found, expected, strict=True):
        assert relative(f, e) < 1e-12


def eigenvalue(kind, factors):
    """Return the largest eigenvalue that 1 / alpha must not meet."""
    sizes = [float(torch.linalg.eigvalsh(k.double())[-1]) for k in factors]
    if kind == "tensor_product":
        return max(sizes)
    product = 1.0
    for s in sizes:
        product *= s
    return product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_singular_raises(kind, d, dtype):
    """F3: exactly singular, singular to rounding from either side, and regular again a little further away."""
    diagonals = [torch.tensor([2.0, 1.0, 0.5]), torch.tensor([4.0, 1.0]), torch.tensor([0.5, 0.25])][:d]
    factors = [torch.diag(x).to(dtype) for x in diagonals]
    with pytest.raises(ValueError, match="singular"):
        resolvent(kind, factors, 1 / eigenvalue(kind, factors))  # a power of two: exact

    factors = [k.to(dtype) for k in draw(d)[0]]
    v = draw(d)[1].to(dtype)
    eps = torch.finfo(dtype).eps
    pole = 1 / eigenvalue(kind, factors)
    for shift in (0, eps, -eps, 4 * eps, -4 * eps):
        with pytest.raises(ValueError, match="singular"):
            resolvent(kind, factors, pole * (1 + shift))
        with pytest.raises(ValueError, match="singular"):
            resolvent(kind, factors, torch.tensor(pole * (1 + shift), dtype=dtype))
    for shift in (1e4 * eps, -1e4 * eps):
        y = resolvent(kind, factors, pole * (1 + shift))(v)
        assert y.isfinite().all()
        assert y.norm() > v.norm()


@pytest.mark.parametrize("kind", KINDS[:3])
def test_close_to_a_pole_is_still_right(kind):
    """F3: at a distance of 1e-4 the result is large and correct."""
    factors, v = draw(2)
    alpha = (1 - 1e-4) / eigenvalue(kind, factors)
    expected = oracle(kind, factors, alpha, v)
    assert expected.norm() > 100 * v.norm()
    assert relative(resolvent(kind, factors, alpha)(v), expected) < 1e-10


@pytest.mark.parametrize("scale", [None, 300.0, 1e-3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_single_precision(kind, d, scale):
    factors, v = draw(d, scale)
    found = resolvent(kind, [k.float() for k in factors], -0.3)(v.float())
    assert found.dtype == torch.float32
    assert relative(found.double(), oracle(kind, factors, -0.3, v)) < 1e-5


@pytest.mark.parametrize("n", [16, 24])
def test_vanilla_gradients_keep_their_digits_in_single_precision(n):
    """F2: sums on the grid would cancel; in the eigenbasis of a smooth kernel they do not."""
    y = torch.linspace(-1, 1, n, dtype=torch.float64)
    u = y[:, None] - y
    k = torch.exp(-(u**2)) + torch.exp(-u.abs())
    g = torch.Generator().manual_seed(0)
    v, c = torch.randn(2, n, n, 16, generator=g, dtype=torch.float64)
    found = []
    for dtype in (torch.float64, torch.float32):
        factors = [k.clone().requires_grad_(), (0.7 * k).requires_grad_()]
        alpha = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
        out = vanilla(factors, alpha)(v.to(dtype))
        grads = torch.autograd.grad((out * c.to(dtype)).sum(), [alpha, *factors])
        found.append(torch.cat([x.flatten() for x in grads]))
    assert (found[1] - found[0]).norm() <= 1e-5 * found[0].norm()
