"""What the long benchmarks rely on."""

from pathlib import Path

from benchmarks.equal_time import digest_within
from benchmarks.search import CHOICES
from ikno.config import make_config
from ikno.data.generate import Job, generate
from ikno.data.problem import open_problem
from ikno.training import complete


def test_every_choice_of_the_search_is_another(tmp_path: Path) -> None:
    file = tmp_path / "wave-c-sines.nc"
    generate(Job("wave-c-sines", (("points", 64), ("terms", 2)), 4, 0), file, 1)
    given = {"data.split": [2, 1, 1], "surrogate.mode": "direct"}
    problem = open_problem(make_config(str(file), given).data, 0)
    keys = {
        digest_within(complete(make_config(str(file), {**given, **choice}), problem), "", 1.0)
        for choice in CHOICES.values()
    }
    assert len(keys) == len(CHOICES)
