"""The published facts in the cards, names in any spelling, and cards that users write."""

import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ikno.data.catalog import CATALOG, Card, find_card, plain, read_card
from ikno.errors import UserError

NS = ("vx", "vy"), (0, 0), (0.391, 0.356)
CE = ("rho", "vx", "vy", "p")
AIRFOIL = ("Mach", "angle of attack", "signed distance")
UNIT = ((0, 1), (0, 1))
DISC = ((-0.5, 1.5), (-0.5, 1.5))
WING = ((-1, 2.5), (-1.5, 2))

# name: domain, times, targets, metric mean, metric std, conditions
FACTS: dict[str, tuple[Any, ...]] = {
    "NS-Gauss": (UNIT, (0, 1), *NS, ()),
    "NS-PwC": (UNIT, (0, 1), *NS, ()),
    "NS-SL": (UNIT, (0, 1), *NS, ()),
    "NS-SVS": (UNIT, (0, 1), *NS, ()),
    "CE-Gauss": (UNIT, (0, 1), CE, (0.80, 0, 0, 2.513), (0.31, 0.391, 0.356, 0.185), ()),
    "CE-RP": (UNIT, (0, 1), CE, (0.80, 0, 0, 0.215), (0.31, 0.391, 0.356, 0.185), ()),
    "Wave-Layer": (UNIT, (0, 1), ("u",), (0.03467443,), (0.10442422,), ("wave speed",)),
    "Wave-C-Sines": (DISC, (0, 0.1), ("u",), (0,), (0.011314605,), ()),
    "Poisson-C-Sines": (DISC, None, ("u",), (0,), (6.4911455e-4,), ("f",)),
    "Poisson-Gauss": (UNIT, None, ("u",), (5.603458e-4,), (0.02401226,), ("f",)),
    "Elasticity": (UNIT, None, ("stress",), (187.477,), (127.046,), ("distance to the hole",)),
    "NACA0012": (WING, None, ("density",), (0.96999054,), (0.17089098,), AIRFOIL),
    "NACA2412": (WING, None, ("density",), (0.96086993,), (0.18490477,), AIRFOIL),
    "RAE2822": (WING, None, ("density",), (0.96746538,), (0.17268029,), AIRFOIL),
}
SPLITS = {
    "Poisson-C-Sines": (2048, 256, 256),
    "Poisson-Gauss": (2048, 256, 256),
    "Elasticity": (1024, 256, 256),
    "NACA0012": (5000, 256, 256),
    "NACA2412": (5000, 256, 256),
    "RAE2822": (5000, 256, 256),
    "NASA-CRM": (105, 0, 44),
    "NS-Gauss": (1024, 256, 256),
    "NS-PwC": (1024, 256, 256),
    "NS-SL": (1024, 256, 256),
    "NS-SVS": (1024, 256, 256),
    "CE-Gauss": (1024, 256, 256),
    "CE-RP": (1024, 256, 256),
    "Wave-Layer": (1024, 256, 256),
    "Wave-C-Sines": (1024, 256, 256),
}
OWN_CLOUDS = {"Elasticity", "NACA0012", "NACA2412", "RAE2822", "NASA-CRM"}
FIRST_POINTS = {"NS-Gauss", "NS-PwC", "NS-SL", "NS-SVS", "CE-Gauss", "CE-RP", "Wave-Layer", "Poisson-Gauss"}
FROM_GAOT = {"Wave-C-Sines", "Poisson-C-Sines", "NACA0012", "NACA2412", "RAE2822"}
MINIMAL = 'name = "mine"\nfile = "runs/all.npz"\nvariables = ["u"]\n'


def test_there_are_fifteen_benchmarks() -> None:
    assert set(CATALOG) == {name.lower() for name in SPLITS}
    assert len(CATALOG) == 15
    assert all(card.name == name for name, card in CATALOG.items())


@pytest.mark.parametrize("name", FACTS)
def test_published_facts(name: str) -> None:
    card = find_card(name)
    domain, times, targets, mean, std, conditions = FACTS[name]
    assert (card.domain, card.times, card.targets) == (domain, times, targets)
    assert (card.metric_mean, card.metric_std, card.conditions) == (mean, std, conditions)
    assert card.dim == 2
    assert card.metric == "relative L1"
    assert card.format == "netcdf"
    assert (card.arrays.values, card.arrays.points) == ("u", "x")
    assert card.arrays.conditions == ("c" if conditions else None)
    assert card.periodic == name.startswith(("NS", "CE"))


