"""Tables made again: every training once, results as files, and what is said about them."""

import json
import math
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ikno.comparison import efficiency
from ikno.errors import UserError
from ikno.paper import (
    Place,
    Preset,
    Table,
    fill,
    latex,
    load_preset,
    load_table,
    markdown,
    page,
    reproduce,
    run_of,
)
from ikno.paper.report import number, ranks
from ikno.paper.results import load_result
from ikno.runs import Run
from ikno.training import Report, TrainingInterrupted

TABLE = """
title = "Two models"
caption = "Small ones"
label = "tab:own"
set = "small.toml"
settings = { "train.epochs" = 2, "train.batch" = 3 }
compare = "columns"
seeds = 2
[[columns]]
name = "IKNO"
settings = { model = "ikno-tp", "model.d_model" = 4, "model.grid_size" = 3 }
[[columns]]
name = "FNO"
settings = { model = "fno-dse", "model.width" = 16, "model.modes" = 2 }
[[rows]]
name = "small"
published = [1.5, "-"]
[[claims]]
text = "IKNO is better"
better = ["IKNO"]
than = ["FNO"]
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rng = np.random.default_rng(0)
    x, a = rng.random((16, 2)), rng.normal(size=(8, 2))
    f = a @ np.stack([np.sin(3 * x[:, 0]), x[:, -1]])
    arrays = {"x": x, "c": f[..., None], "u": (f**2)[..., None]}
    np.savez(tmp_path / "small.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (tmp_path / "small.toml").write_text(
        'name = "small"\nformat = "npz"\nfile = "small.npz"\ncloud = "shared"\nvariables = ["u"]\ndim = 2\n'
        'conditions = ["f"]\nsplit = [6, 1, 1]\n[arrays]\nconditions = "c"\n'
    )
    (tmp_path / "own.toml").write_text(TABLE)
    return load_table(str(tmp_path / "own.toml"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "out", tmp_path / "work")


SMOKE = load_preset("smoke")


def test_results_are_complete_and_made_once(table: Table, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reproduce([table], SMOKE, place) == 0
    files = sorted((place.out / "cells").iterdir())
    assert len(files) == 4  # two models, two seeds
    result = json.loads(files[0].read_text())
    assert (result["set"], result["scale"], result["samples"]) == ("small", "smoke", [6, 1, 1])
    assert result["epochs"] == 2
    assert result["steps"] == 4
    assert result["seconds"] > 0
    assert result["source"]["file"] == "small.npz"
    assert result["source"]["bytes"] == (place.out.parent / "small.npz").stat().st_size
    assert result["machine"].keys() >= {"device", "threads", "python", "torch", "numpy", "ikno"}
    run = run_of(result, place.work)
    assert isinstance(run, Run)
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    assert result["error"] == evaluation["best"]["value"] == result["metrics"][result["metric"]]

    said: list[str] = []
    monkeypatch.setattr("ikno.paper.results.make", None)  # nothing may be made again
    assert reproduce([table], SMOKE, place, say=said.append) == 0
    assert said == ["4 trainings, 4 of them done before"]
    filled = fill(table, SMOKE, place.out)
    cells = filled["rows"][0]["cells"]
    errors = [json.loads(f.read_text())["error"] for f in files if "ikno-tp" in f.name]
    assert cells[0]["measured"]["mean"] == pytest.approx(100 * sum(errors) / 2)
    assert cells[0]["measured"]["std"] == pytest.approx(100 * abs(errors[0] - errors[1]) / math.sqrt(2))
    assert cells[0]["ratio"] == pytest.approx(cells[0]["measured"]["mean"] / 1.5)
    assert cells[1]["published"] is None
    assert filled["trainings"] == 4
    assert all(isinstance(run_of(cell, place.work), Run) for cell in cells)


def test_results_stay_without_their_data_and_go_with_another_version_of_it(table: Table, place: Place) -> None:
    reproduce([table], SMOKE, place, ["/FNO"])
    file = place.out.parent / "small.npz"
    content = file.read_bytes()
    file.unlink()
    assert "measured" in fill(table, SMOKE, place.out)["rows"][0]["cells"][1]
    file.write_bytes(content + b" ")
    assert "measured" not in fill(table, SMOKE, place.out)["rows"][0]["cells"][1]


def test_only_chosen_cells_are_made_and_missing_ones_are_left_open(table: Table, place: Place) -> None:
    reproduce([table], SMOKE, place, ["/FNO"])
    filled = fill(table, SMOKE, place.out)
    assert ["measured" in cell for cell in filled["rows"][0]["cells"]] == [False, True]
    assert filled["claims"][0]["measured"] == {"lines": 0, "holds": 0, "not": []}
    text = markdown(filled, SMOKE)
    assert "| small | - |" in text
    assert "IKNO is better: published numbers: nothing to compare; here: nothing to compare." in text
    assert "not run" in page([filled], SMOKE, {})


def test_an_interrupted_table_goes_on(table: Table, place: Place, tmp_path: Path) -> None:
    def stop(name: str, report: Report) -> None:
        if name.startswith("2/4 ") and report.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted):
        reproduce([table], SMOKE, place, show=stop)
    assert len(list((place.out / "cells").iterdir())) == 1
    assert reproduce([table], SMOKE, place) == 0
    other = Place(tmp_path / "other", tmp_path / "other-work")
    reproduce([table], SMOKE, other)
    for file in (place.out / "cells").iterdir():
        first, second = (json.loads((p.out / "cells" / file.name).read_text()) for p in (place, other))
        assert first["error"] == second["error"]  # the same bits as without the interruption


def test_a_cell_that_another_process_makes_is_left_to_it(table: Table, place: Place) -> None:
    reproduce([table], SMOKE, place)
    files = sorted((place.out / "cells").iterdir())
    result = json.loads(files[0].read_text())
    for file in files:
        file.unlink()
    run = run_of(result, place.work)
    assert run is not None
    (run.path / "evaluation.json").unlink()
    said: list[str] = []
    with run.locked():
        assert reproduce([table], SMOKE, place, say=said.append) == 1
    assert any("another process is training it" in line for line in said)
    assert len(list((place.out / "cells").iterdir())) == 3
    assert reproduce([table], SMOKE, place) == 0
    assert json.loads(files[0].read_text())["error"] == result["error"]


def test_a_cell_that_another_process_gives_up_is_made_in_the_end(table: Table, place: Place) -> None:
    reproduce([table], SMOKE, place)
    files = sorted((place.out / "cells").iterdir())
    run = run_of(json.loads(files[0].read_text()), place.work)
    assert run is not None
    (run.path / "evaluation.json").unlink()
    for file in files:
        file.unlink()
    with ExitStack() as stack:
        stack.enter_context(run.locked())

        def give_up(text: str) -> None:
            if "another process" in text:
                stack.close()

        assert reproduce([table], SMOKE, place, say=give_up) == 0
    assert sorted((place.out / "cells").iterdir()) == files


def test_trainings_that_fail_are_told_and_the_others_go_on(table: Table, place: Place, tmp_path: Path) -> None:
    bad = TABLE.replace('"model.modes" = 2', '"model.modes" = 2, "model.no_such" = 1')
    (tmp_path / "bad.toml").write_text(bad)
    said: list[str] = []
    assert reproduce([load_table(str(tmp_path / "bad.toml"))], SMOKE, place, say=said.append) == 1
    assert any("no_such" in line for line in said)
    assert len(list((place.out / "cells").iterdir())) == 2


def test_published_settings_search_for_the_kernel_scales(table: Table, place: Place) -> None:
    preset = SMOKE.model_copy(update={"search": True, "most_seeds": 1})
    assert reproduce([table], preset, place) == 0
    ikno, fno = (Path(cell["run"]) for cell in fill(table, preset, place.out)["rows"][0]["cells"])
    assert ikno.name.startswith("scale-")
    folder = place.work / ikno.parent
    assert sorted(p.name for p in folder.iterdir()) == ["scale-1", "scale-2", "scale-4", "search.json"]
    assert not fno.name.startswith("scale-")


def test_tables_predict_in_time_what_the_paper_does(place: Place, tmp_path: Path) -> None:
    """Unless they ask for a choice from the data, which is another cell: its key is known before there is data."""
    rng = np.random.default_rng(0)
    u = np.einsum("s,t,p->stp", rng.normal(size=8), 0.1 ** np.linspace(0, 1, 3), rng.normal(size=16))
    np.savez(tmp_path / "heat.npz", x=rng.random((16, 2)).astype(np.float32), u=u[..., None].astype(np.float32))
    (tmp_path / "heat.toml").write_text(
        'name = "heat"\nformat = "npz"\nfile = "heat.npz"\ncloud = "shared"\nvariables = ["u"]\n'
        "times = [0.0, 1.0]\nsnapshots = 3\nstride = 1\nfinal_snapshot = 2\nsplit = [6, 1, 1]\n"
    )
    (tmp_path / "own.toml").write_text(
        'title = "T"\ncaption = "C"\nlabel = "tab:own"\nset = "heat.toml"\ncompare = "columns"\n'
        'settings = { "model.d_model" = 4, "model.grid_size" = 3, "data.stride" = 1 }\n'
        '[[columns]]\nname = "open"\nsettings = { model = "ikno-tp" }\n'
        '[[columns]]\nname = "auto"\nsettings = { "surrogate.mode" = "auto" }\n'
        '[[rows]]\nname = "heat"\npublished = ["-", "-"]\n'
    )
    table = load_table(str(tmp_path / "own.toml"))
    assert reproduce([table], SMOKE, place) == 0
    found = {}
    for result in (json.loads(p.read_text()) for p in (place.out / "cells").iterdir()):
        run = run_of(result, place.work)
        assert run is not None
        found[result["settings"].get("surrogate.mode")] = run.config.surrogate.mode
    assert found == {None: "derivative", "auto": "direct"}


def test_generated_data_is_made_once_and_kept_apart_by_its_settings(place: Place) -> None:
    table = load_table("predictions")
    said: list[str] = []
    preset = SMOKE.model_copy(update={"split": (2, 1, 1)})
    assert reproduce([table], preset, place, ["poisson-gauss"], say=said.append) == 0
    assert "poisson-gauss: making 4 samples" in said
    (file,) = place.work.glob("data/*/poisson-gauss.nc")
    filled = fill(table, preset, place.out)
    (described,) = filled["sets"]
    assert described["source"]["options"] == {"points": 256, "resolution": 32}
    assert "generated (" in markdown(filled, preset)
    again: list[str] = []
    for result in (place.out / "cells").iterdir():
        result.unlink()
    reproduce([table], preset, place, ["poisson-gauss"], say=again.append)
    assert again == ["1 trainings, 0 of them done before"]
    assert file.exists()


def test_costs_are_measured_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency, "peak_memory", lambda *arguments: 12.5)
    sizes = SMOKE.efficiency.model_copy(update={"points": 32, "grid": 4, "samples": 10, "batch": 4})
    preset = SMOKE.model_copy(update={"efficiency": sizes})
    table = load_table("efficiency")
    with pytest.raises(UserError, match="cells: no row, x fits none of the tables"):
        reproduce([table], preset, place, ["no row", "x"])
    assert not (place.out / "cells").exists()
    assert reproduce([table], preset, place) == 0
    (file,) = (place.out / "cells").iterdir()
    before = file.read_bytes()
    assert reproduce([table], preset, place) == 0
    assert file.read_bytes() == before
    filled = fill(table, preset, place.out)
    rows = json.loads(before)["rows"]
    for row, found in zip(filled["rows"], rows, strict=True):
        assert row["cells"][0]["measured"]["mean"] == pytest.approx(0.0125)
        assert row["cells"][1]["measured"]["mean"] == pytest.approx(3 * found["seconds"])  # ceil(10 / 4) steps
    assert "Cost: seconds of training" not in markdown(filled, preset)


def test_damaged_results_are_told(table: Table, place: Place) -> None:
    (place.out / "cells").mkdir(parents=True)
    (place.out / "cells" / "x.json").write_text("{")
    with pytest.raises(UserError, match=r"x\.json: damaged"):
        load_result(place.out, "x.json")
    assert load_result(place.out, "y.json") is None


def filled_by_hand(measured: list[list[float | None]], compare: str = "columns") -> dict[str, Any]:
    """Return a filled table of two rows and three columns; nan is a cell that was not run, None one that diverged."""
    rows = []
    for name, line in zip(("r", "s"), measured, strict=True):
        cells: list[dict[str, Any]] = []
        for value, published in zip(line, (1.0, 2.0, 4.0), strict=True):
            cell: dict[str, Any] = {"published": published, "published_std": None}
            if value is None or not math.isnan(value):
                cell["measured"] = {"mean": value, "std": None, "seeds": 1}
                cell["ratio"] = None if value is None else value / published
            cells.append(cell)
        rows.append({"name": name, "cells": cells})
    return {
        **{
            "name": "t",
            "argument": "t",
            "title": "T",
            "caption": "C & D",
            "label": "l",
            "kind": "errors",
            "unit": "%",
            "axis": "",
        },
        **{"compare": compare, "scale": "smoke", "columns": ["a", "b", "c_d"], "rows": rows, "sets": [], "claims": []},
        **{"machines": [], "seconds": 0.0, "trainings": 0},
    }


def test_best_and_second_are_found_along_the_right_axis() -> None:
    numbers: list[list[float | None]] = [[3.0, 1.0, 2.0], [1.0, math.nan, None]]
    assert ranks(filled_by_hand(numbers), "measured") == {
        ("r", "b"): 0,
        ("r", "c_d"): 1,
    }  # one number alone is no contest
    assert ranks(filled_by_hand(numbers), "published") == {("r", "a"): 0, ("r", "b"): 1, ("s", "a"): 0, ("s", "b"): 1}
    assert ranks(filled_by_hand(numbers, "rows"), "measured") == {("s", "a"): 0, ("r", "a"): 1}
    text = markdown(filled_by_hand(numbers), SMOKE, ["p.png"])
    assert "| r | 3.00 | **1.00** | *2.00* |" in text
    assert "| s | 1.00 | - | diverged |" in text
    assert "| r | **1.00 (x 3.00)** | *2.00 (x 0.50)* | 4.00 (x 0.50) |" in text
    assert "![T](p.png)" in text
    tex = latex(filled_by_hand(numbers))
    assert r"r & 3.00 (1.00) & \textbf{1.00} (2.00) & \underline{2.00} (4.00) \\" in tex
    assert r" & a & b & c\_d \\" in tex
    assert r"C \& D" in tex


def test_claims_are_judged_line_by_line(table: Table, place: Place) -> None:
    from ikno.paper.filled import judge
    from ikno.paper.tables import Claim

    numbers: list[list[float | None]] = [[3.0, 1.0, 2.0], [1.0, 2.0, None]]
    better = judge(Claim(text="x", better=("a",), than=("b", "c_d")), filled_by_hand(numbers))
    assert better["published"] == {"lines": 2, "holds": 2, "not": []}
    assert better["measured"] == {"lines": 2, "holds": 1, "not": ["r"]}  # what diverged is worse than anything
    falls = judge(Claim(text="x", falls=("c_d", "b", "a")), filled_by_hand(numbers))
    assert falls["measured"] == {"lines": 2, "holds": 1, "not": ["r"]}
    rows = judge(
        Claim(text="x", better=("s",), than=("r",)), filled_by_hand([[3.0, 1.0, 2.0], [1.0, 2.0, math.nan]], "rows")
    )
    assert rows["measured"] == {"lines": 2, "holds": 1, "not": ["b"]}


def test_names_in_the_page_are_escaped() -> None:
    filled = filled_by_hand([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    filled["title"] = "<b>"
    text = page([filled], SMOKE, {"t": ["a b.png"]})
    assert "<b>" not in text.replace("<b>Nothing may", "")
    assert "&lt;b&gt;" in text
    assert 'src="a b.png"' in text
    assert text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("value", "std", "text"),
    [(0.256, None, "0.26"), (12.34, 0.56, "12.3 ± 0.6"), (281.4, None, "281"), (None, None, "diverged")],
)
def test_numbers_have_three_digits(value: float | None, std: float | None, text: str) -> None:
    assert number(value, std) == text


def test_presets_say_what_may_be_concluded() -> None:
    for name in ("smoke", "cpu", "paper"):
        preset = load_preset(name)
        assert isinstance(preset, Preset)
        assert "conclu" in preset.conclusion or "compared" in preset.conclusion
