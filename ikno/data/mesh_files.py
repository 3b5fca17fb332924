"""A program that reads one mesh file and adds arrays to copies of it: the only place that knows meshio and pyvista.

``ikno.data.formats.mesh`` runs it as a child process with limits on time and memory, so a hostile file harms nothing
else:

    mesh_files.py MEMORY LIBRARY MESH FOLDER

It reads the mesh into FOLDER/read.npz and writes a line to its output. For each line of its input, the name of a
result, it adds the arrays of FOLDER/given.npz to a copy of the mesh, FOLDER/NAME, and writes a line again. If it fails,
the last line of its error output is the reason. Nothing of ikno is imported: the child starts quickly.
"""

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

# The faces of cells by their corners, which are the first points of a cell. Cells with one face are flat.
FACES: dict[str, tuple[tuple[int, ...], ...]] = {
    "triangle": ((0, 1, 2),),
    "quad": ((0, 1, 2, 3),),
    "tetra": ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)),
    "hexahedron": ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)),
    "wedge": ((0, 1, 2), (3, 4, 5), (0, 1, 4, 3), (1, 2, 5, 4), (2, 0, 3, 5)),
    "pyramid": ((0, 1, 2, 3), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)),
}


@dataclass(frozen=True)
class Parts:
    """What a mesh holds: points, numeric arrays by their place and name, and the cells with their types."""

    points: np.ndarray
    arrays: dict[tuple[str, str], np.ndarray]
    types: Sequence[Any]
    connectivity: np.ndarray


class Meshio:
    """vtu, legacy vtk of unstructured grids, msh, and stl and obj (which hold no values, so they are only read)."""

    def read(self, path: Path) -> Any:
        import meshio

        kind = path.suffix.lower()
        if kind in (".vtk", ".vtu"):
            _only_what_meshio_keeps(path)
        mesh = (meshio.gmsh if kind == ".msh" else getattr(meshio, kind[1:])).read(path)
        if kind == ".vtk":
            mesh.point_data = {unquote(k): a for k, a in mesh.point_data.items()}
            mesh.cell_data = {unquote(k): a for k, a in mesh.cell_data.items()}
        mesh.points = np.asarray(mesh.points, dtype=mesh.points.dtype.newbyteorder("="))
        return mesh

    def parts(self, mesh: Any) -> Parts:
        if any(block.type.startswith("polyhedron") for block in mesh.cells):
            sys.exit("meshio changes the order of polyhedra")
        blocks = [np.asarray(block.data) for block in mesh.cells]
        types = [block.type for block in mesh.cells for _ in range(len(block.data))]
        in_cells = {k: np.concatenate(a) for k, a in mesh.cell_data.items() if a}
        return Parts(
            np.asarray(mesh.points),
            _numeric(points=mesh.point_data, cells=in_cells, whole=mesh.field_data),
            types,
            np.concatenate([b.ravel() for b in blocks]) if blocks else np.zeros(0, int),
        )

    def surface(self, mesh: Any) -> np.ndarray:
        triangles, quads = (self._bounding(mesh, corners) for corners in (3, 4))
        return np.concatenate([triangles, quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])

    def _bounding(self, mesh: Any, corners: int) -> np.ndarray:
        """Return the faces with so many corners that bound the mesh: two cells with volume share those inside."""
        flat, solid = ([np.zeros((0, corners), int)] for _ in range(2))
        for block in mesh.cells:
            faces = FACES.get(block.type.rstrip("0123456789"), ())
            bounding = flat if len(faces) == 1 else solid
            bounding += [np.asarray(block.data)[:, face] for face in faces if len(face) == corners]
        every = np.concatenate(solid)
        _, first, counts = np.unique(np.sort(every, 1), axis=0, return_index=True, return_counts=True)
        return np.concatenate([*flat, every[np.sort(first[counts == 1])]])

    def write(self, path: Path, mesh: Any, arrays: Mapping[str, np.ndarray]) -> None:
        import meshio

        mesh.point_data.update({k: np.asarray(a) for k, a in arrays.items()})
        kind = path.suffix.lower()
        if kind == ".vtk":
            mesh.point_data = {_legacy_name(k): a for k, a in mesh.point_data.items()}
            mesh.cell_data = {_legacy_name(k): a for k, a in mesh.cell_data.items()}
            meshio.vtk.write(path, mesh)
        elif kind == ".msh":
            meshio.gmsh.write(path, mesh, fmt_version="4.1" if "gmsh:dim_tags" in mesh.point_data else "2.2")
        else:
            meshio.vtu.write(path, mesh)


