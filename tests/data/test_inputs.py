"""Inputs from files: every layout in which people have them, and a line for every other."""

from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ikno.data.catalog import Arrays, Card
from ikno.data.formats import DataFile, format_of
from ikno.data.inputs import Sample, array_inputs
from ikno.errors import UserError

S, N, T = 3, 5, 4
STEADY = Card(name="steady", arrays=Arrays(conditions="c"), variables=("u",), conditions=("a", "b"))
ONE = Card(name="one", arrays=Arrays(conditions="f", points="xyz"), variables=("u",), conditions=("a",))
MOVING = Card(
    name="moving",
    arrays=Arrays(conditions="c"),
    variables=("rho", "v", "E"),
    targets=("v", "rho"),
    conditions=("k",),
    times=(0.0, 1.0),
    snapshots=T,
)
SINGLE = Card(name="single", variables=("u",), times=(0.0, 1.0), snapshots=T)
BARE = Card(name="bare", variables=("u",))

rng = np.random.default_rng(0)
CLOUD = rng.random((N, 2), dtype=np.float32)
CLOUDS = rng.random((S, N, 2), dtype=np.float32)
C2 = rng.random((S, N, 2), dtype=np.float32)
C1 = rng.random((S, N, 1), dtype=np.float32)
U3 = rng.random((S, T, N, 3), dtype=np.float32)
U1 = rng.random((S, T, N, 1), dtype=np.float32)
NUMBERS = rng.random((S, 2), dtype=np.float32)


