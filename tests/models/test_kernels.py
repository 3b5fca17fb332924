"""The base kernel and the linear window against their formulas typed out."""

import math

import pytest
import torch

from ikno.linalg import Grid, kron_dense
from ikno.models.kernels import BaseKernel, LinearWindow

GRID = Grid((5, 4), (-1.0, -0.5), (1.0, 2.0))


def random_kernel() -> BaseKernel:
    kernel = BaseKernel(2, alpha=-0.7, scale_l1=1.5, scale_l2=2.5, amplitude=0.8).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in (kernel.raw_c, kernel.raw_beta, kernel.raw_gamma):
            p += torch.randn(2, generator=generator, dtype=torch.float64)
    return kernel


def test_initial_values_are_those_asked_for() -> None:
    kernel = BaseKernel(3, alpha=-0.3, scale_l1=4.0, scale_l2=1e-3, amplitude=300.0).double()
    assert kernel.alpha.item() == pytest.approx(-0.3, rel=1e-6)
    assert kernel.gamma.tolist() == pytest.approx([4.0] * 3, rel=1e-6)
    assert kernel.beta.tolist() == pytest.approx([1e-3] * 3, rel=1e-4)
    assert kernel.c.tolist() == pytest.approx([300.0] * 3, rel=1e-6)


def test_matrix_is_the_formula() -> None:
    kernel = random_kernel()
    x = torch.rand(1, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 - 1.5
    found = kernel.matrix(x, GRID)
    c, beta, gamma = kernel.c.tolist(), kernel.beta.tolist(), kernel.gamma.tolist()
    for i, point in enumerate(x[0].tolist()):
        for g, y in enumerate(GRID.points(x).tolist()):
            value = 1.0
            for j in range(2):
                r = abs(point[j] - y[j])
                value *= c[j] * (math.exp(-((beta[j] * r) ** 2)) + math.exp(-gamma[j] * r))
            assert found[0, i, g].item() == pytest.approx(value, rel=1e-12)


def test_factors_are_the_gram_matrix() -> None:
    kernel = random_kernel()
    gram = kernel.matrix(GRID.points(kernel.raw_c)[None], GRID)[0]
    assert torch.allclose(kron_dense(kernel.factors(GRID)), gram, atol=1e-13)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_learning_keeps_scales_positive_and_the_sign_of_alpha(sign: float) -> None:
    kernel = BaseKernel(2, alpha=sign)
    optimizer = torch.optim.SGD(kernel.parameters(), lr=1.0)
    for _ in range(20):  # pulls everything down, and alpha towards and past zero
        optimizer.zero_grad()
        (kernel.c + kernel.beta + kernel.gamma + sign * kernel.alpha).sum().backward()
        optimizer.step()
    assert sign * kernel.alpha.item() > 0
    assert sign * kernel.alpha.item() < 0.1
    assert all((p > 0).all() for p in (kernel.c, kernel.beta, kernel.gamma))


def test_free_alpha_can_change_its_sign() -> None:
    kernel = BaseKernel(1, alpha=0.05, alpha_sign="free")
    kernel.alpha.backward()
    torch.optim.SGD([kernel.raw_alpha], lr=0.1).step()
    assert kernel.alpha.item() == pytest.approx(-0.05)


def test_what_is_not_learned_has_no_gradient() -> None:
    kernel = BaseKernel(2, alpha_grad=False, scales_grad=False)
    assert [p.requires_grad for p in kernel.parameters()] == [False] * 4


@pytest.mark.parametrize(("alpha", "scale"), [(0.0, 1.0), (-1.0, 0.0), (-1.0, -2.0)])
def test_bad_parameters_are_refused(alpha: float, scale: float) -> None:
    with pytest.raises(ValueError, match=r"alpha of 0|positive"):
        BaseKernel(2, alpha=alpha, scale_l1=scale)


def test_linear_window_is_the_formula() -> None:
    kernel = LinearWindow(radius=0.9, alpha=-0.15)
    x = torch.rand(2, 6, 2, generator=torch.Generator().manual_seed(2)) * 3 - 1.5
    y = GRID.points(x)
    distance = ((x[:, :, None] - y) ** 2).sum(-1).sqrt()
    expected = torch.where(distance < 0.9, 1 - distance / 0.9, 0.0)
    assert (expected > 0).any()
    assert torch.allclose(kernel.matrix(x, GRID), expected, atol=1e-6)
    assert torch.equal(kernel.factors(GRID)[0].diagonal(), torch.ones(GRID.count))
    assert list(kernel.parameters()) == []
    assert kernel.alpha.item() == pytest.approx(-0.15)


def test_narrower_kernels_need_more_nodes() -> None:
    grid = Grid((32,), (-1.0,), (1.0,))
    counts = [BaseKernel.nodes([BaseKernel(1, scale_l1=s, scale_l2=s)], grid, 1e-5, False) for s in (0.25, 4.0, 64.0)]
    least, middle, most = [c[0] for c in counts if c is not None]
    assert least < middle < most
    assert BaseKernel.nodes([BaseKernel(1, scale_l2=1e4)], grid, 1e-5, False) is None
