"""Data sets that train in seconds."""

from pathlib import Path

import h5py
import numpy as np
import pytest

SAMPLES, POINTS = 12, 40


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A steady and a time-dependent set in the released layout, small and smooth."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (POINTS, 2))
    a = rng.normal(size=(SAMPLES, 3))
    modes = np.stack([np.sin(np.pi * k * x[:, 0]) * np.sin(np.pi * x[:, 1]) for k in (1, 2, 3)])
    with h5py.File(tmp_path / "poisson-gauss.nc", "w") as file:
        file["x"] = x[None, None].astype(np.float32)
        file["c"] = (a @ modes)[:, None, :, None].astype(np.float32)
        file["u"] = ((a / (1 + np.arange(3))) @ modes)[:, None, :, None].astype(np.float32)
    t = np.linspace(0, 1, 21)
    decay = np.exp(-t[:, None] * np.arange(1, 4))
    u = np.einsum("sk,tk,kp->stp", a, decay, modes)
    with h5py.File(tmp_path / "ns-gauss.nc", "w") as file:
        file["x"] = x[None, None].astype(np.float32)
        file["u"] = np.stack([u, -u], -1).astype(np.float32)
    monkeypatch.setenv("IKNO_DATA", str(tmp_path))
    return tmp_path
