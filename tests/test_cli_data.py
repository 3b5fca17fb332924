import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ikno.cli import app
from ikno.data.catalog import CATALOG
from ikno.errors import UserError

CARDS = Path(__file__).parents[1] / "examples" / "cards"


def run(*arguments):
    """Return what a command prints; errors are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("IKNO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


SMALL = ["--samples", 3, "--resolution", 17, "--points", 40, "--workers", 1]


def test_list_shows_all_and_which_are_here(folder):
    text = run("data", "list")
    assert all(name in text for name in CATALOG)
    run("data", "generate", "poisson-gauss", *SMALL)
    rows = {row["name"]: row for row in json.loads(run("data", "list", "--json"))}
    assert list(rows) == list(CATALOG)
    assert rows["poisson-gauss"]["here"].endswith("poisson-gauss.nc")
    assert rows["ns-gauss"]["here"] is None
    assert rows["wave-layer"]["split"] == [1024, 256, 256]


def test_generate_info_plot(folder, tmp_path):
    assert "poisson-gauss.nc: 3 samples" in run(
        "data", "generate", "Poisson Gauss", *SMALL, "width=[0.05,0.1]", "--seed", 4
    )
    found = json.loads(run("data", "info", "poisson-gauss", "--json"))
    assert found["sizes"] == {"samples": 3, "times": 1, "points": 40, "variables": 1, "conditions": 1, "dim": 2}
    assert found["cloud"] == "shared"
    assert found["attributes"]["seed"] == "4"
    assert '"width": [0.05, 0.1]' in found["attributes"]["generator"]
    rows = {row["name"]: row for row in found["statistics"]}
    assert set(rows) == {"x (coordinate)", "y (coordinate)", "f", "u"}
    assert rows["u"]["published std"] == CATALOG["poisson-gauss"].metric_std[0]
    assert 0 < rows["u"]["mean"] < rows["u"]["max"]
    assert any("needs 2,560 samples" in line for line in found["remarks"])
    text = run("data", "info", folder / "poisson-gauss.nc")
    assert re.search("(kin|variant) of: ", text)
    assert "published std" in text
    assert run("data", "plot", "poisson-gauss", "--out", tmp_path / "a b.png").strip().endswith("a b.png")
    assert (tmp_path / "a b.png").stat().st_size > 1000


def test_failed_cases_are_counted(folder, monkeypatch):
    """The second and third flow do not converge: three samples take five draws, in two parts of the work."""
    pytest.importorskip("numba")
    from ikno.data.generators import airfoil

    original, calls = airfoil.solve, []

    def failing(*given, **options):
        calls.append(given)
        return original(*given, **options | {"cycles": 1 if len(calls) in (2, 3) else 150})

    monkeypatch.setattr(airfoil, "solve", failing)
    small = ["--samples", 3, "--resolution", 32, "--points", 60, "--workers", 1, "tolerance=0.01"]
    run("data", "generate", "naca0012", *small, "--shard", "1/2")
    assert "2 of 5 random cases failed and were drawn again" in run(
        "data", "generate", "naca0012", *small, "--shard", "0/2"
    )
    assert len(calls) == 5
    found = json.loads(run("data", "info", "naca0012", "--json"))
    assert found["attributes"]["draws"] == "5"
    assert "2 of 5 random cases failed and were drawn again" in found["remarks"]


def test_shards(folder):
    assert "shard 1/2" in run("data", "generate", "poisson-gauss", *SMALL, "--shard", "1/2")
    assert not (folder / "poisson-gauss.nc").exists()
    assert "3 samples" in run("data", "generate", "poisson-gauss", *SMALL, "--shard", "0/2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "nothing"], "no such benchmark"),
        (["generate", CARDS / "pointnetcfd.toml"], "cannot be generated"),
        (["generate", "poisson-gauss", "widht=1"], "poisson-gauss.widht: no such setting; did you mean 'width'"),
        (["generate", "poisson-gauss", "chance=2"], "poisson-gauss.chance"),
        (["generate", "poisson-gauss", "width=[0.1,0.05]"], r"poisson-gauss.width: a range is \[lower, upper\]"),
        (["generate", "poisson-gauss", "--out", "afile/x.nc"], "afile: cannot be used as a folder"),
        (["generate", "elasticity", "points=100"], "must divide the resolution, 27"),
        (["generate", "poisson-gauss", "--shard", "a/b"], "--shard: expected i/n"),
        (["generate", "poisson-gauss", "--shard", "3/2"], "counts from 0"),
        (["info", "ns-gauss"], "ikno data generate ns-gauss"),
        (["info", "missing.nc"], "missing.nc: no such file"),
        (["plot", "ns-gauss"], "no file ns-gauss.nc"),
        (["download", "naca0012"], "put it at .*naca0012.nc"),
    ],
)
def test_errors_name_the_remedy_and_leave_nothing(folder, tmp_path, arguments, message):
    (tmp_path / "afile").touch()
    with pytest.raises(UserError, match=message):
        run("data", *arguments)
    assert not list(tmp_path.rglob("*.nc*"))


def test_an_error_is_one_line_and_exit_code_2(tmp_path):
    command = [sys.executable, "-m", "ikno", "data", "info", "nothing"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: nothing: no such benchmark")
    assert result.stderr.count("\n") == 1


def test_example_cards_are_valid():
    from ikno.data.catalog import read_card

    assert [read_card(c).name for c in sorted(CARDS.glob("*.toml"))] == ["holed-poisson", "pointnetcfd"]
