"""The tables of the paper as data: rows and columns with their settings, published numbers, and what they claim."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from ikno.config import Settings, parse, read_toml, suggest
from ikno.data.catalog import plain
from ikno.errors import UserError

FOLDER = Path(__file__).parent / "tables"
# In the order of the paper.
NAMES = (
    *("finite-order", "steady", "unsteady", "aircraft", "efficiency", "seeds", "modes", "grids", "encoders"),
    "predictions",
)
Number = float | Literal["-"]  # TOML has no null


class Line(Settings):
    """A row or a column: its name, and what its cells have in common. ``set``: a benchmark, or a card (.toml)."""

    name: str
    set: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Column(Line):
    """``value`` is what is shown, times ``factor``: the error by the metric of the set, or another of its metrics.

    Without a factor errors are in the unit of their metric.
    """

    value: str = "error"
    factor: float | None = None


class Row(Line):
    """Published numbers and their spread over seeds, one for each column; - where there is none."""

    published: tuple[Number, ...] = ()
    spread: tuple[Number, ...] = ()


class Claim(Settings):
    """What the paper says of its numbers: some lines are better than all of others, or errors fall along some."""

    text: str
    better: tuple[str, ...] = ()
    than: tuple[str, ...] = ()
    falls: tuple[str, ...] = ()


class Table(Line):
    """A table or figure. Cells take the settings of the table, of their column and of their row, the later wins.

    ``compare``: along which axis lines compete, columns in each row or rows in each column. ``seeds`` None: those of
    the preset. ``picture``: what is drawn beside the numbers, with ``axis`` as the name of the columns. ``name`` and
    ``argument`` (of the command) are set when it is loaded. ``unit`` None: that of the metric.
    """

    name: str = ""
    argument: str = ""
    title: str
    caption: str
    label: str = ""
    kind: Literal["errors", "costs"] = "errors"
    unit: str | None = None
    seeds: PositiveInt | None = None
    compare: Literal["rows", "columns"] | None = None
    picture: Literal["errors", "curves", "predictions"] | None = None
    axis: str = ""
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    claims: tuple[Claim, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Table":
        for row in self.rows:
            for numbers in (row.published, row.spread):
                if numbers and len(numbers) != len(self.columns):
                    raise ValueError(f"row {row.name!r} has {len(numbers)} numbers for {len(self.columns)} columns")
        for names in ([line.name for line in lines] for lines in (self.rows, self.columns)):
            if len(set(names)) < len(names):
                raise ValueError(f"rows and columns need names of their own, found {', '.join(names)}")
        known = [line.name for line in (self.columns if self.compare == "columns" else self.rows)]
        for claim in self.claims:
            for name in (*claim.better, *claim.than, *claim.falls):
                if name not in known:
                    raise ValueError(f"claim {claim.text!r} speaks of {name!r}; {suggest(name, known)}")
        return self

    def pictures(self, out: Path) -> list[Path]:
        """Return the files of its pictures in a folder, whether they exist or not."""
        if self.picture is None:
            return []
        if self.picture != "predictions":
            return [out / f"{self.name}.png"]
        return [out / f"{self.name}-{row.name.lower().replace(' ', '-')}.png" for row in self.rows]


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    table: Table
    row: Row
    column: Column

    @property
    def set(self) -> str | None:
        """The name of the data set, or the path of its card, which the table names relative to itself."""
        name = self.row.set or self.column.set or self.table.set
        return str(Path(self.table.argument).parent / name) if name and name.endswith(".toml") else name

    @property
    def settings(self) -> dict[str, Any]:
        """What the cell says about model and training, as dotted overrides."""
        return {**self.table.settings, **self.column.settings, **self.row.settings}

    @property
    def name(self) -> str:
        """The names of row and column."""
        return f"{self.row.name}/{self.column.name}"

    def published(self, what: Literal["published", "spread"] = "published") -> float | None:
        """Return the published number or its spread, None if there is none."""
        numbers = getattr(self.row, what)
        number = numbers[self.table.columns.index(self.column)] if numbers else "-"
        return None if number == "-" else number


def entries(table: Table, cells: Sequence[str] = ()) -> Iterator[Entry]:
    """Yield the cells of a table, row by row.

    Args:
        table: The table.
        cells: Patterns of their names ROW/COLUMN without case and separators, any of which must fit. What is missing
            in a pattern fits all. Default: all cells.
    """
    patterns = []
    for text in cells:
        row, _, column = re.sub(r"[^\w*?\[\]/]|_", "", text.lower()).partition("/")
        patterns.append(f"{row or '*'}/{column or '*'}")
    for row in table.rows:
        for column in table.columns:
            name = f"{plain(row.name)}/{plain(column.name)}"
            if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns):
                yield Entry(table, row, column)


def load_table(name: str) -> Table:
    """Return a table of the paper by its name, or one of your own in a TOML file."""
    own = Path(name).suffix == ".toml"
    if not own and name not in NAMES:
        raise UserError(f"{name}: no such table (one of your own is a .toml file); {suggest(name, NAMES)}")
    file = Path(name) if own else FOLDER / f"{name}.toml"
    return parse(Table, {**read_toml(file), "name": file.stem, "argument": name}, str(file))
