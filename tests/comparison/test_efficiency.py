"""The cost of a step: what is measured is a whole step, and the profile adds up."""

import math

import pytest
import torch

from ikno.comparison import Shape, efficiency, measure_efficiency
from ikno.comparison.efficiency import KINDS, disc, prepare, shares
from ikno.errors import UserError
from ikno.models import MODELS

SMALL = Shape(points=60, batch=2, grid=4)


def test_a_row_per_model() -> None:
    said: list[str] = []
    (row,) = measure_efficiency(["fno-dse"], SMALL, 1, "smoke", double=True, say=said.append)
    assert set(row) == {"model", "parameters", "seconds", "cpu_seconds", "memory", "profile", "growth"}
    assert row["seconds"] > 0
    assert row["memory"] > 0
    assert row["growth"] > 0
    assert sum(row["profile"].values()) == pytest.approx(1)
    assert list(row["profile"]) == [*KINDS, "the rest"]
    assert len(said) == 2
    with pytest.raises(UserError, match="no model named 'fno'"):
        measure_efficiency(["fno"], SMALL)
    with pytest.raises(UserError, match="at least one model"):
        measure_efficiency([], SMALL)


@pytest.mark.parametrize(("found", "memory"), [([90.0, 30.0, 40.0], 40.0), ([90.0, math.nan, 40.0], None)])
def test_memory_is_the_median_of_several_processes(
    found: list[float], memory: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(efficiency, "peak_memory", lambda *_: found.pop())
    (row,) = measure_efficiency(["fno-dse"], SMALL, 3, "smoke")
    assert row["memory"] == memory
    assert not found


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_measured(name: str) -> None:
    step = prepare(name, SMALL, "smoke")
    assert step.parameters > 0
    step()
    step()


def test_latent_grid_and_cloud() -> None:
    assert prepare("ikno-dense", SMALL, "paper").parameters == prepare("ikno-dense", Shape(), "paper").parameters
    points = disc(4000, torch.Generator().manual_seed(0))
    inside = points.norm(dim=-1)
    assert inside.max() <= 1
    assert (inside < 0.5**0.5).float().mean() == pytest.approx(0.5, abs=0.03)  # half of the area


def test_the_profile_tells_kinds_apart() -> None:
    a, index = torch.rand(700, 700), torch.randint(0, 700, (200_000,))
    calls = {
        "products": lambda: a @ a @ a,
        "gathers": lambda: a.index_select(0, index[:20_000]),
        "inverses": lambda: torch.linalg.inv(a),
        "Fourier": lambda: torch.fft.fft2(a),
    }
    for kind, call in calls.items():
        call()  # the first call of a library also sets it up
        assert shares(call)[kind] > 0.5, kind
