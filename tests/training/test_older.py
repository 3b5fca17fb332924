"""Runs of older versions go on, and checkpoints of newer ones are refused in one line."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ikno.config import SurrogateSettings, TrainSettings, make_config
from ikno.errors import UserError
from ikno.models import IKNOSettings, complete_model
from ikno.runs import Run, former_names, load, save
from ikno.training import train
from ikno.training.progress import Progress

GOLDEN = Path(__file__).parents[1] / "fixtures" / "resume-1"


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that version 0.1.0 stopped after one of three epochs, its data beside it."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    return tmp_path / "golden" / "run"


def sign(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change run.json and its checksum."""
    content = json.loads(path.read_text())["run"]
    change(content)
    digest = hashlib.sha256(json.dumps(content, indent=1).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, "run": content}))


def with_state(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the progress that the checkpoint holds."""
    file = run / "last.safetensors"
    tensors, state = load(file)
    change(state)
    save(file, tensors, state)


def as_expected(run: Run) -> None:
    """The outcome is that of the version that made the run; sums may be in another order today."""
    expected = json.loads((GOLDEN / "expected.json").read_text())
    records = run.log()
    assert [r["step"] for r in records] == [r["step"] for r in expected["log"]]
    for name in ("loss", "validation", "learning_rate"):
        assert [r[name] for r in records] == pytest.approx([r[name] for r in expected["log"]], rel=1e-5)
    tensors, state = load(run.path / "last.safetensors")
    assert state["step"] == expected["step"]
    current = {former_names(k)[-1]: v for k, v in tensors.items()}
    for name, values in expected["weights"].items():
        np.testing.assert_allclose(current[name].flatten()[:8].numpy(), values, rtol=1e-4, atol=1e-5)
    points, inputs = np.array([[0.3, 0.4], [0.6, 0.5]]), np.array([[1.0, 0.5], [0.8, 0.5]])
    found = run.surrogate().predict(points, inputs, None, 0.0, 1.0)
    np.testing.assert_allclose(found, expected["prediction"], rtol=1e-4)


def test_a_run_of_an_older_version_goes_on(golden: Path) -> None:
    config = Run.open(golden).config
    assert config.train.epochs == 3
    as_expected(train(config, golden, resume=True))


def test_fields_of_the_progress_that_came_later_have_their_defaults(golden: Path) -> None:
    with_state(golden, lambda state: [state.pop(name) for name in ("skipped", "bad", "finished")])
    as_expected(train(Run.open(golden).config, golden, resume=True))


def test_a_checkpoint_of_a_newer_version_is_refused(golden: Path) -> None:
    with_state(golden, lambda state: state.update({"phase\nof moon": 3}))
    message = r"last\.safetensors: made by a newer version of ikno, 'phase\\nof moon' is not known here; update ikno"
    with pytest.raises(UserError, match=message) as error:
        train(Run.open(golden).config, golden, resume=True)
    assert "\n" not in str(error.value)


def test_settings_that_came_later_have_their_defaults(golden: Path) -> None:
    """Also those of the model, for which the preset of the run may say something else today."""

    def older(content: dict[str, Any]) -> None:
        for name in ("ignore_memory", "validate_every"):
            del content["config"]["train"][name]
        for part in ("config", "signature"):
            del content[part]["model"]["tolerance"]

    sign(golden / "run.json", older)
    run = Run.open(golden)
    assert IKNOSettings().tolerance == complete_model(run.config.model)["tolerance"]
    config = run.config.model_copy(update={"preset": "cpu"})  # which has another tolerance
    assert complete_model(config.model, "cpu")["tolerance"] != IKNOSettings().tolerance
    with pytest.raises(UserError, match=r"model\.positions was none, now rotary"):
        train(config.model_copy(update={"model": {**config.model, "positions": "rotary"}}), golden, resume=True)
    as_expected(train(config, golden, resume=True))


def test_another_model_is_another_config(golden: Path) -> None:
    config = make_config("heat.toml", {"preset": "smoke", "model": "fno-dse"})
    with pytest.raises(UserError, match=r"cannot go on with another config .*model\.name was ikno-tp, now fno-dse"):
        train(config, golden, resume=True)


def test_every_field_has_a_default() -> None:
    """Else older checkpoints and runs could not be read."""
    Progress()
    TrainSettings()
    SurrogateSettings()


def test_the_golden_run_is_small_and_of_no_machine() -> None:
    files = [f for f in GOLDEN.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 150_000
    assert "/" not in json.dumps(json.loads((GOLDEN / "run" / "run.json").read_text())["run"]["config"])