@pytest.mark.parametrize("name", SPLITS)
def test_splits_clouds_grids_and_sources(name: str) -> None:
    card = find_card(name)
    assert card.split == SPLITS[name]
    assert card.cloud == ("per sample" if name in OWN_CLOUDS else "shared")
    assert card.points == (9216 if name in FIRST_POINTS else None)
    steady = name.startswith(("Poisson", "Elasticity", "NACA", "RAE", "NASA"))
    assert card.steady == steady
    assert card.grid == (24 if steady else 32)
    if name != "NASA-CRM":
        zenodo = "doi.org/10.5281/zenodo.14765453"
        assert ("shiwen0710/Datasets_for_GAOT" if name in FROM_GAOT else zenodo) in card.source
        assert (card.license == "CC-BY-4.0") == (name not in FROM_GAOT)
    if card.generated:
        assert card.label.startswith(("as published", "kin of: "))


@pytest.mark.parametrize("name", [n for n, facts in FACTS.items() if facts[1] is not None])
def test_the_final_time_is_that_of_the_protocol(name: str) -> None:
    card = find_card(name)
    assert card.snapshots == (15 if name == "Wave-Layer" else 21)
    assert (card.final_snapshot, card.stride) == (14, 2)
    assert card.times is not None
    final = card.times[1] * card.final_snapshot / (card.snapshots - 1)
    assert final == pytest.approx({"Wave-Layer": 1.0, "Wave-C-Sines": 0.07}.get(name, 0.7))


def test_metric_groups_pool_the_velocity() -> None:
    assert find_card("ns-sl").metric_groups == (("vx", "vy"),)
    for name in ("ce-gauss", "ce-rp"):
        card = find_card(name)
        assert card.metric_groups == (("rho",), ("vx", "vy"), ("p",))
        assert len(card.variables) == 5  # the energy, index 4, is stored but not learned
        assert card.variables[4] not in card.targets
        assert card.variables[:4] == card.targets
    assert find_card("wave-layer").metric_groups == (("u",),)


def test_the_aircraft() -> None:
    card = find_card("NASA-CRM")
    assert card.format == "groups"
    assert card.dim == 3
    assert card.metric == "normalized MSE and MAE"
    assert card.targets == ("PressureCoefficient", "cfx", "cfy", "cfz")
    assert card.metric_groups == (("PressureCoefficient",), ("cfx", "cfy", "cfz"))
    assert card.metric_mean == (-0.033177, 1.471e-3, 6.426e-6, -2.257e-6)
    assert card.metric_std == (0.3108, 0.0010, 0.0005, 0.0007)
    flight = ("Mach", "AlphaMean", "aileronInboard", "aileronOutboard", "htp", "elevator")
    assert card.conditions == ("NormalX", "NormalY", "NormalZ", *flight)


@pytest.mark.parametrize("name", SPLITS)
def test_names_in_any_spelling(name: str) -> None:
    expected = CATALOG[name.lower()]
    spellings = [
        name,
        name.lower(),
        name.upper(),
        name.replace("-", "_"),
        name.replace("-", ""),
        name.replace("-", " "),
    ]
    for spelling in (*spellings, f" {name.title()} "):
        assert find_card(spelling) is expected
    assert len({plain(n) for n in SPLITS}) == 15  # no two are the same when spelled loosely


def test_the_aircraft_by_the_name_of_its_file() -> None:
    assert find_card("trainingData_NASA-CRM") is CATALOG["nasa-crm"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("ns-gaus", "ns-gauss"), ("NS-PCW", "ns-pwc"), ("elastic", "elasticity"), ("naca0021", "naca0012")],
)
def test_unknown_names_give_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"^{name}: no such benchmark.*did you mean '{near}'\?$"):
        find_card(name)


@pytest.mark.parametrize("name", ["", "zzzz", "ns", "ns-gauss-2", "../ns-gauss!x"])
def test_unknown_names_are_never_guessed(name: str) -> None:
    with pytest.raises(UserError, match="no such benchmark") as caught:
        find_card(name)
    assert "\n" not in str(caught.value)
    assert "ns-" in str(caught.value) or "known are" in str(caught.value)


