import pytest
import torch

from ikno.linalg import kron_apply, kron_dense

SQUARE = [((5,), (5,)), ((4, 3), (4, 3)), ((2, 5, 3), (2, 5, 3))]
RECTANGULAR = [
    ((5,), (3,)),
    ((2,), (6,)),
    ((4, 3), (2, 7)),
    ((1, 4), (3, 1)),
    ((2, 5, 3), (4, 1, 2)),
    ((4, 1, 2), (2, 5, 3)),
]


def draw(rows, cols, batch=(), width=2, seed=0):
    """Return random factors and a matching tensor."""
    g = torch.Generator().manual_seed(seed)
    factors = [torch.randn(r, c, generator=g, dtype=torch.float64) for r, c in zip(rows, cols, strict=True)]
    return factors, torch.randn(*batch, *cols, width, generator=g, dtype=torch.float64)


def by_sums(factors, v):
    """Return the product from its definition, a sum over all indices at once."""
    d = len(factors)
    out, into = "abc"[:d], "ijk"[:d]
    terms = ",".join(o + i for o, i in zip(out, into, strict=True))
    return torch.einsum(f"{terms},...{into}w->...{out}w", *factors, v)


def full(factors):
    matrix = factors[0]
    for k in factors[1:]:
        matrix = torch.kron(matrix, k)
    return matrix


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize(("rows", "cols"), SQUARE + RECTANGULAR)
def test_apply_equals_dense_product(rows, cols, batch):
    """F1."""
    factors, v = draw(rows, cols, batch)
    flat = v.reshape(*batch, -1, v.shape[-1])
    expected = (full(factors) @ flat).reshape(*batch, *rows, v.shape[-1])
    found = kron_apply(factors, v)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found, by_sums(factors, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rows", "cols"), SQUARE + RECTANGULAR)
def test_dense_entries(rows, cols):
    """Entry (a, i) is the product of the factors' entries, last axis fastest."""
    factors, _ = draw(rows, cols)
    found = kron_dense(factors)
    a = torch.cartesian_prod(*(torch.arange(r) for r in rows)).view(-1, len(rows)).tolist()
    i = torch.cartesian_prod(*(torch.arange(c) for c in cols)).view(-1, len(cols)).tolist()
    for p, row in enumerate(a):
        for q, col in enumerate(i):
            entry = 1.0
            for k, r, c in zip(factors, row, col, strict=True):
                entry *= float(k[r, c])
            assert float(found[p, q]) == pytest.approx(entry, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_strided_input(d):
    """An input that is no contiguous block of memory gives the same."""
    factors, v = draw((3, 2, 4)[:d], (4, 3, 2)[:d], (2,))
    strided = v.movedim(-1, 0).contiguous().movedim(0, -1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(kron_apply(factors, strided), kron_apply(factors, v), rtol=0, atol=1e-14)


def test_precision_follows_the_tensor():
    factors, v = draw((3, 4), (5, 2))
    found = kron_apply(factors, v.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), by_sums(factors, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "cols"), [((3,), (2,)), ((2, 3), (3, 2)), ((2, 1, 3), (1, 3, 2))])
def test_gradients(rows, cols):
    """F1."""
    factors, v = draw(rows, cols, (2,))
    inputs = [x.requires_grad_() for x in (v, *factors)]
    assert torch.autograd.gradcheck(lambda v, *f: kron_apply(f, v), inputs)


@pytest.mark.parametrize(
    "shape",
    [
        (4, 3),  # no width
        (3, 4, 2),  # axes swapped
        (4, 4, 2),  # last axis too long
        (5, 3, 2),  # first axis too long
        (12, 2),  # flattened
        (4, 3, 1, 2),  # one axis too many at the end
    ],
)
def test_wrong_shape_raises(shape):
    factors, _ = draw((4, 3), (4, 3))
    with pytest.raises(ValueError, match=r"grid of shape \(4, 3\)"):
        kron_apply(factors, torch.zeros(shape, dtype=torch.float64))
