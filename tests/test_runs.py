"""Runs: what is read back is what was written, and whatever else lies in the folder is refused without being run."""

import dataclasses
import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as safetensors_bytes

import ikno
from ikno.config import CompleteConfig, make_config, merged, nested, parse
from ikno.data.catalog import Card
from ikno.errors import UserError
from ikno.runs import Run, find_runs, load, save
from ikno.surrogate import Signature, Surrogate
from ikno.training import train
from tests.conftest import complete_config

PACKAGE = Path(ikno.__file__).parent
GOLDEN = Path(__file__).parent / "fixtures" / "run-1"
TINY = {"name": "ikno-tp", "d_model": 4, "num_heads": 2, "num_layers": 1, "grid_size": 3}
SIGNATURE = Signature(dim=1, variables=("u",), conditions=("f",), box=((0.0, 2.0),), model=TINY)
CARD = Card(name="mine", dim=1, variables=("u",), conditions=("f",), format="csv", file="mine")


@contextmanager
def refused(message: str, seconds: float = 2.0) -> Iterator[None]:
    """Expect a UserError of one line, soon."""
    begun = time.process_time()
    with pytest.raises(UserError, match=message) as error:
        yield
    assert time.process_time() - begun < seconds
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that looks as if it had been trained."""
    folder = tmp_path_factory.mktemp("pattern") / "run"
    made = Run.create(folder, complete_config("mine.toml", TINY), CARD, SIGNATURE)
    for which in ("best", "last"):
        save(made.path / f"{which}.safetensors", weights(), {"epoch": 3})
    return made


@pytest.fixture
def run(pattern: Run, tmp_path: Path) -> Run:
    """A copy to do as one likes with."""
    shutil.copytree(pattern.path, tmp_path / "run")
    return dataclasses.replace(pattern, path=tmp_path / "run")


def weights() -> dict[str, torch.Tensor]:
    return {f"weights.{k}": v for k, v in Surrogate(SIGNATURE, seed=0).state_dict().items()}


def sign(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change run.json and write the checksum that belongs to it: only the content is wrong."""
    content = json.loads(path.read_text())["run"]
    change(content)
    digest = hashlib.sha256(json.dumps(content, indent=1).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, "run": content}))


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors", "run.json"])
@pytest.mark.parametrize("kind", ["pickle", "ascii pickle", "torch"])
def test_pickles_are_refused_and_nothing_in_them_runs(run: Run, tmp_path: Path, name: str, kind: str) -> None:
    """F24."""
    trap, file = tmp_path / "it ran", run.path / name
    if kind == "torch":
        torch.save({"weights": Bomb(trap)}, file)
    else:
        file.write_bytes(pickle.dumps(Bomb(trap), protocol=0 if kind == "ascii pickle" else None))
    with refused(r"not the description of a run|not a readable checkpoint"):
        Run.open(run.path).surrogate(name.partition(".")[0].replace("run", "best"))
    if name != "run.json":
        with refused("not a readable checkpoint"):
            load(file)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Bomb(trap)))  # noqa: S301 (the trap itself works)
    assert trap.exists()


def test_no_unpickling_anywhere_in_the_package() -> None:
    """F24."""
    forbidden = re.compile(
        r"pickle\.loads?\b|Unpickler|torch\.load\(|weights_only\s*=\s*False|allow_pickle\s*=\s*True|\b(joblib|dill|cloudpickle|marshal|shelve)\b"
    )
    assert forbidden.search("x = torch.load(f)")
    assert len(list(PACKAGE.rglob("*.py"))) > 30
    for path in PACKAGE.rglob("*.py"):
        assert not forbidden.search(path.read_text()), path


def test_damaged_checkpoints_are_refused(run: Run) -> None:
    """F25."""
    file = run.path / "best.safetensors"
    good = file.read_bytes()
    (size,) = struct.unpack("<Q", good[:8])
    rng = np.random.default_rng(0)
    wrong = [good[:n] for n in (0, 1, 7, 8, 9, 8 + size - 1, 8 + size, 8 + size + 1, len(good) - 1)]
    wrong += [good[:n] for n in rng.integers(0, len(good), 40)]
    wrong += [rng.bytes(n) for n in (1, 8, 100, 5000)]
    wrong += [struct.pack("<Q", n) + good[8:] for n in (2**64 - 1, 2**63, 2**40, len(good), size + 1, size - 1, 0)]
    wrong += [good + b"more"]
    header = json.loads(good[8 : 8 + size])
    for offsets in ([0, 10**12], [10**12, 10**12 + 4], [2**63, 2**64], [-4, 0], [4, 0]):
        lying = {**header, "weights.conditions.mean": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}
        wrong.append(with_header(lying, good[8 + size :]))
    name = next(n for n in header if n.startswith("weights.model"))
    for shape in ([10**12], [2**62, 4], [2**32, 2**32], [0]):
        wrong.append(with_header({**header, name: {**header[name], "shape": shape}}, good[8 + size :]))
    for content in wrong:
        file.write_bytes(content)
        with refused("not a readable checkpoint|is unknown|has shape|is missing|checksum"):
            run.surrogate()
        with refused("not a readable checkpoint|is unknown|checksum"):
            load(file)
    file.write_bytes(good)
    run.surrogate()


