"""Formats: each file is read as seldom as possible, and a new format is one class."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import meshio
import numpy as np
import pytest
from typer.testing import CliRunner

from ikno.cli import app
from ikno.config import DataSettings
from ikno.data.catalog import Card
from ikno.data.formats import FORMATS, Columns, DataFile, Format, Mesh, format_of, open_mesh
from ikno.data.formats import npz as npz_format
from ikno.data.formats.npz import Npz
from ikno.data.formats.tables import TableFormat
from ikno.data.library import load_data
from ikno.data.problem import open_problem
from ikno.errors import UserError

SAMPLES, N = 10, 20
rng = np.random.default_rng(0)
POINTS = rng.random((SAMPLES, N, 2))
F = POINTS[..., 0] * (1 + np.arange(SAMPLES)[:, None])
SMALL = ("preset=smoke", "model.d_model=4", "model.grid_size=3")


def ikno(*words: object) -> str:
    shown = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each file is read: npz files whole, HDF5 files when they are opened."""
    found: Counter[str] = Counter()
    read, file = Npz.read, h5py.File

    def counted_read(self: Npz, path: Path) -> Any:
        found[path.name] += 1
        return read(self, path)

    class Counted(file):
        def __init__(self, name: Any, *more: Any, **settings: Any) -> None:
            found[Path(name).name] += 1
            super().__init__(name, *more, **settings)

    monkeypatch.setattr(Npz, "read", counted_read)
    monkeypatch.setattr(h5py, "File", Counted)
    return found


def card(name: str, file: str, form: str) -> str:
    arrays = '\narrays = { conditions = "c" }' if form in ("npz", "netcdf") else ""
    Path(f"{name}.toml").write_text(
        f'name = "{name}"\nfile = "{file}"\nformat = "{form}"\nvariables = ["u"]\nconditions = ["f"]{arrays}\n'
    )
    return f"{name}.toml"


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_a_set_is_opened_once(opens: Counter[str], suffix: str) -> None:
    """Also while it is read, and for all three parts; what stays on the disk is opened once more for each of them."""
    path = Path(f"mine{suffix}")
    arrays = {"x": POINTS[:, None], "u": F[:, None, :, None] ** 2, "c": F[:, None, :, None]}
    if suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        with h5py.File(path, "w") as file:
            file.update(arrays)
    opens.clear()
    name = card("mine", path.name, "npz" if suffix == ".npz" else "netcdf")
    problem = open_problem(DataSettings(name=name), 0)
    assert opens == {path.name: 1}
    with path.open("r+b") if suffix == ".npz" else h5py.File(path, "r+"):
        opens[path.name] = 1  # nobody holds it
    for part in (problem.train, problem.validation, problem.test):
        assert len(list(part)) in (1, 8)
    problem.digest()
    assert opens == {path.name: 1 if suffix == ".npz" else 4}
    ikno("train", name, *SMALL, "--out", "run")
    opens.clear()
    ikno("evaluate", "run")
    assert opens == {path.name: 1 if suffix == ".npz" else 4}


