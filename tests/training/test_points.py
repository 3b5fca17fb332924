"""Processes that hold one cloud together give what one process gives: values, losses, gradients, training."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ikno.errors import UserError
from ikno.linalg import Team
from ikno.models import IKNO, build
from ikno.training.distributed import group
from ikno.training.losses import sample_losses

TINY = {"d_model": 8, "num_heads": 2, "num_layers": 1, "nerf_frequencies": 1}


@dataclass(frozen=True)
class Case:
    """A model and a batch: its clouds (shared or own), sizes (several: with a mask), weights and loss.

    ``moved``: the gradient in the coordinates is wanted.
    """

    model: str
    dim: int = 2
    sizes: tuple[int, ...] = (37, 37)
    shared: bool = True
    weighted: bool = False
    moved: bool = False
    queries: int = 0
    loss: str = "relative_l2"
    settings: tuple[tuple[str, Any], ...] = ()

    def build(self) -> IKNO:
        settings = {**TINY, "grid_size": 6 if self.dim < 3 else 4, **dict(self.settings)}
        model = build(self.model, in_channels=2, out_channels=2, dim=self.dim, seed=0, **settings)
        assert isinstance(model, IKNO)
        return model


CASES = {
    "tp": Case("ikno-tp"),
    "vanilla": Case("ikno-vanilla", shared=False),
    "vanilla-3d": Case("ikno-vanilla", dim=3, sizes=(53, 53), settings=(("point_weights", "density"),)),
    "tp-3d-mask": Case("ikno-tp", dim=3, sizes=(41, 30, 5), shared=False, loss="mse"),
    "tp-1d": Case("ikno-tp", dim=1, sizes=(23,), weighted=True, settings=(("point_weights", "sum"),)),
    "density-mask": Case("ikno-tp", sizes=(41, 40), shared=False, settings=(("point_weights", "density"),)),
    "weights-mask": Case("ikno-vanilla", sizes=(31, 17), shared=False, weighted=True),
    "queries": Case("ikno-tp", queries=11),
    "local": Case("ikno-tp", settings=(("contraction", "local"), ("point_weights", "density"))),
    "local-chunks": Case(
        "ikno-vanilla",
        sizes=(37, 12),
        shared=False,
        settings=(("contraction", "local"), ("point_chunk", 4), ("checkpointing", True)),
    ),
    "paper": Case("ikno-tp", settings=(("normalize_branches", False), ("contraction", "local"))),
    "finite": Case("ikno-finite"),
    "first-order": Case("ikno-first-order"),
    "dense": Case("ikno-dense"),
    "attention": Case("ikno-cross-attention", weighted=True),
    "attention-mask": Case("ikno-cross-attention", sizes=(37, 30), shared=False),
    "moved-dense": Case("ikno-vanilla", moved=True, settings=(("contraction", "dense"),)),
    "moved-local": Case("ikno-tp", dim=3, sizes=(53, 53), moved=True, settings=(("contraction", "local"),)),
    "moved-density-mask": Case(
        "ikno-tp", sizes=(41, 30), shared=False, moved=True, settings=(("point_weights", "density"),)
    ),
    "dropout": Case("ikno-tp", settings=(("dropout", 0.5),)),
}


def one_step(case: Case, dtype: torch.dtype, part: int, parts: int, team: Team | None) -> dict[str, Tensor]:
    """Return losses, values and gradients of one step on a part of the points, gradients summed over the team."""
    draw = torch.Generator().manual_seed(1)
    batch, count = len(case.sizes), max(case.sizes)
    points = torch.rand(1 if case.shared else batch, count, case.dim, generator=draw) * 2 - 1
    features = torch.randn(batch, count, 2, generator=draw)
    target = torch.randn(batch, case.queries or count, 2, generator=draw)
    weights = torch.rand(points.shape[0], count, generator=draw) if case.weighted else None
    queries = torch.rand(1, case.queries, case.dim, generator=draw) * 2 - 1 if case.queries else None
    mask = torch.arange(count) < torch.tensor(case.sizes)[:, None] if len(set(case.sizes)) > 1 else None

    def mine(x: Any) -> Any:
        if x is None:
            return None
        rows = slice(x.shape[1] * part // parts, x.shape[1] * (part + 1) // parts)
        return x[:, rows] if x.dtype == torch.bool else x[:, rows].to(dtype)

    model = case.build().to(dtype)
    model.team = team
    features, target, mask = mine(features).requires_grad_(), mine(target), mine(mask)
    points = mine(points).requires_grad_(case.moved)
    mask = None if mask is None or bool(mask.all()) else mask  # as in a batch: one process may need it, another not
    torch.manual_seed(2)
    values = model(features, points, mine(queries), mine(weights), mask)
    at_values = None if case.queries else mask
    losses = sample_losses(values, target, at_values, case.loss, team)
    (losses.mean() / parts).backward()  # every process has the loss of the whole team
    found = {"losses": losses, "errors": sample_losses(values, target, at_values, "relative_l1", team)}
    found |= {f"part.{part}.values": values, f"part.{part}.features": features.grad}
    if case.moved:
        found[f"part.{part}.points"] = points.grad
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad if team is None else team.all_reduce_sum(parameter.grad)
    return {k: v.detach().contiguous() for k, v in found.items()}


def child(folder: Path) -> None:
    """Make all steps in one process of a team and write what it has."""
    torch.set_num_threads(1)
    with group("cpu", int(os.environ["WORLD_SIZE"])) as processes:
        with pytest.raises(UserError, match=r"train\.point_processes: upt needs whole clouds; set it to 1"):
            processes.divide_points(build("upt", in_channels=1, out_channels=1, dim=2), "upt")
        for name, case in CASES.items():
            for dtype in (torch.float32, torch.float64):
                found = one_step(case, dtype, processes.part, processes.parts, processes.team)
                save_file(found, folder / f"{name}.{dtype}.{processes.part}.safetensors")


@pytest.fixture(scope="module", params=[2, 4])
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The steps of all cases by 2 and 4 processes."""
    folder, size = tmp_path_factory.mktemp("steps"), request.param
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, __file__, str(folder)]
    started = [subprocess.Popen(command, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]
    assert [p.wait(timeout=600) for p in started] == [0] * size
    return folder, size


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("name", CASES)
def test_a_team_makes_the_step_of_one(steps: tuple[Path, int], name: str) -> None:
    """Number by number in float64; in float32, where small gradients are rounding, in the norm over all parameters."""
    folder, size = steps
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        expected = one_step(CASES[name], dtype, 0, 1, None)
        found = [load_file(folder / f"{name}.{dtype}.{r}.safetensors") for r in range(size)]
        for what in ("values", "features", *(["points"] if CASES[name].moved else [])):
            together = torch.cat([found[r].pop(f"part.{r}.{what}") for r in range(size)], 1)
            whole = expected.pop(f"part.0.{what}")
            assert (together - whole).norm() <= tolerance * whole.norm(), what
        for of_process in found:
            assert of_process.keys() == expected.keys()
            for key in ("losses", "errors", *(expected if dtype == torch.float64 else ())):
                scale = float(expected[key].abs().max())
                limit = tolerance * scale + 1e-15  # the softmax makes some gradients zero but for rounding
                torch.testing.assert_close(of_process[key], expected[key], rtol=tolerance, atol=limit)
            gradient, exact = (
                torch.cat([g.flatten() for k, g in sorted(of.items()) if k not in ("losses", "errors")])
                for of in (of_process, expected)
            )
            assert (gradient - exact).norm() <= tolerance * exact.norm()


if __name__ == "__main__":
    child(Path(sys.argv[1]))
