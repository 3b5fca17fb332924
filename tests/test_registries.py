"""Parts from outside the package: models, kernels, processors, losses, optimizers, benchmarks."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ikno
from ikno.data import CATALOG, GENERATORS, Card, Generator, Trajectory
from ikno.data.catalog import Arrays
from ikno.data.generate import Job, generate
from ikno.errors import UserError
from ikno.models import KERNELS, MODELS, PROCESSORS, build, name_of
from ikno.registry import PLUGINS, Registry, import_plugin, plugins
from ikno.training.losses import LOSSES
from ikno.training.optimizers import OPTIMIZERS

EXAMPLES = Path(__file__).parents[1] / "examples"
ALL: list[Registry] = [MODELS, KERNELS, PROCESSORS, LOSSES, OPTIMIZERS, CATALOG, GENERATORS]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test adds is gone after it."""
    monkeypatch.setenv(PLUGINS, "")
    before = [dict(r) for r in ALL]
    yield
    for registry, parts in zip(ALL, before, strict=True):
        registry.clear()
        registry.update(parts)


def write_set(folder: Path, samples: int = 6) -> Path:
    """Write a small steady set and its card; return the card."""
    rng = np.random.default_rng(0)
    x, c = rng.uniform(size=(40, 2)), rng.normal(size=(samples, 40, 1))
    np.savez(folder / "set.npz", x=np.broadcast_to(x, (samples, 40, 2)), c=c, u=2 * c)
    card = folder / "set.toml"
    card.write_text(
        'name = "set"\nfile = "set.npz"\nformat = "npz"\nvariables = ["u"]\nconditions = ["c"]\n'
        'arrays = { points = "x", conditions = "c", values = "u" }\nsplit = [4, 1, 1]\n'
    )
    return card


def config(folder: Path, **settings: Any) -> Any:
    return ikno.make_config(str(write_set(folder)), {"preset": "smoke", "train.epochs": 1, **settings})