def test_a_prediction_reads_each_file_once(opens: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh is parsed once too: the program that adds the arrays is the one that has read it."""
    for k in range(SAMPLES):
        meshio.Mesh(POINTS[k], [("triangle", np.array([[0, 1, 2]]))], point_data={"f": F[k], "u": F[k] ** 2}).write(
            f"case{k}.vtu"
        )
    ikno("data", "import", ".", "--inputs", "f", "--targets", "u", "--out", "set.h5")
    ikno("train", "set.toml", *SMALL, "--out", "run")
    opens.clear()
    np.savez("in.npz", x=POINTS[0], c=F[0][:, None])
    np.savez("queries.npz", places=POINTS[1])
    ikno("predict", "run", "in.npz", "--out", "out.npz", "--queries", "queries.npz")
    assert opens == {"in.npz": 1, "queries.npz": 1}
    log = Path("log").absolute()
    Path("sitecustomize.py").write_text(
        "import pathlib\nimport meshio\nread = meshio.vtu.read\n"
        f"def logged(path):\n    open({str(log)!r}, 'a').write(pathlib.Path(path).name + ' ')\n    return read(path)\n"
        "meshio.vtu.read = logged\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    ikno("predict", "run", "case3.vtu", "--out", "out.vtu")
    assert log.read_text().split() == ["case3.vtu", "made.vtu"]  # and what was made, before it takes its name


@pytest.fixture
def lines() -> Iterator[None]:
    """Register a format: one JSON object with lists of numbers, of one sample in a file or of all."""

    class Lines(Format):
        suffixes, holds = (".lines",), ("points", "arrays")

        def open(self, path: Path, kind: str | None = None, result: str | None = None) -> DataFile | Mesh:
            if result not in (None, ".lines", ".npz"):
                raise UserError(f"{path}: no {result} from a .lines file")
            made = {name: np.array(numbers) for name, numbers in json.loads(path.read_text()).items()}
            return DataFile(path, made) if made["x"].ndim > 2 else Sample(path, made.pop("x"), made)

    class Sample(Mesh):
        def write(self, out: Path, arrays: Any) -> None:
            every = {"x": self.points, **self.arrays, **arrays}
            out.write_text(json.dumps({name: array.tolist() for name, array in every.items()}))

    FORMATS.add("lines", Lines)
    yield
    del FORMATS["lines"]


@pytest.mark.usefixtures("lines")
def test_a_new_format_trains_predicts_and_is_imported() -> None:
    """It was registered above and nowhere else."""
    Path("cases").mkdir()
    for k in range(SAMPLES):
        sample = {"x": POINTS[k].tolist(), "f": F[k].tolist(), "u": (F[k] ** 2).tolist()}
        Path(f"cases/{k}.lines").write_text(json.dumps(sample))
    assert "set.h5: u from f, 2 axes" in ikno(
        "data", "import", "cases", "--inputs", "f", "--targets", "u", "--out", "set.h5"
    )
    name = card("mine", "cases", "lines")
    own, imported = (open_problem(DataSettings(name=n), 0) for n in (name, "set.toml"))
    for a, b in zip(own.train, imported.train, strict=True):
        np.testing.assert_array_equal(a.points, b.points)
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.conditions, b.conditions)
    ikno("train", name, *SMALL, "--out", "run")
    assert "out.lines: 1 samples at 20 points, u" in ikno("predict", "run", "cases/3.lines", "--out", "out.lines")
    made = json.loads(Path("out.lines").read_text())
    assert made["f"] == F[3].tolist()
    Path("all.lines").write_text(json.dumps({"x": POINTS.tolist(), "c": F[..., None].tolist()}))
    ikno("predict", "run", "all.lines", "--out", "all.npz")
    with np.load("all.npz") as arrays:
        np.testing.assert_array_equal(arrays["u"][3, 0, :, 0], np.float32(made["u_predicted"]))


def test_names_and_suffixes_of_the_package_stay() -> None:
    class Mine(TableFormat):
        suffixes = (".csv",)

        def read(self, path: Path) -> Columns:
            raise NotImplementedError

        def write(self, path: Path, columns: Columns) -> None:
            raise NotImplementedError

    with pytest.raises(ValueError, match="ikno has a format named 'csv' of its own"):
        FORMATS.register("csv")(Mine)
    with pytest.raises(ValueError, match=r"the format 'csv' has the suffix \.csv"):
        FORMATS.register("mine")(Mine)
    assert "mine" not in FORMATS


def test_an_array_that_is_no_column_stays_out_of_tables() -> None:
    np.savez("odd.npz", x=np.zeros(3), y=np.ones(3), note=np.array(["a", "b"]))
    with closing(open_mesh(Path("odd.npz"))) as mesh:
        with pytest.raises(UserError, match=r"out\.csv: 'note' of odd\.npz is no column; name the result \.npz"):
            mesh.write(Path("out.csv"), {"u": np.zeros(3, np.float32)})
        assert not Path("out.csv").exists()
        mesh.write(Path("out.npz"), {"u": np.zeros(3, np.float32)})


def test_formats_that_are_none() -> None:
    with pytest.raises(UserError, match=r"a\.ply: not a file that can be read; expected \.nc, .*\.csv"):
        format_of(Path("a.ply"))
    with pytest.raises(ValueError, match=r"no such format, known are .*csv"):
        Card(name="a", format="ply", variables=("u",))


def test_a_folder_of_meshes_is_a_training_set() -> None:
    """As it is after an import, surfaces in space included."""
    Path("cases").mkdir()
    for k in range(3):
        data: dict[str, Any] = {"f": F[k], "u": F[k] ** 2}
        x = np.concatenate([POINTS[k], F[k][:, None]], 1)
        meshio.Mesh(x, [("triangle", np.array([[0, 1, 2]]))], point_data=data).write(f"cases/{k}.vtu")
    ikno("data", "import", "cases", "--inputs", "f", "--targets", "u", "--out", "set.h5")
    name = card("mine", "cases", "mesh")
    with Path(name).open("a") as file:
        file.write("dim = 3\n")
    with load_data(name) as own, load_data("set.toml") as imported:
        assert len(own) == 3
        for a, b in zip(own, imported, strict=True):
            for part in ("points", "values", "conditions", "triangles"):
                np.testing.assert_array_equal(getattr(a, part), getattr(b, part))


def test_a_new_format_of_tables_exchanges_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spaces(TableFormat):
        suffixes = (".spaces",)

        def read(self, path: Path) -> Columns:
            names, *rows = (line.split() for line in path.read_text().splitlines())
            return dict(zip(names, np.array(rows).T, strict=True))

        def write(self, path: Path, columns: Columns) -> None:
            rows = zip(*(column.tolist() for column in columns.values()), strict=True)
            path.write_text("\n".join(" ".join(map(str, row)) for row in (columns, *rows)) + "\n")

    monkeypatch.setitem(FORMATS, "spaces", Spaces())
    Path("a.csv").write_text("x,y,f\n0,.5,2\n1,2,3\n")
    for before, after in (("a.csv", "b.spaces"), ("b.spaces", "c.npz"), ("c.npz", "d.csv")):
        with closing(open_mesh(Path(before))) as mesh:
            mesh.write(Path(after), {f"from {before}".replace(" ", "_"): np.array([0.1, 2], np.float32)})
    assert Path("b.spaces").read_text().startswith("x y f from_a.csv\n0 .5 2 0.1")
    assert Path("d.csv").read_text().startswith("x,y,f,from_a.csv,from_b.spaces,from_c.npz\n0,.5,2,0.1")


def test_a_small_file_of_large_arrays_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(2_000_000))
    monkeypatch.setattr(npz_format, "SMALL", 1000)
    monkeypatch.setattr("ikno.memory.available_memory", lambda device: 1e7)
    assert (tmp_path / "a.npz").stat().st_size < 1e5
    with pytest.raises(UserError, match=r"a\.npz: its arrays take 0\.0 GB of memory, 0\.0 are available"):
        format_of(tmp_path / "a.npz").open(tmp_path / "a.npz")
