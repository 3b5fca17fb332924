"""The presets that the tables are run with: data and settings for each set, and the config of each training."""

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


class Adjustment(Settings):
    """What differs for some sets: settings of the generator, samples of each part, settings of config."""

    options: dict[str, Any] = Field(default_factory=dict)
    split: Split | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Measurement(Settings):
    """The sizes of the efficiency table; ``samples`` are those of an epoch. ``preset``: of the models, if another."""

    points: PositiveInt
    grid: PositiveInt
    batch: PositiveInt
    samples: PositiveInt
    repeats: PositiveInt
    preset: Literal["smoke", "cpu", "paper"] | None = None


class Preset(Settings):
    """The preset of config with this name, and what a table needs beyond it.

    ``about`` and ``conclusion`` say what it is and what may be concluded from it. ``split``: samples of each part, by
    default those of the card. A table that asks for more seeds than ``most_seeds`` gets these. ``search``: for the
    kernel scales. ``settings`` of config are for all trainings; ``in_time``, ``models`` and ``sets`` for some.
    """

    name: str = ""
    about: str
    conclusion: str
    split: Split | None = None
    seeds: PositiveInt = 1
    most_seeds: PositiveInt = 1
    search: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    in_time: Adjustment = Adjustment()
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sets: dict[str, Adjustment] = Field(default_factory=dict)
    efficiency: Measurement

    def for_set(self, card: Card) -> Adjustment:
        """Return what differs for a set, together with what differs for all sets in time."""
        own, in_time = self.sets.get(card.name, Adjustment()), Adjustment() if card.steady else self.in_time
        split = None if card.file is not None else own.split or in_time.split or self.split
        return Adjustment(options=own.options, split=split, settings={**in_time.settings, **own.settings})


def load_preset(name: str) -> Preset:
    """Return a preset of the tables by its name."""
    if name not in PRESETS:
        raise UserError(f"preset: no preset {name!r}; {suggest(name, PRESETS)}")
    file = Path(__file__).with_suffix(".toml")
    return parse(Preset, {**read_toml(file)[name], "name": name}, f"{file}: {name}")


def find_source(name: str, released: Path | None) -> tuple[Card, Path | None]:
    """Return the card of a set and its file: the card's own, else a released one, else None for our generator."""
    card = find_card(name)
    if card.file is not None:
        return card, Path(card.file)
    if released is not None:
        try:
            return card, find_file(card, released)
        except UserError:
            if not card.generated:
                raise
    if not card.generated:
        raise UserError(
            f"{card.name}: it cannot be generated; fetch it from {card.source} and name its folder (--data)"
        )
    return card, None


@dataclass(frozen=True)
class Wanted:
    """One training that tables need, known before its data is made; it becomes a cell.

    ``set`` is the name of the set or of its card (.toml), ``file`` its data, None if it is generated. ``settings`` are
    those of the table; they win over those of the preset.
    """

    preset: Preset
    set: str
    card: Card
    file: Path | None
    settings: dict[str, Any]
    seed: int

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.settings.get("model", "ikno-tp")

    @property
    def label(self) -> str:
        """The names of set and model, and the seed."""
        return f"{self.card.name}, {self.model}, seed {self.seed}"

    @property
    def result(self) -> str:
        """The name of the file of its result, for people and by all that decides it."""
        return f"{self.card.name}-{self.model}-seed{self.seed}-{self.key[:12]}.json"

    @property
    def key(self) -> str:
        """A digest of all that decides the result. A mode that is not named is the published one and does not count."""
        card, config = self.card, self.config(self.card.name)
        model = complete_model(config.model, config.preset, card.grid, card.dim, card.steady)
        whole = with_train(config, epochs=config.train.epochs or card.epochs).model_copy(update={"model": model})
        return digest_of(whole, fingerprint([self.source(), self.searched(config)]))

    @property
    def bytes(self) -> int | None:
        """The size of its file, None if it is generated or not here."""
        return self.file.stat().st_size if self.file is not None and self.file.is_file() else None

    def source(self) -> dict[str, Any]:
        """Return what identifies the data, as plain values; the data needs not be there for that."""
        if self.file is None:
            options = self.preset.for_set(self.card).options
            return {"generated": self.card.name, "options": options, "samples": self.samples, "seed": 0}
        card = self.card.model_dump(mode="json", exclude={"file"}, by_alias=True)  # names of kept results
        return {"file": self.file.name, "card": fingerprint(card)[:12]}

    @property
    def samples(self) -> int:
        """The samples that are generated."""
        return sum(self.preset.for_set(self.card).split or self.card.split or ())

    def config(self, name: str, device: str = "cpu") -> Config:
        """Return its config; ``name`` is the file of the data."""
        preset, adjusted = self.preset, self.preset.for_set(self.card)
        given = {"preset": preset.name, **preset.settings, **adjusted.settings, **preset.models.get(self.model, {})}
        if adjusted.split is not None:
            given["data.split"] = list(adjusted.split)
        config = make_config(name, {**given, **self.settings, "device": device, "seed": self.seed})
        return config if _has_scales(config) else config.model_copy(update={"scales": "given"})

    def searched(self, config: Config) -> bool:
        """Tell whether the scales of the kernels are searched for: where there are any."""
        return self.preset.search and _has_scales(config)


def _has_scales(config: Config) -> bool:
    """Tell whether the model has kernels with scales; other systems and fixed windows have none."""
    return complete_model(config.model, config.preset).get("kernel") == "base"


def fingerprint(values: Any) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
