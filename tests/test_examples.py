"""Every example runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_poisson(tmp_path: Path) -> None:
    options = ["--samples", "16", "--points", "64", "--epochs", "2", "--out", str(tmp_path / "out")]
    command = [sys.executable, str(ROOT / "examples" / "poisson.py"), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "mean of the training solutions" in result.stdout
    assert (tmp_path / "out" / "poisson.png").stat().st_size > 10_000
