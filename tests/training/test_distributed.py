"""Two processes are one: same losses, same weights to rounding, nothing lost or doubled, and resumable with either."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ikno.config import Config, make_config
from ikno.errors import UserError
from ikno.runs import Run, load
from ikno.training import train

CHILD = """
import json, sys
from pathlib import Path
import torch
from ikno.config import Config
from ikno.training import train
torch.set_num_threads(1)
config = Config.model_validate(json.loads(Path(sys.argv[1]).read_text()))
until = int(sys.argv[4]) or None
train(config, sys.argv[2], sys.argv[3] == "resume", until, lambda r: print(r.step, flush=True))
"""


def settings(split: list[int], epochs: int, save_seconds: float, **more: Any) -> Config:
    values = {"data.split": split, "train.epochs": epochs, "train.save_seconds": save_seconds, "train.batch": 3}
    values |= {f"train.{k}": v for k, v in more.items()}
    return make_config("poisson-gauss", {"preset": "smoke", **values})


def start(config: Config, folder: Path, out: str, resume: bool = False, until: int = 0, size: int = 2) -> list:
    """Start the processes as torchrun would."""
    file = folder / f"{out}.json"
    file.write_text(json.dumps(config.model_dump(mode="json")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", CHILD, str(file), str(folder / out), "resume" if resume else "new", str(until)]
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(command, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, **pipes) for r in range(size)
    ]


def finish(processes: list) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


def losses(run: Run) -> list[float]:
    return [r["loss"] for r in run.log()] + [r["validation"] for r in run.log()]


def close(a: Run, b: Run, tolerance: float) -> None:
    assert losses(a) == pytest.approx(losses(b), rel=tolerance)
    one, other = (load(r.path / "last.safetensors")[0] for r in (a, b))
    assert one.keys() == other.keys()
    weights = [k for k in one if k.startswith(("weights.", "average."))]
    assert weights
    for name in weights:
        scale = one[name].abs().max().clamp(min=1e-3) if one[name].numel() else 1.0
        assert (one[name] - other[name]).abs().sum() <= tolerance * 100 * scale * max(one[name].numel(), 1)


def test_two_processes_equal_one_and_resume_as_one(data: Path) -> None:
    """F22, F23: same losses with the same global batch, also where the last batch is smaller than the group."""
    config = settings([7, 3, 2], 4, 1000, ema=0.9)
    alone = train(config, data / "alone")
    finish(start(config, data, "pair", until=2))
    assert [r["step"] for r in Run.open(data / "pair").log()] == [3, 6]
    # One goes on with what two began, and two with what one began.
    close(alone, train(config, data / "pair", resume=True), 1e-5)
    train(config, data / "other", until=2)
    finish(start(config, data, "other", resume=True))
    close(alone, Run.open(data / "other"), 1e-5)


def test_one_process_is_killed(data: Path) -> None:
    """F23: the other ends too, and the run goes on."""
    config = settings([8, 2, 2], 200, 0)
    processes = start(config, data, "pair")
    assert processes[0].stdout is not None
    for _ in range(4):
        processes[0].stdout.readline()
    processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    processes[0].communicate(timeout=60)
    assert processes[0].returncode != 0
    assert time.monotonic() - began < 60
    processes[1].communicate()
    run = train(config, data / "pair", resume=True, until=3)
    assert [r["epoch"] for r in run.log()][-1] == 3


def test_both_stop_on_a_signal(data: Path) -> None:
    """A signal to one process stops all at the same step."""
    config = settings([8, 2, 2], 200, 1000)
    processes = start(config, data, "pair")
    for _ in range(2):
        processes[0].stdout.readline()
    processes[1].send_signal(signal.SIGTERM)
    outputs = [p.communicate(timeout=60) for p in processes]
    assert all("TrainingInterrupted" in errors for _, errors in outputs)
    step = load(data / "pair" / "last.safetensors")[1]["step"]
    assert 0 < step < 600
    assert outputs[1][0].split()[-1] == str(step)


def divided(config: Config, parts: int) -> Config:
    """Return the config with each cloud in the hands of so many processes."""
    return config.model_copy(update={"train": config.train.model_copy(update={"point_processes": parts})})


def test_a_cloud_in_two_processes_equals_one(data: Path) -> None:
    """Also with dropout, the same in both, and resumed by one; 40 points in an odd number."""
    values = {"data.split": [5, 2, 2], "data.points": 37, "train.batch": 2, "train.save_seconds": 1000}
    values |= {"train.epochs": 3, "model.dropout": 0.3, "data.sampling": "random"}
    config = make_config("poisson-gauss", {"preset": "smoke", **values})
    alone = train(config, data / "alone")
    finish(start(divided(config, 2), data, "pair", until=2))
    close(alone, train(config, data / "pair", resume=True), 1e-5)


def test_two_clouds_at_a_time_in_two_processes_each(data: Path) -> None:
    """Samples among the pairs, points in each: a problem in time, with a batch that leaves a pair without a share."""
    values = {"data.split": [3, 2, 2], "data.final_snapshot": 4, "data.stride": 2, "train.batch": 2}
    values |= {"train.epochs": 2, "train.micro_batch": 1, "train.save_seconds": 1000, "train.loss": "mse"}
    config = make_config("ns-gauss", {"preset": "smoke", **values})
    finish(start(divided(config, 2), data, "four", size=4))
    close(train(config, data / "alone"), Run.open(data / "four"), 1e-5)


def test_teams_need_their_processes(data: Path) -> None:
    config = divided(settings([7, 3, 2], 4, 1000), 2)
    with pytest.raises(UserError, match=r"train\.point_processes: teams of 2 cannot be made of 1 process; start"):
        train(config, data / "run")
    assert not (data / "run").exists()
