"""Settings: typed, validated, frozen, and strict about names. The config of a run, and the presets it starts from."""

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from ikno.errors import UserError

MAX_FILE_BYTES = 100_000
MAX_NAMES = 30  # in an error
# Parsing a.a.a... takes quadratic time, a minute for 40,000 of them. No key has more than two dots; an array of numbers
# has one dot per number.
MAX_DOTS_IN_KEY, MAX_DOTS = 8, 50


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown keys, no NaN or infinite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=Settings)

Sampling = Literal["first", "random", "farthest"]
Mode = Literal["direct", "residual", "derivative"]


class DataSettings(Settings):
    """Which data, and how much of it. None: as the card of the set says.

    ``sampling`` None: the first points where the card gives their number (the released files are shuffled), else
    evenly spread points (farthest). Random points are drawn anew in each training step. ``evaluation_points`` are used
    in validation and evaluation; None: as many as in training, or all points if those of training are random.
    """

    name: str
    folder: str | None = None
    split: tuple[PositiveInt, NonNegativeInt, PositiveInt] | None = None
    points: PositiveInt | None = None
    evaluation_points: PositiveInt | None = None
    sampling: Sampling | None = None
    stride: PositiveInt | None = None
    final_snapshot: PositiveInt | None = None
    workers: NonNegativeInt = 0
    memory_gb: NonNegativeFloat = 4.0


class SurrogateSettings(Settings):
    """What is predicted, and how the domain is mapped to the box of the latent grid.

    ``mode`` auto: chosen from the training data for problems in time, direct for steady ones. None: the same, but with
    the preset paper derivative, as published. ``coordinates``: each axis is mapped to [-1, 1], or all axes with one
    scale, which keeps the aspect ratio.
    """

    mode: Literal["auto", Mode] | None = None
    coordinates: Literal["per axis", "one scale"] = "per axis"


class TrainSettings(Settings):
    """Optimization. ``epochs`` None: the published number of the set. ``steps`` replaces the number of epochs.

    ``batch`` is the number of samples in a step over all processes; a process computes ``micro_batch`` of them at a
    time. ``point_processes`` of them share the points of each cloud. A checkpoint is written every ``save_seconds``
    and at the end. Training that would exceed the available memory is rejected unless ``ignore_memory`` is set.
    ``ema`` is the decay of a moving average of the weights, which validation and prediction then use.
    """

    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    batch: PositiveInt = 64
    micro_batch: PositiveInt | None = None
    point_processes: PositiveInt = 1
    optimizer: str = "adamw"
    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 1e-5
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.02
    clip: PositiveFloat | None = 1.0
    loss: str = "relative_l2"
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    patience: PositiveInt | None = None
    validate_every: PositiveInt = 1
    save_seconds: NonNegativeFloat = 60.0
    max_bad_steps: PositiveInt = 10
    ignore_memory: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    tensorboard: bool = False


class Config(Settings):
    """What a user asks for; card, preset and data decide the rest. ``model`` holds a model's name and its settings.

    ``scales`` auto: the initial scales of the kernels are chosen from the data. ``preset``: the size of the model,
    where its settings do not say otherwise.
    """

    data: DataSettings
    model: dict[str, Any] = {"name": "ikno-tp"}
    surrogate: SurrogateSettings = SurrogateSettings()
    train: TrainSettings = TrainSettings()
    scales: Literal["given", "auto"] = "given"
    preset: Literal["smoke", "cpu", "paper"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "cpu"

    @field_validator("model")
    @classmethod
    def _named(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(value.get("name"), str):
            raise ValueError("a model needs a name; `ikno models` lists them")
        return {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}  # as it comes back from JSON


class CompleteData(DataSettings):
    """Data settings of a run. ``points`` None: all; ``stride`` and ``final_snapshot`` None: the problem is steady."""

    split: tuple[PositiveInt, NonNegativeInt, PositiveInt] = Field(...)
    sampling: Sampling = Field(...)


class CompleteSurrogate(SurrogateSettings):
    """Surrogate settings of a run."""

    mode: Mode = Field(...)


class CompleteTrain(TrainSettings):
    """Training settings of a run."""

    epochs: PositiveInt = Field(...)


class CompleteConfig(Config):
    """Everything that decides a run, with nothing left open; made by ``ikno.training.complete``."""

    data: CompleteData
    surrogate: CompleteSurrogate = Field(...)
    train: CompleteTrain = Field(...)
    scales: Literal["given"] = "given"


# Settings that may differ when a run is resumed: where things are and how they are computed, not what is computed. The
# preset has no effect on a complete config.
MOVABLE = (
    "preset",
    "device",
    "data.name",
    "data.folder",
    "data.workers",
    "data.memory_gb",
    "train.point_processes",
    "train.save_seconds",
    "train.ignore_memory",
)

# What the presets say about data and training; each model has its own sizes for them (``models.Variant.sizes``).
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "data": {"points": 64},
        "train": {"epochs": 2, "batch": 4, "optimizer": "muon", "learning_rate": 2e-3},
    },
    "cpu": {
        "data": {"points": 1024},
        "train": {"epochs": 30, "batch": 4, "optimizer": "muon", "learning_rate": 1e-2},
    },
    "paper": {},
}