def test_cards_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CATALOG["ns-gauss"].points = 3


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_minimal_card_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    path = write(tmp_path / "deep", MINIMAL)
    card = find_card(str(path))
    assert card == read_card(path)
    assert Path(str(card.file)) == tmp_path / "deep" / "runs" / "all.npz"
    assert (card.name, card.variables, card.targets, card.metric_groups) == ("mine", ("u",), ("u",), (("u",),))
    assert card.steady
    assert card.split is None
    monkeypatch.chdir(tmp_path)  # relative to the card also where the card's own path is relative
    assert Path(str(find_card("deep/mine.toml").file)) == Path("deep/runs/all.npz")


def test_a_card_may_name_its_file_absolutely(tmp_path: Path) -> None:
    elsewhere = (tmp_path / "elsewhere" / "all.npz").as_posix()
    assert read_card(write(tmp_path, MINIMAL.replace("runs/all.npz", elsewhere))).file == elsewhere


def test_a_full_card(tmp_path: Path) -> None:
    text = """
        name = "pump"
        file = "pump.nc"
        format = "netcdf"
        cloud = "shared"
        domain = [[0, 2], [-1, 1], [0, 0.5]]
        times = [0, 3]
        snapshots = 7
        variables = ["p", "vx", "vy", "q"]
        targets = ["vx", "vy", "p"]
        metric_groups = [["p"], ["vx", "vy"]]
        conditions = ["speed"]
        metric_mean = [0, 0, 1]
        metric_std = [1, 1, 2]
        split = [10, 0, 2]
        grid = [8, 8, 4]
        [arrays]
        values = "fields"
        conditions = "inputs"
        points = "nodes"
    """
    card = read_card(write(tmp_path, text))
    assert (card.dim, card.final_snapshot, card.split, card.grid) == (3, 6, (10, 0, 2), (8, 8, 4))
    assert (card.arrays.values, card.arrays.conditions, card.arrays.points) == ("fields", "inputs", "nodes")
    assert card.metric_groups == (("p",), ("vx", "vy"))


def test_old_names_of_entries_are_read(tmp_path: Path) -> None:
    """As cards, runs and the names of kept results have them; results keep their names."""
    new = "targets = ['u']\nmetric_groups = [['u']]\ntest_file = 'b'\n"
    old = "active = ['u']\nchunks = [['u']]\nsecond = 'b'\n"
    cards = [read_card(write(tmp_path, MINIMAL + text)) for text in (new, old)]
    assert cards[0] == cards[1]
    plain_values = cards[0].model_dump(mode="json", by_alias=True)
    assert {k: plain_values[k] for k in ("active", "chunks", "second")} == tomllib.loads(old)
    assert Card.model_validate(plain_values) == cards[0] == Card.model_validate(cards[0].model_dump())


def test_defaults_fit_small_sets(tmp_path: Path) -> None:
    """Without a domain the training points decide; two snapshots have a stride of one."""
    card = read_card(write(tmp_path, MINIMAL + "times = [0, 1]\nsnapshots = 2"))
    assert (card.domain, card.dim, card.stride) == (None, 2, 1)
    assert read_card(write(tmp_path, MINIMAL + "dim = 3")).dim == 3