def with_header(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_no_single_bit_can_change_unnoticed(tmp_path: Path) -> None:
    """F26: every bit of a small checkpoint, header and weights."""
    file = tmp_path / "small.safetensors"
    tensors, state = {"a": torch.tensor([1.5, -2.0]), "b": torch.tensor(3)}, {"epoch": 7}
    save(file, tensors, state)
    good = file.read_bytes()
    refusals = 0
    for place in range(8 * len(good)):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        file.write_bytes(bad)
        try:
            found, seen = load(file)
        except UserError:
            refusals += 1
            continue
        assert seen == state
        assert found.keys() == tensors.keys()
        assert all(v.dtype == tensors[k].dtype and torch.equal(v, tensors[k]) for k, v in found.items())
        assert place // 8 < len(good) - 16  # in the header, whose padding is of no account
    assert refusals > 0.9 * 8 * len(good)


def test_a_flipped_bit_in_a_run(run: Run) -> None:
    """F26."""
    good = (run.path / "best.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", good[:8])
    for place in (8 + size, (8 + size + len(good)) // 2, len(good) - 1):
        (run.path / "best.safetensors").write_bytes(flipped(good, place))
        with refused(r"best\.safetensors: the checksum does not agree; the file is damaged, use the other checkpoint"):
            run.surrogate()
    (run.path / "best.safetensors").write_bytes(flipped(good, good.index(b"epoch") + 8))  # the 3 of the state
    with refused("the checksum does not agree"):
        run.surrogate()
    run.surrogate("last")
    file = run.path / "run.json"
    text = file.read_text()
    for a, b in (("0.001", "0.002"), ('"d_model": 4', '"d_model": 8'), ("2.0", "3.0"), ('"f"', '"g"')):
        file.write_text(text.replace(a, b))
        assert file.read_text() != text
        with refused(r"run\.json: the checksum does not agree"):
            Run.open(run.path)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_checkpoints_of_another_model(run: Run) -> None:
    """F27: signed, but not what the signature says."""
    file, good = run.path / "best.safetensors", weights()
    name = "weights.model.head.0.weight"
    assert name in good
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({k: v for k, v in good.items() if k != name}, rf"{name} is missing; the checkpoint is of another model"),
        ({**good, "weights.model.more": torch.zeros(2)}, r"model\.more is not part of the model"),
        ({**good, name: torch.zeros(4, 5)}, r"head\.0\.weight has shape \[4, 5\], the config says \[4, 4\]"),
        ({**good, name: good[name].flatten()}, r"has shape \[16\]"),
        ({**good, name: good[name].double()}, r"has the type torch\.float64, expected torch\.float32"),
        ({**good, name: good[name].to(torch.complex64)}, r"has the type torch\.complex64"),
        ({**good, name: torch.full((4, 4), np.nan)}, r"head\.0\.weight holds NaN or infinite numbers"),
        ({**good, "weights.target.scale": torch.tensor([np.inf])}, r"target\.scale holds NaN or infinite numbers"),
        ({}, "is missing"),
    ]
    for tensors, message in cases:
        save(file, tensors, {})
        with refused(message):
            run.surrogate()
    save(file, {**good, "optimizer.0.0.step": torch.tensor(1.0)}, {})  # last.safetensors has these
    run.surrogate()
    for metadata in ({"format": "2"}, {"format": "1"}, {"format": "1", "state": "{}"}, None):
        file.write_bytes(safetensors_bytes(good, metadata))
        with refused("format '2' is unknown, this version reads 1|checksum|format None is unknown"):
            run.surrogate()
    for text in ("[1]", "3", "null", "{", "[" * 100_000):
        state_digest = hashlib.sha256(text.encode()).hexdigest()  # without tensors it is that of the state
        file.write_bytes(safetensors_bytes({}, {"format": "1", "state": text, "sha256": state_digest}))
        with refused("not a readable checkpoint"):
            load(file)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by what Linux says")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("grid_size", 10**9),
        ("grid_size", 10**30),
        ("num_layers", 10**9),
        ("d_model", 10**9),
        ("d_model", 65536),  # allowed, but not the shape of these weights
        ("num_kernels", 10**9),
        ("nerf_frequencies", 10**9),
        ("ff_mult", 10**9),
        ("name", "nothing"),
        ("d_model", "8"),
        ("d_model", None),
        ("more", 1),
        ("dim", 10**9),
        ("in_channels", 10**9),
    ],
)
def test_a_signature_out_of_bounds_costs_neither_time_nor_memory(run: Run, setting: str, value: Any) -> None:
    """F27."""
    sign(run.path / "run.json", lambda content: content["signature"]["model"].update({setting: value}))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, hard))
    try:
        with refused("model|has shape"):
            Run.open(run.path).surrogate()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put("format", value=2), r"format 2 is unknown, this version of ikno reads 1"),
        (_put("signature", "dim", value=10**9), r"run\.json: signature: the box needs"),
        (_put("signature", "box", value=[[1, 0]]), r"lower < upper"),
        (_put("signature", "mode", value="guess"), r"signature\.mode"),
        (_put("signature", "extra", value=1), r"signature\.extra: no such setting"),
        (_put("config", "train", "learning_rate", value=float("nan")), r"config\.train\.learning_rate.*finite"),
        (_put("config", value="text"), "not the description of a run"),
        (_put("card", value=[1]), "not the description of a run"),
        (_put("card", value=None), "not the description of a run"),
        (_put("card", "variables", value=[]), r"card: a card needs at least one variable"),
        (lambda content: content.pop("signature"), "not the description of a run: KeyError 'signature'"),
        (lambda content: content.clear(), "not the description of a run: KeyError 'format'"),
    ],
)
def test_signed_descriptions_that_are_wrong(run: Run, change: Callable[[dict[str, Any]], None], message: str) -> None:
    """F27."""
    sign(run.path / "run.json", change)
    with refused(message):
        Run.open(run.path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '"run"', "null", '{"run": 1}', '{"run": [], "sha256": 1}', "\xff"),
        *("[" * 10**5, "1" * 10**5, '{"sha256": 1, "run": ' + "[" * 900 + "]" * 900 + "}"),
    ],
)
def test_descriptions_that_are_none(run: Run, text: str) -> None:
    (run.path / "run.json").write_bytes(text.encode("latin-1"))
    with refused(r"run\.json: (not the description of a run|the checksum does not agree)"):
        Run.open(run.path)


