"""The memory that training and prediction are said to need is what they take, and more than there is is refused."""

import math
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ikno.cost import Call, peak_memory
from ikno.errors import UserError
from ikno.memory import available_memory
from ikno.models import build
from ikno.surrogate import check_available, prediction_memory, training_memory

CPU = torch.device("cpu")
FACTOR = 1.6  # between the estimate and the measured peak, either way
CHANNELS = {"in_channels": 2, "out_channels": 2}
CASES: dict[str, dict[str, Any]] = {
    "flat": {"dim": 2, "grid_size": 24, "d_model": 128, "num_layers": 3},
    "flat, checkpoints": {
        "dim": 2,
        "grid_size": 24,
        "d_model": 128,
        "num_layers": 3,
        "checkpointing": True,
        "point_chunk": 8192,
    },
    "deep": {"dim": 2, "grid_size": 40, "d_model": 64, "num_layers": 12, "normalize_branches": False},
    "space": {"dim": 3, "grid_size": 12, "d_model": 64, "num_layers": 2, "checkpointing": True, "point_chunk": 16384},
    "space, as published": {"dim": 3, "grid_size": 16, "d_model": 64, "num_layers": 2, "normalize_branches": False},
    "lean": {
        "dim": 2,
        "grid_size": 32,
        "d_model": 64,
        "num_layers": 4,
        "processor": "kernels",
        "ff_mult": 1,
        "point_width": 16,
        "tolerance": 0.3,
    },
}
POINTS = {
    "flat": 20_000,
    "flat, checkpoints": 60_000,
    "deep": 4_000,
    "space": 60_000,
    "space, as published": 30_000,
    "lean": 30_000,
}


def model_of(name: str) -> nn.Module:
    return build("ikno-tp", seed=0, **CHANNELS, **{"num_heads": 4, **CASES[name]})


def prepare(name: str, training: bool, batch: int = 1) -> Call:
    """Return one step of training, or a prediction, on random points."""
    model, points = model_of(name), POINTS[name]
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(1, points, CASES[name]["dim"], generator=draw) - 1
    features = torch.randn(batch, points, 2, generator=draw)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(features, x).square().mean().backward()
        optimizer.step()

    return step if training else partial(_predict, model, features, x)


@torch.no_grad()
def _predict(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    return model(*inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_estimates_are_within_a_factor_of_measured_peaks(name: str) -> None:
    model, points = model_of(name), POINTS[name]
    estimates = {True: training_memory(model, points, 1), False: prediction_memory(model, points, points)}
    for training, estimate in estimates.items():
        assert estimate is not None
        measured = peak_memory(prepare, name, training) * 1e6
        assert 1 / FACTOR < estimate / measured < FACTOR


def test_what_makes_it_more_and_less() -> None:
    flat = model_of("flat")
    more = [training_memory(flat, n, b) for n, b in ((1000, 1), (10_000, 1), (10_000, 4))]
    assert more == sorted(m for m in more if m is not None)
    narrow = {**CASES["flat"], "point_width": 16}
    models = [build("ikno-tp", seed=0, **CHANNELS, **narrow, checkpointing=saving) for saving in (False, True)]
    once, again = (training_memory(m, 10**6, 1) for m in models)
    assert once is not None
    assert again is not None
    assert again < 0.4 * once
    few, many = (prediction_memory(flat, 10_000, n) for n in (10**7, 10**9))
    assert few == many  # queries go part by part
    assert training_memory(nn.Linear(2, 2), 1, 1) is prediction_memory(nn.Linear(2, 2), 1, 1) is None


def test_more_than_there_is_is_refused() -> None:
    available = available_memory(CPU)
    assert 0 < available < 1e15
    assert check_available(1e6, CPU, "this", "less").startswith("this needs about 0.0 GB of memory, ")
    assert "unknown amount" in check_available(None, CPU, "this", "less")
    with pytest.raises(UserError, match=r"^this needs about 1000000\.0 GB of memory, [0-9.]+ GB are .*; use less"):
        check_available(1e15, CPU, "this", "less")


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MACHINE, 4_000_000 * 1024),
        # Version 2: the limit of a group above counts too, and what its caches hold can be given back.
        (
            MACHINE
            | {
                "proc/self/cgroup": "0::/box/job\n",
                "sys/fs/cgroup/box/job/memory.max": "max\n",
                "sys/fs/cgroup/box/job/memory.current": "500\n",
                "sys/fs/cgroup/box/memory.max": "3000\n",
                "sys/fs/cgroup/box/memory.current": "2500\n",
                "sys/fs/cgroup/box/memory.stat": "anon 7\ninactive_file 400\n",
            },
            900,
        ),
        (
            MACHINE
            | {
                "proc/self/cgroup": "4:cpu:/x\n3:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "2500\n",
            },
            0,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_memory(CPU, tree(tmp_path, files)) == expected


def test_available_memory_with_a_limit_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, MACHINE | {"proc/self/status": "Name: x\nVmSize:    1000 kB\n"})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3_000_000, resource.RLIM_INFINITY))
    assert available_memory(CPU, root) == 3_000_000 - 1000 * 1024
    assert math.isfinite(available_memory(CPU, tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows
    assert available_memory(CPU, root) == 4_000_000 * 1024
