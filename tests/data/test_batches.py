"""Samples, items and batches against the arrays they were written from."""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from ikno.config import Sampling
from ikno.data.batches import Batch, Samples, TrainingPairs, in_order, shuffled
from ikno.data.catalog import Card
from ikno.data.pairs import time_pairs
from ikno.errors import UserError

S, T, N = 6, 4, 30
TIMES = (0.5, 0.6, 0.9, 1.5)
PAIRS = time_pairs(3, 1)
# A machine with fewer cores than workers is no reason to fail.
FEW_CORES = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def card(**more: Any) -> Card:
    moving = {"times": [0.5, 1.5], "snapshots": T, "variables": ["a", "b", "c"], "targets": ["c", "a"]}
    return Card.model_validate({"name": "mine", **moving, **more})


def arrays(shared: bool, conditions: int | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Return u of three variables, x and perhaps c of two channels at so many times."""
    rng = np.random.default_rng(seed)
    made = {"u": rng.normal(size=(S, T, N, 3)), "x": rng.random((1 if shared else S, 1, N, 2))}
    if conditions is not None:
        made["c"] = rng.normal(size=(S, conditions, N, 2))
    return {k: v.astype(np.float32) for k, v in made.items()}


def opened(
    path: Path, made: dict[str, np.ndarray], points: int | None = None, sampling: Sampling = "first", seed: int = 0
) -> Samples:
    """Return the samples 1 to 4 of a file with these arrays."""
    with h5py.File(path, "w") as file:
        for name, array in made.items():
            file[name] = array
    more = {"arrays": {"conditions": "c"}, "conditions": ["k", "l"]} if "c" in made else {}
    return Samples(path, card(**more), range(1, 5), points, sampling, seed)


def ragged(folder: Path, sizes: Sequence[int], seed: int = 0) -> tuple[Samples, list[np.ndarray]]:
    """Return steady samples with clouds of the given sizes, and the tables x, y, u, f they are read from."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    tables = []
    for k, n in enumerate(sizes):
        table = rng.normal(size=(n, 4)).astype(np.float32)
        rows = "\n".join(",".join(repr(float(v)) for v in row) for row in table)
        (folder / f"{k:03}.csv").write_text(f"x,y,u,f\n{rows}\n")
        tables.append(table)
    mine = Card(name="mine", variables=("u",), conditions=("f",), format="csv")
    return Samples(folder, mine, range(len(sizes)), None, "first", 0), tables


def same(one: Batch, two: Batch) -> bool:
    """Tell whether two batches agree bit for bit."""
    for field in fields(Batch):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.dtype != b.dtype or not torch.equal(a, b):
                return False
        elif a != b:
            return False
    return True


def test_targets_in_their_order(tmp_path: Path) -> None:
    made = arrays(shared=True)
    samples = opened(tmp_path / "a.nc", made)
    assert len(samples) == 4
    for k, found in enumerate(samples):
        np.testing.assert_array_equal(found.values, made["u"][k + 1][..., [2, 0]])  # targets are c, then a
        np.testing.assert_array_equal(found.points, made["x"][0, 0])
        assert found.values.dtype == np.float32


@pytest.mark.parametrize("conditions", [None, 1, T])
@pytest.mark.parametrize("shared", [True, False])
def test_items_are_the_pairs_of_every_sample(tmp_path: Path, shared: bool, conditions: int | None) -> None:
    made = arrays(shared, conditions)
    items = TrainingPairs(opened(tmp_path / "a.nc", made), PAIRS, TIMES)
    assert len(items) == 4 * 6
    seen = set()
    for i in range(len(items)):
        batch = items.batch([i])
        sample = batch.samples[0]
        assert batch.time is not None
        assert batch.lead is not None
        starts = [p for p in PAIRS if np.isclose(TIMES[p[0]], batch.time[0])]
        (pair,) = [p for p in starts if np.isclose(TIMES[p[1]] - TIMES[p[0]], batch.lead[0])]
        seen.add((sample, pair))
        u = made["u"][..., [2, 0]]
        expected = [u[sample, pair[0]]]
        if conditions is not None:
            expected.append(made["c"][sample, pair[0] if conditions > 1 else 0])
        np.testing.assert_array_equal(batch.inputs[0], np.concatenate(expected, 1))
        np.testing.assert_array_equal(batch.values[0], u[sample, pair[1]])
        np.testing.assert_array_equal(batch.points[0], made["x"][0 if shared else sample, 0])
        assert batch.mask is None
    assert seen == {(s, p) for s in range(1, 5) for p in PAIRS}


def test_steady_items(tmp_path: Path) -> None:
    samples, tables = ragged(tmp_path / "csv", [7, 7, 7])
    items = TrainingPairs(samples, (), (0.0,))
    assert len(items) == 3
    batch = items.batch([2, 0])
    assert batch.time is None
    assert batch.lead is None
    assert batch.mask is None
    assert batch.samples == (2, 0)
    np.testing.assert_array_equal(batch.inputs, np.stack([tables[2], tables[0]])[..., 3:])
    np.testing.assert_array_equal(batch.values, np.stack([tables[2], tables[0]])[..., 2:3])
    np.testing.assert_array_equal(batch.points, np.stack([tables[2], tables[0]])[..., :2])


def test_steady_items_without_conditions(tmp_path: Path) -> None:
    """Only the shape of the domain decides."""
    x, u = np.random.default_rng(0).random((3, 1, N, 2)), np.random.default_rng(1).random((3, 1, N, 1))
    np.savez(tmp_path / "a.npz", x=x, u=u)
    mine = Card(name="mine", variables=("u",), format="npz")
    batch = TrainingPairs(Samples(tmp_path / "a.npz", mine, range(3), None, "first", 0), (), (0.0,)).batch([0, 2])
    assert batch.inputs.shape == (2, N, 0)
    assert batch.inputs.dtype == batch.values.dtype == torch.float32


def test_padding_and_mask(tmp_path: Path) -> None:
    sizes = [5, 9, 1, 7]
    samples, tables = ragged(tmp_path / "csv", sizes)
    batch = TrainingPairs(samples, (), (0.0,)).batch([0, 1, 2, 3])
    assert batch.mask is not None
    assert batch.mask.tolist() == [[True] * n + [False] * (9 - n) for n in sizes]
    assert batch.cloud is None
    assert len(batch) == 4
    for k, table in enumerate(tables):
        inside = batch.mask[k]
        np.testing.assert_array_equal(batch.points[k][inside], table[:, :2])
        np.testing.assert_array_equal(batch.values[k][inside], table[:, 2:3])
        np.testing.assert_array_equal(batch.inputs[k][inside], table[:, 3:])
        for part in (batch.points, batch.values, batch.inputs):
            assert part[k].isfinite().all()
        # What pads a cloud lies in it, so that its box and its cells stay the same.
        assert {tuple(p) for p in batch.points[k].tolist()} == {tuple(p) for p in table[:, :2].tolist()}


def test_masked_sums_are_the_sums_of_each_sample(tmp_path: Path) -> None:
    samples, tables = ragged(tmp_path / "csv", [5, 90, 1, 33])
    items = TrainingPairs(samples, (), (0.0,))
    batch = items.batch([3, 0, 1, 2])
    assert batch.mask is not None
    found = (batch.values.double() ** 2 * batch.mask[..., None]).sum((1, 2))
    expected = [sum(float(v) ** 2 for v in tables[k][:, 2]) for k in (3, 0, 1, 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert batch.mask.sum(1).tolist() == [33, 5, 90, 1]
    alone = items.batch([2])
    assert alone.mask is None
    assert alone.points.shape == (1, 1, 2)


def test_large_masks_are_made_quickly(tmp_path: Path) -> None:
    """Eight clouds of aircraft size: a loop over all points in Python would take seconds."""
    samples, _ = ragged(tmp_path / "csv", [3, 4])
    kind = type(samples.get(0))
    wide = [np.zeros((1, n, 1), np.float32) for n in (400_000, 399_999)]
    points = [np.zeros((400_000, 2), np.float32), np.zeros((399_999, 2), np.float32)]
    samples._kept = [kind(p, w, w) for p, w in zip(points, wide, strict=True)]
    begun = os.times().user
    batch = TrainingPairs(samples, (), (0.0,)).batch([0, 1] * 4)
    assert os.times().user - begun < 1
    assert batch.mask is not None
    assert batch.mask.sum(1).tolist() == [400_000, 399_999] * 4


def test_a_shared_cloud_comes_once(tmp_path: Path) -> None:
    made = arrays(shared=True)
    batch = TrainingPairs(opened(tmp_path / "a.nc", made), PAIRS, TIMES).batch([0, 7, 20])
    assert batch.points.shape == (1, N, 2)
    assert batch.inputs.shape == (3, N, 2)
    assert batch.cloud == 0
    own = TrainingPairs(opened(tmp_path / "b.nc", arrays(shared=False)), PAIRS, TIMES).batch([0, 7, 20])
    assert own.points.shape == (3, N, 2)
    assert own.cloud is None


def test_batches_move_to_a_device(tmp_path: Path) -> None:
    batch = TrainingPairs(opened(tmp_path / "a.nc", arrays(True, 1)), PAIRS, TIMES).batch([3, 4])
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, n).device.type for n in ("points", "inputs", "values", "time", "lead")} == {"meta"}
    assert moved.mask is None
    assert moved.samples == batch.samples
    assert same(batch.to(torch.device("cpu")), batch)


def indices(samples: Samples, made: dict[str, np.ndarray], k: int, step: tuple[int, int] | None) -> list[int]:
    """Return which points of the file a sample has, from its coordinates, and check that values go with them."""
    found = samples.get(k, step)
    cloud = made["x"][0 if len(made["x"]) == 1 else k + 1, 0]
    place = {tuple(p): i for i, p in enumerate(cloud.tolist())}
    chosen = [place[tuple(p)] for p in found.points.tolist()]
    np.testing.assert_array_equal(found.values, made["u"][k + 1][:, chosen][..., [2, 0]])
    if "c" in made:
        assert found.conditions is not None
        np.testing.assert_array_equal(found.conditions, made["c"][k + 1][:, chosen])
    return chosen


@pytest.mark.parametrize("shared", [True, False])
def test_first_points(tmp_path: Path, shared: bool) -> None:
    made = arrays(shared, 1)
    samples = opened(tmp_path / "a.nc", made, 10)
    for k, step in ((0, None), (3, (0, 0)), (3, (8, 5))):
        assert indices(samples, made, k, step) == list(range(10))
    more = opened(tmp_path / "b.nc", made, N + 5)
    assert indices(more, made, 0, None) == list(range(N))


@pytest.mark.parametrize("shared", [True, False])
def test_farthest_points_stay_the_same(tmp_path: Path, shared: bool) -> None:
    made = arrays(shared, T)
    samples = opened(tmp_path / "a.nc", made, 10, "farthest")
    again = opened(tmp_path / "b.nc", made, 10, "farthest")
    chosen = [indices(samples, made, k, None) for k in range(4)]
    assert [indices(again, made, k, (7, 1)) for k in (3, 2, 1, 0)] == chosen[::-1]  # in any order and step
    assert all(len(set(c)) == 10 for c in chosen)
    assert (len({tuple(c) for c in chosen}) == 1) == shared
    seeds = [opened(tmp_path / "c.nc", made, 10, "farthest", seed) for seed in range(5)]
    assert len({tuple(indices(s, made, 0, None)) for s in seeds}) > 1
    cloud = made["x"][0 if shared else 1, 0]
    rest = np.setdiff1d(np.arange(N), chosen[0])
    gaps = np.linalg.norm(cloud[rest][:, None] - cloud[chosen[0]], axis=-1).min(1)
    between = np.linalg.norm(cloud[chosen[0]][:, None] - cloud[chosen[0]], axis=-1) + 9 * np.eye(10)
    assert gaps.max() <= between.min()  # no point that was left out is farther from the others than those taken


def test_random_points_of_a_shared_cloud(tmp_path: Path) -> None:
    made = arrays(True, 1)
    samples = opened(tmp_path / "a.nc", made, 10, "random", seed=3)
    again = opened(tmp_path / "b.nc", made, 10, "random", seed=3)
    other = opened(tmp_path / "c.nc", made, 10, "random", seed=4)
    steps = [(epoch, number) for epoch in range(5) for number in range(3)]
    by_step = [[tuple(indices(samples, made, k, step)) for k in range(4)] for step in steps]
    assert all(len(set(chosen)) == 1 for chosen in by_step)  # all samples of a step
    assert len({chosen[0] for chosen in by_step}) == len(steps)
    assert all(len(set(chosen[0])) == 10 for chosen in by_step)
    assert tuple(indices(again, made, 2, (3, 1))) == by_step[10][0]
    assert tuple(indices(other, made, 2, (3, 1))) != by_step[10][0]
    assert indices(samples, made, 0, None) == indices(samples, made, 1, None) == indices(again, made, 0, None)
    numbers = [TrainingPairs(samples, PAIRS, TIMES).batch([0], step).cloud for step in (None, *steps)]
    assert len(set(numbers)) == len(steps) + 1  # whoever keeps the sorted cloud sees that it is another one
    assert {i for number in range(30) for i in indices(samples, made, 0, (0, number))} == set(range(N))


def test_random_points_of_own_clouds(tmp_path: Path) -> None:
    made = arrays(False)
    samples = opened(tmp_path / "a.nc", made, 10, "random")
    steps = [(0, 0), (0, 1), (1, 0)]
    chosen = {tuple(indices(samples, made, k, step)) for k in range(4) for step in steps}
    assert len(chosen) == 12
    part = Samples(samples.path, samples.card, range(3, 5), 10, "random", 0)
    for k in range(2):  # the sample decides, not its place in the part
        np.testing.assert_array_equal(part.get(k, (2, 1)).points, samples.get(k + 2, (2, 1)).points)


def test_points_of_a_batch_belong_together(tmp_path: Path) -> None:
    """All pairs of a sample see the same points in a step."""
    items = TrainingPairs(opened(tmp_path / "a.nc", arrays(False), 10, "random"), PAIRS, TIMES)
    batch = items.batch([6, 7, 11], (5, 2))
    assert batch.samples == (2, 2, 2)
    assert torch.equal(batch.points[0], batch.points[1])
    assert torch.equal(batch.points[0], batch.points[2])


@FEW_CORES
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("sampling", ["first", "random", "farthest"])
@pytest.mark.parametrize("shared", [True, False])
def test_workers_change_nothing(tmp_path: Path, shared: bool, sampling: Sampling, kept: bool) -> None:
    """F18: an item depends on its number and the step alone, bit for bit, whichever process makes it."""
    made = arrays(shared, T)
    here = TrainingPairs(opened(tmp_path / "a.nc", made, 12, sampling), PAIRS, TIMES)
    there = TrainingPairs(opened(tmp_path / "b.nc", made, 12, sampling), PAIRS, TIMES)
    if kept:
        assert here.samples.keep(1e9)
        assert there.samples.keep(1e9)
    else:
        there.samples.get(0)  # the file is open when the workers begin
    batches = shuffled(len(here), 5, 0, 1)
    one, two = list(here.loader(batches, 0, (1, 0))), list(there.loader(batches, 2, (1, 0)))
    assert len(one) == len(two) == 5
    assert all(same(a, b) for a, b in zip(one, two, strict=True))
    for first in ((2, 0), (1, 1)):
        others = list(here.loader(batches, 0, first))
        assert not any(same(a, b) for a, b in zip(one, others, strict=True)) or sampling != "random"
    later = list(here.loader(batches[2:], 0, (1, 2)))  # as after a resume
    assert all(same(a, b) for a, b in zip(one[2:], later, strict=True))


@FEW_CORES
@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_workers_are_one_line(tmp_path: Path, workers: int) -> None:
    made = arrays(True)
    made["u"][3, 2] = np.nan
    items = TrainingPairs(opened(tmp_path / "a.nc", made), PAIRS, TIMES)
    found = items.loader(in_order(len(items), 6), workers)
    assert next(found).samples == (1,) * 6
    assert next(found).samples == (2,) * 6
    with pytest.raises(UserError, match=r"^[^\n]*a\.nc: sample 3 has NaN or infinite values[^\n]*$"):
        next(found)


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (10, 3), (12, 4), (5, 64), (100, 7)])
def test_every_item_once_per_epoch(count: int, batch: int) -> None:
    for epoch in range(3):
        found = shuffled(count, batch, 0, epoch)
        assert Counter(i for chosen in found for i in chosen) == Counter(range(count))
        assert all(len(chosen) == batch for chosen in found[:-1])
        assert 1 <= len(found[-1]) <= batch
    flat = [i for chosen in in_order(count, batch) for i in chosen]
    assert flat == list(range(count))
    assert [len(c) for c in in_order(count, batch)] == [len(c) for c in shuffled(count, batch, 0, 0)]