def test_folders_without_a_run(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "file"):
        with refused(r"no run here \(run\.json is missing\)"):
            Run.open(path)
    (tmp_path / "odd" / "run.json").mkdir(parents=True)
    with refused("no run here"):
        Run.open(tmp_path / "odd")
    with refused("holds a run already; go on with it"):
        Run.create(run.path, run.config, run.card, run.signature)
    with refused(r"file: cannot be used as a folder"):
        Run.create(tmp_path / "file", run.config, run.card, run.signature)
    with refused("'worst' is no checkpoint; use best or last"):
        run.surrogate("worst")
    (run.path / "best.safetensors").unlink()
    assert run.digest("last")
    assert not run.digest("best")
    with refused(r"best\.safetensors: no such checkpoint"):
        run.surrogate()


def test_find_runs(tmp_path: Path, run: Run) -> None:
    other = Run.create(tmp_path / "a" / "b" / "c", run.config, run.card, run.signature)
    assert find_runs(tmp_path) == [other.path, run.path]
    assert find_runs(tmp_path / "a" / "b") == [other.path]
    assert find_runs(run.path) == [run.path]
    assert find_runs(tmp_path / "nothing") == []


def test_former_names_of_weights(tmp_path: Path) -> None:
    """`free` was a profile or a matrix; processors were transformers before they were exchangeable."""
    then = {"a.axes.0.free": torch.ones(2), "model.transformer.blocks.0.out.weight": torch.zeros(3), "b": torch.ones(1)}
    save(tmp_path / "a.safetensors", then, {})
    for axis in ("profile", "matrix"):
        now = {f"a.axes.0.{axis}": torch.ones(2), "model.processor.blocks.0.mixer.out.weight": torch.zeros(3)}
        found, _ = load(tmp_path / "a.safetensors", now)
        assert found.keys() == {*now, "b"}
        assert all(torch.equal(found[name], now[name]) for name in now)