class PyVista:
    """All files of VTK, also surfaces (vtp), structured grids and polyhedra."""

    def read(self, path: Path) -> Any:
        import pyvista

        try:
            with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
                return pyvista.read(path)
        except RuntimeError as error:  # the first thing that VTK says is the reason, the rest are its consequences
            said = re.findall(r"\(0x[0-9a-f]+\): (.+)", str(error))
            sys.exit(said[0] if said else str(error))

    def parts(self, mesh: Any) -> Parts:
        grid = mesh.cast_to_unstructured_grid()
        return Parts(
            np.asarray(mesh.points),
            _numeric(points=mesh.point_data, cells=mesh.cell_data, whole=mesh.field_data),
            [*np.asarray(grid.celltypes).tolist(), *np.asarray(grid.cells).tolist()],
            np.asarray(grid.cell_connectivity),
        )

    def surface(self, mesh: Any) -> np.ndarray:
        with warnings.catch_warnings(action="ignore"):  # its default algorithm will change: either serves
            surface = mesh.cast_to_unstructured_grid().extract_surface(pass_pointid=True).triangulate()
        if not len(surface.faces):
            return np.zeros((0, 3), int)
        return np.asarray(surface.point_data["vtkOriginalPointIds"])[surface.regular_faces]

    def write(self, path: Path, mesh: Any, arrays: Mapping[str, np.ndarray]) -> None:
        import pyvista

        kind = path.suffix.lower()
        if kind == ".vtp" and not isinstance(mesh, pyvista.PolyData):
            sys.exit("a .vtp file holds surfaces alone; name the result .vtu")
        if kind == ".vtu":
            mesh = mesh.cast_to_unstructured_grid()
        for name, array in arrays.items():
            mesh.point_data[name] = array
        with pyvista.VtkErrorCatcher(raise_errors=True, send_to_logging=False):
            mesh.save(path)


LIBRARIES = {"meshio": Meshio(), "pyvista": PyVista()}


def read(library: str, path: Path, folder: Path) -> tuple[Any, Any, Parts]:
    """Return library, mesh and its parts, and write points and numeric point arrays to read.npz.

    It has points, names, 0, 1, ... by their order, and ``triangles`` of the surface: what bounds cells with volume, and
    cells without.
    """
    tool, kind = LIBRARIES[library], path.suffix.lower()
    if kind == ".stl":
        _whole_stl(path)
    mesh = tool.read(_points_and_faces(path, folder / "read.obj") if kind == ".obj" else path)
    parts = tool.parts(mesh)
    if len(parts.points) == 0:
        sys.exit("the mesh has no points")
    ids = parts.connectivity
    if len(ids) and (ids.min() < 0 or ids.max() >= len(parts.points)):
        sys.exit(f"its cells name points that do not exist ({ids.min()} to {ids.max()} of {len(parts.points)})")
    named = {name: array for (place, name), array in parts.arrays.items() if place == "points"}
    arrays = {str(k): array for k, array in enumerate(named.values())}
    arrays |= {"points": parts.points.astype(np.float64), "names": np.array(list(named), dtype="U")}
    arrays["triangles"] = np.asarray(tool.surface(mesh), dtype=np.int32).reshape(-1, 3)
    np.savez(folder / "read.npz", **arrays)  # type: ignore[arg-type]
    return tool, mesh, parts


def add(tool: Any, mesh: Any, before: Parts, result: Path) -> None:
    """Write the mesh with the arrays of given.npz beside it, and make sure that everything else is as it was."""
    with np.load(result.with_name("given.npz"), allow_pickle=False) as arrays:
        new = {name: arrays[str(k)] for k, name in enumerate(arrays["names"].tolist())}
    tool.write(result, mesh, new)
    after = tool.parts(tool.read(result))
    if not _same(_in_space(before.points), _in_space(after.points)):
        sys.exit("the points or their order would be lost")
    if list(before.types) != list(after.types) or not _same(before.connectivity, after.connectivity):
        sys.exit("the cells would be lost")
    for key, array in {**before.arrays, **{("points", name): array for name, array in new.items()}}.items():
        if key not in after.arrays or not _same(np.squeeze(array), np.squeeze(after.arrays[key]).astype(array.dtype)):
            sys.exit(f"the array {key[1]!r} would be lost")


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")


