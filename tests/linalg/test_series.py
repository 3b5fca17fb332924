import pytest
import torch

from ikno.linalg import convergence, inverse_power, truncated, vanilla

SIZES = {1: (7,), 2: (4, 5), 3: (2, 4, 3)}


def symmetric(size, low, high, g):
    """Return a random symmetric matrix with eigenvalues from low to high."""
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64))
    return q @ torch.diag(torch.linspace(low, high, size, dtype=torch.float64)) @ q.mT


def gram(size, scale):
    y = torch.linspace(0, 1, size, dtype=torch.float64)
    u = y[:, None] - y
    return torch.exp(-((scale * u) ** 2)) + torch.exp(-scale * u.abs())


def draw(d, kind):
    """Return factors and a tensor: smooth kernels, nearly diagonal ones, or matrices with eigenvalues of both signs."""
    g = torch.Generator().manual_seed(d)
    sizes = SIZES[d]
    if kind == "smooth":
        factors = [gram(n, 1.0 + j) for j, n in enumerate(sizes)]
    elif kind == "narrow":
        factors = [gram(n, 40.0) for n in sizes]
    elif kind == "conditioned":
        factors = [symmetric(n, 1.0, 1.5, g) for n in sizes]
    else:
        factors = [symmetric(n, -2.0, 1.5, g) for n in sizes]
    return factors, torch.randn(*sizes, 2, generator=g, dtype=torch.float64)


def kron(factors):
    matrix = factors[0]
    for k in factors[1:]:
        matrix = torch.kron(matrix, k)
    return matrix


def solve(factors, alpha, v):
    flat = v.flatten(0, -2)
    return torch.linalg.solve(torch.eye(len(flat), dtype=v.dtype) - alpha * kron(factors), flat).reshape(v.shape)


KINDS = ["smooth", "narrow", "conditioned", "indefinite"]


@pytest.mark.parametrize("alpha", [-1.3, 0.2])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_radii_equal_those_of_the_full_matrix(kind, d, alpha):
    factors, _ = draw(d, kind)
    sizes = torch.linalg.eigvals(alpha * kron(factors)).abs()
    assert convergence(factors, alpha).radius == pytest.approx(float(sizes.max()), rel=1e-10)
    found = convergence(factors, torch.tensor(alpha, dtype=torch.float64))
    assert found.radius == pytest.approx(float(sizes.max()), rel=1e-10)
    assert found.inverse_radius == pytest.approx(1 / float(sizes.min()), rel=1e-6)
    assert found.neumann == bool(sizes.max() < 1)
    assert found.inverse_power == bool(sizes.min() > 1)


def test_singular_matrix_has_no_inverse_series():
    found = convergence([torch.zeros(2, 2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)], -2.0)
    assert found.radius == 0
    assert found.neumann
    assert found.inverse_radius == float("inf")
    assert not found.inverse_power


@pytest.mark.parametrize("radius", [0.5, 0.9, -0.9])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_partial_sums_converge_below_radius_one(kind, d, radius):
    """F5: the remainder after order p is (alpha K)^(p + 1) times the resolvent."""
    factors, v = draw(d, kind)
    alpha = radius / convergence(factors, 1.0).radius
    assert convergence(factors, alpha).neumann
    limit = vanilla(factors, alpha)(v)
    torch.testing.assert_close(limit, solve(factors, alpha, v), rtol=1e-10, atol=1e-10)
    errors = []
    for order in (0, 1, 5, 20, 21, 60):
        error = float((truncated(factors, alpha, order)(v) - limit).norm())
        assert error <= abs(radius) ** (order + 1) * float(limit.norm()) * 1.001 + 1e-11
        errors.append(error)
    if abs(radius) == 0.9:  # at .5 nothing is left to compare
        assert 0.5 < errors[4] / errors[3] <= 0.9 + 1e-9
    if kind == "smooth" and abs(radius) == 0.9:  # one eigenvalue leads: the rate is its own
        assert errors[4] / errors[3] == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("radius", [1.23, -1.23, -3.0])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_partial_sums_diverge_above_radius_one(kind, d, radius):
    """F5: while the resolvent itself exists."""
    factors, v = draw(d, kind)
    alpha = radius / convergence(factors, 1.0).radius
    assert not convergence(factors, alpha).neumann
    limit = vanilla(factors, alpha)(v)
    torch.testing.assert_close(limit, solve(factors, alpha, v), rtol=1e-9, atol=1e-9)
    errors = [float((truncated(factors, alpha, p)(v) - limit).norm()) for p in (10, 30, 60)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[2] > 1e3 * float(limit.norm())


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_inverse_powers_equal_their_sum(d, order):
    factors, v = draw(d, "conditioned")
    alpha, flat = -0.7, v.flatten(0, -2)
    inverse = torch.linalg.inv(alpha * kron(factors))
    expected = -sum(torch.linalg.matrix_power(inverse, n) @ flat for n in range(1, order + 1))
    torch.testing.assert_close(inverse_power(factors, alpha, order)(v).flatten(0, -2), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["narrow", "conditioned"])
def test_inverse_powers_converge_above_one(kind, d, sign):
    """F5: where |alpha| times the smallest eigenvalue exceeds one."""
    factors, v = draw(d, kind)
    smallest = float(torch.linalg.eigvalsh(kron(factors)).min())
    alpha = sign * 1.25 / smallest
    state = convergence(factors, alpha)
    assert state.inverse_power
    assert not state.neumann
    limit = solve(factors, alpha, v)
    torch.testing.assert_close(vanilla(factors, alpha)(v), limit, rtol=1e-9, atol=1e-9)
    errors = []
    for order in (1, 5, 20, 21, 60):
        error = float((inverse_power(factors, alpha, order)(v) - limit).norm())
        assert error <= state.inverse_radius**order * float(limit.norm()) * 1.001 + 1e-11
        errors.append(error)
    assert errors[3] < errors[2] < errors[1] < errors[0]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["narrow", "conditioned", "smooth"])
def test_inverse_powers_diverge_below_one(kind, d):
    """F5."""
    factors, v = draw(d, kind)
    alpha = -0.8 / float(torch.linalg.eigvalsh(kron(factors)).min())
    assert not convergence(factors, alpha).inverse_power
    limit = solve(factors, alpha, v)
    errors = [float((inverse_power(factors, alpha, p)(v) - limit).norm()) for p in (10, 30, 60)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[2] > 1e3 * float(limit.norm())


@pytest.mark.parametrize("order", [0, -1])
def test_inverse_powers_start_at_one(order):
    with pytest.raises(ValueError, match="order 1"):
        inverse_power([torch.eye(2)], -1.0, order)