def test_save_and_load_return_the_same_tensors(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    tensors = {
        "number": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "nothing": torch.zeros(0),
        "half": torch.tensor([1.0, -0.0, float("nan")], dtype=torch.bfloat16),
        "base": base,
        "same": base,
        "view": base[1:],
        "transposed": base.mT,
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "parameter": torch.nn.Parameter(base * 2),
        "whole": torch.tensor([2**62, -1]),
        "truth": torch.tensor([True, False]),
    }
    state = {"epoch": 3, "best": None, "list": [1.5, "ü"], "nested": {"a": True}}
    file = tmp_path / "all.safetensors"
    save(file, tensors, state)
    found, seen = load(file, tensors)
    assert seen == state
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert np.signbit(float(found["half"][1]))
    found["base"][0, 0] = 100.0  # no longer shared
    assert found["same"][0, 0] == 0
    save(file, {}, {})
    assert load(file) == ({}, {})


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.safetensors"
    save(file, {"a": torch.ones(3)}, {"n": 1})
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with refused(r"x\.safetensors: cannot be written \(No space left on device\); make room, what was there is intact"):
        save(file, {"a": torch.zeros(300)}, {"n": 2})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.undo()
    with refused(r"cannot be written \(No such file"):
        save(tmp_path / "nowhere" / "x.safetensors", {}, {})


def test_check_same(run: Run) -> None:
    def changed(**more: Any) -> CompleteConfig:
        return parse(CompleteConfig, merged(run.config.model_dump(), nested(more)))

    bare = Run(run.path, changed(), run.card, run.signature)
    bare.check_same(changed(), run.card)
    movable = {"device": "cuda", "data.folder": "x", "data.workers": 3, "data.memory_gb": 1, "train.save_seconds": 1}
    bare.check_same(changed(**movable), run.card)
    bare.check_same(changed(**{"data.name": "elsewhere/mine.toml"}), run.card)
    bare.check_same(changed(), run.card.model_copy(update={"file": "elsewhere.npz"}))
    with refused(r"card was .*, now other-set or other entries"):
        bare.check_same(changed(), run.card.model_copy(update={"name": "other-set"}))
    for key, value, old in (
        ("seed", 1, "0"),
        ("train.batch", 3, "64"),
        ("model.d_model", 8, "4"),
        ("model.dropout", 0.5, "0.0"),  # the default, which a run of an older version does not name
        ("data.sampling", "random", "first"),
    ):
        with refused(rf"cannot go on with another config \({key} was {old}, now {value}\); start a new run with --out"):
            bare.check_same(changed(**{key: value}), run.card)
    with refused(r"\(train\.batch was 64, now 3; seed was 0, now 1\)"):
        bare.check_same(changed(**{"seed": 1, "train.batch": 3}), run.card)


def test_the_log(run: Run) -> None:
    assert run.log() == []
    (run.path / "log.jsonl").write_text('{"epoch": 1, "loss": 0.5}\n{"epoch": 2}\n{"epo')
    assert run.log() == [{"epoch": 1, "loss": 0.5}, {"epoch": 2}]  # the last line is being written
    for text in (b'{"epoch"\n{"epoch": 2}\n', b"\xff\n", b"\0\0\0\n"):
        (run.path / "log.jsonl").write_bytes(text)
        with refused(r"log\.jsonl: damaged"):
            run.log()


def test_a_lock_is_for_one(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        with run.locked(), refused("another process is training here; choose another folder"), run.locked():
            pytest.fail("two at once")
    gone = Run(tmp_path / "gone", run.config, run.card, run.signature)
    with refused(r"gone: cannot be written \(No such file"), gone.locked():
        pytest.fail("no folder")


# Loads a run that lies elsewhere, predicts, and then holds the lock until it is killed.
CHILD = """
import sys
import numpy as np
import ikno
from ikno.runs import Run
folder, given, out = sys.argv[1:]
given = np.load(given)
np.save(out, ikno.load(folder).predict(given["x"], given["inputs"], given["queries"], 0.25, 0.5))
with Run.open(folder).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def heat(folder: Path) -> str:
    """Write a small set of decaying fields and its card, and return the card's name, relative to the folder."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 2, (24, 2))
    rate = rng.uniform(0.5, 1.5, (6, 1))
    shape = rng.normal(size=(6, 1, 1)) + np.sin(np.pi * x[:, 0]) * np.cos(x[:, 1])
    u = shape * np.exp(-rate * np.linspace(0, 1, 3))[..., None]
    arrays = {"x": x, "u": u[..., None], "k": rate}
    np.savez(folder / "heat.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (folder / "heat.toml").write_text(
        'name = "heat"\nformat = "npz"\nfile = "heat.npz"\ncloud = "shared"\nvariables = ["u"]\nconditions = ["rate"]\n'
        'times = [0.0, 1.0]\nsnapshots = 3\nstride = 1\nsplit = [4, 1, 1]\n[arrays]\nconditions = "k"\n'
    )
    return "heat.toml"


SMALL = {
    "preset": "smoke",
    "model.d_model": 8,
    "model.grid_size": 4,
    "train.batch": 12,
    "train.save_seconds": 1000,
}


def given() -> dict[str, np.ndarray]:
    """Return points, inputs (u and the rate) and queries for the set above."""
    rng = np.random.default_rng(6)
    x = rng.uniform(0, 2, (12, 2)).astype(np.float32)
    inputs = np.stack([np.sin(x[:, 0]), np.full(12, 0.8)], 1).astype(np.float32)
    return {"x": x, "inputs": inputs, "queries": rng.uniform(0, 2, (5, 2)).astype(np.float32)}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, np.ndarray, np.ndarray, subprocess.Popen]]:
    """A run that was trained and moved, what it predicted before, and what a fresh process makes of it."""
    folder = tmp_path_factory.mktemp("moved")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = train(make_config(heat(folder), SMALL), folder / "run")
    here = given()
    before = made.surrogate().predict(here["x"], here["inputs"], here["queries"], 0.25, 0.5)
    new = folder / "an other" / "place"
    new.parent.mkdir()
    shutil.move(made.path, new)
    np.savez(folder / "given.npz", **here)  # type: ignore[arg-type]
    arguments = [str(new), str(folder / "given.npz"), str(folder / "after.npy")]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield new, before, np.load(folder / "after.npy"), process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_a_moved_run_predicts_the_same_bits_in_a_fresh_process(moved) -> None:
    """F28."""
    path, before, after, _ = moved
    assert before.shape == (5, 1)
    assert after.tobytes() == before.tobytes()
    surrogate = ikno.load(path)
    rates = np.load(path.parents[1] / "heat.npz")["k"][:4]  # the training samples
    assert float(surrogate.conditions.mean[0]) == pytest.approx(rates.mean(), rel=1e-6)
    assert float(surrogate.conditions.scale[0]) == pytest.approx(rates.std(), rel=1e-6)
    assert not surrogate.training


