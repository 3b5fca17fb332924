"""Predictions on meshes: inputs by their names, results as more point arrays."""

from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import torch

from ikno.data.catalog import Card
from ikno.errors import UserError
from ikno.evaluation import PredictionRequest, predict
from ikno.runs import Run, save
from ikno.surrogate import Signature, Surrogate
from tests.conftest import complete_config

TINY = {"name": "ikno-tp", "d_model": 4, "num_heads": 2, "num_layers": 1, "grid_size": 3}
STEADY = Card(name="wing", format="csv", variables=("p", "T"), conditions=("Mach", "angle of attack"))
MOVING = Card(name="flow", variables=("u", "v"), times=(0.0, 1.0), snapshots=5)

rng = np.random.default_rng(0)
N = 9
POINTS = np.concatenate([rng.random((N, 2)), np.full((N, 1), 0.5)], 1)
TRIANGLES = np.arange(N).reshape(3, 3)
ANGLE = rng.random(N).astype(np.float32)


def make(path: Path, card: Card) -> Run:
    """Return a run with random weights."""
    signature = Signature.model_validate(
        {"dim": 2, "variables": card.targets, "conditions": card.conditions, "box": ((0.0, 1.0), (0.0, 1.0))}
        | {"times": card.times, "mode": "direct" if card.steady else "residual", "model": TINY}
    )
    run = Run.create(path, complete_config("x.toml", TINY), card, signature)
    weights = Surrogate(signature, seed=0).state_dict()
    save(path / "best.safetensors", {f"weights.{k}": v for k, v in weights.items()}, {})
    return run


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("steady"), STEADY)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("moving"), MOVING)


def vtu(path: Path, points: np.ndarray = POINTS, **arrays: np.ndarray) -> Path:
    named: dict[str, Any] = {name.replace("_", " "): array for name, array in arrays.items()}
    meshio.Mesh(points, [("triangle", TRIANGLES)], point_data=named).write(path)
    return path


def test_steady(steady: Run, tmp_path: Path) -> None:
    """One input from the file, one given; a given number goes before the array."""
    file = vtu(tmp_path / "in.vtu", angle_of_attack=ANGLE, p=ANGLE)
    out = tmp_path / "out.vtu"
    made = predict(steady, PredictionRequest(file, out, given={"Mach": 0.5}))
    inputs = np.stack([np.full(N, 0.5, np.float32), ANGLE], 1)
    expected = steady.surrogate().predict(POINTS[:, :2].astype(np.float32), inputs)
    np.testing.assert_array_equal(made.values[0, 0], expected)
    mesh = meshio.read(out)
    np.testing.assert_array_equal(mesh.points, POINTS)
    np.testing.assert_array_equal(mesh.cells_dict["triangle"], TRIANGLES)
    assert set(mesh.point_data) == {"angle of attack", "p", "p_predicted", "T"}  # what was there stays
    np.testing.assert_array_equal(mesh.point_data["p"], ANGLE)
    np.testing.assert_array_equal(mesh.point_data["p_predicted"], expected[:, 0])
    np.testing.assert_array_equal(mesh.point_data["T"], expected[:, 1])
    with pytest.raises(UserError, match="exists already; choose another place with --out, or --force"):
        predict(steady, PredictionRequest(file, out, given={"Mach": 0.5}))
    with pytest.raises(UserError, match="is the file that is read"):
        predict(steady, PredictionRequest(file, file, given={"Mach": 0.5}))
    made = predict(steady, PredictionRequest(file, file, given={"Mach": 0.5, "angle of attack": 1.0}, force=True))
    inputs[:, 1] = 1.0
    expected = steady.surrogate().predict(POINTS[:, :2].astype(np.float32), inputs)
    np.testing.assert_array_equal(meshio.read(file).point_data["T"], expected[:, 1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.vtu", "out.vtu"]


def test_in_time(moving: Run, tmp_path: Path) -> None:
    start = rng.random((N, 2)).astype(np.float32)
    lines = [f"{x!r},{y!r},{a!r},{b!r}" for (x, y, _), (a, b) in zip(POINTS.tolist(), start.tolist(), strict=True)]
    (tmp_path / "in.csv").write_text("x,y,u,v\n" + "\n".join(lines) + "\n")
    made = predict(moving, PredictionRequest(tmp_path / "in.csv", tmp_path / "out.csv", leads=[0.25, 0.5]))
    assert made.leads == (0.25, 0.5)
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, deletechars="")
    assert table.dtype.names == ("x", "y", "u", "v", "u@0.25", "v@0.25", "u@0.5", "v@0.5")
    surrogate = moving.surrogate()
    for k, lead in enumerate(made.leads):
        expected = surrogate.predict(POINTS[:, :2].astype(np.float32), start, lead=lead)
        np.testing.assert_array_equal(made.values[0, k], expected)
        np.testing.assert_array_equal(table[f"v@{lead}"].astype(np.float32), expected[:, 1])
    made = predict(moving, PredictionRequest(tmp_path / "in.csv", tmp_path / "last.csv", given={"u": 0.0}))
    assert made.leads == (1.0,)
    with pytest.raises(UserError, match=r"--lead: 0\.5 is there twice; say each once"):
        predict(moving, PredictionRequest(tmp_path / "in.csv", tmp_path / "x.csv", leads=[0.5, 0.5]))


def test_refused(steady: Run, tmp_path: Path) -> None:
    file = vtu(tmp_path / "in.vtu", Mach=ANGLE * np.nan)
    out = tmp_path / "out.vtu"
    for given, message in (
        ({}, "Mach is NaN or infinite at 9 points"),
        ({"Mach": 0.5}, r"no point array 'angle of attack' \(found 'Mach'\); .*: 'angle of attack=0\.5'$"),
        ({"mach": 0.5}, "did you mean 'Mach'"),
    ):
        with pytest.raises(UserError, match=message):
            predict(steady, PredictionRequest(file, out, given=given))
    deep = vtu(tmp_path / "deep.vtu", rng.random((N, 3)))
    with pytest.raises(UserError, match="it takes meshes with constant z"):
        predict(steady, PredictionRequest(deep, out, given={"Mach": 0.5, "angle of attack": 1.0}))
    with pytest.raises(UserError, match=r"a \.csv file cannot be made from it; name the result \.vtu or"):
        predict(steady, PredictionRequest(file, tmp_path / "out.csv"))
    with pytest.raises(UserError, match=r"--queries: .*in\.vtu is a mesh"):
        predict(steady, PredictionRequest(file, out, queries=file))
    with pytest.raises(UserError, match=r"none\.vtu: no such file"):
        predict(steady, PredictionRequest(tmp_path / "none.vtu", out))
    with pytest.raises(UserError, match="leave out --lead"):
        predict(steady, PredictionRequest(file, out, leads=[0.5]))
    assert not out.exists()


def test_a_prediction_that_is_no_number(steady: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.full((2, 2), torch.nan)
    monkeypatch.setattr(Surrogate, "values_of", lambda *_: iter([(slice(0, 2), values)]))
    (tmp_path / "in.csv").write_text("x,y\n0,1\n1,0\n")
    with pytest.raises(UserError, match="the prediction has NaN or infinite values"):
        predict(
            steady,
            PredictionRequest(tmp_path / "in.csv", tmp_path / "out.csv", given={"Mach": 0.5, "angle of attack": 1.0}),
        )
    assert not (tmp_path / "out.csv").exists()
