"""Mesh files in and out. They are read in a child process with limits: a file may be damaged, or made to do harm."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int32, Shaped

from ikno.atomic import whole_file
from ikno.data import mesh_files
from ikno.data.catalog import Card
from ikno.data.files import read_npz
from ikno.data.inputs import Sample, check_given, input_names
from ikno.errors import UserError

# What each library reads and writes here, the lighter one first, and the extra that brings it.
READS = {
    "numpy": (".csv", ".npz"),
    "meshio": (".vtu", ".vtk", ".msh", ".stl", ".obj"),
    "pyvista": (".vtu", ".vtk", ".vtp", ".stl", ".obj"),
}
WRITES = {"numpy": (".csv", ".npz"), "meshio": (".vtu", ".vtk", ".msh"), "pyvista": (".vtu", ".vtk", ".vtp")}
EXTRAS = {"meshio": "mesh", "pyvista": "vtk"}
MESHES = (".vtu", ".vtp", ".vtk", ".msh", ".stl", ".obj")
VALUELESS = (".stl", ".obj")
# Limits of the child: a start, and more for large files.
SECONDS, SECONDS_PER_MB = 60.0, 2.0
MEMORY, MEMORY_PER_BYTE = 4 << 30, 60


@dataclass(frozen=True)
class Mesh:
    """Points of a mesh file, numeric arrays at them and the triangles of its surface; the cells stay in the file."""

    path: Path
    library: str
    points: Float[np.ndarray, "points axes"]
    arrays: dict[str, Shaped[np.ndarray, "points ..."]]
    triangles: Int32[np.ndarray, "triangles 3"] = field(default_factory=lambda: np.zeros((0, 3), np.int32))


def read_mesh(path: Path, result: str | None = None) -> Mesh:
    """Return points and point arrays of a file: .vtu, .vtp, .vtk, .msh, .stl, .obj, or .csv and .npz with columns.

    ``result`` is the suffix of the file that will be written from it: what reads must also write that.
    """
    _check(path)
    reasons = []
    for library in _libraries(path, result):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "read.npz"
            reason = _child(path, "read", library, path.absolute(), made)
            if reason is None:
                return _mesh(path, library, read_npz(made))
        reasons.append(reason)
    raise UserError(f"{path}: cannot be read: {_reasons(reasons, path, result)}; is it complete? write it again")


def write_mesh(mesh: Mesh, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
    """Write a copy of the mesh's file with more point arrays; points, cells and other arrays are as before.

    The file appears only when it is complete and was read again.
    """
    libraries = _libraries(mesh.path, out.suffix.lower())
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.npz", Path(folder) / f"made{out.suffix.lower()}"
        numbered = {str(k): array for k, array in enumerate(arrays.values())}
        np.savez(given, points=mesh.points, names=np.array(list(arrays), dtype="U"), **numbered)  # type: ignore[arg-type]
        for library in libraries[libraries.index(mesh.library) :]:
            reason = _child(mesh.path, "add", library, mesh.path.absolute(), given, made)
            if reason is None:
                break
            reasons.append(reason)
        else:
            raise UserError(f"{out}: cannot be written: {_reasons(reasons, mesh.path, out.suffix.lower())}")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(out) as partial:
                shutil.copyfile(made, partial)
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror or error})") from None


def is_table(path: Path) -> bool:
    """Tell whether this is a csv file, or an npz file with the columns x and y instead of an array of points."""
    if path.suffix.lower() != ".npz":
        return path.suffix.lower() == ".csv"
    try:
        with zipfile.ZipFile(path) as arrays:
            return {"x.npy", "y.npy"} <= set(arrays.namelist()) and _rank(arrays, "x.npy") == 1
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return False  # the reader of npz files says what is wrong


def plane(mesh: Mesh, dim: int) -> Float[np.ndarray, "points {dim}"]:
    """Return the points along the first axes, if they are constant along the others."""
    axes = mesh.points.shape[1]
    if axes < dim:
        raise UserError(f"{mesh.path}: {axes} coordinates, but the model has {dim} axes; add a column {'xyz'[axes]}")
    extent = np.ptp(mesh.points, axis=0)
    if (extent[dim:] > 1e-6 * extent.max()).any():
        raise UserError(
            f"{mesh.path}: {axes} coordinates that vary, but the model has {dim} axes; "
            f"it takes meshes with constant {' and '.join('xyz'[dim:axes])}"
        )
    return mesh.points[:, :dim]


def mesh_inputs(mesh: Mesh, card: Card, given: Mapping[str, float]) -> Sample:
    """Return points and input channels: the arrays of the file with the names of the card, or given numbers.

    Channels are u at the start of problems in time, then the conditions. A given number is one for all points, and
    goes before an array.
    """
    names = input_names(card)
    check_given(given, names)
    points = plane(mesh, card.dim)
    columns = []
    for name in names:
        if name in given:
            columns.append(np.full(len(points), given[name], np.float32))
        elif name in mesh.arrays:
            columns.append(column(mesh, name).astype(np.float32))
        else:
            have = ", ".join(map(repr, mesh.arrays)) or "none"
            raise UserError(
                f"{mesh.path}: no point array {name!r} (found {have}); add it, or give one number for all points: "
                f"{f'{name}=0.5' if ' ' not in name else repr(f'{name}=0.5')}"
            )
    inputs = np.stack(columns, 1) if columns else np.zeros((len(points), 0), np.float32)
    return points.astype(np.float32), inputs


def column(mesh: Mesh, name: str) -> Float[np.ndarray, "points"]:
    """Return one point array of a mesh as numbers, one at each point."""
    array = mesh.arrays.get(name)
    if array is None:
        have = ", ".join(map(repr, mesh.arrays)) or "none"
        raise UserError(f"{mesh.path}: no point array {name!r}; found {have}")
    if array.size != len(mesh.points):
        parts = array.size // len(mesh.points)
        raise UserError(f"{mesh.path}: {name} has {parts} components at each point, expected 1; write each by its name")
    flat = array.reshape(len(mesh.points)).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(flat))
    if len(bad):
        raise UserError(f"{mesh.path}: {name} is NaN or infinite at {len(bad)} points, the first is number {bad[0]}")
    return flat


def _mesh(path: Path, library: str, made: dict[str, np.ndarray]) -> Mesh:
    points = made["points"]
    bad = np.flatnonzero(~np.isfinite(points).all(1))
    if len(bad):
        raise UserError(f"{path}: {len(bad)} points have NaN or infinite coordinates, the first is number {bad[0]}")
    arrays = {name: made[str(k)] for k, name in enumerate(made["names"].tolist())}
    return Mesh(path, library, points, arrays, made["triangles"])


def _rank(arrays: zipfile.ZipFile, name: str) -> int:
    """Return the number of axes of an array, from its header alone."""
    with arrays.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return len(read(file)[0])


def _libraries(path: Path, result: str | None) -> list[str]:
    """Return the installed libraries that read a file, and write its result."""
    kind = path.suffix.lower()
    able = [name for name in READS if kind in READS[name] and (result is None or result in WRITES[name])]
    if not able:
        raise UserError(_impossible(path, result))
    here = [name for name in able if name == "numpy" or find_spec(name) is not None]
    if not here:
        raise UserError(
            f"{path}: this needs {able[0]}, which is not installed; get it with: pip install 'ikno[{EXTRAS[able[0]]}]'"
        )
    return here[:1] if kind in VALUELESS else here  # these two are as simple for either


def _impossible(path: Path, result: str | None) -> str:
    kind = path.suffix.lower()
    if all(kind not in suffixes for suffixes in READS.values()):
        return f"{path}: not a mesh file that can be read; expected {', '.join((*MESHES, '.csv', '.npz'))}"
    if result in VALUELESS:
        return f"{path}: a {result} file holds no values; name the result .vtu"
    others = dict.fromkeys(s for name in READS if kind in READS[name] for s in WRITES[name])
    return f"{path}: a {result} file cannot be made from it; name the result {' or '.join(others)}"


def _reasons(reasons: Sequence[str], path: Path, result: str | None) -> str:
    kind = path.suffix.lower()
    more = "pyvista" if kind in READS["pyvista"] and (result or kind) not in (".msh", *READS["numpy"]) else None
    text = "; ".join(dict.fromkeys(reasons))
    if more is not None and find_spec(more) is None:
        text += "; if the file is sound, pyvista may know it: pip install 'ikno[vtk]'"
    return text


def _check(path: Path) -> None:
    """Raise a UserError for what needs no reader to be refused: no file, an empty one, entities in XML."""
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    if path.suffix.lower() not in (".vtu", ".vtp"):
        return
    with path.open("rb") as file:
        head = file.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()
        declared = re.match(rb"<\?xml[^>]*encoding\s*=\s*[\"']([^\"']*)", head)
        encoding = declared[1].lower() if declared else b"utf-8"
        if not head.startswith(b"<") or encoding not in (b"utf-8", b"ascii", b"us-ascii", b"iso-8859-1"):
            raise UserError(f"{path}: not a VTK file in XML; save it again, as .vtu or .vtp")
        file.seek(0)
        rest = b""
        while block := file.read(1 << 24):
            if re.search(rb"<!(DOCTYPE|ENTITY)", rest + block, re.IGNORECASE):
                raise UserError(f"{path}: XML with a DOCTYPE or entities is not read; mesh files need none, remove it")
            rest = block[-16:]


def _child(path: Path, verb: str, library: str, *places: Path) -> str | None:
    """Run the program of ``mesh_files`` and return None, or in one line why it failed."""
    size = path.stat().st_size
    seconds, memory = SECONDS + SECONDS_PER_MB * size / 1e6, MEMORY + MEMORY_PER_BYTE * size
    # -P: modules beside the program must not hide others. One thread, wide lines: less memory, whole messages.
    command = [sys.executable, "-P", mesh_files.__file__, str(memory), verb, library, *map(str, places)]
    settings = {"COLUMNS": "1000", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile() as said:
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=seconds,
                env={**os.environ, **settings},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{library} was not done after {seconds:.0f} s"
        if ended.returncode == 0:
            return None
        said.seek(max(0, said.tell() - 4096))
        lines = said.read().decode(errors="replace").split("\n")
    if ended.returncode < 0:
        return f"{library} was ended by {signal.Signals(-ended.returncode).name}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
    bare = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", last)  # the name of an exception without its module
    return f"{library}: {bare[:300]}"
