"""Cards: what is known of each data set. Those of the paper's benchmarks are in ``cards``; users write their own."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, PositiveInt, field_validator, model_validator

from ikno.config import Settings, parse, read_toml, suggest
from ikno.data.formats import FORMATS
from ikno.errors import UserError
from ikno.metrics import IN_CARDS
from ikno.registry import Registry


def _before(old: str, new: str) -> Any:
    """Return what a field needs to be read by its old name too, and written by it with ``by_alias=True``."""
    return Field(validation_alias=AliasChoices(new, old), serialization_alias=old)


class Arrays(Settings):
    """Names of the arrays in a file; released files have u, c and x."""

    values: str = "u"
    conditions: str | None = None
    points: str = "x"


class Card(Settings):
    """A data set: its files, its geometry and times, what is predicted from what, and how it is measured.

    ``variables`` are what the file holds of the solution u, ``targets`` those that are predicted (by default all).
    ``conditions`` are known beside the solution: coefficients, sources, flight states. They never include u(t), which
    problems in time also have as an input: the inputs of a model are u(t), for those problems, and the conditions.
    ``metric_groups`` are targets whose errors are pooled, as the components of a velocity (by default each alone).
    Without a ``domain`` the bounding box of the training points is taken. ``test_file`` is the name of a second file,
    beside the first and of the same type, whose samples follow.
    """

    name: Annotated[str, Field(pattern=r"^[^/\\]+$")]
    aliases: tuple[str, ...] = ()
    file: str | None = None
    test_file: Annotated[str | None, _before("second", "test_file")] = None
    arrays: Arrays = Arrays()
    format: str = "netcdf"
    cloud: Literal["shared", "per sample"] = "per sample"
    dim: Annotated[int, Field(ge=1, le=3)] = 2
    domain: tuple[tuple[float, float], ...] | None = None
    periodic: bool = False
    times: tuple[float, float] | None = None
    snapshots: PositiveInt = 1
    final_snapshot: Annotated[int, Field(ge=0)] = 0
    stride: PositiveInt = 2
    variables: tuple[str, ...]
    targets: Annotated[tuple[str, ...], _before("active", "targets")] = ()
    metric_groups: Annotated[tuple[tuple[str, ...], ...], _before("chunks", "metric_groups")] = ()
    conditions: tuple[str, ...] = ()
    metric: str = "relative L1"
    metric_mean: tuple[float, ...] = ()
    metric_std: tuple[float, ...] = ()
    split: tuple[PositiveInt, Annotated[int, Field(ge=0)], PositiveInt] | None = None
    grid: PositiveInt | tuple[PositiveInt, ...] = 24
    points: PositiveInt | None = None
    epochs: PositiveInt = 500
    source: str = ""
    license: str = ""
    url: str | None = None
    sha256: str | None = None
    label: str = ""
    generated: bool = False
    notes: str = ""

    @field_validator("metric", "format")
    @classmethod
    def _known(cls, value: str, field: Any) -> str:
        FORMATS.look_outside()
        known = IN_CARDS if field.field_name == "metric" else FORMATS
        if value not in known:
            raise ValueError(f"no such {field.field_name}, known are {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> "Card":
        """Fill in what follows from other fields."""
        given, last = self.model_fields_set, self.final_snapshot or self.snapshots - 1
        filled = {
            "targets": self.targets or self.variables,
            "metric_groups": self.metric_groups or tuple((v,) for v in self.targets or self.variables),
            "final_snapshot": last,
        }
        if self.domain and "dim" not in given:
            filled["dim"] = len(self.domain)
        if not self.steady and "stride" not in given:
            filled["stride"] = min(2, last)
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "Card":
        targets, mean, std = self.targets, self.metric_mean, self.metric_std
        unknown = next((v for v in targets if v not in self.variables), None)
        pooled = sorted(v for group in self.metric_groups for v in group)
        axes, last = self.dim if self.domain is None else len(self.domain), self.final_snapshot
        sizes = len(self.grid) if isinstance(self.grid, tuple) else self.dim
        nameless = self.arrays.conditions is None and FORMATS[self.format].holds[0] == "arrays"
        problems = {
            "a card needs at least one variable": not self.variables,
            f"the variables {self.variables} have a name twice": len(set(self.variables)) < len(self.variables),
            f"the target {unknown!r} is none of the variables {self.variables}": unknown is not None,
            f"the metric_groups {self.metric_groups} do not hold each target {targets} once": pooled != sorted(targets),
            "conditions need the name of their array; add arrays.conditions": self.conditions and nameless,
            f"metric_mean needs one number per target, {len(targets)}": mean and len(mean) != len(targets),
            f"metric_std needs one number per target, {len(targets)}": std and len(std) != len(targets),
            "metric_mean and metric_std go together; give both or neither": bool(mean) != bool(std),
            "metric_std must be positive": any(s <= 0 for s in std),
            f"the domain needs lower < upper along each axis, found {self.domain}": (
                self.domain is not None and (not self.domain or any(a >= b for a, b in self.domain))
            ),
            f"dim = {self.dim} does not go with a domain of {axes} axes": self.dim != axes,
            f"grid has {sizes} sizes, the set has {self.dim} axes": sizes != self.dim,
            "a set with several snapshots needs times = [first, last], a steady one has neither": (
                self.steady != (self.snapshots == 1)
            ),
            f"times need first < last, found {self.times}": self.times and self.times[0] >= self.times[1],
            f"final_snapshot {last} is not one of {self.snapshots} snapshots": last >= self.snapshots,
            f"a stride of {self.stride} does not fit between snapshot 0 and {last}": (
                not self.steady and self.stride > last
            ),
        }
        for message, wrong in problems.items():
            if wrong:
                raise ValueError(message)
        return self

    @property
    def steady(self) -> bool:
        """Whether there is one time only."""
        return self.times is None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs of a model: u(t) of problems in time, then the conditions."""
        return self.conditions if self.steady else (*self.targets, *self.conditions)


_SHIPPED = {path.stem: read_toml(path) for path in sorted(Path(__file__).with_name("cards").glob("*.toml"))}
# The class that makes the samples of a benchmark, by the name of the benchmark: "module.Class" in data.generators.
MADE_BY: dict[str, str] = {name: entries.pop("generator") for name, entries in _SHIPPED.items()}
CATALOG: Registry[Card] = Registry(
    "benchmark", "data", {name: parse(Card, {**e, "generated": True}, name) for name, e in _SHIPPED.items()}
)


def plain(name: str) -> str:
    """Return a name without case and separators, so that Wave-C-Sines, wave_c_sines and WaveCSines are the same."""
    return "".join(c for c in name.lower() if c.isalnum())


def find_card(name: str) -> Card:
    """Return the card of a benchmark by any spelling of its name, or the card in a TOML file."""
    if name.endswith(".toml"):
        return read_card(Path(name))
    CATALOG.look_outside()
    for card in CATALOG.values():
        if plain(name) in {plain(n) for n in (card.name, *card.aliases)}:
            return card
    near = suggest(name.lower(), CATALOG)
    raise UserError(f"{name}: no such benchmark (a card of your own is a .toml file); {near}")


def read_card(path: Path) -> Card:
    """Return the card in a TOML file; its ``file`` is relative to the card."""
    if not path.is_file():
        raise UserError(f"{path}: no such card; a card is a TOML file with at least name, file and variables")
    card = parse(Card, read_toml(path), str(path))
    if card.file is None:
        raise UserError(f'{path}: file: the card does not say where its data is; add file = "..."')
    return card.model_copy(update={"file": str(path.parent / card.file)})
