"""Muon beside torch's, and the rate over time."""

import pytest
import torch
from torch import nn

from ikno.config import TrainSettings
from ikno.models.processors import Kernels, ProcessorSettings
from ikno.training.optimizers import Muon, adamw, inner_matrices, learning_rate, muon, orthogonalized

QUINTIC = (3.4445, -4.7750, 2.0315)
OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_singular_values_follow_the_quintic_and_the_vectors_stay(shape: tuple[int, int]) -> None:
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthogonalized(x, QUINTIC, 5, 1e-7)
    for one, made in zip(x, found, strict=True):
        u, s, v = torch.linalg.svd(one, full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = QUINTIC[0] * s + QUINTIC[1] * s**3 + QUINTIC[2] * s**5
        torch.testing.assert_close(made, u @ torch.diag(s) @ v, rtol=0, atol=1e-9)
        assert ((s > 0.3) & (s < 1.3)).all()
    assert (orthogonalized(0 * x, QUINTIC, 5, 1e-7) == 0).all()


def test_the_same_steps_as_torch_up_to_its_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 16), (48, 16), (16, 16), (16, 64), (48, 16)]
    start = [torch.randn(s, generator=generator) for s in shapes]
    ours, theirs = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    one, other = Muon(ours, **OPTIONS), torch.optim.Muon(theirs, **OPTIONS)  # type: ignore[arg-type]
    for _ in range(4):
        gradients = [torch.randn(s, generator=generator) for s in shapes]
        for parameters, optimizer in ((ours, one), (theirs, other)):
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g.clone()
            optimizer.step()
    for a, b, first in zip(ours, theirs, start, strict=True):
        moved = (b - first).norm()
        assert (a - b).norm() < 0.02 * moved
        assert moved > 0.01
    assert one.state_dict()["state"].keys() == other.state_dict()["state"].keys()
    for i, state in one.state_dict()["state"].items():
        torch.testing.assert_close(state["momentum_buffer"], other.state_dict()["state"][i]["momentum_buffer"])


def test_matrices_without_a_gradient_stay() -> None:
    p, q = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    p.grad = torch.eye(4)
    Muon([p, q], **OPTIONS).step()  # type: ignore[arg-type]
    assert not torch.equal(p, torch.ones(4, 4))
    assert torch.equal(q, torch.ones(4, 4))


def test_muon_is_for_matrices_inside_the_model() -> None:
    """Those between wide layers, and those of a processor; AdamW has all the rest, and nothing is left out."""
    plain = nn.Sequential(nn.Linear(3, 32), nn.Linear(32, 48), nn.LayerNorm(48), nn.Linear(48, 1))
    assert [tuple(p.shape) for p in inner_matrices(plain)] == [(48, 32)]
    with_processor = nn.ModuleDict({"processor": nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), "head": plain})
    assert [tuple(p.shape) for p in inner_matrices(with_processor)] == [(8, 8), (48, 32)]
    assert inner_matrices(nn.ModuleDict({"processor": nn.LayerNorm(8), "head": nn.Linear(8, 8)})) == []
    first, rest = muon(plain, TrainSettings(optimizer="muon"))
    groups = [{id(p) for g in o.param_groups for p in g["params"]} for o in (first, rest)]
    assert groups[0] | groups[1] == {id(p) for p in plain.parameters()}
    assert not groups[0] & groups[1]


def test_free_matrices_have_a_decay_of_their_own() -> None:
    """Without a gradient they shrink by rate times decay in each step, the profiles beside them by the usual one."""
    settings = ProcessorSettings(num_layers=1, num_heads=2, free="both", free_decay=2.0)
    model = Kernels((4, 3), 8, settings)
    for p in model.parameters():
        p.data.fill_(1.0)
        p.grad = torch.zeros_like(p)
    for optimizer in adamw(model, TrainSettings(learning_rate=0.1, weight_decay=0.5)):
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.allclose(p, torch.tensor(0.8 if name.endswith(".matrix") else 0.95)), name
    plain = adamw(Kernels((4,), 8, settings.model_copy(update={"free_decay": 0.0})), TrainSettings())
    assert [len(o.param_groups) for o in plain] == [1]


def test_warm_up_and_cosine() -> None:
    settings = TrainSettings(learning_rate=2.0, warmup=0.1)
    rates = [learning_rate(settings, i, 100) for i in range(101)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.01)
    assert rates[100] == pytest.approx(0.02)
