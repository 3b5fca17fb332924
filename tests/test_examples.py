"""Every example runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--size", "smoke", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for words in ("$ ikno train", "nearest training sample", "other samples", "best of three rollouts"):
        assert words in result.stdout
    for name in ("run-poisson-gauss/pictures/fields.png", "run-wave-layer/pictures/rollout.gif", "prediction.npz"):
        assert (tmp_path / "out" / name).stat().st_size > 1000
