"""Tables: columns x, y(, z) and others by name, one row per point. csv files, and what npz files share with them."""

import csv
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ikno.atomic import whole_file
from ikno.data.formats.format import FORMATS, DataFile, Format, Kind, Mesh, check_file, format_of, register
from ikno.errors import UserError

AXES = ("x", "y", "z")
Columns = Mapping[str, np.ndarray]


class TableFormat(Format):
    """A format whose files may be tables; a table of one such format can be written in any other."""

    holds = ("points",)

    @abstractmethod
    def read(self, path: Path) -> Columns:
        """Return all arrays of a file by name, numbers or text."""

    @abstractmethod
    def write(self, path: Path, columns: Columns) -> None:
        """Write such arrays."""

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile | Mesh:
        check_file(path)
        return self.table(path, self.read(path), result)

    def table(self, path: Path, columns: Columns, result: str | None) -> "Table":
        """Return these columns of a file as points, if its copy can have that suffix."""
        able = [s for f in FORMATS.values() if isinstance(f, TableFormat) for s in f.suffixes]
        if result is not None and result not in able:
            raise UserError(f"{path}: a {result} file cannot be made from it; name the result {' or '.join(able)}")
        return Table(path, columns)


class Table(Mesh):
    """The points of a table; all its columns are kept for copies, and why some are no numbers."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.columns, self.odd = columns, {}
        numbers: dict[str, np.ndarray] = {}
        for name, array in columns.items():
            try:
                numbers[name] = array if array.dtype.kind in "fiub" else array.astype("U").astype(np.float64)
            except ValueError as error:
                self.odd[name] = str(error)
        axes = [a for a in AXES if a in columns]
        if not axes or axes != list(AXES[: len(axes)]):
            raise UserError(f"{path}: no columns x, y(, z); the file has {', '.join(columns)}")
        for axis in axes:
            if axis in self.odd or columns[axis].shape != columns["x"].shape or columns[axis].ndim != 1:
                raise UserError(f"{path}: {axis} is no column of numbers: {self.odd.get(axis, 'of another length')}")
        count = len(columns["x"])
        others = {n: a for n, a in numbers.items() if n not in axes and a.shape[:1] == (count,)}
        super().__init__(path, np.stack([numbers[a].astype(np.float64) for a in axes], 1), others)

    def column(self, name: str, remedy: str = "") -> Float[np.ndarray, "points"]:
        if name in self.odd:
            raise UserError(f"{self.path}: {name} is no column of numbers: {self.odd[name]}")
        return super().column(name, remedy)

    def write(self, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
        """Write all columns and more of them; the file appears only when it is complete and was read again."""
        form, columns = format_of(out), {**self.columns, **arrays}
        assert isinstance(form, TableFormat)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(out) as partial:
                form.write(partial, columns)
                again = form.read(partial)
                for name, array in columns.items():
                    if name not in again or not _same(array, again[name]):
                        raise UserError(f"{out}: cannot be written: the array {name!r} would be lost")
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror or error})") from None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether an array was kept, be it as text."""
    if a.dtype.kind != b.dtype.kind and a.dtype.kind not in "fi":
        a = a.astype("U")
    return np.array_equal(a, b.astype(a.dtype), equal_nan=a.dtype.kind == "f")


@register
class Csv(TableFormat):
    """csv files with a header."""

    name, suffixes = "csv", (".csv",)

    def read(self, path: Path) -> Columns:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
        if not rows:
            raise UserError(f"{path}: the file has no line")
        names, body = [name.strip() for name in rows[0]], [row for row in rows[1:] if row]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(f"{path}: the column {twice[0]!r} is there twice")
        uneven = [k for k, row in enumerate(body) if len(row) != len(names)]
        if uneven:
            k = uneven[0]
            raise UserError(f"{path}: row {k + 1} has {len(body[k])} entries, the header {len(names)}")
        return {name: np.array([row[k] for row in body], dtype="U") for k, name in enumerate(names)}

    def write(self, path: Path, columns: Columns) -> None:
        odd = [name for name, column in columns.items() if column.ndim != 1 or column.shape != columns["x"].shape]
        if odd:
            raise UserError(f"the array {odd[0]!r} is no column; name the result .npz")
        texts = [c.tolist() if c.dtype.kind == "U" else [str(v) for v in c] for c in columns.values()]
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*texts, strict=True))
