"""What the long benchmarks rely on."""

from pathlib import Path

import pytest

from benchmarks import equal_time
from benchmarks.equal_time import YARDSTICK, Result, digest_within, milliseconds_of, page
from benchmarks.search import CHOICES
from ikno.config import make_config
from ikno.cost import Seconds
from ikno.data.generate import Job, generate
from ikno.data.problem import open_problem
from ikno.training import complete


def test_every_choice_of_the_search_is_another(tmp_path: Path) -> None:
    file = tmp_path / "wave-c-sines.nc"
    generate(Job("wave-c-sines", (("points", 64), ("terms", 2)), 4, 0), file, 1)
    given = {"data.split": [2, 1, 1], "surrogate.mode": "direct"}
    problem = open_problem(make_config(str(file), given).data, 0)
    keys = {
        name: digest_within(complete(make_config(str(file), {**given, **choice}), problem), "", 1.0)
        for name, choice in CHOICES.items()
    }
    assert keys["regular grid"] == keys["preset"]  # of points that do not cluster
    assert len(set(keys.values())) == len(CHOICES) - 1


def test_costs_are_in_units_of_the_yardstick_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "poisson-gauss.nc"
    generate(Job("poisson-gauss", (("points", 16),), 3, 0), file, 1)
    config = make_config(str(file), {"data.split": [1, 1, 1], "preset": "smoke", "data.points": 16})
    problem = open_problem(config.data, 0)
    slow = {"yardstick": Seconds(1.0, 0.5), "ikno-tp muon": Seconds(3.0, 1.5)}
    monkeypatch.setattr(equal_time, "interleaved", lambda calls, repeats: {k: slow[k] for k in calls})
    wanted = {"ikno-tp muon": complete(config, problem)}
    kept = tmp_path / "costs.json"
    found = milliseconds_of(wanted, problem, kept, lambda: lambda: None)
    assert found == {"ikno-tp muon": pytest.approx(3 * YARDSTICK)}
    monkeypatch.setattr(equal_time, "interleaved", lambda calls, repeats: pytest.fail("timed again"))
    assert milliseconds_of(wanted, problem, kept, lambda: lambda: None) == found


def test_the_page_has_ratios_and_the_time_to_an_error() -> None:
    def result(model: str, seconds: float, error: float) -> Result:
        return Result("elasticity", model, seconds, "", "muon", 0.01, "direct", 10, 5, 2.0, [error], [error])

    text = page(
        [
            *(result("ikno-tp", seconds, error) for seconds, error in ((4.0, 0.2), (6.0, 0.14), (60.0, 0.03))),
            *(result("gino", seconds, error) for seconds, error in ((4.0, 0.3), (6.0, 0.2), (60.0, 0.06))),
        ]
    )
    assert "| elasticity | 3.00 | 6.00 | 0.50 |" in text
    assert text.split("## Seconds to 15 %")[1].splitlines()[-1] == "| elasticity | 6 | 60 |"
    assert "## Seconds to" not in page([result("gino", 60.0, 0.06)])
