import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from ikno.data.catalog import CATALOG
from ikno.data.files import open_data
from ikno.data.formats.hdf5 import write_groups
from ikno.data.generate import Job, generate
from ikno.data.generators import GENERATORS
from ikno.data.library import file_name
from ikno.errors import UserError

JOB = Job("poisson-gauss", (("points", 50), ("resolution", 17)), 7, 3)


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_workers_and_shards_and_restarts_give_the_same_bytes(tmp_path):
    """F36: one process, two, shards in any order, and a start from half of the samples."""
    whole = generate(JOB, tmp_path / "whole.nc")
    assert whole is not None
    assert not list(tmp_path.glob("*.parts*"))
    two = generate(JOB, tmp_path / "two.nc", workers=2)
    assert two is not None
    assert digest(two) == digest(whole)
    out = tmp_path / "shards.nc"
    assert generate(JOB, out, shard=(2, 3)) is None
    assert generate(JOB, out, shard=(0, 3)) is None
    assert not out.exists()
    assert generate(JOB, out, shard=(1, 3)) == out
    assert digest(out) == digest(whole)


def test_only_missing_samples_are_made(tmp_path, monkeypatch):
    """F36."""
    made = []
    original = Job.sample

    def failing(self, index, cloud):
        made.append(index)
        if len(made) == 4:
            raise KeyboardInterrupt
        return original(self, index, cloud)

    monkeypatch.setattr(Job, "sample", failing)
    out = tmp_path / "a.nc"
    with pytest.raises(KeyboardInterrupt):
        generate(JOB, out)
    assert not out.exists()
    counts = []
    generate(JOB, out, progress=lambda done, total: counts.append((done, total)))
    assert made == [0, 1, 2, 3, 3, 4, 5, 6]
    assert counts[0] == (3, 7)
    assert counts[-1] == (7, 7)
    monkeypatch.undo()
    whole = generate(JOB, tmp_path / "whole.nc")
    assert whole is not None
    assert digest(out) == digest(whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_and_restart(tmp_path, workers):
    """F36: kill -9 in the middle, then the same command again; no worker lives on (it would keep the pipes open)."""
    command = [sys.executable, "-m", "ikno", "data", "generate", "poisson-gauss", "--samples", "300"]
    command += ["--resolution", "129", "--points", "100", "--workers", str(workers), "--out", str(tmp_path / "a.nc")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    parts = tmp_path / "a.nc.parts"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("0*.npz")) if parts.exists() else []) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    kept = {p.name: p.stat().st_mtime_ns for p in parts.glob("0*.npz") if "partial" not in p.name}
    assert 5 <= len(kept) < 300
    assert not (tmp_path / "a.nc").exists()
    subprocess.run(command, check=True, capture_output=True)
    job = Job("poisson-gauss", (("points", 100), ("resolution", 129)), 300, 0)
    whole = generate(job, tmp_path / "whole.nc")
    assert whole is not None
    assert digest(tmp_path / "a.nc") == digest(whole)


AIRCRAFT = Job("nasa-crm", (("points", 300), ("resolution", 8)), 4, 1)


def test_the_aircraft_has_two_files(tmp_path, monkeypatch):
    """The released layout: training and test samples, arrays by name and the flight as attributes."""
    out = tmp_path / "trainingData_NASA-CRM.h5"
    whole = generate(AIRCRAFT, out)
    second = tmp_path / "testData_NASA-CRM.h5"
    assert whole == out
    assert sorted(p.name for p in tmp_path.iterdir()) == [second.name, out.name]
    sizes = []
    for path in (out, second):
        with h5py.File(path) as file:
            groups = [file[name] for name in file]
            sizes.append(len(groups))
            for group in groups:
                assert isinstance(group, h5py.Group)
                names = {*(f"Coordinate{a}" for a in "XYZ"), *(f"Normal{a}" for a in "XYZ"), "PressureCoefficient"}
                assert set(group) == names | {"cfx", "cfy", "cfz", "Surface"}
                assert {np.asarray(group[name]).shape for name in group} == {(300,)}
                flight = {"Mach", "AlphaMean", "aileronInboard", "aileronOutboard", "htp", "elevator"}
                assert set(group.attrs) == flight
                assert all(np.ndim(value) == 0 for value in group.attrs.values())
    assert sizes == [3, 1]
    with open_data(out, CATALOG["nasa-crm"]) as found:
        assert len(found) == 4
        assert found.attributes["seed"] == "1"
        for i in (0, 3):
            expected = AIRCRAFT.sample(i, None)
            assert expected.conditions is not None
            np.testing.assert_array_equal(found[i].values, expected.values.astype(np.float32))
            np.testing.assert_array_equal(found[i].conditions, expected.conditions.astype(np.float32))
    with pytest.raises(UserError, match=r"testData_NASA-CRM\.h5: exists already"):
        generate(AIRCRAFT, tmp_path / "other.h5")
    # Stopped after the second file: the same call goes on and gives the same bytes.
    before = digest(out), digest(second)
    other = tmp_path / "again" / out.name
    with monkeypatch.context() as patch:
        written = []

        def stopped(path, *arguments):
            if written:
                raise KeyboardInterrupt
            written.append(path)
            write_groups(path, *arguments)

        patch.setattr("ikno.data.generate.write_groups", stopped)
        with pytest.raises(KeyboardInterrupt):
            generate(AIRCRAFT, other)
    assert [p.name for p in written] == [second.name]
    assert generate(AIRCRAFT, other) == other
    assert (digest(other), digest(other.with_name(second.name))) == before


