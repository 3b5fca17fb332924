import csv

import h5py
import numpy as np
import pytest

from ikno.data.catalog import CATALOG, Arrays, Card
from ikno.data.files import open_data
from ikno.data.library import find_file
from ikno.errors import UserError

S, N = 3, 7
RNG = np.random.default_rng(0)


def card(name="mine", **more):
    return Card.model_validate({"name": name, "variables": ["u"], **more})


STEADY = card(conditions=["f"], arrays={"conditions": "c"})
MOVING = card(times=[0, 1], snapshots=4, variables=["a", "b"], conditions=["k"], arrays={"conditions": "c"})


def write(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def check_rows(found, sample):
    """Some points of a sample are those of the whole sample."""
    whole = found[sample]
    part = found.read(sample, lambda n: slice(n // 3, n - 1))
    rows = slice(len(whole.points) // 3, -1)
    np.testing.assert_array_equal(part.points, whole.points[rows])
    np.testing.assert_array_equal(part.values, whole.values[:, rows])
    np.testing.assert_array_equal(part.conditions, whole.conditions[:, rows])


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (S,), (S, 1)])
def test_points_in_every_shape(tmp_path, lead):
    u, c, x = random(S, 1, N, 1), random(S, 1, N, 1), random(*lead, N, 2)
    with open_data(write(tmp_path / "a.nc", u=u, c=c, x=x), STEADY) as found:
        assert len(found) == S
        assert found.shared == (S not in lead)
        assert found.shape == {"samples": S, "times": 1, "points": N, "variables": 1, "conditions": 1, "dim": 2}
        for i, made in enumerate(found):
            own = x.reshape(-1, N, 2)[i if S in lead else 0]
            np.testing.assert_array_equal(made.points, own)
            np.testing.assert_array_equal(made.values, u[i])
            np.testing.assert_array_equal(made.conditions, c[i])
            assert made.values.dtype == np.float32
            check_rows(found, i)


@pytest.mark.parametrize("times", [1, 4])
def test_conditions_with_and_without_time(tmp_path, times):
    u, c, x = random(S, 4, N, 2), random(S, times, N, 1), random(1, 1, N, 2)
    with open_data(write(tmp_path / "a.nc", u=u, c=c, x=x, other=np.arange(3)), MOVING) as found:
        made = found[2]
        check_rows(found, 2)
    assert made.conditions is not None
    assert made.conditions.shape == (times, N, 1)
    np.testing.assert_array_equal(made.conditions, c[2])
    np.testing.assert_array_equal(made.values, u[2])


@pytest.mark.parametrize("shape", [(S, N), (S, N, 1), (S, 1, N), (S, 1, N, 1)])
@pytest.mark.parametrize("conditions", [(S, N), (S, N, 1), (S, 1, N, 1), (S, 1)])
def test_plain_arrays_may_lack_axes(tmp_path, shape, conditions):
    u, c, x = random(*shape), random(*conditions), random(S, N, 2).astype(np.float64)
    np.savez(tmp_path / "a.npz", u=u, c=c, x=x)
    settings = {**STEADY.model_dump(), "format": "npz"}
    with open_data(tmp_path / "a.npz", Card.model_validate(settings)) as found:
        made = found[1]
        check_rows(found, 1)
    np.testing.assert_array_equal(made.values, u[1].reshape(1, N, 1))
    assert made.conditions is not None
    expected = np.full((1, N, 1), c[1, 0]) if conditions == (S, 1) else c[1].reshape(1, N, 1)
    np.testing.assert_array_equal(made.conditions, expected)
    assert made.points.dtype == np.float32


def test_a_sample_is_read_alone(tmp_path):
    """A large file does not go into memory: what is not asked for may even be damaged."""
    u = random(S, 1, N, 1)
    u[2] = np.nan
    path = write(tmp_path / "a.nc", u=u, c=random(S, 1, N, 1), x=random(1, 1, N, 2))
    with open_data(path, STEADY) as found:
        assert found[1].values.shape == (1, N, 1)
        with pytest.raises(UserError, match=r"a\.nc: sample 2 has NaN or infinite values"):
            found[2]
        with pytest.raises(IndexError):
            found[3]


def test_aircraft(tmp_path):
    """Groups with 1-D arrays and scalar attributes, one per sample, sizes may differ."""
    names = ["CoordinateX", "CoordinateY", "CoordinateZ", "NormalX", "NormalY", "NormalZ"]
    names += ["PressureCoefficient", "cfx", "cfy", "cfz", "Surface"]
    flight = {
        "Mach": 0.85,
        "AlphaMean": 2.5,
        "aileronInboard": 1.0,
        "aileronOutboard": -1.0,
        "htp": 0.5,
        "elevator": 3.0,
    }
    stored = {}
    with h5py.File(tmp_path / "trainingData_NASA-CRM.h5", "w") as file:
        for g, count in (("sample_10", 11), ("sample_2", 9)):
            stored[g] = {n: random(count) for n in names}
            for n, values in stored[g].items():
                file[f"{g}/{n}"] = values
            file[g].attrs.update({k: v * (2 if g == "sample_2" else 1) for k, v in flight.items()})
    known = CATALOG["nasa-crm"]
    path = find_file(known, tmp_path)
    with open_data(path, known) as found:
        assert len(found) == 2
        made, other = found[0], found[1]
    assert made.conditions is not None
    assert other.points.shape == (11, 3)
    np.testing.assert_array_equal(made.points[:, 1], stored["sample_2"]["CoordinateY"])  # 2 comes before 10
    np.testing.assert_array_equal(made.values[0, :, 0], stored["sample_2"]["PressureCoefficient"])
    np.testing.assert_array_equal(made.conditions[0, :, 0], stored["sample_2"]["NormalX"])
    np.testing.assert_allclose(made.conditions[0, :, 3], 1.7)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "testdata-nasa-crm.h5").write_bytes(path.read_bytes())
    with open_data(tmp_path / "other" / "testdata-nasa-crm.h5", known) as found:
        assert len(found) == 2  # alone: nothing follows it
    with h5py.File(tmp_path / "testData_NASA-CRM.h5", "w") as file:
        last = {n: random(7) for n in names}
        for n, values in last.items():
            file[f"sample_1/{n}"] = values
        file["sample_1"].attrs.update(flight)
    with open_data(path, known) as found:
        assert [len(t.points) for t in found] == [9, 11, 7]  # the test file follows the training file
        np.testing.assert_array_equal(found[2].values[0, :, 3], last["cfz"])
        for i in range(3):
            check_rows(found, i)
    with h5py.File(tmp_path / "testData_NASA-CRM.h5", "a") as file:
        del file["sample_1"]
    with pytest.raises(UserError, match=r"testData_NASA-CRM\.h5: no groups"):
        open_data(path, known)
    (tmp_path / "testData_NASA-CRM.h5").unlink()
    with h5py.File(path, "a") as file:
        del file["sample_2/cfy"]
    with pytest.raises(UserError, match="sample_2 has neither an array nor an attribute 'cfy'"):
        open_data(path, known)


def test_csv_folder(tmp_path):
    rows = RNG.normal(size=(5, 4)).round(3)
    for k in range(2):
        with (tmp_path / f"case{k}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["y", "u", "x", "f"])
            writer.writerows(rows[: 5 - k].tolist())
    settings = {**STEADY.model_dump(), "format": "csv"}
    with open_data(tmp_path, Card.model_validate(settings)) as found:
        made = found[1]
        assert len(found) == 2
        check_rows(found, 1)
    np.testing.assert_allclose(made.points, rows[:4, [2, 0]], rtol=1e-6)
    np.testing.assert_allclose(made.values[0, :, 0], rows[:4, 1], rtol=1e-6)
    (tmp_path / "case1.csv").write_text("x,y,u,f\n1,2,three,4\n")
    with (
        open_data(tmp_path, Card.model_validate(settings)) as found,
        pytest.raises(UserError, match=r"case1\.csv.*three"),
    ):
        found[1]
    (tmp_path / "case1.csv").write_text("x,y,u\n1,2,3\n")
    with (
        open_data(tmp_path, Card.model_validate(settings)) as found,
        pytest.raises(UserError, match="no point array 'f'"),
    ):
        found[1]


@pytest.mark.parametrize("name", ["Wave-C-Sines.nc", "wave_c_sines.nc", "WAVECSINES.h5", "Wave C Sines.nc"])
def test_names_are_matched_loosely(tmp_path, name):
    (tmp_path / name).touch()
    (tmp_path / "wave-layer.nc").touch()
    assert find_file(CATALOG["wave-c-sines"], tmp_path).name == name


def test_a_missing_file_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match="ikno data generate ns-gauss"):
        find_file(CATALOG["ns-gauss"], tmp_path)
    with pytest.raises(UserError, match="it comes from https"):
        find_file(CATALOG["naca0012"].model_copy(update={"generated": False}), tmp_path / "nowhere")


GOOD = {"u": (S, 1, N, 1), "c": (S, 1, N, 1), "x": (1, 1, N, 2)}
BAD = {
    "no u": ({"u": None}, "no variable 'u'; the file has c, x"),
    "no x": ({"x": None}, "no variable 'x'"),
    "no c": ({"c": None}, "no variable 'c'"),
    "variables": ({"u": (S, 1, N, 3)}, r"u has shape \[3, 1, 7, 3\], expected \[sample, time, node, 1\]"),
    "times": ({"u": (S, 5, N, 1)}, "u has 5 snapshots, the card says 1"),
    "points": ({"x": (1, 1, N + 1, 2)}, r"x has shape \[1, 1, 8, 2\], expected \[1 or 3, 1, 7, 2\]"),
    "clouds": ({"x": (2, 1, N, 2)}, r"x has shape \[2, 1, 7, 2\]"),
    "dimension": ({"x": (1, 1, N, 3)}, "x has 3 coordinates, the card of mine has 2 axes"),
    "samples of c": ({"c": (2, 1, N, 1)}, r"c has shape \[2, 1, 7, 1\], expected 3 samples"),
    "channels of c": ({"c": (S, 1, N, 2)}, r"c has shape \[3, 1, 7, 2\]"),
    "points of c": ({"c": (S, 1, N - 1, 1)}, r"c has shape \[3, 1, 6, 1\]"),
    "empty": ({"u": (0, 1, N, 1)}, "no samples or no points"),
}


@pytest.mark.parametrize("case", BAD)
def test_shapes_that_disagree(tmp_path, case):
    """F33."""
    change, message = BAD[case]
    arrays = {k: random(*shape) for k, shape in {**GOOD, **change}.items() if shape is not None}
    with pytest.raises(UserError, match=message) as error:
        open_data(write(tmp_path / "a.nc", **arrays), STEADY)
    assert "a.nc" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [">f4", "int32", ">f8", "uint8"])
