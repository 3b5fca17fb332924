"""From a folder of solved meshes to a training set, a run and a prediction."""

import sys
from pathlib import Path
from typing import Any

import h5py
import meshio
import numpy as np
import pytest

from ikno.cli import main
from ikno.data.batches import Samples
from ikno.data.library import load_data
from ikno.data.mesh_sets import import_meshes
from ikno.errors import UserError

COUNTS = (12, 15, 9, 20, 14)


def solved(path: Path, count: int, seed: int, dim: int = 2) -> np.ndarray:
    """Write a mesh of its own size with f and p = f², and return its points."""
    rng = np.random.default_rng(seed)
    points = rng.random((count, 3))
    points[:, dim:] = 0.25
    f = points[:, 0] * (1 + seed)
    data: dict[str, Any] = {"f": f, "p": f**2, "v": points}
    meshio.Mesh(points, [("triangle", np.array([[0, 1, 2]]))], point_data=data).write(path)
    return points


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meshes")
    for k, count in enumerate(COUNTS):
        solved(path / f"case{k:02d}.{'vtk' if k % 2 else 'vtu'}", count, k)
    (path / "notes.txt").write_text("not a mesh")
    return path


def test_import_train_predict(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ikno(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["ikno", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code in (None, 0), shown.err
        return shown.out

    monkeypatch.chdir(tmp_path)
    shown = ikno("data", "import", folder, "--inputs", "f", "--targets", "p", "--out", "set.h5")
    assert shown.startswith("set.h5: p from f, 2 axes\n")
    with load_data("set.toml") as data:
        assert [len(made.points) for made in data] == list(COUNTS)
        first, mesh = data[0], meshio.read(folder / "case00.vtu")
        np.testing.assert_array_equal(first.points, mesh.points[:, :2].astype(np.float32))
        np.testing.assert_array_equal(first.values[0, :, 0], mesh.point_data["p"].astype(np.float32))
        assert first.conditions is not None
        np.testing.assert_array_equal(first.conditions[0, :, 0], mesh.point_data["f"].astype(np.float32))
    ikno("train", "set.toml", "preset=smoke", "model.d_model=4", "model.grid_size=3", "--out", "run")
    assert ikno("predict", "run", folder / "case04.vtu", "--out", "a.vtu") == "a.vtu: 1 samples at 14 points, p\n"
    assert np.isfinite(meshio.read("a.vtu").point_data["p_predicted"]).all()
    ikno("predict", "run", folder / "case04.vtu", "f=0.5", "--out", "b.vtu")
    assert not np.array_equal(*(meshio.read(n).point_data["p_predicted"] for n in ("a.vtu", "b.vtu")))


def test_in_space_and_without_inputs(tmp_path: Path) -> None:
    points = solved(tmp_path / "a.vtu", 8, 0, dim=3)
    card = import_meshes(tmp_path, [], ["p", "f"], tmp_path / "new/set.h5")
    assert (card.dim, card.conditions, card.variables) == (3, (), ("p", "f"))
    with load_data(str(tmp_path / "new/set.toml")) as data:
        np.testing.assert_array_equal(data[0].points, points.astype(np.float32))
        assert data[0].conditions is None


def test_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "set.h5"
    for arguments, message in (
        ((folder, ["f"], ["q"], out), r"case00\.vtu: no point array 'q' \(found 'f', 'p', 'v'\)"),
        ((folder, ["v"], ["p"], out), "v has 3 components"),
        ((folder, ["f"], [], out), "--targets: what is to be predicted"),
        ((folder, ["f"], ["f"], out), "'f': not a name"),
        ((folder, ["f"], ["p"], tmp_path / "set.npz"), r"the set is an \.h5 file"),
        ((tmp_path, ["f"], ["p"], out), "no meshes here"),
        ((tmp_path / "none", ["f"], ["p"], out), "no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            import_meshes(*arguments)
    assert not list(tmp_path.iterdir())
    (tmp_path / "set.toml").write_text("mine")
    with pytest.raises(UserError, match=r"set\.toml: exists already"):
        import_meshes(folder, ["f"], ["p"], out)


def test_surfaces_are_kept_in_space(tmp_path: Path) -> None:
    """For pictures of all points; a set in the plane has none, and damaged ones are refused."""
    (tmp_path / "meshes").mkdir()
    for k in range(3):
        solved(tmp_path / "meshes" / f"case{k}.vtu", 12, k, dim=3)
    card = import_meshes(tmp_path / "meshes", ["f"], ["p"], tmp_path / "set.h5")
    with load_data(str(tmp_path / "set.toml")) as data:
        assert data[1].triangles is not None
        assert data[1].triangles.tolist() == [[0, 1, 2]]
    samples = Samples(tmp_path / "set.h5", card, range(3), None, "first", 0)
    assert samples.get(0).triangles is not None
    assert Samples(tmp_path / "set.h5", card, range(3), 5, "first", 0).get(0).triangles is None
    import_meshes(tmp_path / "meshes", ["f"], ["p"], tmp_path / "bad.h5")
    with h5py.File(tmp_path / "bad.h5", "a") as file:
        group = file["000002"]
        assert isinstance(group, h5py.Group)
        group["Triangles"][0] = [0, 1, 12]  # type: ignore[index]
    with load_data(str(tmp_path / "bad.toml")) as data, pytest.raises(UserError, match=r"Triangles of /000002 is not"):
        data[2]
    with pytest.raises(UserError, match="'Triangles': not a name"):
        import_meshes(tmp_path / "meshes", [], ["Triangles"], tmp_path / "other.h5")