def write(path: Path, **arrays: Any) -> Path:
    """Write arrays without the package's own writers."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


def read_inputs(path: Path, card: Card) -> list[Sample]:
    with closing(format_of(path).open(path, "arrays")) as file:
        assert isinstance(file, DataFile)
        return array_inputs(file, card)


def everywhere(number: float | np.ndarray) -> np.ndarray:
    """Return the same numbers at all points."""
    return np.stack([np.atleast_1d(np.float32(number))] * N)


@pytest.fixture(params=[".npz", ".nc"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"inputs{request.param}"


def same(path: Path, card: Card, points: list[np.ndarray], inputs: list[np.ndarray]) -> None:
    """Compare what is read with points and channels of each sample."""
    found = read_inputs(path, card)
    assert len(found) == len(points) == len(inputs)
    for (x, channels), cloud, expected in zip(found, points, inputs, strict=True):
        assert x.dtype == channels.dtype == np.float32
        np.testing.assert_array_equal(x, cloud)
        np.testing.assert_array_equal(channels, expected)


@pytest.mark.parametrize("points", [CLOUD, CLOUD[None], CLOUD[None, None]], ids=["N2", "1N2", "11N2"])
@pytest.mark.parametrize("conditions", [C2, C2[:, None]], ids=["SN2", "S1N2"])
def test_one_cloud_for_all(path: Path, points: np.ndarray, conditions: np.ndarray) -> None:
    same(write(path, x=points, c=conditions), STEADY, [CLOUD] * S, list(C2))


@pytest.mark.parametrize("points", [CLOUDS, CLOUDS[:, None]], ids=["SN2", "S1N2"])
@pytest.mark.parametrize("conditions", [C2, C2[:, None]], ids=["SN2", "S1N2"])
def test_a_cloud_for_each(path: Path, points: np.ndarray, conditions: np.ndarray) -> None:
    same(write(path, x=points, c=conditions), STEADY, list(CLOUDS), list(C2))


def test_one_sample(path: Path) -> None:
    same(write(path, x=CLOUD, c=C2[1]), STEADY, [CLOUD], [C2[1]])


def test_one_input_on_several_clouds(path: Path) -> None:
    same(write(path, x=CLOUDS, c=C2[:1]), STEADY, list(CLOUDS), [C2[0]] * S)


@pytest.mark.parametrize("points", [CLOUD, CLOUDS], ids=["N2", "SN2"])
def test_one_number_per_sample_and_condition(path: Path, points: np.ndarray) -> None:
    clouds = [CLOUD] * S if points.ndim == 2 else list(CLOUDS)
    same(write(path, x=points, c=NUMBERS), STEADY, clouds, [everywhere(n) for n in NUMBERS])


def test_as_many_samples_as_points(path: Path) -> None:
    """Two axes are [samples, conditions], as in training, unless nothing else has that many samples."""
    clouds, numbers = rng.random((N, N, 2), dtype=np.float32), rng.random((N, 2), dtype=np.float32)
    same(write(path, x=clouds, c=numbers), STEADY, list(clouds), [everywhere(n) for n in numbers])
    path.unlink()
    same(write(path, x=CLOUD, c=numbers), STEADY, [CLOUD], [numbers])
    path.unlink()
    u = rng.random((N, N, 3), dtype=np.float32)
    expected = [np.stack([u[i, :, 1], u[i, :, 0], np.full(N, numbers[i, 0])], 1) for i in range(N)]
    same(write(path, x=CLOUD, u=u, c=numbers[:, :1]), MOVING, [CLOUD] * N, expected)


def test_one_number_for_all(path: Path) -> None:
    same(write(path, x=CLOUD, c=NUMBERS[0]), STEADY, [CLOUD], [everywhere(NUMBERS[0])])
    path.unlink()
    same(write(path, xyz=CLOUDS, f=np.float32(0.5)), ONE, list(CLOUDS), [everywhere(0.5)] * S)


@pytest.mark.parametrize(
    "conditions", [C1, C1[:, None], C1[..., 0], C1[:, None, :, 0]], ids=["SN1", "S1N1", "SN", "S1N"]
)
def test_a_single_condition_may_lack_its_axis_and_arrays_have_the_names_of_the_card(
    path: Path, conditions: np.ndarray
) -> None:
    same(write(path, xyz=CLOUD, f=conditions), ONE, [CLOUD] * S, list(C1))


def test_a_single_condition_of_a_single_sample(path: Path) -> None:
    same(write(path, xyz=CLOUD, f=C1[0, :, 0]), ONE, [CLOUD], [C1[0]])
    path.unlink()
    same(write(path, xyz=CLOUD, f=NUMBERS[:, :1]), ONE, [CLOUD] * S, [everywhere(n[0]) for n in NUMBERS])


@pytest.mark.parametrize("values", [U3, U3[:, :1], U3[:, 0], U3[:, :2]], ids=["all", "S1N3", "SN3", "two snapshots"])
@pytest.mark.parametrize("conditions", [C1, C1[:, None], C1[..., 0]], ids=["SN1", "S1N1", "SN"])
def test_in_time_the_start_and_the_targets_count(path: Path, values: np.ndarray, conditions: np.ndarray) -> None:
    expected = [np.stack([u[0, :, 1], u[0, :, 0], c[:, 0]], 1) for u, c in zip(U3, C1, strict=True)]
    same(write(path, x=CLOUD, u=values, c=conditions), MOVING, [CLOUD] * S, expected)


def test_conditions_that_change_in_time(path: Path) -> None:
    changing = np.stack([C1, C1 + 1, C1 + 2, C1 + 3], 1)
    expected = [np.stack([u[0, :, 1], u[0, :, 0], c[:, 0]], 1) for u, c in zip(U3, C1, strict=True)]
    same(write(path, x=CLOUDS, u=U3, c=changing), MOVING, list(CLOUDS), expected)


@pytest.mark.parametrize("values", [U1, U1[..., 0], U1[:, 0], U1[:, 0, :, 0]], ids=["STN1", "STN", "SN1", "SN"])
def test_a_single_variable_in_time(path: Path, values: np.ndarray) -> None:
    same(write(path, x=CLOUD, u=values), SINGLE, [CLOUD] * S, list(U1[:, 0]))


def test_one_sample_in_time(path: Path) -> None:
    same(write(path, x=CLOUD, u=U1[2, 0]), SINGLE, [CLOUD], [U1[2, 0]])
    path.unlink()
    same(write(path, x=CLOUD, u=U1[2, 0, :, 0]), SINGLE, [CLOUD], [U1[2, 0]])


def test_points_alone(path: Path) -> None:
    same(write(path, x=CLOUDS, other=np.zeros(3)), BARE, list(CLOUDS), [np.zeros((N, 0))] * S)


def test_other_numbers_become_float32(path: Path) -> None:
    x = np.arange(2 * N).reshape(N, 2)
    same(write(path, x=x, c=C2.astype(">f8")), STEADY, [x.astype(np.float32)] * S, list(C2))


def test_a_line(path: Path) -> None:
    line = Card(name="line", dim=1, variables=("u",))
    same(write(path, x=CLOUD[:, 0]), line, [CLOUD[:, :1]], [np.zeros((N, 0))])


@pytest.mark.parametrize(
    ("card", "arrays", "message"),
    [
        (STEADY, {"x": CLOUD}, r"no array 'c'; expected x, c$"),
        (STEADY, {"c": C2}, r"no array 'x'; expected x, c$"),
        (ONE, {"x": CLOUD, "c": C1}, r"no array 'xyz'; expected xyz, f$"),
        (MOVING, {"x": CLOUD, "c": C1}, r"no array 'u'; expected x, u, c$"),
        (STEADY, {"x": CLOUD, "c": C2 > 0}, r"c has the type bool, expected numbers$"),
        (STEADY, {"x": CLOUD, "c": C2 + 1j}, r"c has the type complex\d+, expected numbers$"),
        (STEADY, {"x": np.bytes_(b"text"), "c": C2}, r"x has the type \|?[SO]\d*, expected numbers$"),
        (STEADY, {"x": np.zeros((N, 3)), "c": C2}, r"x has shape \[5, 3\], expected \[samples, points, 2\]$"),
        (STEADY, {"x": CLOUD[0], "c": C2}, r"x has shape \[2\], expected \[samples, points, 2\]$"),
        (STEADY, {"x": np.float32(1), "c": C2}, r"x has shape \[\], expected"),
        (STEADY, {"x": np.zeros((0, 2)), "c": C2}, r"x has shape \[0, 2\], expected"),
        (STEADY, {"x": np.zeros((S, 2, N, 2)), "c": C2}, r"x has shape \[3, 2, 5, 2\], expected"),
        (STEADY, {"x": np.zeros((1, 1, 1, N, 2)), "c": C2}, r"x has shape \[1, 1, 1, 5, 2\], expected"),
        (STEADY, {"x": CLOUD, "c": C1}, r"c has shape \[3, 5, 1\], expected \[samples, points, 2\]$"),
        (STEADY, {"x": CLOUD, "c": np.zeros((0, 2))}, r"c has shape \[0, 5, 2\], expected"),
        (STEADY, {"x": CLOUD, "c": np.zeros((S, T, N, 2))}, r"c has shape \[3, 4, 5, 2\], expected"),
        (STEADY, {"x": CLOUD, "c": np.float32(1)}, r"c has shape \[1\], expected"),
        (STEADY, {"x": CLOUDS, "c": C2[:2]}, r"the arrays have different numbers of samples: 2, 3$"),
        (MOVING, {"x": CLOUD, "u": U3, "c": C1[:2]}, r"the arrays have different numbers of samples: 2, 3$"),
        (STEADY, {"x": CLOUD, "c": C2[:, 1:]}, r"inputs at 4 points, but there are 5 points$"),
        (MOVING, {"x": CLOUD, "u": U3[:, :, 2:], "c": C1}, r"inputs at 3 points, but there are 5 points$"),
        (
            MOVING,
            {"x": CLOUD, "u": U3[..., :2], "c": C1},
            r"u has shape \[3, 4, 5, 2\], expected \[samples, points, 3\]",
        ),
        (SINGLE, {"x": CLOUD, "u": U3[:, 0]}, r"u has shape \[3, 5, 3\], expected \[samples, points, 1\]$"),
        (SINGLE, {"x": CLOUD, "u": np.float32(1)}, r"u has shape \[\], expected|inputs at 1 points"),
    ],
)
def test_errors(path: Path, card: Card, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_inputs(write(path, **arrays), card)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"])
def test_files_that_are_none(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"no such file|is empty|not a readable") as error:
        read_inputs(path, STEADY)
    assert str(path) in str(error.value)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    """F24: also not from inputs."""

    class Bomb:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "it ran",)

    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object), c=C2)
    with pytest.raises(UserError, match="not a readable npz file"):
        read_inputs(tmp_path / "a.npz", STEADY)
    assert not (tmp_path / "it ran").exists()


def test_a_group_in_place_of_an_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["x/inner"] = CLOUD
        file["c"] = C2
    with pytest.raises(UserError, match=r"x has the type|not a readable"):
        read_inputs(tmp_path / "a.nc", STEADY)