def test_orders_differ_by_epoch_and_seed_only() -> None:
    orders = {(s, e): str(shuffled(50, 8, s, e)) for s in range(3) for e in range(4)}
    assert len(set(orders.values())) == 12
    assert orders[2, 3] == str(shuffled(50, 8, 2, 3))
    assert shuffled(50, 50, 2, 3)[0] == [i for chosen in shuffled(50, 8, 2, 3) for i in chosen]
    assert shuffled(50, 8, 2**62, 0) != shuffled(50, 8, 2**62 + 1, 0)


def test_nothing_to_shuffle() -> None:
    assert shuffled(0, 4, 0, 0) == in_order(0, 4) == []


@pytest.mark.parametrize("sampling", ["first", "random", "farthest"])
@pytest.mark.parametrize("shared", [True, False])
def test_keeping_samples_changes_nothing(tmp_path: Path, shared: bool, sampling: Sampling) -> None:
    made = arrays(shared, 1)
    free, kept = (opened(tmp_path / f"{n}.nc", made, 12, sampling) for n in "ab")
    points = 12 if sampling != "random" else N
    need = 4.0 * 4 * (points * 2 + T * points * 2 + points * 2)  # samples x bytes x (x, the targets, c)
    assert not free.keep(need - 1)
    assert free._kept is None
    assert kept.keep(need)
    Path(tmp_path / "b.nc").unlink()  # nothing is read any more
    kept.file = None
    for epoch in (0, 4):
        one, two = TrainingPairs(free, PAIRS, TIMES), TrainingPairs(kept, PAIRS, TIMES)
        assert all(same(one.batch([i], (epoch, i)), two.batch([i], (epoch, i))) for i in range(len(one)))
    if shared and sampling != "random":
        assert kept.get(0).points is kept.get(3).points