def test_labels_name_other_settings():
    """Only the number of points may differ from the published problem."""
    assert Job("poisson-gauss", (("points", 50),), 7, 3).label() == "as published"
    published = CATALOG["ns-gauss"].label
    assert Job("ns-gauss", (), 1, 0).label() == published
    changed = Job("ns-gauss", (("count", 8), ("width", (0.1, 0.25))), 1, 0).label()
    assert changed == f"kin of: count = 8, width = [0.1, 0.25]; {published.removeprefix('as published: ')}"
    assert all(Job(name, (), 1, 0).label() == CATALOG[name].label for name in GENERATORS)


def test_the_file_says_what_made_it(tmp_path):
    out = generate(JOB, tmp_path / "poisson-gauss.nc")
    assert out is not None
    with h5py.File(out) as file:
        attributes = {k: str(v) for k, v in file.attrs.items()}
        shapes = {name: np.asarray(file[name]).shape for name in "uxc"}
    assert shapes == {"u": (7, 1, 50, 1), "x": (1, 1, 50, 2), "c": (7, 1, 50, 1)}
    assert attributes["seed"] == "3"
    assert attributes["label"] == "kin of: resolution = 17"
    assert '"resolution": 17' in attributes["generator"]
    assert '"numpy"' in attributes["versions"]
    with open_data(out, CATALOG["poisson-gauss"]) as found:
        expected = JOB.sample(4, JOB.cloud())
        np.testing.assert_array_equal(found[4].values, expected.values.astype(np.float32))
        assert found.shared


def test_more_samples_begin_with_the_same(tmp_path):
    few = generate(JOB, tmp_path / "few.nc")
    more = generate(Job(JOB.name, JOB.settings, 9, JOB.seed), tmp_path / "more.nc")
    other = generate(Job(JOB.name, JOB.settings, 7, JOB.seed + 1), tmp_path / "other.nc")
    assert few is not None
    assert more is not None
    assert other is not None
    card = CATALOG["poisson-gauss"]
    with open_data(few, card) as a, open_data(more, card) as b, open_data(other, card) as c:
        for i in range(7):
            np.testing.assert_array_equal(a[i].values, b[i].values)
            assert not np.array_equal(a[i].values, c[i].values)


def test_samples_of_other_settings_are_not_mixed(tmp_path):
    out = tmp_path / "a.nc"
    assert generate(JOB, out, shard=(0, 2)) is None
    with pytest.raises(UserError, match=r"a\.nc\.parts: holds samples made with other settings"):
        generate(Job(JOB.name, JOB.settings, 7, 4), out, shard=(1, 2))
    assert generate(JOB, out, shard=(1, 2)) == out
    with pytest.raises(UserError, match="exists already"):
        generate(JOB, out)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_shards_count_from_zero(tmp_path, shard):
    with pytest.raises(UserError, match="counts from 0"):
        generate(JOB, tmp_path / "a.nc", shard=shard)
    assert not list(tmp_path.iterdir())


def test_every_generated_benchmark_has_a_generator():
    assert {name for name, card in CATALOG.items() if card.generated} == set(GENERATORS)


SMALL = {
    "poisson-gauss": {"resolution": 17, "points": 60},
    "poisson-c-sines": {"resolution": 6, "points": 60},
    "elasticity": {},
    "naca0012": {"resolution": 32, "points": 60, "tolerance": 0.01},
    "naca2412": {"resolution": 32, "points": 60, "tolerance": 0.01},
    "rae2822": {"resolution": 32, "points": 60, "tolerance": 0.01},
    "nasa-crm": {"resolution": 8, "points": 500},
    "ns-gauss": {"resolution": 16, "points": 60},
    "ns-pwc": {"resolution": 16, "points": 60},
    "ns-sl": {"resolution": 16, "points": 60},
    "ns-svs": {"resolution": 16, "points": 60},
    "ce-gauss": {"resolution": 16, "points": 60},
    "ce-rp": {"resolution": 16, "points": 60},
    "wave-layer": {"resolution": 24, "points": 60},
    "wave-c-sines": {"resolution": 6, "points": 60},
}


@pytest.mark.parametrize("name", list(GENERATORS))
def test_what_is_made_fits_its_card(tmp_path, name):
    """Every generator's file is read back through its card: names, times, domain, conditions, and two equal runs."""
    job = Job(name, tuple(SMALL[name].items()), 2, 0)
    card = CATALOG[name]
    out = generate(job, tmp_path / file_name(card))
    again = generate(job, tmp_path / "again" / file_name(card))
    assert out is not None
    assert again is not None
    files = sorted(p.name for p in tmp_path.iterdir() if p.is_file())
    assert len(files) == (1 if card.test_file is None else 2)
    assert all(digest(tmp_path / f) == digest(tmp_path / "again" / f) for f in files)
    with open_data(out, card) as found:
        assert found.shared == (card.cloud == "shared")
        made = found[1]
        assert made.values.shape[0] == card.snapshots == len(job.generator.times)
        assert made.values.shape[2] == len(card.variables)
        assert (0 if made.conditions is None else made.conditions.shape[2]) == len(card.conditions)
        if card.domain is not None:
            low, high = np.array(card.domain).T
            assert (made.points >= low - 1e-6).all()
            assert (made.points <= high + 1e-6).all()
        assert made.values.std() > 0
        assert not np.array_equal(found[0].values, made.values)
    if card.times is not None:
        assert job.generator.times[0] == card.times[0]
        assert job.generator.times[-1] == pytest.approx(card.times[1])