TIMES = "times = [0, 1]\nsnapshots = 5\n"
METRIC = "metric_mean = [0]\n"
GROUPS = "metric_groups .* do not hold each target"
BAD = {
    "unknown key": (MINIMAL + "varables = 3", r"varables: no such setting; did you mean 'variables'\?"),
    "unknown array": (MINIMAL + "[arrays]\nvalue = 'u'", r"arrays\.value: no such setting"),
    "wrong type": (MINIMAL + "snapshots = 'many'", r"snapshots: .*integer.*'many'"),
    "fraction": (MINIMAL + "points = 2.5", r"points: .*2\.5"),
    "not finite": (MINIMAL + METRIC + "metric_std = [nan]", r"metric_std\.0: .*finite"),
    "infinite": (MINIMAL + "domain = [[0, inf]]", r"domain\.0\.1: .*finite"),
    "zero points": (MINIMAL + "points = 0", "points: .*greater than 0"),
    "no name": ('file = "a.nc"\nvariables = ["u"]', "name: .*required"),
    "no variables": ('name = "a"\nfile = "a.nc"', "variables: .*required"),
    "empty variables": ('name = "a"\nfile = "a.nc"\nvariables = []', "at least one variable"),
    "variable twice": (MINIMAL.replace('["u"]', '["u", "u"]'), "variables .* twice"),
    "unknown format": (MINIMAL + "format = 'pickle'", r"format: .*netcdf.*'pickle'"),
    "unknown metric": (MINIMAL + "metric = 'mse'", r"metric: .*relative L1.*'mse'"),
    "target": (MINIMAL + "targets = ['v']", "target 'v' is none of the variables"),
    "groups too few": (MINIMAL.replace('["u"]', '["u", "v"]') + "metric_groups = [['u']]", GROUPS),
    "groups twice": (MINIMAL + "metric_groups = [['u'], ['u']]", GROUPS),
    "groups unknown": (MINIMAL + "metric_groups = [['w']]", GROUPS),
    "groups by two names": (MINIMAL + "metric_groups = [['u']]\nchunks = [['u']]", "chunks: no such setting"),
    "groups of a wrong type": (MINIMAL + "metric_groups = 3", "metric_groups: "),
    "std of wrong length": (MINIMAL + METRIC + "metric_std = [1, 2]", "metric_std needs one number per target"),
    "mean of wrong length": (MINIMAL + "metric_mean = [1, 2]\nmetric_std = [1]", "metric_mean needs one number"),
    "std without mean": (MINIMAL + "metric_std = [1]", "metric_mean and metric_std go together"),
    "std of zero": (MINIMAL + METRIC + "metric_std = [0]", "metric_std must be positive"),
    "negative std": (MINIMAL + METRIC + "metric_std = [-1]", "metric_std must be positive"),
    "domain upside down": (MINIMAL + "domain = [[0, 1], [1, 0]]", "domain needs lower < upper"),
    "flat domain": (MINIMAL + "domain = [[0, 1], [1, 1]]", "domain needs lower < upper"),
    "dim and domain": (MINIMAL + "dim = 3\ndomain = [[0, 1]]", "dim = 3 does not go with a domain of 1 axes"),
    "grid of another dim": (MINIMAL + "grid = [4, 4, 4]", "grid has 3 sizes, the set has 2 axes"),
    "long stride": (MINIMAL + TIMES + "stride = 5", "a stride of 5 does not fit between snapshot 0 and 4"),
    "name of a path": (MINIMAL.replace('"mine"', '"../mine"'), "name: "),
    "no domain": (MINIMAL + "domain = []", "domain needs lower < upper"),
    "times alone": (MINIMAL + "times = [0, 1]", "several snapshots needs times"),
    "snapshots alone": (MINIMAL + "snapshots = 5", "several snapshots needs times"),
    "times backwards": (MINIMAL + TIMES.replace("[0, 1]", "[1, 0]"), "times need first < last"),
    "final after the last": (MINIMAL + TIMES + "final_snapshot = 5", "final_snapshot 5 is not one of 5"),
    "final of a steady set": (MINIMAL + "final_snapshot = 3", "final_snapshot 3 is not one of 1"),
    "conditions without array": (MINIMAL + "conditions = ['f']", r"conditions need .* arrays\.conditions"),
    "split of two": (MINIMAL + "split = [3, 4]", "split"),
    "nothing to train on": (MINIMAL + "split = [0, 1, 1]", r"split\.0: .*greater than 0"),
    "invalid TOML": ("name = mine", "not valid TOML"),
    "key twice": (MINIMAL + "name = 'b'", "not valid TOML"),
    "bytes": (bytes(range(256)) * 20, "not valid TOML"),
    "a million bytes": (MINIMAL + "#" * 1_000_000, r"1,000,\d+ bytes are too many"),
    "empty": ("", "name: .*required"),
    "no file": ('name = "a"\nvariables = ["u"]', "file: .*add file"),
    "YAML with code": ("name: !!python/object/apply:os.system ['touch pwned']", "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_cards_are_refused_in_one_line_that_names_the_field(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    path = write(tmp_path, text)
    started = time.perf_counter()
    with pytest.raises(UserError, match=message) as caught:
        find_card(str(path))
    assert time.perf_counter() - started < 1
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_missing_cards(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UserError, match="no such card; a card is a TOML file"):
            read_card(path)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="no such card"):
        find_card(str(tmp_path / "folder.toml"))


def test_what_looks_like_code_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings are never evaluated, expanded or formatted."""
    monkeypatch.chdir(tmp_path)
    code = "__import__('os').mkdir('pwned')"
    for name in (code, "{card.__class__}", "$HOME", "$(touch pwned)", "!!python.name:os.system"):
        card = read_card(write(tmp_path, f'name = "{name}"\nfile = "{name}"\nvariables = ["{name}"]\nnotes = "{name}"'))
        assert card.name == card.notes == card.variables[0] == name
        assert card.file == str(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]
