"""Settings: every slip is one line with a dotted path, in a moment, and nothing in a file runs."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ikno.config import (
    MAX_DOTS,
    MAX_FILE_BYTES,
    PRESETS,
    Config,
    DataSettings,
    Settings,
    flattened,
    make_config,
    merged,
    nested,
    parse,
    read_toml,
)
from ikno.errors import UserError
from ikno.models import complete_model, settings_of
from ikno.surrogate import Signature, Surrogate


def slowness() -> float:
    """Return how many times slower than usual this machine runs now, at least 1."""
    begun = time.process_time()
    for _ in range(300_000):
        pass
    return max(1.0, (time.process_time() - begun) / 0.02)


@contextmanager
def refused(message: str, seconds: float = 1.0) -> Iterator[None]:
    """Expect a UserError of one line, soon."""
    begun = time.process_time()
    with pytest.raises(UserError, match=message) as error:
        yield
    assert time.process_time() - begun < seconds * slowness()  # of this process: others may be busy
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def built(config: Config) -> Surrogate:
    """Return what a run would build from the model of a config, in two dimensions."""
    box = ((0.0, 1.0), (0.0, 1.0))
    model = complete_model(config.model, config.preset)
    return Surrogate(Signature(dim=2, variables=("u",), conditions=("f",), box=box, model=model))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trian.epochs", r"^trian: no such setting; did you mean 'train'\?$"),
        ("train.epohcs", r"^train\.epohcs: no such setting; did you mean 'epochs'\?$"),
        ("train.lerning_rate", r"^train\.lerning_rate: no such setting; did you mean 'learning_rate'\?$"),
        ("data.pionts", r"^data\.pionts: no such setting; did you mean 'points'\?$"),
        ("surrogate.mod", r"^surrogate\.mod: no such setting; did you mean 'mode'\?$"),
        ("sed", r"^sed: no such setting; did you mean 'seed'\?$"),
        ("surrogate.xyzzy", r"^surrogate\.xyzzy: no such setting; known are coordinates, mode$"),
        ("train.epochs.x", r"^train\.epochs: "),
    ],
)
def test_misspelt_keys(key: str, message: str) -> None:
    """F30."""
    with refused(message):
        make_config("wave-layer", {key: 3})


def test_misspelt_keys_below_two_levels() -> None:
    class Leaf(Settings):
        depth: int = 0
        other: int = 0

    class Branch(Settings):
        leaf: Leaf = Leaf()

    class Tree(Settings):
        branch: Branch = Branch()

    with refused(r"^branch\.leaf\.dpeth: no such setting; did you mean 'depth'\?$"):
        parse(Tree, {"branch": {"leaf": {"dpeth": 1}}})
    with refused(r"^top\.branch\.laef: no such setting; did you mean 'leaf'\?$"):
        parse(Tree, {"branch": {"laef": 1}}, "top")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("d_modle", 16, r"^model\.d_modle: no such setting; did you mean 'd_model'\?$"),
        ("d_model", "wide", r"^model\.d_model: .*found 'wide'$"),
        ("d_model", 17, r"^model: d_model \(17\) must be a multiple of num_heads"),
        ("nerf_scale", float("nan"), r"^model\.nerf_scale: .*finite.*found nan$"),
        ("grid_size", [6, 6, 6], r"^model\.grid_size: .*2 axes"),
        ("grid_size", 10**9, r"^model\.grid_size: at most"),
        ("resolvent", "tensor-product", r"^model\.resolvent: .*'tensor_product'.*found 'tensor-product'$"),
        ("name", "ikno-tpp", r"^model: no model named 'ikno-tpp'; did you mean 'ikno-tp'\?$"),
        ("dim", 3, r"^model\.dim: "),
        ("seed", 3, r"^model\.seed: "),
        ("in_channels", 3, r"^model\.in_channels: "),
        ("out_channels", 3, r"^model\.out_channels: "),
    ],
)
def test_settings_of_the_model_are_checked_when_it_is_built(setting: str, value: Any, message: str) -> None:
    """F30, F27: before anything is allocated."""
    config = make_config("wave-layer", {"preset": "smoke", f"model.{setting}": value})
    with refused(message):
        built(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.learning_rate", float("nan"), r"^train\.learning_rate: .*finite.*found nan$"),
        ("train.learning_rate", float("inf"), r"^train\.learning_rate: .*found inf$"),
        ("train.learning_rate", 0, r"^train\.learning_rate: .*found 0$"),
        ("train.learning_rate", "fast", r"^train\.learning_rate: .*found 'fast'$"),
        ("train.epochs", 2.5, r"^train\.epochs: .*found 2\.5$"),
        ("train.epochs", [], r"^train\.epochs: .*found \[\]$"),
        ("train.warmup", 1.0, r"^train\.warmup: .*found 1\.0$"),
        ("train.compile", "perhaps", r"^train\.compile: .*found 'perhaps'$"),
        ("train", 3, r"^train: .*found 3$"),
        ("data.split", [1, 2], r"^data\.split"),
        ("data.split", [8, 2, 0], r"^data\.split\.2: .*found 0$"),
        ("data.split", "8,1,1", r"^data\.split: .*found '8,1,1'$"),
        ("data.points", -3, r"^data\.points: .*found -3$"),
        ("data.name", 3, r"^data\.name: .*found 3$"),
        ("surrogate.mode", "residul", r"^surrogate\.mode: .*'residual'.*found 'residul'$"),
        ("surrogate.mode", "a\nb", r"^surrogate\.mode: "),
        ("seed", -1, r"^seed: .*found -1$"),
        ("seed", 2**63, r"^seed: "),
        ("model", 3, r"^model: .*found 3$"),
        ("model.name", 3, r"^model: a model needs a name"),
        ("tr\nain", 3, r"^tr ain: no such setting; did you mean 'train'\?$"),
        ("x" * 100_000, 3, r"^x+\.\.\.: no such setting; known are data, device, model"),
        ("device", {"a": 1}, r"^device: "),
        ("preset", "cpuu", r"^preset: no preset 'cpuu'; did you mean 'cpu'\?$"),
        ("preset", "large", r"^preset: no preset 'large'; known are cpu, paper, smoke$"),
        ("preset", ["cpu"], r"^preset: no preset \['cpu'\]"),
        ("preset", {"cpu": 1}, r"^preset: no preset"),
        ("preset", 3, r"^preset: no preset 3"),
    ],
)
def test_wrong_values(key: str, value: Any, message: str) -> None:
    """F30."""
    with refused(message):
        make_config("wave-layer", {key: value})


def test_a_name_is_needed() -> None:
    with refused(r"^data\.name: Field required$"):
        parse(Config, {"data": {}})
    with refused("^data: Field required$"):
        parse(Config, {})
    with refused("^model: a model needs a name"):
        parse(Config, {"data": {"name": "a"}, "model": {"d_model": 16}})


def test_settings_do_not_change() -> None:
    config = make_config("wave-layer")
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, "seed", 3)  # noqa: B010
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config.train, "epochs", 3)  # noqa: B010
    config.model["name"] = "other"
    assert make_config("wave-layer").model["name"] == "ikno-tp"


def test_short_form_of_the_model() -> None:
    expected = make_config("wave-layer", {"model.name": "ikno-vanilla", "model.d_model": 32})
    assert make_config("wave-layer", {"model": "ikno-vanilla", "model.d_model": 32}) == expected
    assert make_config("wave-layer", {"model.d_model": 32, "model": "ikno-vanilla"}) == expected
    assert expected.model == {"name": "ikno-vanilla", "d_model": 32}


def test_short_form_of_the_model_in_a_file(tmp_path: Path) -> None:
    """A setting given in addition must not bring back the default model."""
    path = written(tmp_path, 'model = "ikno-vanilla"\n[data]\nname = "wave-layer"\n')
    assert make_config(path).model["name"] == "ikno-vanilla"
    assert make_config(path, {"model.d_model": 32}).model["name"] == "ikno-vanilla"
    assert make_config(path, {"model": "ikno-dense"}).model["name"] == "ikno-dense"


def written(folder: Path, text: str | bytes, name: str = "mine.toml") -> str:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return str(folder / name)


def test_overrides_go_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    """smoke: epochs 2, batch 4, points 64, learning_rate 2e-3, muon; nothing on weight decay, which is 1e-5."""
    path = written(
        tmp_path,
        """
        preset = "smoke"
        seed = 5
        [data]
        name = "ns-gauss"
        split = [8, 1, 2]
        [model]
        grid_size = [4, 5]
        [train]
        epochs = 7
        batch = 9
        """,
    )
    config = make_config(path, {"train.batch": 11, "model.d_model": 8, "data.stride": 3})
    train = config.train
    assert (train.weight_decay, train.learning_rate, train.epochs, train.batch) == (1e-5, 2e-3, 7, 11)
    assert train.optimizer == "muon"
    assert config.data == DataSettings(name="ns-gauss", split=(8, 1, 2), points=64, stride=3)
    assert config.model == {"name": "ikno-tp", "d_model": 8, "grid_size": [4, 5]}
    model = complete_model(config.model, config.preset, 33)
    assert (model["d_model"], model["grid_size"], model["num_heads"], model["num_layers"]) == (8, [4, 5], 2, 1)
    assert complete_model({"name": "ikno-tp"}, "paper", 33)["grid_size"] == 33
    assert config.seed == 5
    other = make_config(path, {"preset": "cpu", "data.name": "elasticity"})
    assert (other.data.points, other.data.name, other.train.epochs) == (1024, "elasticity", 7)
    assert complete_model(other.model, other.preset)["num_layers"] == 3
    plain = {"name": "ikno-tp"}
    assert [complete_model(plain, "cpu", 32, dim)["grid_size"] for dim in (1, 2, 3)] == [16, 16, 12]
    assert complete_model({**plain, "grid_size": 7}, "cpu", 32, 3)["grid_size"] == 7


def test_presets() -> None:
    """Each makes a config whose model can be built; cpu is the default, paper the parameter table of the paper."""
    for preset in PRESETS:
        made = make_config("poisson-gauss", {"preset": preset})
        layers = {"model.num_layers": 0, "model.d_model": 16}
        built(make_config("poisson-gauss", {"preset": preset, **layers}))
        assert made.model["name"] == "ikno-tp"
    assert make_config("poisson-gauss") == make_config("poisson-gauss", {"preset": "cpu"})
    paper = make_config("poisson-gauss", {"preset": "paper"})
    assert paper.data.points is None
    assert paper.train.epochs is None
    assert (paper.train.optimizer, paper.train.learning_rate, paper.train.weight_decay) == ("adamw", 1e-3, 1e-5)
    table, plain = complete_model(paper.model, paper.preset), complete_model({"name": "ikno-tp"})
    assert {k for k in table if table[k] != plain[k]} == {"normalize_branches"}
    assert (table["d_model"], table["num_layers"], table["num_heads"], table["grid_size"]) == (256, 12, 8, 24)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"data.split": (3, 0, 2), "model.grid_size": (6, 5), "model.kernel_alpha": (-1.0, -0.5, -2.0)},
        {"train.patience": 4, "train.clip": None, "seed": 2**63 - 1, "surrogate.mode": "residual", "device": "cuda:1"},
        {"train.learning_rate": 0.1 + 0.2, "data.memory_gb": 1e-300, "model.tolerance": 1 / 3},
    ],
)
def test_a_config_comes_back_from_json(overrides: dict[str, Any]) -> None:
    config = make_config("wave-layer", overrides)
    text = json.dumps(config.model_dump(mode="json"))
    assert Config.model_validate(json.loads(text)) == config
    assert parse(Config, json.loads(text)) == config
    flat = flattened(config.model_dump(mode="json"))
    assert parse(Config, nested(flat)) == config
    assert flat["train.batch"] == PRESETS["cpu"]["train"]["batch"]


def test_configs_and_cards_are_told_apart(tmp_path: Path) -> None:
    config = written(tmp_path, '[data]\nname = "wave-layer"\n', "config.toml")
    card = written(tmp_path, 'name = "mine"\nfile = "a.nc"\nvariables = ["u"]\n', "card.toml")
    for other in ("wave-layer", str(tmp_path / "none.toml"), written(tmp_path, "data = 3", "a.txt"), str(tmp_path)):
        assert make_config(other).data.name == other
    assert make_config(card).data.name == card
    assert make_config(config).data.name == "wave-layer"
    with refused("^data: .*found 3$"):
        make_config(written(tmp_path, "data = 3", "b.toml"))
    with refused(r"none\.toml: no such file$"):
        read_toml(tmp_path / "none.toml")
    with refused(r"^data\.nmae: no such setting; did you mean 'name'\?$"):  # and not: name is missing
        make_config(written(tmp_path, 'data.nmae = "wave-layer"', "c.toml"))


HEAD = 'data.name = "wave-layer"\n'
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "invalid": (HEAD + "seed = ", "not valid TOML"),
    "key twice": (HEAD + "seed = 1\nseed = 2", "not valid TOML"),
    "bytes": (bytes(range(256)) * 20, "not valid TOML"),
    "nul": (HEAD + "\x00", "not valid TOML"),
    "nan": (HEAD + "train.learning_rate = nan", r"train\.learning_rate: .*finite"),
    "deep arrays": (HEAD + "a = " + "[" * 40_000 + "]" * 40_000, "not valid TOML"),
    "deep tables": (HEAD + "a = " + "{a=" * 20_000 + "1" + "}" * 20_000, "not valid TOML"),
    "deep key": (HEAD + ".".join(["a"] * 45_000) + " = 1", "dots in a line"),
    "deep key of the model": (HEAD + "model." + ".".join(["a"] * 45_000) + " = 1", "dots in a line"),
    "deep quoted key": (HEAD + " . ".join(['"\u2028"'] * 11_000) + " = 1", "dots in a line"),
    "deep headers": (HEAD + "".join(f"[a{i}.{'.'.join('a' * 50)}]\n" for i in range(900)), "dots in a line"),
    "long keys": (HEAD + "".join(f"a{i}.{'.'.join('a' * 50)} = 1\n" for i in range(900)), "dots in a line"),
    "long number": (HEAD + "seed = " + "9" * 90_000, "not valid TOML"),
    "large number": (HEAD + "seed = " + "9" * 4_000, r"seed: .*found 9+\.\.\.$"),
    "long text": (HEAD + 'seed = "' + "9" * 90_000 + '"', r"seed: .*found '9+\.\.\.$"),
    "nested value": (HEAD + "seed = " + "[" * 90 + "]" * 90, r"seed: .*found \[+\]+\.\.\.$"),
    "array over lines": (
        HEAD + "a = [\n" + "[0.5, 1.5],\n" * 9 + ", ".join(["0.5"] * 40) + "\n]",
        "a: no such setting",
    ),
    "many keys": (HEAD + "\n".join(f"a{i} = 1" for i in range(8_000)), "a0: no such setting"),
    "YAML with code": ("data: !!python/object/apply:os.system ['touch pwned']", "not valid TOML"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_do_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """F31: refused in a moment, in one line."""
    monkeypatch.chdir(tmp_path)
    text, message = HOSTILE[case]
    path = written(tmp_path, text)
    assert Path(path).stat().st_size <= MAX_FILE_BYTES
    with refused(message):
        make_config(path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("read", [make_config, lambda name: read_toml(Path(name))])
def test_large_files_are_not_read(tmp_path: Path, read: Callable[[str], Any]) -> None:
    """F31."""
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.write(HEAD.encode())
        file.truncate(100_000_000)
    with refused(r"large\.toml: 100,000,000 bytes are too many for settings, at most 100,000$"):
        read(str(path))


def test_what_looks_like_code_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F31."""
    monkeypatch.chdir(tmp_path)
    for text in ("!!python/object/apply:os.system ['touch pwned']", "__import__('os').system('touch pwned')", "$(id)"):
        assert make_config("wave-layer", {"data.folder": text}).data.folder == text
        with refused(r"^train\.epochs: "):
            make_config("wave-layer", {"train.epochs": text})
        with refused("^model: no model named"):
            built(make_config("wave-layer", {"model": text}))
    assert list(tmp_path.iterdir()) == []


def test_lists_of_numbers_are_no_deep_keys(tmp_path: Path) -> None:
    numbers = [i / 7 for i in range(MAX_DOTS)]
    path = tmp_path / "a.toml"
    path.write_text(f"a = {numbers}")
    assert read_toml(path) == {"a": numbers}


def test_merging_leaves_its_arguments_alone() -> None:
    low, high = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}, {"a": {"c": {"f": 4}}, "e": {"g": 5}}
    assert merged(low, high) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert merged(high, low) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": 3}
    assert low == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert high == {"a": {"c": {"f": 4}}, "e": {"g": 5}}
    assert nested({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert nested({"a": {"b": 1}, "a.c": 2}) == {"a": {"b": 1, "c": 2}}
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}


@pytest.mark.parametrize("key", ["conditions", "grid_size"])
def test_a_setting_of_several_types_is_named_as_the_user_writes_it(key: str) -> None:
    with pytest.raises(UserError, match=rf"^model\.{key}: "):
        settings_of("ikno-tp", {key: "x"})
