"""File formats: ``FORMATS`` by the names that cards use. Every module here is loaded: a new format is one new file."""

import csv
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float, Integer, Shaped

from ikno.atomic import whole_file
from ikno.errors import UserError
from ikno.registry import Registry

# Named arrays of all samples, a group of arrays per sample, or the points of one sample with arrays at them.
Kind = Literal["arrays", "groups", "points"]
Columns = Mapping[str, np.ndarray]
Filled = dict[str, Any]
Shapes = Mapping[str, Sequence[int]]
Notes = Mapping[str, str]
# What numpy, h5py and the file system raise for files that are not what they should be.
DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, SyntaxError, MemoryError)


@dataclass
class DataFile:
    """An open file of arrays, or groups of arrays, by name; they may be read where they are indexed, as h5py's."""

    path: Path
    items: Mapping[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)  # what the file says about how it was made
    close: Callable[[], None] = lambda: None

    def array(self, name: str) -> np.ndarray:
        """Return a whole array."""
        with readable(self.path, "data"):
            return np.asarray(self.items[name])


@dataclass
class Mesh:
    """One sample: finite points, numeric arrays at them by name, and the triangles of its surface if there are any."""

    path: Path
    points: Float[np.ndarray, "points axes"]
    arrays: Mapping[str, Shaped[np.ndarray, "points ..."]]
    triangles: Integer[np.ndarray, "triangles 3"] = field(default_factory=lambda: np.zeros((0, 3), np.int32))

    def __post_init__(self) -> None:
        if len(self.points) == 0:
            raise UserError(f"{self.path}: the mesh has no points")
        self._check_finite(self.points, "coordinates are")

    def write(self, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
        """Write a copy of the file with more arrays; points, cells and other arrays are as before."""
        raise UserError(f"{out}: cannot be written from a {self.path.suffix} file")

    def close(self) -> None:
        """Release what the mesh holds."""

    def plane(self, dim: int) -> Float[np.ndarray, "points {dim}"]:
        """Return the points along the first axes, if they are constant along the others."""
        axes, extent = self.points.shape[1], np.ptp(self.points, axis=0)
        wrong = f"{self.path}: {axes} coordinates%s, but the model has {dim} axes; "
        if axes < dim:
            raise UserError(f"{wrong % ''}add a column {'xyz'[axes]}")
        if (extent[dim:] > 1e-6 * extent.max()).any():
            raise UserError(f"{wrong % ' that vary'}it takes meshes with constant {' and '.join('xyz'[dim:axes])}")
        return self.points[:, :dim]

    def column(self, name: str, remedy: str = "") -> Float[np.ndarray, "points"]:
        """Return one array as finite numbers, one at each point; ``remedy`` ends the message if there is none."""
        array, count = self.arrays.get(name), len(self.points)
        if array is None:
            have = ", ".join(map(repr, self.arrays)) or "none"
            raise UserError(f"{self.path}: no point array {name!r} (found {have}){remedy}")
        if array.size != count:
            wrong = f"{name} has {array.size // count} components at each point, expected 1"
            raise UserError(f"{self.path}: {wrong}; write each by its name")
        flat = array.reshape(count).astype(np.float64)
        self._check_finite(flat[:, None], f"{name} is")
        return flat

    def _check_finite(self, values: Float[np.ndarray, "points _"], what: str) -> None:
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            wrong = f"{what} NaN or infinite at {len(bad)} points"
            raise UserError(f"{self.path}: {wrong}, the first is number {bad[0]}")


class Format(ABC):
    """A file format: its suffixes and what a file may hold.

    Training sets are of the first kind that it holds; a set of ``points`` is a folder of files, one per sample.
    ``results`` are the suffixes of files that ``create`` makes. ``on_disk``: arrays stay there until they are indexed:
    a result takes no memory, and a set is not kept open before it is read.
    """

    suffixes: ClassVar[tuple[str, ...]]
    holds: ClassVar[tuple[Kind, ...]]
    results: ClassVar[tuple[str, ...]] = ()
    on_disk: ClassVar[bool] = False

    @abstractmethod
    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile | Mesh:
        """Return an open file.

        Arguments:
            path: the file.
            kind: what is expected in it, if the format holds several kinds; None: what it seems to be.
            result: the suffix of the copy of a Mesh that will be written, refused here if it cannot be.
        """

    def create(self, out: Path, shapes: Shapes, known: Columns, notes: Notes) -> AbstractContextManager[Filled]:
        """Return a context of float32 arrays to be filled, which become a file with ``known`` arrays and notes.

        After it the arrays are those of the file.
        """
        raise NotImplementedError


class Formats(Registry[Format]):
    """Formats by name. A class registers itself with ``@FORMATS.register("name")``; an instance of it is kept."""

    def add(self, name: str, part: Any) -> Any:
        form = part() if isinstance(part, type) else part
        for other, known in self.items():
            both = set(known.suffixes) & set(form.suffixes)
            if other != name and both and set(known.holds) & set(form.holds):
                raise ValueError(f"the format {other!r} has the suffix {min(both)}; choose another suffix")
        super().add(name, form)
        return part


FORMATS = Formats("format", "format")


def suffixes(kind: Kind | None = None) -> list[str]:
    """Return the suffixes of all files, or of those that may hold one kind."""
    return list(dict.fromkeys(s for f in FORMATS.values() if kind is None or kind in f.holds for s in f.suffixes))


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix."""
    FORMATS.look_outside()
    form = next((f for f in FORMATS.values() if path.suffix.lower() in f.suffixes), None)
    if form is None:
        raise UserError(f"{path}: not a file that can be read; expected {', '.join(suffixes())}")
    return form


def open_mesh(path: Path, form: Format | None = None) -> Mesh:
    """Return a file of one sample; by default the suffix tells its format."""
    mesh = (form or format_of(path)).open(path, "points")
    assert isinstance(mesh, Mesh)
    return mesh


def open_arrays(path: Path, form: Format) -> DataFile:
    """Return a file of arrays or groups, as training sets have it."""
    file = form.open(path, form.holds[0])
    assert isinstance(file, DataFile)
    return file


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Turn what libraries raise in the block for a missing, empty or damaged file into a UserError.

    Args:
        path: The file.
        what: What it should be, for the message: "npz".
    """
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    try:
        yield
    except UserError:
        raise
    except (*DAMAGED, csv.Error, zlib.error, BadZipFile) as error:
        raise UserError(f"{path}: not a readable {what} file, or cut short: {error}") from None


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Yield a place to write to, which becomes the file if the block ends well; its folder is made."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as partial:
            yield partial
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error})") from None


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
FORMATS.seal()
