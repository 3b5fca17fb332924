"""What a file format is, and which there are: ``FORMATS``, by the names that cards use.

    @register
    class Mine(Format):
        name, suffixes, holds = "mine", (".mine",), ("arrays",)

        def open(self, path, kind=None, result=None):
            return DataFile(path, {"u": ..., "x": ...})

A format is used for training sets, predictions and `ikno data import`, as far as what its files hold allows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Integer, Shaped

from ikno.errors import UserError

# Named arrays of all samples, a group of arrays per sample, or the points of one sample with arrays at them.
Kind = Literal["arrays", "groups", "points"]
Itself = TypeVar("Itself")


class _Open:
    """A file that is closed at the end of a ``with`` block."""

    def __enter__(self: Itself) -> Itself:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...


class DataFile(_Open):
    """An open file of arrays, or groups of arrays, by name. They may be read only where they are indexed, as h5py's."""

    def __init__(
        self,
        path: Path,
        items: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Hold what is in the file, what it says about how it was made, and how it is closed."""
        self.path, self.items, self.attributes, self.close = path, items, dict(attributes or {}), close

    def array(self, name: str) -> np.ndarray:
        """Return a whole array."""
        with readable(self.path, self.close):
            return np.asarray(self.items[name])


@dataclass
class Mesh(_Open):
    """One sample: finite points, numeric arrays at them by name, and the triangles of its surface if there are any."""

    path: Path
    points: Float[np.ndarray, "points axes"]
    arrays: Mapping[str, Shaped[np.ndarray, "points ..."]]
    triangles: Integer[np.ndarray, "triangles 3"] = field(default_factory=lambda: np.zeros((0, 3), np.int32))

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or len(self.points) == 0:
            raise UserError(f"{self.path}: the mesh has no points")
        bad = np.flatnonzero(~np.isfinite(self.points).all(1))
        if len(bad):
            raise UserError(
                f"{self.path}: {len(bad)} points have NaN or infinite coordinates, the first is number {bad[0]}"
            )

    def write(self, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
        """Write a copy of the file with more arrays; points, cells and other arrays are as before."""
        raise UserError(f"{out}: cannot be written from a {self.path.suffix} file")

    def plane(self, dim: int) -> Float[np.ndarray, "points {dim}"]:
        """Return the points along the first axes, if they are constant along the others."""
        axes = self.points.shape[1]
        if axes < dim:
            raise UserError(
                f"{self.path}: {axes} coordinates, but the model has {dim} axes; add a column {'xyz'[axes]}"
            )
        extent = np.ptp(self.points, axis=0)
        if (extent[dim:] > 1e-6 * extent.max()).any():
            raise UserError(
                f"{self.path}: {axes} coordinates that vary, but the model has {dim} axes; "
                f"it takes meshes with constant {' and '.join('xyz'[dim:axes])}"
            )
        return self.points[:, :dim]

    def column(self, name: str, remedy: str = "") -> Float[np.ndarray, "points"]:
        """Return one array as finite numbers, one at each point; ``remedy`` ends the message if there is none."""
        array = self.arrays.get(name)
        if array is None:
            have = ", ".join(map(repr, self.arrays)) or "none"
            raise UserError(f"{self.path}: no point array {name!r} (found {have}){remedy}")
        if array.size != len(self.points):
            parts = array.size // len(self.points)
            raise UserError(
                f"{self.path}: {name} has {parts} components at each point, expected 1; write each by its name"
            )
        flat = array.reshape(len(self.points)).astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(flat))
        if len(bad):
            raise UserError(
                f"{self.path}: {name} is NaN or infinite at {len(bad)} points, the first is number {bad[0]}"
            )
        return flat


class Format(ABC):
    """A file format: the name that cards use, its suffixes, and what a file may hold.

    Training sets are of the first kind that it holds; a set of ``points`` is a folder of files, one per sample.
    ``results`` are the suffixes of files of arrays that predictions can be written to, by ``create``, and ``on_disk``
    says that these take no memory.
    """

    name: ClassVar[str]
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
            result: the suffix of the copy with more arrays that will be written of it, refused here if it cannot be.
        """

    def create(
        self,
        path: Path,
        shapes: Mapping[str, Sequence[int]],
        known: Mapping[str, np.ndarray],
        notes: Mapping[str, str],
    ) -> AbstractContextManager[dict[str, Any]]:
        """Return a context of float32 arrays to be filled; at its end the file has them, ``known`` arrays and notes."""
        raise NotImplementedError

    def written(self, path: Path, arrays: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays that ``create`` gave, after it ended."""
        return arrays


FORMATS: dict[str, Format] = {}
Registered = TypeVar("Registered", bound=Format)


def register(kind: type[Registered]) -> type[Registered]:
    """Add a format to ``FORMATS``; used as a decorator of its class."""
    FORMATS[kind.name] = kind()
    return kind


def suffixes(kind: Kind) -> tuple[str, ...]:
    """Return the suffixes of files that may hold this."""
    return tuple(dict.fromkeys(s for f in FORMATS.values() if kind in f.holds for s in f.suffixes))


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix."""
    for found in FORMATS.values():
        if path.suffix.lower() in found.suffixes:
            return found
    known = ", ".join(dict.fromkeys(s for f in FORMATS.values() for s in f.suffixes))
    raise UserError(f"{path}: not a file that can be read; expected {known}")


def open_file(path: Path, kind: Kind | None = None, result: str | None = None) -> DataFile | Mesh:
    """Return an open file of any format; the arguments are those of ``Format.open``."""
    return format_of(path).open(path, kind, result)


def open_mesh(path: Path) -> Mesh:
    """Return an open file of one sample."""
    found = open_file(path, "points")
    if isinstance(found, Mesh):
        return found
    found.close()
    raise UserError(f"{path}: not the points of one sample; expected a file with {', '.join(suffixes('points'))}")


def check_file(path: Path) -> None:
    """Raise a UserError if there is no such file, or nothing in it."""
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")


@contextmanager
def readable(path: Path, close: Callable[[], None]) -> Iterator[None]:
    """Close the file if what it holds is not what it should be."""
    try:
        yield
    except UserError:
        close()
        raise
    except (OSError, KeyError, RuntimeError, ValueError, EOFError) as error:
        close()
        raise UserError(f"{path}: the file is damaged: {error}") from None
