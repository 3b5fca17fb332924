"""The command line as a person meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ikno import __version__
from ikno.cli import app
from ikno.cli.options import parse_overrides
from ikno.errors import UserError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ikno", *arguments], capture_output=True, text=True, check=False)


def test_help_and_version_work_without_torch() -> None:
    code = "import sys; sys.argv = ['ikno', '--version']; from ikno.cli import app; app(standalone_mode=False)"
    check = f"{code}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["ikno", __version__, "False"]
    assert "models" in run("--help").stdout


def test_models_as_table_and_json() -> None:
    arguments = ["models", "d_model=16", "num_heads=2", "num_layers=1", "grid_size=4"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    rows = json.loads(result.output)
    assert [r["model"] for r in rows][:2] == ["ikno-tp", "ikno-vanilla"]
    assert all(r["parameters"] > 1000 for r in rows)
    table = CliRunner().invoke(app, arguments).output
    assert f"{rows[0]['parameters']:,}" in table


def test_user_error_is_one_line_and_exit_code_2() -> None:
    result = run("models", "grid_sise=4")
    assert result.returncode == 2
    assert result.stderr == "Error: model.grid_sise: no such setting; did you mean 'grid_size'?\n"
    assert result.stdout == ""
    assert "Traceback" in run("--debug", "models", "grid_sise=4").stderr


def test_overrides() -> None:
    assert parse_overrides(["a=1", "b=[2,3]", "c=text", "d=true", "e=x=y"]) == {
        "a": 1,
        "b": [2, 3],
        "c": "text",
        "d": True,
        "e": "x=y",
    }
    with pytest.raises(UserError, match="write key=value"):
        parse_overrides(["grid_size"])


def test_import_is_lazy_and_public_names_exist() -> None:
    code = "import ikno, sys; print('torch' in sys.modules, all(hasattr(ikno, n) for n in ikno.__all__))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