@pytest.mark.parametrize("name", ["u", "c", "x"])
def test_number_types(tmp_path, name, dtype):
    """F33: integers and big-endian numbers are named, not guessed."""
    arrays = {k: random(*shape) for k, shape in GOOD.items()}
    arrays[name] = (10 * arrays[name]).astype(dtype)
    with pytest.raises(UserError, match=f"{name} has the type .*expected float32"):
        open_data(write(tmp_path / "a.nc", **arrays), STEADY)


@pytest.mark.parametrize("kind", ["missing", "empty", "random", "truncated", "folder"])
@pytest.mark.parametrize("suffix", [".nc", ".npz"])
def test_unreadable_files(tmp_path, suffix, kind):
    """F32."""
    path = tmp_path / f"a{suffix}"
    arrays = {k: np.repeat(random(*shape), 400 if k != "x" else 1, 0) for k, shape in GOOD.items()}
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "random":
        path.write_bytes(RNG.bytes(5000))
    elif kind == "truncated":
        np.savez(path, allow_pickle=False, **arrays) if suffix == ".npz" else write(path, **arrays)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    settings = {**STEADY.model_dump(), "format": "npz" if suffix == ".npz" else "netcdf"}
    with pytest.raises(UserError, match=r"^[^\n]*a\.(nc|npz): [^\n]+$"):
        open_data(path, Card.model_validate(settings))


def test_a_pickle_is_not_loaded(tmp_path):
    """F24 for data: object arrays are refused."""
    np.savez(tmp_path / "a.npz", u=np.array([{"a": 1}], dtype=object), x=random(1, 2))
    settings = {**card().model_dump(), "format": "npz"}
    with pytest.raises(UserError, match=r"a\.npz"):
        open_data(tmp_path / "a.npz", Card.model_validate(settings))


def test_one_sample_follows_its_card(tmp_path):
    """A single sample does not tell whether its cloud is shared; the card does."""
    path = write(tmp_path / "a.nc", u=random(1, 1, N, 1), x=random(1, 1, N, 2))
    for cloud in ("shared", "per sample"):
        with open_data(path, card(cloud=cloud)) as found:
            assert found.shared == (cloud == "shared")


def test_names_of_arrays_come_from_the_card(tmp_path):
    np.savez(tmp_path / "a.npz", puv=random(S, N, 3), xy=random(S, N, 2))
    mine = card(variables=["p", "u", "v"], format="npz", arrays=Arrays(values="puv", points="xy"))
    with open_data(tmp_path / "a.npz", mine) as found:
        assert found[0].conditions is None
        assert found[0].values.shape == (1, N, 3)
        assert not found.shared