def _in_space(points: np.ndarray) -> np.ndarray:
    return np.pad(points, ((0, 0), (0, 3 - points.shape[1])))


def _numeric(**places: Any) -> dict[tuple[str, str], np.ndarray]:
    """Return the numeric arrays of each place, by place and name, in the byte order of this machine."""
    arrays = {(place, str(name)): np.asarray(a) for place, named in places.items() for name, a in named.items()}
    return {k: a.astype(a.dtype.newbyteorder("=")) for k, a in arrays.items() if a.dtype.kind in "fiub"}


def _legacy_name(name: str) -> str:
    """Return a name as legacy files have it: without spaces and signs beyond ASCII."""
    return "".join(c if "!" <= c <= "~" and c not in '"%' else quote(c) for c in name)


def _only_what_meshio_keeps(path: Path) -> None:
    """Stop at files of which meshio would read a part without a word."""
    raw = path.read_bytes()
    if path.suffix.lower() == ".vtu":
        if len(re.findall(rb"<Piece[\s>]", raw)) > 1:
            sys.exit("meshio cannot read several pieces")
        return
    kind = re.search(rb"^DATASET\s+(\w+)", raw, re.MULTILINE | re.IGNORECASE)
    if kind is None or kind[1].upper() != b"UNSTRUCTURED_GRID":
        sys.exit(f"meshio cannot keep the data set {kind[1].decode() if kind else 'without a type'}")
    head = re.split(rb"^(?:POINT|CELL)_DATA\s", raw, maxsplit=1, flags=re.MULTILINE)[0]
    if re.search(rb"^FIELD\s", head, re.MULTILINE):
        sys.exit("meshio cannot read arrays of the file as a whole")
    if re.search(rb"^(COLOR_SCALARS|LOOKUP_TABLE\s+\S+\s+\d+\s*$)", raw, re.MULTILINE):
        sys.exit("meshio cannot read color tables")


def _whole_stl(path: Path) -> None:
    """Stop at stl files that were cut short, of which VTK would read a part."""
    raw = path.read_bytes()
    if raw.lstrip().startswith(b"solid") and b"facet" in raw[:1000]:
        if b"endsolid" not in raw[-1000:]:
            sys.exit("the file is cut short: no endsolid")
        return
    facets = int.from_bytes(raw[80:84], "little")
    if len(raw) != 84 + 50 * facets:
        sys.exit(f"{len(raw)} bytes, but the header says {facets} facets")


def _points_and_faces(path: Path, copy: Path) -> Path:
    """Return a copy of an obj file with points and faces alone: texture and normals belong to corners."""
    points = 0
    with path.open(encoding="utf-8", errors="replace") as lines, copy.open("w", encoding="utf-8") as file:
        for line in lines:
            kind, *words = line.split() or [""]
            if kind == "v":
                points += 1
                file.write(f"v {' '.join(words[:3])}\n")
            elif kind == "f":  # negative numbers count back from the last point so far
                corners = [int(word.partition("/")[0]) for word in words]
                file.write(f"f {' '.join(str(c if c > 0 else points + 1 + c) for c in corners)}\n")
    return copy


def _limit(memory: int) -> None:
    """Let the process fail, rather than the machine, if it asks for more memory or disk space than that."""
    if not sys.platform.startswith("linux"):  # others do not keep to it, or know no such thing
        return
    import resource

    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, memory), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (allowed, allowed))


def main(memory: str, library: str, mesh: str, folder: str) -> None:
    """Read the mesh, then write a result for each line of the input."""
    _limit(int(memory))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    opened = read(library, Path(mesh), Path(folder))
    print("read", file=answers, flush=True)
    for line in sys.stdin:
        add(*opened, Path(folder, line.rstrip("\n")))
        print("added", file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
