"""Processors against their formulas typed out: explicit Kronecker products of explicitly inverted matrices."""

from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ikno.errors import UserError
from ikno.models.processors import PROCESSORS, Attention, Kernels, ProcessorSettings, Stack, along_axes

SIZES = [(5,), (4, 3), (2, 3, 4)]
TINY: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "ff_mult": 2}


def make(name: str, size: tuple[int, ...], conditions: int = 0, **settings) -> Stack:
    torch.manual_seed(0)
    made = PROCESSORS[name](size, 8, ProcessorSettings(**{**TINY, **settings}), conditions).double()
    assert isinstance(made, Stack)
    with torch.no_grad():  # away from where things start equal, or at zero
        for p in made.parameters():
            p += 0.3 * torch.randn_like(p)
    return made


def obvious_kernels(model: Kernels, size: tuple[int, ...], latent: Tensor, condition: Tensor | None) -> Tensor:
    """Return the same with matrices on the flattened grid."""
    batch, count, heads = latent.shape[0], latent[0, ..., 0].numel(), 2
    v = latent.reshape(batch, count, 8)
    changes = None if condition is None else model.modulation.mlp(condition).view(batch, -1, 2, 8)  # type: ignore[union-attr]

    def normed(v: Tensor, norm: torch.nn.LayerNorm, number: int) -> Tensor:
        v = F.layer_norm(v, (8,), norm.weight, norm.bias)
        return v if changes is None else v * (1 + changes[:, number, 0, None]) + changes[:, number, 1, None]

    for i, block in enumerate(model.blocks):
        parts = block.mixer.inner(normed(v, block.mix_norm, 2 * i)).chunk(heads, -1)  # type: ignore[operator, arg-type]
        mixed = []
        for h, part in enumerate(parts):
            factors = []
            for n, axis in zip(size, model.axes, strict=True):
                if axis.only:
                    factors.append(axis.matrix[i, h])  # type: ignore[index]
                    continue
                raw = (axis.raw_c, axis.raw_beta, axis.raw_gamma, axis.raw_alpha)
                c, beta, gamma, alpha = (torch.log1p(torch.exp(p[i, h])) for p in raw)  # type: ignore[index]
                x = torch.linspace(-1, 1, n)
                d = (x[:, None] - x[None, :]).abs().double()
                k = c * (torch.exp(-((beta * d) ** 2)) + torch.exp(-gamma * d))
                r = torch.linalg.inv(torch.eye(n).double() + alpha * k) @ k
                r = r / r.sum(1).mean()
                if axis.matrix is not None:
                    r = r + axis.matrix[i, h]  # type: ignore[index]
                if axis.profile is not None:
                    profile = axis.profile[i, h]  # type: ignore[index]
                    r = r + torch.stack([torch.stack([profile[abs(x - y)] for y in range(n)]) for x in range(n)])
                factors.append(r)
            mixed.append(reduce(torch.kron, factors) @ part)
        v = v + block.mixer.out(F.gelu(torch.cat(mixed, -1)))  # type: ignore[operator]
        v = v + block.mlp(normed(v, block.mlp_norm, 2 * i + 1))  # type: ignore[operator, arg-type]
    return F.layer_norm(v, (8,), model.norm.weight, model.norm.bias).view(latent.shape)