def test_an_empty_part_is_kept(tmp_path: Path) -> None:
    samples = opened(tmp_path / "a.nc", arrays(True))
    empty = Samples(samples.path, samples.card, range(2, 2), None, "first", 0)
    assert empty.keep(0.0)
    assert list(empty) == []
    assert len(TrainingPairs(empty, PAIRS, TIMES)) == 0


def test_memory_is_not_guessed_from_a_small_first_sample(tmp_path: Path) -> None:
    samples, _ = ragged(tmp_path / "csv", [1, 1000, 1000])
    assert not samples.keep(16.0 * 2000)
    assert samples._kept is None
    assert samples.keep(16.0 * 2001)  # four numbers of four bytes at each point


PROGRAM = """
import pickle, sys, torch
items = pickle.load(sys.stdin.buffer)
batch = items.batch([0, 9, 13], (3, 1))
sys.stdout.buffer.write(pickle.dumps([t.numpy() for t in (batch.points, batch.inputs, batch.values)]))
"""


@pytest.mark.parametrize("sampling", ["first", "random", "farthest"])
def test_pickled_samples_work_in_another_process(tmp_path: Path, sampling: Sampling) -> None:
    """As workers that are spawned get them, with the file open and closed."""
    items = TrainingPairs(opened(tmp_path / "a.nc", arrays(False, 1), 12, sampling), PAIRS, TIMES)
    expected = items.batch([0, 9, 13], (3, 1))
    assert items.samples.file is not None
    copy = pickle.loads(pickle.dumps(items))  # noqa: S301
    assert same(copy.batch([0, 9, 13], (3, 1)), expected)
    if sampling == "random":
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=pickle.dumps(items), capture_output=True, check=True, timeout=60
        )
        for a, b in zip(
            pickle.loads(result.stdout),  # noqa: S301
            (expected.points, expected.inputs, expected.values),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sampling", ["first", "random", "farthest"])
@pytest.mark.parametrize("points", [None, 13, 100])
@pytest.mark.parametrize("shared", [True, False])
def test_parts_make_the_whole(tmp_path: Path, shared: bool, points: int | None, sampling: Sampling) -> None:
    """The parts of several processes, kept or read, are the points of one process in its order."""
    whole = opened(tmp_path / "a.nc", arrays(shared, 1), points, sampling)
    parts = [whole.part(i, 3) for i in range(3)]
    assert parts[1].keep(1e9)
    assert whole.part(0, 1) is whole
    for epoch in (0, 4):
        batches = [TrainingPairs(s, PAIRS, TIMES).batch([3, 9], (epoch, 1)) for s in (whole, *parts)]
        assert {b.cloud for b in batches} == {batches[0].cloud}
        for name in ("points", "inputs", "values"):
            expected, *found = (getattr(b, name) for b in batches)
            assert {f.shape[1] for f in found} <= {expected.shape[1] // 3, expected.shape[1] // 3 + 1}
            assert torch.equal(torch.cat(found, 1), expected)


def test_clouds_too_small_for_their_parts(tmp_path: Path) -> None:
    samples, _ = ragged(tmp_path / "csv", (5, 2))
    assert [len(samples.part(i, 3).get(0).points) for i in range(3)] == [1, 2, 2]
    with pytest.raises(UserError, match="csv: 2 points cannot be divided among 3 processes; use fewer"):
        samples.part(0, 3).get(1)