def make_config(name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the config for a data set or from a config file.

    Args:
        name: A benchmark, a card, a data file or a config file.
        overrides: Settings by their dotted names; ``preset`` is one of PRESETS, cpu by default, and ``model=NAME`` is
            short for ``model.name=NAME``.
    """
    return parse(Config, reduce(merged, config_layers(name, overrides).values()))


def config_layers(name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return the settings that a config is made of, nested, by their origin; later ones win.

    Settings in none of them are left to the card, the data or the default.
    """
    path, words = Path(name), nested(overrides or {})
    stored = read_toml(path) if path.suffix == ".toml" and path.is_file() else {}
    file = nested(stored) if "data" in stored else {}  # else it is a card
    if not file:
        words = merged({"data": {"name": name}}, words)
    preset = merged(file, words).get("preset", "cpu")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"preset: no preset {preset!r}; {suggest(str(preset), PRESETS)}")
    return {
        "default": {"model": {"name": "ikno-tp"}, "preset": "cpu"},
        f"preset {preset}": PRESETS[preset],
        f"file {name}": file,
        "command line": words,
    }


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"{path}: {path.stat().st_size:,} bytes are too many for settings, at most {MAX_FILE_BYTES:,}")
    try:
        text = path.read_text(encoding="utf-8")
        for line in text.split("\n"):
            key, separator, _ = line.partition("=")
            named = separator or (line.lstrip().startswith("[") and "," not in line)
            if key.count(".") > (MAX_DOTS_IN_KEY if named else MAX_DOTS) or line.count(".") > MAX_DOTS:
                raise ValueError("too many dots in a line, settings are not nested that deep")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no text, numbers without end
        raise UserError(f"{path}: not valid TOML: {error}") from None


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested dictionaries; ``model=NAME`` becomes the model's name."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        path = key.split(".")
        if path == ["model"] and isinstance(value, str):
            path = ["model", "name"]
        branch: Any = value
        for name in reversed(path):
            branch = {name: branch}
        result = merged(result, branch)
    return result


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, merged key by key; where both have a value, that of ``high`` wins."""
    result = dict(low)
    for key, value in high.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flattened(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def parse(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Return validated settings, or raise a one-line UserError with the dotted path and the nearest valid key."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        found = error.errors()  # a misspelt key first: it may be why another is missing
        first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
        # The location also has the alternatives of a type ("constrained-int", "tuple[int, ...]"), no names of settings.
        location = first["loc"]
        if first["type"] != "extra_forbidden":
            location = tuple(p for p in location if not isinstance(p, str) or p.isidentifier())
        path = ".".join([where] * bool(where) + [_short(str(p)) for p in location])
        if first["type"] == "extra_forbidden":
            raise UserError(f"{path}: no such setting; {_nearest(kind, first['loc'])}") from None
        message = first["msg"].removeprefix("Value error, ")
        tell = first["type"] != "missing" and not isinstance(first["input"], dict)
        value = f", found {_short(repr(first['input']))}" if tell else ""
        raise UserError(f"{path + ': ' if path else ''}{message}{value}") from None


def _short(text: str) -> str:
    """Return a text as one line of reasonable length."""
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:100]}..."


def _nearest(kind: type[Settings], location: tuple[int | str, ...]) -> str:
    """Return a phrase with the nearest name where an unknown one was found, looking into nested settings."""
    for name in location[:-1]:
        inner = kind.model_fields[str(name)].annotation if str(name) in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, Settings)):
            break
        kind = inner
    return suggest(str(location[-1]), kind.model_fields)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a phrase that names the nearest of the known names, or all of them; of many, the nearest few."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(known) <= MAX_NAMES:
        return f"known are {', '.join(known)}"
    return f"known are {', '.join(get_close_matches(name, known, n=5, cutoff=0))} and {len(known) - 5} others"