@pytest.mark.parametrize("conditions", [0, 3])
@pytest.mark.parametrize("free", ["none", "profile", "added", "both", "only"])
@pytest.mark.parametrize("size", SIZES)
def test_kernels_are_kronecker_products_of_inverses(size: tuple[int, ...], free: str, conditions: int) -> None:
    model = make("kernels", size, conditions, free=free)
    assert isinstance(model, Kernels)
    latent = torch.randn(3, *size, 8, dtype=torch.float64, requires_grad=True)
    condition = torch.randn(3, conditions, dtype=torch.float64, requires_grad=True) if conditions else None
    inputs = [latent, *model.parameters(), *([] if condition is None else [condition])]
    target = torch.randn(3, *size, 8, dtype=torch.float64)
    found, expected = model(latent, condition), obvious_kernels(model, size, latent, condition)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad((found * target).sum(), inputs),
        torch.autograd.grad((expected * target).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("size", SIZES)
def test_along_axes_is_a_kronecker_product(size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(2, n, n, dtype=torch.float64) for n in size]
    v = torch.randn(3, *size, 6, dtype=torch.float64)
    whole = [reduce(torch.kron, [m[h] for m in matrices]) for h in range(2)]
    flat = v.flatten(1, -2)
    expected = torch.cat([whole[0] @ flat[..., :3], whole[1] @ flat[..., 3:]], -1).view(v.shape)
    assert torch.allclose(along_axes(matrices, v), expected)


def test_free_matrices_start_where_they_should() -> None:
    torch.manual_seed(0)
    v = torch.randn(2, 5, 4, 8)
    outputs = []
    for free in ("none", "profile", "added", "both", "only"):
        torch.manual_seed(1)
        outputs.append(Kernels((5, 4), 8, ProcessorSettings(**TINY, free=free))(v))  # type: ignore[arg-type]
    for found in outputs[1:]:
        assert torch.allclose(outputs[0], found, atol=1e-6)


def test_constants_keep_their_size() -> None:
    model = Kernels((6, 9), 8, ProcessorSettings(**TINY))
    for axis in model.axes:
        assert torch.allclose(axis().sum(-1).mean(-1), torch.ones(2, 2))


@pytest.mark.parametrize("size", [(4,), (4, 6), (2, 4, 2)])
def test_attention_over_patches_is_attention_over_tokens_gathered_by_hand(size: tuple[int, ...]) -> None:
    positions = "none" if len(size) == 3 else "rotary"
    model = make("attention", size, 0, patch_size=2, positions=positions)
    assert isinstance(model, Attention)
    latent = torch.randn(2, *size, 8, dtype=torch.float64)
    places = torch.cartesian_prod(*(torch.arange(n) for n in size)).view(-1, len(size))
    patch_of = [tuple((p // 2).tolist()) for p in places]
    patches = sorted(set(patch_of))
    flat = latent.flatten(1, -2)
    members = [[i for i, p in enumerate(patch_of) if p == patch] for patch in patches]
    tokens = model.join(torch.stack([flat[:, m].flatten(1) for m in members], 1))
    for block in model.blocks:
        tokens = block(tokens, model.rotation)
    parts = model.part(model.norm(tokens))
    expected = torch.empty_like(flat)
    for i, m in enumerate(members):
        expected[:, m] = parts[:, i].view(2, len(m), 8)
    assert torch.allclose(model(latent), expected.view(latent.shape))


@pytest.mark.parametrize("name", PROCESSORS)
def test_condition_starts_without_effect_and_learns(name: str) -> None:
    torch.manual_seed(0)
    model = PROCESSORS[name]((4, 4), 8, ProcessorSettings(**TINY), 2)
    v, condition = torch.randn(2, 4, 4, 8), torch.randn(2, 2)
    found = model(v, condition)
    assert torch.equal(found, model(v, -condition))
    found.sum().backward()
    assert model.modulation is not None
    assert float(model.modulation.mlp.last.weight.grad.norm()) > 0  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="2 conditions"):
        model(v)


@pytest.mark.parametrize("name", PROCESSORS)
def test_checkpointing_and_dropout(name: str) -> None:
    torch.manual_seed(0)
    settings = [ProcessorSettings(**TINY, dropout=0.3, checkpointing=again) for again in (False, True)]
    plain, saving = (PROCESSORS[name]((6,), 8, s, 0) for s in settings)
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(1, 6, 8)
    grads = []
    for model in (plain, saving):
        torch.manual_seed(1)
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert a is not None
        assert torch.equal(a, b)
    assert not torch.equal(plain(x), plain(x))
    plain.eval()
    assert torch.equal(plain(x), plain(x))


@pytest.mark.parametrize("rotary", [False, True])
def test_attention_is_prenorm_attention_typed_out(rotary: bool) -> None:
    torch.manual_seed(0)
    positions = "rotary" if rotary else "none"
    model = Attention((5,), 8, ProcessorSettings(num_layers=1, num_heads=2, ff_mult=3, positions=positions)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    rotation = model.rotation
    assert (rotation is not None) == rotary

    def turned(v: Tensor) -> Tensor:
        if rotation is None:
            return v
        c = torch.complex(v[..., :2], v[..., 2:]) * torch.complex(*rotation)
        return torch.cat([c.real, c.imag], -1)

    block = model.blocks[0]
    parameters = dict(block.named_parameters())

    def norm(v: Tensor, name: str) -> Tensor:
        return F.layer_norm(v, (8,), parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    def linear(v: Tensor, name: str) -> Tensor:
        return v @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    q, k, v = linear(norm(x, "mix_norm"), "mixer.qkv").split(8, -1)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        scores = torch.softmax(turned(q[..., h]) @ turned(k[..., h]).mT / 2, -1)
        heads.append(scores @ v[..., h])
    y = x + linear(torch.cat(heads, -1), "mixer.out")
    y = y + linear(F.gelu(linear(norm(y, "mlp_norm"), "mlp.0")), "mlp.2")
    y = F.layer_norm(y, (8,), model.norm.weight, model.norm.bias)
    assert torch.allclose(model(x), y, atol=1e-12)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(UserError, match="patch_size"):
        PROCESSORS["attention"]((5, 4), 8, ProcessorSettings(**TINY, patch_size=2), 0)


@pytest.mark.parametrize("name", PROCESSORS)
def test_exports(name: str) -> None:
    model = PROCESSORS[name]((4, 4), 8, ProcessorSettings(**TINY), 1).eval()
    v, condition = torch.randn(2, 4, 4, 8), torch.randn(2, 1)
    exported = torch.export.export(model, (v, condition)).module()
    assert torch.allclose(exported(v, condition), model(v, condition), atol=1e-6)
