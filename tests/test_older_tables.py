"""Comparisons and tables that an older version has made are found again: nothing in them is trained anew."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ikno.comparison import Budget, Plan, compare
from ikno.paper import Place, fill, load_preset, load_table, reproduce

GOLDEN = Path(__file__).parent / "fixtures" / "tables-1"
SMOKE = load_preset("smoke")
SIZES = {"ikno-tp.d_model": 4, "ikno-tp.grid_size": 3, "fno-dse.width": 4, "fno-dse.modes": 2}
PLAN = Plan(
    name="small.toml",
    models=("ikno-tp", "fno-dse"),
    overrides={"preset": "smoke", "train.batch": 3, **SIZES},
    budget=Budget(seconds=0.05),
    optimizers=("adamw",),
    learning_rates=(1e-3, 1e-2),
    seeds=(0, 1),
    target=1.0,
)  # that of the fixture's make.py


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixture, in which nothing may be trained, evaluated or measured."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # costs are kept for so many
    for name in ("cells.train", "cells.evaluate", "costs.interleaved", "costs.peak_memory"):
        monkeypatch.setattr(f"ikno.comparison.{name}", lambda *_, n=name, **__: pytest.fail(f"{n}: made again"))
    return tmp_path / "golden"


def content(file: Path) -> Any:
    return json.loads(file.read_text())


def folders(path: Path) -> set[str]:
    return {p.name for p in path.iterdir() if p.is_dir()}


def test_a_comparison_is_found_again(golden: Path) -> None:
    said: list[str] = []
    result, runs = compare(PLAN, golden / "comparison", say=said.append)
    assert not any("measuring" in text or "fno-dse" in text for text in said)
    assert folders(golden / "comparison") == folders(GOLDEN / "comparison")
    expected = content(GOLDEN / "comparison" / "table.json")
    assert content(golden / "comparison" / "table.json") == result
    for found in (result, expected):
        del found["machine"]
    assert json.dumps(result) == json.dumps(expected)  # with the order of the keys
    assert content(golden / "comparison" / "costs.json") == content(GOLDEN / "comparison" / "costs.json")
    assert set(runs) == {"ikno-tp", "fno-dse"}


def test_a_table_of_the_paper_is_found_again(golden: Path) -> None:
    table, place, said = load_table("own.toml"), Place(Path("tables"), Path("work")), []
    assert reproduce([table], SMOKE, place, say=said.append) == 0
    assert said == ["2 trainings, 2 of them done before"]
    cells = fill(table, SMOKE, place.out)["rows"][0]["cells"]
    stored = [content(p) for p in sorted((GOLDEN / "tables" / "cells").iterdir(), reverse=True)]  # IKNO, FNO
    assert [c["measured"]["mean"] for c in cells] == [pytest.approx(100 * s["error"]) for s in stored]


def test_results_are_made_again_from_the_runs(golden: Path) -> None:
    """All but the time of the training, which only that knows, and the versions of today."""
    shutil.rmtree(golden / "tables")
    assert reproduce([load_table("own.toml")], SMOKE, Place(Path("tables"), Path("work"))) == 0
    names = sorted(p.name for p in (golden / "tables" / "cells").iterdir())
    assert names == sorted(p.name for p in (GOLDEN / "tables" / "cells").iterdir())
    for name in names:
        new, old = (content(folder / "tables" / "cells" / name) for folder in (golden, GOLDEN))
        for found in (new, old):
            assert set(found.pop("machine")) == {"device", "threads", "python", "ikno", "torch", "numpy"}
        assert json.dumps(new) == json.dumps({**old, "seconds": None})
    assert folders(golden / "work" / "runs" / "small") == folders(GOLDEN / "work" / "runs" / "small")
