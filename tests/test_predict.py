"""Predictions from files to files: the same bits as sample by sample, in files that can be read again."""

from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ikno.data.catalog import Arrays, Card
from ikno.data.files import open_data
from ikno.data.formats import DataFile, format_of
from ikno.data.inputs import array_inputs
from ikno.errors import UserError
from ikno.evaluation import Predicted, PredictionRequest, predict
from ikno.runs import Run, save
from ikno.surrogate import Signature, Surrogate
from tests.conftest import complete_config

S, N, Q, T = 3, 14, 4, 5
TINY = {"name": "ikno-tp", "d_model": 4, "num_heads": 2, "num_layers": 1, "grid_size": 3}
BOX = ((0.0, 1.0), (0.0, 2.0))
STEADY = Card(
    name="steady", cloud="shared", domain=BOX, arrays=Arrays(conditions="c"), variables=("u", "v"), conditions=("f",)
)
MOVING = Card(name="moving", domain=BOX, variables=("rho", "E"), targets=("rho",), times=(1.0, 3.0), snapshots=T)

rng = np.random.default_rng(0)
CLOUD = rng.random((N, 2), dtype=np.float32)
CLOUDS = rng.random((S, N, 2), dtype=np.float32)
C = rng.random((S, N, 1), dtype=np.float32)
U = rng.random((S, T, N, 2), dtype=np.float32)
QUERIES = rng.random((Q, 2), dtype=np.float32)