def test_a_lock_goes_with_its_process_however_it_ends(moved) -> None:
    path, _, _, process = moved
    held = Run.open(path)
    with refused("another process is training here"), held.locked():
        pytest.fail("the child holds it")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with held.locked():
        pass


def make_golden() -> None:
    """Write tests/fixtures/run-N anew, for the next format.

    With N in GOLDEN: ``python -c "import sys; sys.path.insert(0, 'tests'); import test_runs as t; t.make_golden()"``.
    The fixtures of older formats stay as they are.
    """
    from tempfile import TemporaryDirectory

    GOLDEN.mkdir(parents=True)
    start = Path.cwd()
    with TemporaryDirectory() as name:
        os.chdir(name)  # no paths of this machine in the fixture
        try:
            made = train(make_config(heat(Path()), {**SMALL, "train.epochs": 20}), "run")
        finally:
            os.chdir(start)
        for file in ("run.json", "best.safetensors"):
            shutil.copy(Path(name) / "run" / file, GOLDEN)
    here = given()
    values = ikno.load(GOLDEN).predict(here["x"], here["inputs"], here["queries"], 0.25, 0.5)
    content = {**here, "time": np.float64(0.25), "lead": np.float64(0.5), "values": values}
    text = json.dumps({k: v.astype(np.float64).tolist() for k, v in content.items()})
    (GOLDEN / "expected.json").write_text(text + "\n")
    assert made.card.name == "heat"


@pytest.mark.parametrize("folder", sorted(GOLDEN.parent.glob("run-*")), ids=lambda p: p.name)
def test_runs_of_older_releases(folder: Path) -> None:
    """F29."""
    expected = {k: np.array(v) for k, v in json.loads((folder / "expected.json").read_text()).items()}
    surrogate = ikno.load(folder)
    assert surrogate.signature.variables == ("u",)
    assert surrogate.signature.mode == "derivative"
    values = surrogate.predict(
        expected["x"], expected["inputs"], expected["queries"], float(expected["time"]), float(expected["lead"])
    )
    np.testing.assert_allclose(values, expected["values"], rtol=1e-6, atol=1e-6)
    assert np.std(expected["values"]) > 0.1


def test_the_golden_run_is_small_and_of_no_machine() -> None:
    assert {f.name for f in GOLDEN.iterdir()} == {"run.json", "best.safetensors", "expected.json"}
    assert sum(f.stat().st_size for f in GOLDEN.iterdir()) < 40_000
    assert "/" not in json.dumps(json.loads((GOLDEN / "run.json").read_text())["run"]["config"])
