"""The scales at which the tables are run: data and settings for each set, and the config of each cell."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from ikno.comparison import digest_of, with_train
from ikno.config import PRESETS, Config, Settings, make_config, parse, read_toml, suggest
from ikno.data.catalog import Card, find_card
from ikno.data.library import find_file
from ikno.errors import UserError
from ikno.models import complete_model

Split = tuple[PositiveInt, NonNegativeInt, PositiveInt]


class Part(Settings):
    """What differs for some sets: settings of the generator, samples of each part, settings of config."""

    options: dict[str, Any] = Field(default_factory=dict)
    split: Split | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Measurement(Settings):
    """The sizes of the efficiency table; ``samples`` are those of an epoch. ``preset`` None: that of the scale."""

    points: PositiveInt
    grid: PositiveInt
    batch: PositiveInt
    samples: PositiveInt
    repeats: PositiveInt
    preset: Literal["smoke", "cpu", "paper"] | None = None


class Scale(Settings):
    """A scale: what it is, what may be concluded from it, and its settings. ``search``: for the kernel scales.

    ``split`` None: that of the card. ``models`` are settings of config for some models. A table that asks for more
    seeds than ``most_seeds`` gets these.
    """

    name: str = ""
    about: str
    conclusion: str
    split: Split | None = None
    seeds: PositiveInt = 1
    most_seeds: PositiveInt = 1
    search: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    in_time: Part = Part()
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sets: dict[str, Part] = Field(default_factory=dict)
    efficiency: Measurement


def load_scale(name: str) -> Scale:
    """Return a scale by the name of its preset."""
    if name not in PRESETS:
        raise UserError(f"preset: no preset {name!r}; {suggest(name, PRESETS)}")
    file = Path(__file__).with_name("scales.toml")
    return parse(Scale, read_toml(file)[name], f"{file}: {name}").model_copy(update={"name": name})


@dataclass(frozen=True)
class Source:
    """Where the data of a set comes from: a file of others, or our generator with some options.

    ``name`` is that of the set or of its card (.toml).
    """

    name: str
    card: Card
    file: Path | None
    options: dict[str, Any]
    samples: int

    def described(self) -> dict[str, Any]:
        """Return what identifies the data, as plain values; the data needs not be there for that."""
        if self.file is None:
            return {"generated": self.card.name, "options": self.options, "samples": self.samples, "seed": 0}
        card = self.card.model_dump(mode="json", exclude={"file"}, by_alias=True)  # names of kept results
        return {"file": self.file.name, "card": fingerprint(card)[:12]}

    @property
    def size(self) -> int | None:
        """The bytes of its file, None for a generated one or if it is not here."""
        return self.file.stat().st_size if self.file is not None and self.file.is_file() else None


def source_of(name: str, scale: Scale, released: Path | None) -> Source:
    """Return the source of a set: the file in the folder of released ones if it is there, else the generator.

    A card (.toml) has its own file.
    """
    card = find_card(name)
    if card.file is not None:
        return Source(name, card, Path(card.file), {}, 0)
    if released is not None:
        try:
            return Source(name, card, find_file(card, released), {}, 0)
        except UserError:
            if not card.generated:
                raise
    if not card.generated:
        raise UserError(
            f"{card.name}: it cannot be generated; fetch it from {card.source} and name its folder (--data)"
        )
    split = _split(card, scale) or card.split
    assert split is not None
    return Source(name, card, None, scale.sets.get(card.name, Part()).options, sum(split))


def _split(card: Card, scale: Scale) -> Split | None:
    """Return the samples of each part that the scale asks of a set of the catalog."""
    if card.file is not None:
        return None
    in_time = None if card.steady else scale.in_time.split
    return scale.sets.get(card.name, Part()).split or in_time or scale.split


@dataclass(frozen=True)
class Wanted:
    """One training that tables need, known before its data is made; it becomes a cell.

    ``settings`` are those of the table; they win over those of the scale.
    """

    scale: Scale
    source: Source
    settings: dict[str, Any]
    seed: int

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.settings.get("model", "ikno-tp")

    @property
    def label(self) -> str:
        """The names of set and model, and the seed."""
        return f"{self.source.card.name}, {self.model}, seed {self.seed}"

    @property
    def file(self) -> str:
        """The name of its result, for people and by all that decides it."""
        return f"{self.source.card.name}-{self.model}-seed{self.seed}-{self.key[:12]}.json"

    @property
    def key(self) -> str:
        """A digest of all that decides the result. A mode that is not named is the published one and does not count."""
        card, config = self.source.card, self.config(self.source.card.name)
        model = complete_model(config.model, config.preset, card.grid, card.dim, card.steady)
        whole = with_train(config, epochs=config.train.epochs or card.epochs).model_copy(update={"model": model})
        return digest_of(whole, fingerprint([self.source.described(), self.searched(config)]))

    def config(self, name: str, device: str = "cpu") -> Config:
        """Return its config; ``name`` is the file of the data."""
        card, scale = self.source.card, self.scale
        given = {"preset": scale.name, **scale.settings, **({} if card.steady else scale.in_time.settings)}
        given |= {**scale.sets.get(card.name, Part()).settings, **scale.models.get(self.model, {})}
        if (split := _split(card, scale)) is not None:
            given["data.split"] = list(split)
        config = make_config(name, {**given, **self.settings, "device": device, "seed": self.seed})
        return config if _has_scales(config) else config.model_copy(update={"scales": "given"})

    def searched(self, config: Config) -> bool:
        """Tell whether the scales of the kernels are searched for: where there are any."""
        return self.scale.search and _has_scales(config)


def _has_scales(config: Config) -> bool:
    """Tell whether the model has kernels with scales; other systems and fixed windows have none."""
    return complete_model(config.model, config.preset).get("kernel") == "base"


def fingerprint(values: Any) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