def make(path: Path, card: Card, final: int | None = None, mode: str = "derivative") -> Run:
    """Return a run with random weights and units of its own."""
    mode = "direct" if card.steady else mode
    signature = Signature.model_validate(
        {"dim": 2, "variables": card.targets, "conditions": card.conditions, "box": BOX, "times": card.times}
        | {"mode": mode, "model": TINY}
    )
    run = Run.create(path, complete_config("x.toml", TINY, final_snapshot=final), card, signature)
    for i, checkpoint in enumerate(("best", "last")):
        surrogate = Surrogate(signature, seed=i)
        surrogate.target.mean.fill_(3.0)
        surrogate.target.scale.fill_(5.0)
        save(path / f"{checkpoint}.safetensors", {f"weights.{k}": v for k, v in surrogate.state_dict().items()}, {})
    return run


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("steady"), STEADY)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("moving"), MOVING, final=3)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def content(path: Path) -> dict[str, np.ndarray]:
    """Return what a file holds, read without the package."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    with h5py.File(path) as file:
        return {name: np.asarray(file[name]) for name in ("x", "u", "lead") if name in file}


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype == np.float32
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_steady_with_one_cloud(steady: Run, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "a new" / f"folder.x{suffix}"
    made = predict(steady, PredictionRequest(npz(tmp_path / "in.npz", x=CLOUD, c=C), out))
    surrogate = steady.surrogate()
    expected = np.stack([surrogate.predict(CLOUD, c) for c in C])
    assert np.ptp(expected) > 0.01
    same(made.values[:, 0], expected)
    assert isinstance(made, Predicted)
    assert made.leads == ()
    assert made.variables == ("u", "v")
    found = content(out)
    same(found["u"], expected[:, None])
    same(found["x"], CLOUD[None, None])
    assert "lead" not in found
    card = Card(name="back", format="npz" if suffix == ".npz" else "netcdf", cloud="shared", variables=("u", "v"))
    with open_data(out, card) as file:
        assert file.shared
        assert len(file) == S
        for i in range(S):
            same(file[i].values, expected[i : i + 1])
            same(file[i].points, CLOUD)
        if suffix == ".nc":
            assert file.attributes["model"] == "ikno-tp"
            assert file.attributes["variables"] == "u, v"
    if suffix == ".npz":
        assert str(found["model"]) == "ikno-tp"
        assert str(found["variables"]) == "u, v"
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_the_other_checkpoint(steady: Run, tmp_path: Path) -> None:
    file = npz(tmp_path / "in.npz", x=CLOUD, c=C)
    best, last = (
        predict(steady, PredictionRequest(file, tmp_path / f"{w}.npz", checkpoint=w)).values for w in ("best", "last")
    )
    same(last[1, 0], steady.surrogate("last").predict(CLOUD, C[1]))
    assert not np.allclose(best, last)
    with pytest.raises(UserError, match="use best or last"):
        predict(steady, PredictionRequest(file, tmp_path / "x.npz", checkpoint="worst"))


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_clouds_of_their_own_and_leads(moving: Run, tmp_path: Path, suffix: str) -> None:
    with h5py.File(tmp_path / "in.nc", "w") as file:  # as released
        file["x"], file["u"] = CLOUDS[:, None], U
    out = tmp_path / f"out{suffix}"
    made = predict(moving, PredictionRequest(tmp_path / "in.nc", out, leads=[0.5, 2.0, 0.25], time=1.5))
    surrogate = moving.surrogate()
    expected = np.stack(
        [
            np.stack([surrogate.predict(CLOUDS[i], U[i, 1, :, :1], None, 1.5, t) for t in (0.5, 2.0, 0.25)])
            for i in range(S)
        ]
    )
    same(made.values, expected)
    assert made.leads == (0.5, 2.0, 0.25)
    found = content(out)
    same(found["u"], expected)
    same(found["x"], CLOUDS[:, None])
    assert found["lead"].tolist() == [0.5, 2.0, 0.25]
    form = "npz" if suffix == ".npz" else "netcdf"
    card = Card(name="back", format=form, variables=("rho",), times=(2.0, 3.5), snapshots=3)
    with open_data(out, card) as file:
        assert not file.shared
        same(file[2].values, expected[2])
        same(file[2].points, CLOUDS[2])
    with closing(format_of(out).open(out)) as source:  # and can be predicted from
        assert isinstance(source, DataFile)
        again = array_inputs(source, card)
    same(again[1][1], expected[1, 0])


def test_steps(moving: Run, tmp_path: Path) -> None:
    file = npz(tmp_path / "in.npz", x=CLOUDS, u=U[:, 0])
    predict(moving, PredictionRequest(file, tmp_path / "out.npz", leads=[0.2, 0.4], steps=2))
    made = content(tmp_path / "out.npz")
    surrogate = moving.surrogate()
    for i in range(S):
        inputs = U[i, 0][:, [moving.card.variables.index(v) for v in moving.card.targets]]
        for k, lead in enumerate((0.2, 0.4)):
            same(made["u"][i, k], surrogate.predict(CLOUDS[i], inputs, lead=lead, steps=2))


def test_a_time_between_the_snapshots_and_a_file_over_its_own_input(moving: Run, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.nc", "w") as file:
        file["x"], file["u"] = CLOUDS[:, None], U
    before = (tmp_path / "in.nc").read_bytes()
    with pytest.raises(UserError, match="u has no snapshot at the time asked for"):
        predict(moving, PredictionRequest(tmp_path / "in.nc", tmp_path / "out.nc", time=1.7))
    with pytest.raises(UserError, match="is the file that is read; choose another"):
        predict(moving, PredictionRequest(tmp_path / "in.nc", tmp_path / "in.nc"))
    assert (tmp_path / "in.nc").read_bytes() == before
    (tmp_path / "link.nc").symlink_to(tmp_path / "in.nc")
    with pytest.raises(UserError, match="is the file that is read; choose another"):
        predict(moving, PredictionRequest(tmp_path / "in.nc", tmp_path / "link.nc"))


def test_a_result_is_replaced_only_if_forced(steady: Run, tmp_path: Path) -> None:
    file, out = npz(tmp_path / "in.npz", x=CLOUD, c=C), tmp_path / "out.npz"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"out\.npz: exists already; choose another place with --out, or --force"):
        predict(steady, PredictionRequest(file, out))
    assert out.read_text() == "mine"
    same(content(out if predict(steady, PredictionRequest(file, out, force=True)) else file)["x"], CLOUD[None, None])


def test_given_numbers(steady: Run, moving: Run, tmp_path: Path) -> None:
    """A given number is that channel everywhere, with or without its array in the file."""
    expected = steady.surrogate().predict(CLOUD, np.full((N, 1), 0.25, np.float32))
    for k, arrays in enumerate(({"x": CLOUD}, {"x": CLOUD, "c": C})):
        file = npz(tmp_path / f"in{k}.npz", **arrays)
        made = predict(steady, PredictionRequest(file, tmp_path / f"out{k}.npz", given={"f": 0.25}))
        assert len(made.values) == 1  # an array that is not needed is not looked at
        for values in made.values:
            same(values[0], expected)
    made = predict(
        moving, PredictionRequest(tmp_path / "in0.npz", tmp_path / "moving.npz", given={"rho": 2.0}, leads=[0.5])
    )
    same(made.values[0, 0], moving.surrogate().predict(CLOUD, np.full((N, 1), 2.0, np.float32), lead=0.5))
    with pytest.raises(UserError, match=r"g=1\.0: the model has no such input; "):
        predict(steady, PredictionRequest(tmp_path / "in0.npz", tmp_path / "x.npz", given={"g": 1.0}))
    with pytest.raises(UserError, match="f=nan: expected a finite number"):
        predict(steady, PredictionRequest(tmp_path / "in0.npz", tmp_path / "x.npz", given={"f": np.nan}))


def test_without_leads_to_the_last_time_that_was_learned(moving: Run, tmp_path: Path) -> None:
    """Snapshots 0 to 4 are at 1, 1.5, 2, 2.5, 3; the run stopped at number 3."""
    file = npz(tmp_path / "in.npz", x=CLOUD, u=U[:, 0])
    made = predict(moving, PredictionRequest(file, tmp_path / "a.npz"))
    assert made.leads == (1.5,)
    same(made.values[1, 0], moving.surrogate().predict(CLOUD, U[1, 0, :, :1], lead=1.5))
    assert predict(moving, PredictionRequest(file, tmp_path / "b.npz", time=2.0)).leads == (0.5,)
    with pytest.raises(UserError, match=r"--time: 2\.5 is not before 2\.5, the last time that was learned; say --lead"):
        predict(moving, PredictionRequest(file, tmp_path / "c.npz", time=2.5))
    assert predict(moving, PredictionRequest(file, tmp_path / "c.npz", time=2.5, leads=[1.0])).leads == (1.0,)
    whole = make(tmp_path / "whole", MOVING, mode="direct")
    assert predict(whole, PredictionRequest(file, tmp_path / "d.npz")).leads == (2.0,)


def test_queries(moving: Run, steady: Run, tmp_path: Path) -> None:
    inputs = npz(tmp_path / "in.npz", x=CLOUDS, u=U)
    for arrays in ({"places": QUERIES}, {"queries": QUERIES.astype(np.float64), "other": CLOUD}):
        file = npz(tmp_path / "queries.npz", **arrays)
        made = predict(moving, PredictionRequest(inputs, tmp_path / "out.nc", file, leads=[0.5], force=True))
        surrogate = moving.surrogate()
        for i in range(S):
            same(made.values[i, 0], surrogate.predict(CLOUDS[i], U[i, 0, :, :1], QUERIES, lead=0.5))
        same(content(tmp_path / "out.nc")["x"], QUERIES[None, None])
    file = npz(tmp_path / "queries.npz", q=np.array([[0, 1], [1, 2]]))  # whole numbers will do
    made = predict(steady, PredictionRequest(npz(tmp_path / "in2.npz", x=CLOUD, c=C), tmp_path / "out2.npz", file))
    same(made.values[0, 0], steady.surrogate().predict(CLOUD, C[0], np.array([[0, 1], [1, 2]], np.float32)))


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_queries_from_disk_to_disk(moving: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("ikno.surrogate.surrogate.QUERIES", 3)
    places = np.random.default_rng(0).random((10, 2))  # parts of 3, 3, 3 and 1
    np.save(tmp_path / "q.npy", places)
    inputs, out = npz(tmp_path / "in.npz", x=CLOUDS, u=U), tmp_path / f"out{suffix}"
    made = predict(moving, PredictionRequest(inputs, out, tmp_path / "q.npy", leads=[0.1, 0.5]))
    assert isinstance(made.values, np.memmap) == (suffix == ".nc")
    surrogate, found = moving.surrogate(), content(out)
    for i, (j, lead) in product(range(S), enumerate((0.1, 0.5))):
        same(made.values[i, j], surrogate.predict(CLOUDS[i], U[i, 0, :, :1], places, lead=lead))
    same(found["u"], np.asarray(made.values))
    same(found["x"], places.astype(np.float32)[None, None])
    assert found["lead"].tolist() == [0.1, 0.5]
    before = out.read_bytes()
    places[8] = np.nan  # in the third part
    np.save(tmp_path / "q.npy", places)
    with pytest.raises(UserError, match="queries: NaN or infinite values"):
        predict(moving, PredictionRequest(inputs, out, tmp_path / "q.npy", leads=[0.1, 0.5], force=True))
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", out.name, "q.npy"]


@pytest.mark.parametrize("content", [b"", b"x", b"\x93NUMPY\x01\x00"])
def test_queries_that_are_no_npy_file(steady: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "q.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"q\.npy: (the file is empty|not a readable npy file)"):
        predict(
            steady, PredictionRequest(npz(tmp_path / "in.npz", x=CLOUD, c=C), tmp_path / "out.nc", tmp_path / "q.npy")
        )
    np.save(tmp_path / "q.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UserError, match=r"q\.npy: not a readable npy file"):
        predict(
            steady, PredictionRequest(npz(tmp_path / "in.npz", x=CLOUD, c=C), tmp_path / "out.nc", tmp_path / "q.npy")
        )
    assert not (tmp_path / "out.nc").exists()


def test_more_memory_than_there_is(steady: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = npz(tmp_path / "in.npz", x=CLOUD, c=C)
    monkeypatch.setattr("ikno.surrogate.memory_estimate.available_memory", lambda _: 1e3)
    message = (
        r"^predicting 14 values from 14 points needs about [0-9.]+ GB of memory, 0\.0 GB are available on cpu; use "
        r"fewer points, a result with the suffix \.nc, or --ignore-memory to begin anyway$"
    )
    with pytest.raises(UserError, match=message):
        predict(steady, PredictionRequest(file, tmp_path / "out.npz"))
    assert [p.name for p in tmp_path.iterdir()] == ["in.npz"]
    predict(steady, PredictionRequest(file, tmp_path / "out.npz", ignore_memory=True))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": QUERIES, "b": QUERIES}, r"which array holds the queries\? name it 'queries'; found a, b$"),
        ({}, r"which array holds the queries\? name it 'queries'; found none$"),
        ({"q": QUERIES[0]}, r"q has shape \[2\], expected \[queries, dim\]$"),
        ({"q": QUERIES[None]}, r"q has shape \[1, 4, 2\]"),
        ({"q": np.full((3, 2), "a")}, r"q has the type <U1, expected numbers$"),
        ({"q": QUERIES + 1j}, r"q has the type complex"),
        ({"q": np.zeros((4, 3))}, r"queries: shape \[4, 3\], expected \[points, 2\]$"),
        ({"q": np.zeros((0, 2))}, r"queries: shape \[0, 2\]"),
        ({"q": np.full((4, 2), np.nan)}, r"queries: NaN or infinite values"),
    ],
)
def test_queries_that_are_none(steady: Run, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    inputs = npz(tmp_path / "in.npz", x=CLOUD, c=C)
    with pytest.raises(UserError, match=message):
        predict(steady, PredictionRequest(inputs, tmp_path / "out.npz", npz(tmp_path / "q.npz", **arrays)))
    assert not (tmp_path / "out.npz").exists()


def test_what_does_not_go_together(steady: Run, moving: Run, tmp_path: Path) -> None:
    file, start = npz(tmp_path / "in.npz", x=CLOUD, c=C), npz(tmp_path / "u.npz", x=CLOUD, u=U)
    out = tmp_path / "out.npz"
    with pytest.raises(UserError, match="--lead: the run is of a steady problem; leave out"):
        predict(steady, PredictionRequest(file, out, leads=[0.5]))
    with pytest.raises(UserError, match="time: this surrogate is of a steady problem"):
        predict(steady, PredictionRequest(file, out, time=0.5))
    for lead, message in ((0.0, "lead: must be positive"), (-1.0, "must be positive"), (np.nan, "lead: NaN")):
        with pytest.raises(UserError, match=message):
            predict(moving, PredictionRequest(start, out, leads=[0.5, lead]))
    with pytest.raises(UserError, match="time: NaN or infinite"):
        predict(moving, PredictionRequest(start, out, time=np.nan))
    with pytest.raises(UserError, match="inputs: NaN or infinite values"):
        predict(steady, PredictionRequest(npz(tmp_path / "nan.npz", x=CLOUD, c=C * np.nan), out))
    with pytest.raises(UserError, match="points: NaN or infinite values"):
        predict(steady, PredictionRequest(npz(tmp_path / "nan.npz", x=CLOUD * np.inf, c=C), out))
    with pytest.raises(UserError, match="no array 'u'; expected x, u"):
        predict(moving, PredictionRequest(file, out))
    with pytest.raises(UserError, match=r"nothing\.npz: no such file"):
        predict(moving, PredictionRequest(tmp_path / "nothing.npz", out))
    with pytest.raises(UserError, match=r"q\.npz: no such file"):
        predict(steady, PredictionRequest(file, out, tmp_path / "q.npz"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", "nan.npz", "u.npz"]


@pytest.mark.parametrize("name", ["out", "out.csv", "out.npy", "out.npz.gz", "out.NPZ"])
def test_other_suffixes(steady: Run, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: the result is an \.nc or \.npz file; name it so"):
        predict(steady, PredictionRequest(npz(tmp_path / "in.npz", x=CLOUD, c=C), tmp_path / name))


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_nothing_half_written(steady: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    file, out = npz(tmp_path / "in.npz", x=CLOUD, c=C), tmp_path / f"out{suffix}"
    predict(steady, PredictionRequest(file, out))
    before = out.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        predict(steady, PredictionRequest(npz(file, x=CLOUD, c=2 * C), out, force=True))
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", out.name]
    monkeypatch.undo()
    (tmp_path / "afile").touch()
    for place in (tmp_path / "afile" / f"x{suffix}", tmp_path / "afile" / "deeper" / f"x{suffix}"):
        with pytest.raises(UserError, match="its folder is a file; choose another place"):
            predict(steady, PredictionRequest(file, place))
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(UserError, match=r"cannot be written \(Is a directory\)"):
        predict(steady, PredictionRequest(file, tmp_path / f"folder{suffix}"))
    assert not list(tmp_path.glob("*.partial"))
