"""Where the settings of a run come from."""

from pathlib import Path

import numpy as np
import pytest

from ikno.config import flattened, make_config
from ikno.data.problem import open_problem
from ikno.training import complete, explain

CARD = """
name = "own"
file = "own.npz"
format = "npz"
variables = ["u"]
conditions = ["c"]
epochs = 7
grid = 9
arrays = { points = "x", conditions = "c", values = "u" }
"""


@pytest.fixture
def card(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x, c = rng.uniform(size=(10, 50, 2)), rng.normal(size=(10, 50, 1))
    np.savez(tmp_path / "own.npz", x=x, c=c, u=c)
    (tmp_path / "own.toml").write_text(CARD)
    return tmp_path / "own.toml"


def test_every_setting_has_its_value_and_its_origin(card: Path) -> None:
    overrides = {"preset": "paper", "train.batch": 3, "model.d_model": 32}
    found, _ = explain(str(card), overrides)
    config = make_config(str(card), overrides)
    whole = complete(config, open_problem(config.data, 0)).model_dump(mode="json")
    assert {key: setting["value"] for key, setting in found.items()} == flattened(whole)
    origin = {key: setting["origin"] for key, setting in found.items()}
    expected = {
        "preset": "command line",
        "data.name": "command line",
        "data.split": "data",
        "train.batch": "command line",
        "train.epochs": "card",
        "train.loss": "default",
        "model.name": "default",
        "model.grid_size": "card",
        "model.d_model": "command line",
        "model.normalize_branches": "preset paper",
        "model.num_layers": "default",
        "surrogate.mode": "data",
        "seed": "default",
    }
    assert {k: origin[k] for k in expected} == expected


def test_a_file_of_settings_and_choices_from_the_data(card: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[data]\nname = "{card}"\n[train]\nepochs = 3\nbatch = 2\n')
    found, notes = explain(str(file), {"train.batch": 5})
    origin = {key: setting["origin"] for key, setting in found.items()}
    assert origin["train.epochs"] == f"file {file}"
    assert origin["train.batch"] == "command line"
    assert origin["train.optimizer"] == "preset cpu"
    assert origin["model.stretching"] == "data (preset cpu: auto)"
    assert any("latent grid" in note for note in notes)
