"""The commands about learning, as a person meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ikno.cli import main
from ikno.config import make_config
from ikno.runs import Run, load
from ikno.training import train as fit

SMALL = ["preset=smoke", "model.d_model=4", "model.grid_size=3", "train.batch=6", "train.save_seconds=1000"]


@dataclass
class Shown:
    """What a command left on the screen."""

    code: int
    out: str
    err: str


@dataclass
class Screen:
    """Runs commands in this process, through the program's own entry."""

    capsys: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def __call__(self, *words: object) -> Shown:
        self.patch.setattr(sys, "argv", ["ikno", *map(str, words)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        found = self.capsys.readouterr()
        code = ended.value.code
        return Shown(code if isinstance(code, int) else 0, found.out, found.err)

    def refused(self, message: str, *words: object) -> None:
        """Expect one line and exit code 2."""
        shown = self(*words)
        assert shown.code == 2
        assert shown.out == ""
        assert re.search(message, shown.err), shown.err
        assert shown.err.startswith("Error: ")
        assert shown.err.count("\n") == 1


@pytest.fixture
def ikno(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Screen:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    return Screen(capsys, monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small set, its card and a trained run."""
    path = tmp_path_factory.mktemp("cli")
    (path / "elsewhere").mkdir()
    rng = np.random.default_rng(0)
    x, a = rng.random((16, 2)), rng.normal(size=(8, 2))
    f = a @ np.stack([np.sin(3 * x[:, 0]), x[:, 1]])
    arrays = {"x": x, "c": f[..., None], "u": (f**2)[..., None]}
    np.savez(path / "small.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})  # type: ignore[arg-type]
    (path / "small.toml").write_text(
        'name = "small"\nformat = "npz"\nfile = "small.npz"\ncloud = "shared"\nvariables = ["u"]\nconditions = ["f"]\n'
        'split = [6, 1, 1]\n[arrays]\nconditions = "c"\n'
    )
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = fit(config("small.toml"), "runs/small-ikno-tp")
    return folder / run.path


def config(name: str, **more: Any) -> Any:
    given = dict(word.split("=") for word in SMALL)
    return make_config(name, {k: int(v) if v.isdigit() else v for k, v in given.items()} | more)


def weights(path: Path, checkpoint: str = "best") -> dict[str, bytes]:
    return {k: v.numpy().tobytes() for k, v in load(path / f"{checkpoint}.safetensors")[0].items()}


def test_train_in_numbered_folders(ikno: Screen, trained: Path) -> None:
    shown = ikno("train", "small.toml", *SMALL)
    assert shown.code == 0
    records = Run.open("runs/small-ikno-tp-2").log()
    errors = [r["validation"] for r in records]
    best = 1 + errors.index(min(errors))
    lines = shown.out.splitlines()
    assert lines[0] == (
        f"runs/small-ikno-tp-2: 2 epochs, training loss {records[-1]['loss']:.4g}, "
        f"best validation error {min(errors):.2%} in epoch {best}"
    )
    assert lines[1] == "Next: ikno evaluate runs/small-ikno-tp-2   ikno plot runs/small-ikno-tp-2"
    assert "epoch 2/2" in shown.err  # progress does not mix with the result
    assert weights(Path("runs/small-ikno-tp-2")) == weights(trained)  # the same as the library
    shown = ikno("train", "small.toml", *SMALL, "train.epochs=1", "data.split=[7,0,1]", "--device", "auto", "--json")
    found = json.loads(shown.out)
    loss = Run.open("runs/small-ikno-tp-3").log()[0]["loss"]
    assert found == {"run": "runs/small-ikno-tp-3", "epochs": 1, "best epoch": 1, "loss": loss, "validation": None}
    for name in ("runs/small-ikno-tp-2", "runs/small-ikno-tp-3"):
        os.rename(name, name.replace("runs", "elsewhere"))


def test_resume_with_and_without_a_name(ikno: Screen, folder: Path) -> None:
    """F12, from the command line; the run was stopped after one of three epochs."""
    settings = config("small.toml", **{"train.epochs": 3, "data.split": [7, 0, 1]})
    whole = fit(settings, folder / "elsewhere" / "whole")
    for out, words in (
        ("elsewhere/a", []),
        ("elsewhere/b", ["small.toml", *SMALL, "train.epochs=3", "data.split=[7,0,1]"]),
    ):
        fit(settings, out, until=1)
        shown = ikno("train", *words, "--resume", "--out", out, "--json")
        assert shown.code == 0
        found = json.loads(shown.out)
        assert found["epochs"] == 3
        losses = [r["loss"] for r in whole.log()]
        assert found["best epoch"] == 1 + losses.index(min(losses))
        assert weights(Path(out), "last") == weights(whole.path, "last")
        assert weights(Path(out)) == weights(whole.path)
    again = ikno("train", "--resume", "--out", "elsewhere/a", "train.save_seconds=3")  # finished: nothing to do
    assert again.out.startswith("elsewhere/a: 3 epochs, training loss ")
    Path("elsewhere/a/log.jsonl").unlink()
    ikno.refused(r"log\.jsonl: records before step \d+ are missing", "train", "--resume", "--out", "elsewhere/a")
    ikno.refused(r"train\.batch was 6, now 5", "train", "--resume", "--out", "elsewhere/a", "train.batch=5")
    ikno.refused(
        r"another config \(.*train\.epochs was 3, now 2", "train", "small.toml", *SMALL, "--resume", "--out", out
    )
    ikno.refused("holds a run already; go on with it", "train", "small.toml", *SMALL, "--out", out)


def test_mistakes_are_one_line(ikno: Screen, trained: Path) -> None:
    ikno.refused(r"what to train on is missing; name a benchmark", "train")
    ikno.refused(r"what to train on is missing", "train", "seed=1")
    ikno.refused(r"what to train on is missing", "tune-scales")
    ikno.refused(r"--resume: which run\? name its folder with --out", "train", "--resume")
    ikno.refused(r"--resume: which run\?", "train", "small.toml", "--resume")
    ikno.refused(r"nowhere: no run here", "train", "--resume", "--out", "nowhere")
    ikno.refused(r"train\.epohcs: no such setting; did you mean 'epochs'\?", "train", "small.toml", "train.epohcs=3")
    ikno.refused(r"train\.learning_rate: .*finite.*found nan", "train", "small.toml", "train.learning_rate=NaN")
    ikno.refused(r"model\.d_modle: no such setting", "train", "small.toml", "model.d_modle=3")
    ikno.refused(r"no model named 'ikno-tq'; did you mean 'ikno-tp'", "train", "small.toml", "model=ikno-tq")
    ikno.refused(r"'epochs' is not a setting; write key=value", "train", "small.toml", "epochs")
    ikno.refused(r"no such benchmark.*did you mean 'wave-layer'", "train", "wave-leyer")
    ikno.refused(r"device: 'gpu' is no device", "train", "small.toml", "--device", "gpu")
    ikno.refused(r"small\.npz: its name is that of no benchmark; write a card", "train", "small.npz")
    ikno.refused(
        r"--factors: numbers separated by commas are needed, found '1;2'",
        "tune-scales",
        "small.toml",
        "--factors",
        "1;2",
    )
    ikno.refused(r"factors: positive numbers", "tune-scales", "small.toml", "--factors", "1,-2")
    ikno.refused(r"ikno-finite has no kernel scales", "tune-scales", "small.toml", "model=ikno-finite")
    for command in (["evaluate", "none"], ["predict", "none", "a.npz", "--out", "b.npz"], ["plot", "none"]):
        ikno.refused(r"none: no run here \(run\.json is missing\)", *command)
    ikno.refused(r"'worst' is no checkpoint", "evaluate", trained, "--checkpoint", "worst")
    ikno.refused(r"'worst' is no checkpoint", "plot", trained, "--checkpoint", "worst")
    ikno.refused(r"device: 'gpu' is no device", "evaluate", trained, "--device", "gpu")
    ikno.refused(r"needs the folder of a run and a file of points", "predict", trained, "f=1", "--out", "b.nc")
    ikno.refused(r"the result is an \.nc or \.npz file", "predict", trained, "small.npz", "--out", "b.txt")
    ikno.refused(r"--lead: the run is of a steady", "predict", trained, "small.npz", "--out", "b.nc", "--lead", 1)
    ikno.refused(r"small\.npz: no run here", "predict", trained, "small.npz", "f", "--out", "b.nc")
    for word in ("f=", "=1", "f=wide"):
        ikno.refused(r"is not an input; write name=number", "predict", trained, "small.npz", word, "--out", "b.nc")
    ikno.refused(r"g=1\.0: the model has no such input", "predict", trained, "small.npz", "g=1", "--out", "b.nc")
    ikno.refused(r"small\.npz: is the file that is read", "predict", trained, "small.npz", "--out", "small.npz")
    ikno.refused(r"elsewhere: no runs here; `ikno train` makes one", "runs", "elsewhere/nothing/elsewhere")
    assert ikno("train", "small.toml", "--nonsense").code == 2
    assert ikno("tune-scales", "small.toml", "--share", "2").code == 2
    assert sorted(p.name for p in Path("runs").iterdir()) == [trained.name]


def test_evaluate_predict_plot_and_runs(ikno: Screen, trained: Path) -> None:
    found = json.loads(ikno("evaluate", trained, "--split", "train", "--json").out)
    assert found["split"] == "train"
    assert found["samples"] == 6
    assert not (trained / "evaluation.json").exists()  # that is for the test samples
    row = json.loads(ikno("runs", "--json").out)[0]
    assert row["test"] is None
    shown = ikno("evaluate", trained)
    measured = json.loads((trained / "evaluation.json").read_text())
    assert shown.out.startswith("small, ikno-tp: 1 test samples of 16 points\n")
    assert f"{100 * measured['best']['value']:.2f} %" in shown.out

    assert ikno("predict", trained, "small.npz", "--out", "out.npz", "--device", "auto").out == (
        "out.npz: 8 samples at 16 points, u\n"
    )
    with np.load("small.npz") as data, np.load("out.npz") as made:
        expected = Run.open(trained).surrogate().predict(data["x"], data["c"][3])
        assert made["u"][3, 0].tobytes() == expected.tobytes()

    # The error of the test sample, from the file: sum |u - truth| / sum |truth - mean of the training set|.
    with np.load("small.npz") as data, np.load("out.npz") as made:
        truth, mean = data["u"][7], data["u"][:6].mean()
        error = np.abs(made["u"][7, 0] - truth).sum() / np.abs(truth - mean).sum()
    assert measured["best"]["value"] == pytest.approx(float(error), rel=1e-3)

    rows = json.loads(ikno("runs", "--json").out)
    assert len(rows) == 1
    log = Run.open(trained).log()
    assert rows[0] == {
        "run": "runs/small-ikno-tp",
        "benchmark": "small",
        "model": "ikno-tp",
        "epochs": "2/2",
        "loss": log[-1]["loss"],
        "validation": min(r["validation"] for r in log),
        "test": measured["best"]["value"],
    }
    table = ikno("runs").out
    assert f"{measured['best']['value']:.4g}" in table
    assert "2/2" in table


def test_several_seeds(ikno: Screen, trained: Path) -> None:
    """Mean and sample standard deviation of all runs, whose own results are kept."""
    other = fit(config("small.toml", seed=1), "elsewhere/second").path
    found = json.loads(ikno("evaluate", trained, other, "--json").out)
    values = [json.loads((p / "evaluation.json").read_text())["best"]["value"] for p in (trained, other)]
    assert values[0] != values[1]
    assert found["runs"] == 2
    assert found["best"]["mean"] == pytest.approx(sum(values) / 2)
    assert found["best"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    shown = ikno("evaluate", trained, other).out
    assert shown.startswith("small, ikno-tp: 2 runs, 1 test samples of 16 points\n")
    assert f"{100 * found['best']['mean']:.2f} ± {100 * found['best']['std']:.2f} %" in shown
    missing = trained / "missing"
    ikno.refused("missing: no run here", "evaluate", trained, missing)


def test_plot_on_fewer_points_and_other_data(ikno: Screen, trained: Path) -> None:
    for words in (("--points", 8), ("--data", "small.toml", "--points", 8)):
        lines = ikno("plot", trained, "--samples", 1, "--out", "fewer", *words).out.split()
        assert "fewer/fields.png" in lines
    ikno.refused("no-such.toml", "plot", trained, "--data", "no-such.toml")


def test_plot(ikno: Screen, trained: Path) -> None:
    lines = ikno("plot", trained, "--samples", 1, "--out", "pictures").out.split()
    assert {Path(p).name for p in lines} >= {"fields.png", "training.png", "kernels.png"}
    assert all(Path(p).read_bytes().startswith(b"\x89PNG") and Path(p).parent.name == "pictures" for p in lines)


def test_a_damaged_run_does_not_hide_the_others(ikno: Screen, trained: Path) -> None:
    bad = trained.parent / "bad" / "run.json"
    bad.parent.mkdir()
    bad.write_text("{}")
    try:
        shown = ikno("runs", "--json")
        assert shown.code == 0
        assert [r["run"] for r in json.loads(shown.out)] == ["runs/small-ikno-tp"]
        message = "not the description of a run (KeyError 'run'); put it back or train again"
        assert shown.err == f"Error: runs/bad/run.json: {message}\n"
    finally:
        bad.unlink()
        bad.parent.rmdir()


def test_tune_scales(ikno: Screen, folder: Path) -> None:
    words = ["tune-scales", "small.toml", *SMALL, "train.epochs=1", "--factors", "1,3", "--out", "elsewhere/found"]
    found = json.loads(ikno(*words, "--json").out)
    assert found.keys() == {"run", "best", "errors"}
    assert found["errors"].keys() == {"1", "3"}
    best = min(found["errors"], key=found["errors"].get)
    assert found["run"] == f"elsewhere/found/scale-{best}"
    assert found["best"] == float(best)
    shown = ikno(*words).out.splitlines()
    assert shown[-1] == f"elsewhere/found/scale-{best}: trained to the end"
    marked = [line for line in shown if line.endswith("  <- best")]
    assert marked == [f"scales x {best}: error {found['errors'][best]:.4g}  <- best"]
    assert len(shown) == 3


def test_stopped_tuning_says_how_to_go_on(ikno: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    from ikno.cli import screen

    usual = screen.training_bar

    @contextmanager
    def bar(*words: str) -> Iterator[Any]:
        with usual(*words) as show:

            def shown(prefix: str, report: Any) -> None:
                show(prefix, report)
                os.kill(os.getpid(), signal.SIGINT)

            yield shown

    monkeypatch.setattr(screen, "training_bar", bar)
    shown = ikno("tune-scales", "small.toml", *SMALL, "--out", "elsewhere/stopped")
    assert shown.code == 3
    expected = "elsewhere/stopped: stopped and saved; the same command with --out elsewhere/stopped goes on"
    assert shown.err.splitlines()[-1] == expected


def test_sigterm_saves_and_ends_with_code_3(folder: Path) -> None:
    """F13, as a scheduler does it."""
    words = ["train", "small.toml", *SMALL, "train.epochs=100000", "--out", "elsewhere/long", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ikno", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )
    try:
        log = folder / "elsewhere" / "long" / "log.jsonl"
        end = time.monotonic() + 120
        while not log.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3
    assert out == ""
    assert "Traceback" not in err
    state = load(folder / "elsewhere" / "long" / "last.safetensors")[1]
    assert state["step"] >= 1
    last = f"elsewhere/long: stopped in epoch {state['epoch'] + 1}, step {state['step']}; go on with --resume"
    assert err.splitlines()[-1] == last


QUICK = """
import sys
from ikno.cli import main
for words in (["train", "--help"], ["tune-scales", "--help"], ["train", "wave-layer", "train.epohcs=3"], ["train"]):
    sys.argv = ["ikno", *words]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code)
print([m for m in ("torch", "numpy", "scipy", "h5py", "matplotlib") if m in sys.modules])
"""


def test_help_and_settings_errors_need_not_wait_for_torch(tmp_path: Path) -> None:
    begun = time.monotonic()
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-c", QUICK]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert time.monotonic() - begun < 10
    assert result.stdout.splitlines()[-1] == "[]"
    assert re.findall(r"ended with (\d)", result.stdout) == ["0", "0", "2", "2"]
    for word in ("NAME|CARD|FILE|CONFIG", "KEY=VALUE", "--out", "--resume", "--device", "--json", "exit code 3"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120
    assert result.stderr.splitlines()[0] == "Error: train.epohcs: no such setting; did you mean 'epochs'?"
    assert len(result.stderr.splitlines()) == 2


def test_compare(ikno: Screen, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ikno.comparison.costs.peak_memory", lambda prepare, config: 12.5)
    words = ["compare", "small.toml", "preset=smoke", "train.batch=6", "ikno-tp.d_model=4"]
    options = ["--models", "ikno-tp,fno-dse", "--budget", "2 epochs", "--seeds", 2, "--target", 0.5]
    shown = ikno(*words, *options)
    assert shown.code == 0
    assert "small: 6 training, 1 validation and 1 test samples" in shown.out
    for text in ("ikno-tp", "fno-dse", "nearest training sample", "s to 50 %"):
        assert text in shown.out
    out = folder / "comparisons" / "small"
    assert {p.name for p in out.iterdir() if p.is_file()} == {
        *("costs.json", "costs.lock", "errors.png", "table.json", "table.md")
    }
    assert len(list(out.glob("*/run.json"))) == 4
    again = ikno(*words, *options, "--json")
    assert json.loads(again.out) == json.loads((out / "table.json").read_text())
    assert "epoch" not in again.err  # nothing was trained


def test_wrong_comparisons(ikno: Screen) -> None:
    ikno.refused("what to compare on is missing", "compare")
    ikno.refused("budget: write for instance", "compare", "small.toml", "--budget", "40")
    ikno.refused("--learning-rates: numbers separated by commas", "compare", "small.toml", "--learning-rates", "fast")
    ikno.refused("no model named 'gat'", "compare", "small.toml", "--models", "gat")
    ikno.refused("models have settings of their own", "compare", "small.toml", "model.d_model=3")


def test_efficiency(ikno: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ikno.comparison.efficiency.peak_memory", lambda *_: 12.5)
    words = ["efficiency", "--preset", "smoke", "--points", 60, "--grid", 4, "--repeats", 1, "--samples", 100]
    shown = ikno(*words, "--models", "ikno-tp,gaot", "--double")
    assert shown.code == 0
    for text in ("60 points, batch 1, preset smoke", "ikno-tp", "gaot", "x 2 points", "% gathers"):
        assert text in shown.out
    found = json.loads(ikno(*words, "--models", "fno-dse", "--json").out)
    assert [row["model"] for row in found["rows"]] == ["fno-dse"]
    ikno.refused("no model named 'goat'", "efficiency", "--models", "goat")
    ikno.refused("no preset 'big'", "efficiency", "--preset", "big")


def test_reproduce(ikno: Screen, folder: Path) -> None:
    table = folder / "own.toml"
    table.write_text(
        'title = "Orders"\ncaption = "c"\nset = "small.toml"\ncompare = "rows"\npicture = "errors"\n'
        'settings = { model = "ikno-finite", "model.d_model" = 4, "model.grid_size" = 3 }\n'
        '[[columns]]\nname = "small"\n'
        '[[rows]]\nname = "one"\nsettings = { "model.order" = 1 }\npublished = [2.49]\n'
        '[[rows]]\nname = "two"\nsettings = { "model.order" = 2 }\npublished = [2.32]\n'
    )
    words = ["reproduce", "own.toml", "--preset", "smoke", "--out", "again"]
    assert re.search(r"own +2 +0 +Orders", ikno(*words, "--list").out)
    shown = ikno(*words, "--cells", "one")
    assert shown.code == 0
    assert "1 trainings, 0 of them done before" in shown.err
    assert re.search(r"one +[\d.]+ \(2\.49\)", shown.out)
    assert re.search(r"two +- \(2\.32\)", shown.out)
    assert ikno(*words).code == 0
    out = folder / "again"
    assert {p.name for p in out.iterdir()} == {
        *("cells", "index.html", "own.json", "own.md", "own.png", "own.tex", "work")
    }
    assert "![Orders](own.png)" in (out / "own.md").read_text()
    text = (out / "own.md").read_text()
    found = ikno(*words, "--report", "--json")
    assert [row["name"] for row in json.loads(found.out)[0]["rows"]] == ["one", "two"]
    assert (out / "own.md").read_text() == text
    (folder / "more.toml").write_text(table.read_text().replace("Orders", "Others"))
    shown = ikno("reproduce", "more.toml", *words[2:], "--report")  # one page for all tables of a folder
    assert "Others" in shown.out
    assert "Orders" not in shown.out
    assert all(f"{title}</h2>" in (out / "index.html").read_text() for title in ("Orders", "Others"))
    (out / "list.json").write_text("[]")
    ikno.refused("list.json: not a table", *words, "--report")
    listed = json.loads(ikno("reproduce", "--list", "--json").out)
    assert {"table": "steady", "cells": 48, "done": 0, "about": "Time-independent sets"} in listed
    ikno.refused("no such table", "reproduce", "stedy")
    ikno.refused("no preset 'gpu'", "reproduce", "--preset", "gpu")