class Cosine(nn.Module):
    """k(x, y) = prod_j (1 + cos(x_j - y_j)) / 2: positive definite; its tables are dense, so it says no nodes."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))

    def matrix(self, points: Tensor, grid: Any) -> Tensor:
        y = grid.points(points)
        return ((1 + torch.cos(points[:, :, None] - y)) / 2).prod(-1)

    @staticmethod
    def along(kernels: "Sequence[Cosine]", axis: int, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([(1 + torch.cos(x[..., None] - y)) / 2 for _ in kernels])

    @staticmethod
    def grams(kernels: "Sequence[Cosine]", grid: Any) -> list[Tensor]:
        axes = [grid.axis(j, kernels[0].alpha.detach().double()) for j in range(grid.dim)]
        return [Cosine.along(kernels, j, y, y) for j, y in enumerate(axes)]

    @staticmethod
    def nodes(kernels: "Sequence[Cosine]", grid: Any, tolerance: float, slope: bool) -> None:
        return None


def test_a_kernel_from_outside_serves_the_whole_model(tmp_path: Path) -> None:
    KERNELS.register("cosine")(lambda settings, dim: [Cosine(a) for a in settings.kernel_alpha])
    run = ikno.train(config(tmp_path, **{"model.kernel": "cosine"}), tmp_path / "run")
    surrogate = ikno.load(run.path)
    model: Any = surrogate.model
    assert [type(k) for k in model.branches] == [Cosine] * 3
    x, c = torch.rand(1, 9, 2), torch.rand(2, 9, 1)
    eager = model(c, x)
    assert eager.isfinite().all()
    model.fold()
    assert torch.allclose(model(c, x), eager, atol=1e-5)


def test_a_processor_from_outside(tmp_path: Path) -> None:
    @PROCESSORS.register("none")
    class Nothing(nn.Module):
        def __init__(self, size: tuple[int, ...], width: int, settings: Any, conditions: int) -> None:
            super().__init__()

        def forward(self, latent: Tensor, condition: Tensor | None = None) -> Tensor:
            return latent

    run = ikno.train(config(tmp_path, **{"model.processor": "none"}), tmp_path / "run")
    assert isinstance(ikno.load(run.path).model.processor, Nothing)
    model: Any = build("ikno-tp", in_channels=1, out_channels=1, dim=2, processor="none", grid_size=4)
    assert not list(model.processor.parameters())


def test_a_loss_and_an_optimizer_from_outside(tmp_path: Path) -> None:
    asked = []

    @LOSSES.register("largest")
    def largest(output: Tensor, target: Tensor, mask: Tensor | None, team: Any = None) -> Tensor:
        asked.append(len(output))
        return (output - target).abs().flatten(1).amax(1)

    OPTIMIZERS.register("sgd")(lambda model, settings: [torch.optim.SGD(model.parameters(), settings.learning_rate)])
    run = ikno.train(config(tmp_path, **{"train.loss": "largest", "train.optimizer": "sgd"}), tmp_path / "run")
    assert asked
    assert run.config.train.optimizer == "sgd"


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("train.loss", "mae", "train.loss: no loss named 'mae'; did you mean 'mse'?"),
        ("train.optimizer", "adam", "train.optimizer: no optimizer named 'adam'; did you mean 'adamw'?"),
        ("model.kernel", "bases", "model.kernel: no kernel named 'bases'; did you mean 'base'?"),
        ("model.processor", "atention", "model.processor: no processor named 'atention'; did you mean 'attention'?"),
        ("model", "ikno", "model: no model named 'ikno'"),
        ("train.optimizer", "x" * 100_000, f"train.optimizer: no optimizer named '{'x' * 100}...'"),
    ],
)
def test_an_unknown_name_is_one_line_before_anything_is_written(
    tmp_path: Path, setting: str, value: str, message: str
) -> None:
    with pytest.raises(UserError) as error:
        ikno.train(config(tmp_path, **{setting: value}), tmp_path / "run")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_benchmark_from_outside(tmp_path: Path) -> None:
    class Doubling(Generator):
        """u = 2 c."""

        resolution: int = 1

        def sample(self, rng: np.random.Generator, cloud: Any) -> Trajectory:
            points, c = rng.uniform(size=(30, 2)), rng.normal(size=(1, 30, 1))
            return Trajectory(points, 2 * c, c)

    fields = {"variables": ("u",), "conditions": ("c",), "generated": True, "split": (3, 1, 1)}
    ikno.data.register(Card(name="doubling", arrays=Arrays(conditions="c"), **fields))(Doubling)
    path = generate(Job("doubling", (), 5, 0), tmp_path / "doubling.nc", 1)
    assert path is not None
    settings = {"preset": "smoke", "train.epochs": 1}
    run = ikno.train(ikno.make_config(str(path), settings), tmp_path / "run")
    assert run.card.name == "doubling"


def test_names_of_the_package_stay() -> None:
    with pytest.raises(ValueError, match="ikno has a model named 'gaot' of its own"):
        ikno.models.register("gaot")(nn.Identity)
    ikno.models.register("mine")(nn.Identity)
    ikno.models.register("mine")(nn.ReLU)  # a notebook runs a cell again
    assert MODELS["mine"].model is nn.ReLU
    assert name_of(nn.ReLU) == "mine"
    with pytest.raises(UserError, match=r"not registered; put @ikno\.models\.register"):
        name_of(nn.GELU)
    with pytest.raises(UserError, match="no model class of that name"):
        name_of("json:dumps")
    with pytest.raises(UserError, match="nowhere_to_be_found: cannot be imported"):
        name_of("nowhere_to_be_found:Model")


def test_a_listed_module_is_imported_where_a_name_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_parts.py").write_text(
        "from ikno.training.losses import LOSSES\nLOSSES.register('nothing')(lambda *a: a[0].sum((1, 2)) * 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LOSSES, "_looked", False)
    monkeypatch.setenv(PLUGINS, "module_of_parts")
    assert LOSSES.has("nothing")
    import_plugin("json")
    assert plugins() == ["module_of_parts", "json"]


def test_nothing_that_a_run_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a stranger may name any module: it is a name like others, and unknown."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    for given in (config(tmp_path, model="evil:Model"), config(tmp_path, model="evil")):
        with pytest.raises(UserError, match="no model named 'evil"):
            ikno.train(given, tmp_path / "run")
    with pytest.raises(UserError, match="no model named 'evil:Model'"):
        build("evil:Model", in_channels=1, out_channels=1, dim=2)


def test_the_example_is_compared_evaluated_and_trained_in_python(tmp_path: Path) -> None:
    def shown(*words: str) -> str:
        env = {**os.environ, "PYTHONPATH": f"{EXAMPLES.parent}"}
        done = subprocess.run(
            [sys.executable, "-m", "ikno", *words], capture_output=True, text=True, cwd=EXAMPLES, env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    card = str(write_set(tmp_path))
    words = ("preset=smoke", "--models", "ikno-tp,own_model:Averages", "--budget", "2 epochs", "averages.width=32")
    table = json.loads(shown("compare", card, *words, "--out", str(tmp_path / "all"), "--json"))
    rows = {r["model"]: r for r in table["rows"]}
    assert rows.keys() == {"ikno-tp", "averages"}
    assert all(r["error"] is not None and r["memory"] is not None and r["reason"] is None for r in rows.values())
    run = next((tmp_path / "all").rglob("averages-*"))
    found = json.loads(shown("--import", "own_model", "evaluate", str(run), "--json"))
    assert found["best"]["value"] == pytest.approx(rows["averages"]["error"])
    assert "averages" in shown("--import", "own_model", "models")
    model = import_plugin_from(EXAMPLES, "own_model").Averages
    trained = ikno.train(config(tmp_path), tmp_path / "run", model=model)
    assert isinstance(ikno.load(trained.path).model, model)


def import_plugin_from(folder: Path, module: str) -> Any:
    here = os.getcwd()
    os.chdir(folder)
    try:
        return import_plugin(module)
    finally:
        os.chdir(here)
