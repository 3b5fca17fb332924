"""Mesh files, read in a child process with limits: a file may be damaged, or made to do harm."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Timer
from typing import Any

import numpy as np
from jaxtyping import Float

from ikno.data import mesh_files
from ikno.data.formats import FORMATS, Format, Kind, Mesh, new_file, readable
from ikno.errors import UserError

# What each library reads and writes here, the lighter one first, and the extra that brings it.
READS = {"meshio": (".vtu", ".vtk", ".msh", ".stl", ".obj"), "pyvista": (".vtu", ".vtk", ".vtp", ".stl", ".obj")}
WRITES = {"meshio": (".vtu", ".vtk", ".msh"), "pyvista": (".vtu", ".vtk", ".vtp")}
EXTRAS = {"meshio": "mesh", "pyvista": "vtk"}
VALUELESS = (".stl", ".obj")
# Limits of the child: a start, and more for large files.
SECONDS, SECONDS_PER_MB = 60.0, 2.0
MEMORY, MEMORY_PER_BYTE = 4 << 30, 60


@FORMATS.register("mesh")
class Meshes(Format):
    """Files of VTK, Gmsh, and surfaces without values."""

    suffixes, holds = (".vtu", ".vtp", ".vtk", ".msh", ".stl", ".obj"), ("points",)

    def open(self, path: Path, kind: Kind | None = None, result: str | None = None) -> Mesh:
        with readable(path, "mesh"):
            _check_xml(path)
        return MeshFile(path, result)


class MeshFile(Mesh):
    """A mesh in a child process, which has read it once and writes copies of it; the cells stay there."""

    def __init__(self, path: Path, result: str | None) -> None:
        self.path, self._result, self._reasons, self._open = path, result, [], ExitStack()
        self._waiting = _libraries(path, result)
        with self._open:  # closed if anything fails
            made = self._next(f"{path}: cannot be read", "; is it complete? write it again")
            arrays = {name: made[str(k)] for k, name in enumerate(made["names"].tolist())}
            super().__init__(path, made["points"], arrays, made["triangles"])
            self._open = self._open.pop_all()

    def _next(self, problem: str, remedy: str = "") -> dict[str, np.ndarray]:
        """Return what the next library that can reads in the file; if none is left, raise a UserError."""
        while self._waiting:
            self.close()
            self.library = self._waiting.pop(0)
            self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
            self._child = Child(self.path, self.library, self._folder)
            self._open.callback(self._child.close)
            reason = self._child.answer()
            if reason is None:
                with np.load(self._folder / "read.npz", allow_pickle=False) as arrays:
                    return dict(arrays)
            self._reasons.append(reason)
        text = "; ".join(dict.fromkeys(self._reasons))
        known = self.path.suffix.lower() in READS["pyvista"] and self._result != ".msh"
        if known and find_spec("pyvista") is None:
            text += "; if the file is sound, pyvista may know it: pip install 'ikno[vtk]'"
        raise UserError(f"{problem}: {text}{remedy}")

    def write(self, out: Path, arrays: Mapping[str, Float[np.ndarray, "points"]]) -> None:
        """Write a copy with more point arrays; the file appears only when it is complete and was read again."""
        given: dict[str, Any] = {str(k): array for k, array in enumerate(arrays.values())}
        given["names"], name = np.array(list(arrays), dtype="U"), f"made{out.suffix.lower()}"
        np.savez(self._folder / "given.npz", **given)
        while reason := self._child.answer(name):
            self._reasons.append(reason)
            if not np.array_equal(self._next(f"{out}: cannot be written")["points"], self.points):
                raise UserError(f"{out}: cannot be written: {self.path} changed while it was used")
            np.savez(self._folder / "given.npz", **given)
        with new_file(out) as partial:
            shutil.copyfile(self._folder / name, partial)

    def close(self) -> None:
        self._open.close()


class Child:
    """A process that runs the program of ``mesh_files`` on one mesh."""

    def __init__(self, path: Path, library: str, folder: Path) -> None:
        size, self.library, self._said = path.stat().st_size, library, folder / "said"
        self._seconds, memory = SECONDS + SECONDS_PER_MB * size / 1e6, MEMORY + MEMORY_PER_BYTE * size
        # -P: modules beside the program must not hide others. One thread, wide lines: less memory, whole messages.
        command = [sys.executable, "-P", mesh_files.__file__, str(memory), library, str(path.absolute()), str(folder)]
        settings = {"COLUMNS": "1000", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        with self._said.open("wb") as said:
            pipe, every = subprocess.PIPE, {**os.environ, **settings}
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, bufsize=0, env=every)

    def answer(self, name: str | None = None) -> str | None:
        """Return None when the mesh was read, or its copy of that name written; or in one line why it failed."""
        process, over = self._process, Event()
        assert process.stdin is not None
        assert process.stdout is not None
        late = Timer(self._seconds, lambda: (over.set(), process.kill()))
        late.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(f"{name}\n".encode() if name else b"")
                if process.stdout.readline():
                    return None
            code = process.wait()
        finally:
            late.cancel()
        if over.is_set():
            return f"{self.library} was not done after {self._seconds:.0f} s"
        if code < 0:
            return f"{self.library} was ended by {signal.Signals(-code).name}"
        with self._said.open("rb") as said:
            said.seek(max(0, self._said.stat().st_size - 4096))
            lines = said.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
        bare = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", last)  # the name of an exception without its module
        return f"{self.library}: {bare[:300]}"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with self._process:
            pass  # close its pipes and wait


def _libraries(path: Path, result: str | None) -> list[str]:
    """Return the installed libraries that read a file, and write its result."""
    kind = path.suffix.lower()
    able = [name for name in READS if kind in READS[name] and (result is None or result in WRITES[name])]
    if not able and result in VALUELESS:
        raise UserError(f"{path}: a {result} file holds no values; name the result .vtu")
    if not able:
        others = dict.fromkeys(s for name in READS if kind in READS[name] for s in WRITES[name])
        raise UserError(f"{path}: a {result} file cannot be made from it; name the result {' or '.join(others)}")
    here = [name for name in able if find_spec(name) is not None]
    if not here:
        raise UserError(
            f"{path}: this needs {able[0]}, which is not installed; get it with: pip install 'ikno[{EXTRAS[able[0]]}]'"
        )
    return here[:1] if kind in VALUELESS else here  # these two are as simple for either


def _check_xml(path: Path) -> None:
    """Raise a UserError for XML that needs no reader to be refused: odd encodings, and entities."""
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
