"""Tables: columns x, y(, z) and others by name, one row per point. csv files, and what npz files share with them."""

import csv
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ikno.data.formats import FORMATS, Columns, DataFile, Format, Kind, Mesh, format_of, new_file, readable
from ikno.errors import UserError


class TableFormat(Format):
    """A format whose files may be tables; a table of one such format can be written in any other."""

    holds = ("points",)

    @abstractmethod
    def read(self, path: Path) -> Columns:
        """Return all arrays of a file by name: numbers, or text (dtype U), which a copy keeps to the digit.

        Points are columns named x, y(, z). Raise a UserError for repeated names and rows of another length; other
        errors become "not a readable file".
        """

    @abstractmethod
    def write(self, path: Path, columns: Columns) -> None:
        """Write such arrays as they are in their source, numbers or text.

        A format that holds no ``arrays`` gets columns of one length only. Raise a UserError for names or texts that it
        cannot hold.
        """

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile | Mesh:
        with readable(path, self.suffixes[0].removeprefix(".")):
            columns = self.read(path)
        table = {"x", "y"} <= columns.keys() and columns["x"].ndim == 1
        if "arrays" in self.holds and not (kind == "points" or (kind is None and table)):
            return DataFile(path, columns)
        able = [s for f in FORMATS.values() if isinstance(f, TableFormat) for s in f.suffixes]
        if result is not None and result not in able:
            raise UserError(f"{path}: a {result} file cannot be made from it; name the result {', '.join(able)}")
        return Table(path, columns)


class Table(Mesh):
    """The points of a table; all its columns are kept for copies, and why some are no numbers."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.columns, self.odd, numbers = columns, {}, {}
        axes = [a for a in "xyz" if a in columns]
        if not axes or axes != list("xyz"[: len(axes)]):
            raise UserError(f"{path}: no columns x, y(, z); the file has {', '.join(columns)}")
        for name, array in columns.items():
            try:
                numbers[name] = array if array.dtype.kind in "fiub" else array.astype("U").astype(np.float64)
            except ValueError as error:
                self.odd[name] = str(error)
        shape = columns["x"].shape
        for axis in axes:
            if axis in self.odd or columns[axis].shape != shape or len(shape) != 1:
                raise UserError(f"{path}: {axis} is no column of numbers: {self.odd.get(axis, 'of another length')}")
        others = {n: a for n, a in numbers.items() if n not in axes and a.shape[:1] == shape}
        super().__init__(path, np.stack([numbers[a].astype(np.float64) for a in axes], 1), others)

    def column(self, name: str, remedy: str = "") -> Float[np.ndarray, "points"]:
        if name in self.odd:
            raise UserError(f"{self.path}: {name} is no column of numbers: {self.odd[name]}")
        return super().column(name, remedy)

    def write(self, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
        form = format_of(out)
        assert isinstance(form, TableFormat)
        odd = [name for name, column in self.columns.items() if column.shape != self.points.shape[:1]]
        if odd and "arrays" not in form.holds:
            raise UserError(f"{out}: {odd[0]!r} of {self.path} is no column; name the result .npz")
        with new_file(out) as partial:
            form.write(partial, {**self.columns, **arrays})


@FORMATS.register("csv")
class Csv(TableFormat):
    """csv files with a header."""

    suffixes = (".csv",)

    def read(self, path: Path) -> Columns:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
        names = [name.strip() for name in head]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(f"{path}: the column {twice[0]!r} is there twice")
        for k, row in enumerate(rows):
            if len(row) != len(names):
                raise UserError(f"{path}: row {k + 1} has {len(row)} entries, the header {len(names)}")
        return {name: np.array([row[k] for row in rows], dtype="U") for k, name in enumerate(names)}

    def write(self, path: Path, columns: Columns) -> None:
        texts = [c.tolist() if c.dtype.kind == "U" else [str(v) for v in c] for c in columns.values()]
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*texts, strict=True))
