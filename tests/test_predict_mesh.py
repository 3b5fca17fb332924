"""Predictions on meshes: inputs by their names, results as more point arrays."""

from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest

from ikno.config import Config, DataSettings
from ikno.data.catalog import Card
from ikno.errors import UserError
from ikno.evaluation import predict_file
from ikno.runs import Run, save
from ikno.surrogate import Signature, Surrogate

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
    run = Run.create(path, Config(data=DataSettings(name="x.toml"), model=TINY), card, signature)
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
    made = predict_file(steady, file, out, given={"Mach": 0.5})
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
        predict_file(steady, file, out, given={"Mach": 0.5})
    with pytest.raises(UserError, match="is the file that is read"):
        predict_file(steady, file, file, given={"Mach": 0.5})
    made = predict_file(steady, file, file, given={"Mach": 0.5, "angle of attack": 1.0}, force=True)
    inputs[:, 1] = 1.0
    expected = steady.surrogate().predict(POINTS[:, :2].astype(np.float32), inputs)
    np.testing.assert_array_equal(meshio.read(file).point_data["T"], expected[:, 1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.vtu", "out.vtu"]


def test_in_time(moving: Run, tmp_path: Path) -> None:
    start = rng.random((N, 2)).astype(np.float32)
    lines = [f"{x!r},{y!r},{a!r},{b!r}" for (x, y, _), (a, b) in zip(POINTS.tolist(), start.tolist(), strict=True)]
    (tmp_path / "in.csv").write_text("x,y,u,v\n" + "\n".join(lines) + "\n")
    made = predict_file(moving, tmp_path / "in.csv", tmp_path / "out.csv", leads=[0.25, 0.5])
    assert made.leads == (0.25, 0.5)
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, deletechars="")
    assert table.dtype.names == ("x", "y", "u", "v", "u@0.25", "v@0.25", "u@0.5", "v@0.5")
    surrogate = moving.surrogate()
    for k, lead in enumerate(made.leads):
        expected = surrogate.predict(POINTS[:, :2].astype(np.float32), start, lead=lead)
        np.testing.assert_array_equal(made.values[0, k], expected)
        np.testing.assert_array_equal(table[f"v@{lead}"].astype(np.float32), expected[:, 1])
    made = predict_file(moving, tmp_path / "in.csv", tmp_path / "last.csv", given={"u": 0.0})
    assert made.leads == (1.0,)
    with pytest.raises(UserError, match=r"--lead: 0\.5 is there twice; say each once"):
        predict_file(moving, tmp_path / "in.csv", tmp_path / "x.csv", leads=[0.5, 0.5])


def test_refused(steady: Run, tmp_path: Path) -> None:
    file = vtu(tmp_path / "in.vtu", Mach=ANGLE * np.nan)
    out = tmp_path / "out.vtu"
    for given, message in (
        ({}, "Mach is NaN or infinite at 9 points"),
        ({"Mach": 0.5}, r"no point array 'angle of attack' \(found 'Mach'\); .*: 'angle of attack=0\.5'$"),
        ({"mach": 0.5}, "did you mean 'Mach'"),
    ):
        with pytest.raises(UserError, match=message):
            predict_file(steady, file, out, given=given)
    deep = vtu(tmp_path / "deep.vtu", rng.random((N, 3)))
    with pytest.raises(UserError, match="it takes meshes with constant z"):
        predict_file(steady, deep, out, given={"Mach": 0.5, "angle of attack": 1.0})
    with pytest.raises(UserError, match=r"a \.csv file cannot be made from it; name the result \.vtu or"):
        predict_file(steady, file, tmp_path / "out.csv")
    with pytest.raises(UserError, match=r"--queries: .*in\.vtu is a mesh"):
        predict_file(steady, file, out, queries=file)
    with pytest.raises(UserError, match=r"none\.vtu: no such file"):
        predict_file(steady, tmp_path / "none.vtu", out)
    with pytest.raises(UserError, match="leave out --lead"):
        predict_file(steady, file, out, leads=[0.5])
    assert not out.exists()


def test_a_prediction_that_is_no_number(steady: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.full((2, 2), np.nan, np.float32)
    monkeypatch.setattr(Surrogate, "stream", lambda *_, **__: iter([(slice(0, 2), values)]))
    (tmp_path / "in.csv").write_text("x,y\n0,1\n1,0\n")
    with pytest.raises(UserError, match="the prediction has NaN or infinite values"):
        predict_file(steady, tmp_path / "in.csv", tmp_path / "out.csv", given={"Mach": 0.5, "angle of attack": 1.0})
    assert not (tmp_path / "out.csv").exists()
