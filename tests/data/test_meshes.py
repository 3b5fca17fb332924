"""Mesh files: what is there stays, what is new is added, and what is hostile is refused in one line."""

import io
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import pyvista

from ikno.data import mesh_files
from ikno.data.catalog import Card
from ikno.data.formats import DataFile, Mesh, format_of
from ikno.data.formats import mesh as mesh_format
from ikno.data.inputs import mesh_inputs
from ikno.errors import UserError

rng = np.random.default_rng(0)
POINTS = rng.random((7, 3))
TRIANGLES, QUADS = np.array([[0, 1, 2], [2, 3, 4]]), np.array([[3, 4, 5, 6]])
FACES = np.array([3, 0, 1, 2, 3, 2, 3, 4, 4, 3, 4, 5, 6])
NEW = {"density": np.linspace(1, 2, 7, dtype=np.float32), "vx@0.1": np.linspace(-1, 1, 7, dtype=np.float32)}


def surface(**more: Any) -> meshio.Mesh:
    return meshio.Mesh(POINTS.copy(), [("triangle", TRIANGLES), ("quad", QUADS)], **more)


def solved() -> meshio.Mesh:
    data = {"f": POINTS[:, 0].copy(), "v": POINTS.astype(np.float32)}
    return surface(point_data=data, cell_data={"part": [np.arange(2.0), np.full(1, 5.0)]})


def with_entities() -> meshio.Mesh:
    """Return a mesh as Gmsh has it: points and cells belong to curves and surfaces, some of which have a name."""
    made = solved()
    made.point_data["gmsh:dim_tags"] = np.array([[1, 1], [1, 1], [2, 1], [2, 1], [2, 1], [2, 2], [2, 2]])
    made.cell_data |= {key: [np.full(2, 1), np.full(1, 2)] for key in ("gmsh:geometrical", "gmsh:physical")}
    made.field_data = {"wall": np.array([1, 2])}
    return made


def grid() -> pyvista.UnstructuredGrid:
    """Triangles and a tetrahedron, with arrays of all kinds."""
    cells = np.array([3, 0, 1, 2, 4, 2, 3, 4, 5, 3, 4, 5, 6])
    made = pyvista.UnstructuredGrid(cells, np.array([5, 10, 5], np.uint8), POINTS)
    made.point_data["angle of attack"] = POINTS[:, 1]
    made.cell_data["part"] = np.arange(3.0)
    made.field_data["case"] = np.array([4.0, 2.0])
    return made


def poly() -> pyvista.PolyData:
    made = pyvista.PolyData(POINTS.astype(np.float32), faces=FACES)
    made.point_data["f"] = POINTS[:, 0]
    made.cell_data["part"] = np.arange(3)
    return made


def ascii_msh(path: Path) -> None:
    nodes = "\n".join(f"{10 + k} {x!r} {y!r} {z!r}" for k, (x, y, z) in enumerate(POINTS.tolist()))
    data = "\n".join(f"{10 + k} {x!r}" for k, x in enumerate(POINTS[:, 0].tolist()))
    path.write_text(
        f"$MeshFormat\n2.2 0 8\n$EndMeshFormat\n$Nodes\n7\n{nodes}\n$EndNodes\n"
        "$Elements\n2\n1 2 2 1 1 10 11 12\n2 3 2 1 1 13 14 15 16\n$EndElements\n"
        f'$NodeData\n1\n"f"\n1\n0.0\n3\n0\n1\n7\n{data}\n$EndNodeData\n'
    )


def obj_with_texture(path: Path) -> None:
    """Write an obj file with more texture coordinates than points, colors, normals and faces counted back."""
    lines = [f"v {x!r} {y!r} {z!r} 0.5 0.5 0.5" for x, y, z in POINTS.tolist()]
    lines += ["vt 0 0", "vn 0 0 1", "f 1/1/1 2/1/1 3/1/1", "f -5/1 -4/1 -3/1", "f 4//1 5//1 6//1 7//1"]
    path.write_text("# made by hand\n" + "\n".join(lines) + "\n")


def opened(path: Path, result: str | None = None) -> Mesh:
    """Return an open mesh, whose copy will have that suffix."""
    found = format_of(path).open(path, "points", result)
    assert isinstance(found, Mesh)
    return found


def read_mesh(path: Path, result: str | None = None) -> Mesh:
    """Return a mesh whose file was closed again."""
    with closing(opened(path, result)) as found:
        return found


class Inside:
    """The child's work in this process, which is quicker."""

    def __init__(self, path: Path, library: str, folder: Path) -> None:
        self.path, self.library, self.folder = path, library, folder

    def answer(self, name: str | None = None) -> str | None:
        try:
            if name is None:
                self.mesh = mesh_files.read(self.library, self.path, self.folder)
            else:
                mesh_files.add(*self.mesh, self.folder / name)
        except (SystemExit, ValueError, KeyError, RuntimeError, meshio.ReadError) as error:
            return f"{self.library}: {error}"
        return None

    def close(self) -> None:
        """Do nothing: there is no process."""


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_format, "Child", Inside)


def cells(mesh: Any) -> tuple[list[int], list[int]]:
    """Return types and corners of the cells of a mesh, read by pyvista."""
    made = mesh.cast_to_unstructured_grid()
    return made.celltypes.tolist(), made.cell_connectivity.tolist()


BY_MESHIO: list[tuple[str, Callable[[Path], Any]]] = [
    ("a.vtu", lambda path: solved().write(path)),
    ("ascii.VTU", lambda path: meshio.vtu.write(path, solved(), binary=False)),
    ("a.vtk", lambda path: solved().write(path)),
    ("old.vtk", lambda path: solved().write(path, file_format="vtk42")),
    ("two.msh", lambda path: solved().write(path, file_format="gmsh22")),
    ("four.msh", lambda path: with_entities().write(path, file_format="gmsh")),
    ("ascii.msh", ascii_msh),
]
BY_PYVISTA: list[tuple[str, Callable[[Path], Any]]] = [
    ("b.vtu", lambda path: grid().save(path)),
    ("b.vtk", lambda path: grid().save(path)),
    ("b.vtp", lambda path: poly().save(path)),
    ("ascii.vtp", lambda path: poly().save(path, binary=False)),
    ("surface.vtk", lambda path: poly().save(path)),
]


@pytest.mark.usefixtures("inside")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "make"), [*BY_MESHIO, *BY_PYVISTA], ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_there_stays_and_what_is_new_is_added(
    tmp_path: Path, name: str, make: Callable[[Path], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    make(path)
    suffix = path.suffix.lower()
    out = tmp_path / f"new folder/out{suffix}"
    with closing(opened(path, suffix)) as mesh:
        np.testing.assert_allclose(mesh.points, POINTS, rtol=1e-7)
        mesh.write(out, NEW)
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    before, after = (pyvista.read(p) for p in (path, out))
    assert type(before) is type(after)
    np.testing.assert_array_equal(before.points, after.points)
    assert cells(before) == cells(after)
    for kind in ("point_data", "cell_data", "field_data"):
        was, now = getattr(before, kind), getattr(after, kind)
        assert set(was.keys()) <= set(now.keys())
        for key in was:
            np.testing.assert_array_equal(was[key], now[key])
    for key, values in NEW.items():
        np.testing.assert_array_equal(after.point_data[key], values)
    again = read_mesh(out, suffix)
    assert set(again.arrays) >= {*mesh.arrays, *NEW}
    if suffix != ".vtp" and "surface" not in name:  # and in the other reader
        theirs = meshio.read(out)
        np.testing.assert_array_equal(theirs.points, mesh.points)
        np.testing.assert_array_equal(theirs.point_data["vx@0.1"].ravel(), NEW["vx@0.1"])
    capfd.readouterr()


@pytest.mark.usefixtures("inside")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of meshio and pyvista
@pytest.mark.parametrize("result", [".vtu", ".vtp", ".vtk"])
@pytest.mark.parametrize("name", ["a.stl", "binary.stl", "b.stl", "a.obj", "b.obj", "texture.obj"])
def test_surfaces_without_values_become_meshes_with_them(tmp_path: Path, name: str, result: str) -> None:
    path = tmp_path / name
    flat = meshio.Mesh(POINTS.astype(np.float32), [("triangle", TRIANGLES), ("triangle", QUADS[:, :3])])
    if name == "texture.obj":
        obj_with_texture(path)
    elif name == "a.obj":
        surface().write(path)
    elif name == "binary.stl":
        meshio.stl.write(path, flat, binary=True)
    elif name == "a.stl":
        flat.write(path)
    else:
        (poly().triangulate() if name == "b.stl" else poly()).save(path)
    count = 6 if name in ("a.stl", "binary.stl") else 7
    with closing(opened(path, result)) as mesh:
        np.testing.assert_allclose(mesh.points, POINTS[:count], rtol=1e-5)
        mesh.write(tmp_path / f"out{result}", {"p": NEW["density"][:count]})
    made = pyvista.read(tmp_path / f"out{result}")
    np.testing.assert_array_equal(made.points.astype(np.float64), mesh.points)
    np.testing.assert_array_equal(made.point_data["p"], NEW["density"][:count])
    assert made.n_cells == (4 if name == "b.stl" else 3)
    with pytest.raises(UserError, match=r"a \.stl file holds no values; name the result \.vtu"):
        read_mesh(path, ".stl")


@pytest.mark.usefixtures("inside")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_meshio_would_lose_goes_to_pyvista(tmp_path: Path) -> None:
    """Structured grids, several pieces and polyhedra, of which meshio loses something without a word."""
    image = pyvista.ImageData(dimensions=(7, 1, 1))
    image.save(tmp_path / "image.vtk")
    poly().cast_to_unstructured_grid().save(tmp_path / "one.vtu", binary=False)
    text = (tmp_path / "one.vtu").read_text()
    start, end = text.index("<Piece"), text.index("</Piece>") + len("</Piece>")
    (tmp_path / "pieces.vtu").write_text(text[:end] + text[start:end] + text[end:])
    for name, count in (("image.vtk", 7), ("pieces.vtu", 14)):
        out = tmp_path / f"out-{name}"
        with closing(opened(tmp_path / name, Path(name).suffix)) as mesh:
            assert isinstance(mesh, mesh_format.MeshFile)
            assert mesh.library == "pyvista"
            mesh.write(out, {"p": np.arange(count, dtype=np.float32)})
        before, after = pyvista.read(tmp_path / name), pyvista.read(out)
        assert type(before) is type(after)
        assert cells(before) == cells(after)
        assert after.point_data["p"].tolist() == list(range(count))


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,Mach number,name\n0,1.50,.8,left\n1,2,.9,right\n")
    mesh = read_mesh(tmp_path / "a.csv", ".csv")
    assert mesh.points.tolist() == [[0, 1.5], [1, 2]]
    assert mesh.arrays["Mach number"].tolist() == [0.8, 0.9]
    assert "name" not in mesh.arrays
    mesh.write(tmp_path / "b.csv", {"p": np.array([0.1, 2], np.float32)})
    assert (tmp_path / "b.csv").read_text() == "x,y,Mach number,name,p\n0,1.50,.8,left,0.1\n1,2,.9,right,2.0\n"
    np.savez(tmp_path / "a.npz", x=POINTS[:, 0], y=POINTS[:, 1], z=POINTS[:, 2], f=POINTS[:, 0], note=np.array("mine"))
    mesh = read_mesh(tmp_path / "a.npz", ".npz")
    np.testing.assert_array_equal(mesh.points, POINTS)
    mesh.write(tmp_path / "b.npz", NEW)
    with np.load(tmp_path / "a.npz") as before, np.load(tmp_path / "b.npz") as after:
        assert set(after.files) == {*before.files, *NEW}
        assert all(np.array_equal(before[k], after[k]) for k in before.files)
    assert isinstance(format_of(tmp_path / "a.npz").open(tmp_path / "a.npz"), Mesh)
    with pytest.raises(UserError, match=r"'note' of .* is no column; name the result \.npz"):
        mesh.write(tmp_path / "b.csv", NEW)
    np.savez(tmp_path / "samples.npz", x=POINTS, y=POINTS)
    assert isinstance(format_of(tmp_path / "samples.npz").open(tmp_path / "samples.npz"), DataFile)
    for text, message in (
        ("a,b\n1,2\n", "no columns x, y"),
        ("x,y\n1,2\n3\n", "row 2 has 1 entries, the header 2"),
        ("x,y\n1,b\n", "could not convert string to float"),
        ("x,y\n", "the mesh has no points"),
        ("x,y,y\n1,2,3\n", "'y' is there twice"),
        ("x,y\n1,nan\n", "coordinates are NaN or infinite at 1 points, the first is number 0"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(UserError, match=message):
            read_mesh(tmp_path / "bad.csv")


BOMB = '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY b "{}">]>\n<VTKFile type="UnstructuredGrid">&b;</VTKFile>\n'
HUGE_VTU = (
    '<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian"><UnstructuredGrid>'
    '<Piece NumberOfPoints="{n}" NumberOfCells="0"><Points><DataArray type="Float32" NumberOfComponents="3" '
    'format="ascii">{x}</DataArray></Points><Cells><DataArray type="Int64" Name="connectivity" format="ascii">'
    '</DataArray><DataArray type="Int64" Name="offsets" format="ascii"></DataArray><DataArray type="UInt8" '
    'Name="types" format="ascii"></DataArray></Cells></Piece></UnstructuredGrid></VTKFile>\n'
)
MANY = 100_000_000_000


def huge_npz() -> bytes:
    """Return an npz file with the header of an array that it does not have."""
    file, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (MANY,)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return file.getvalue()


HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.vtu", b"", "the file is empty"),
    "bomb": ("a.vtu", BOMB.format("x" * 1000).encode(), "DOCTYPE or entities is not read"),
    "bomb in vtp": ("a.vtp", BOMB.format("&b;&b;").encode(), "DOCTYPE or entities is not read"),
    "hidden bomb": ("a.vtu", BOMB.format("x").encode("utf-16"), "not a VTK file in XML"),
    "other encoding": ("a.vtu", b'<?xml version="1.0" encoding="utf-7"?><VTKFile/>', "not a VTK file in XML"),
    "huge vtu": ("a.vtu", HUGE_VTU.format(n=MANY, x="0 0 0").encode(), "cannot be read: meshio: .*; pyvista"),
    "no points": ("a.vtu", HUGE_VTU.format(n=0, x=" ").encode(), "the mesh has no points"),
    "huge vtk": (
        "a.vtk",
        f"# vtk DataFile Version 3.0\nx\nASCII\nDATASET UNSTRUCTURED_GRID\nPOINTS {MANY} float\n0 0 0\n".encode(),
        "cannot be read: meshio: .*; pyvista",
    ),
    "huge surface": (
        "a.vtk",
        f"# vtk DataFile Version 3.0\nx\nBINARY\nDATASET POLYDATA\nPOINTS {MANY} float\n0 0 0\n".encode(),
        "cannot be read: meshio: .*; pyvista",
    ),
    "huge msh": (
        "a.msh",
        f"$MeshFormat\n4.1 0 8\n$EndMeshFormat\n$Nodes\n1 {MANY} 1 {MANY}\n2 0 0 {MANY}\n1\n".encode(),
        "cannot be read: meshio: .*[Uu]nable to allocate",
    ),
    "msh without end": ("a.msh", b"$MeshFormat\n2.2 0 8\n", "cannot be read: meshio"),
    "huge stl": (
        "a.stl",
        b" " * 80 + struct.pack("<I", 2**32 - 1) + b"\0" * 50,
        "134 bytes, but the header says 4294967295 facets",
    ),
    "cut stl": ("a.stl", b"solid\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\n", "cut short: no endsolid"),
    "no faces": ("a.stl", b"solid\nendsolid\n", "cannot be read: meshio: "),
    "faces of nothing": ("a.obj", b"v 0 0 0\nv 1 0 0\nf 1 2 9\n", "cells name points that do not exist"),
    "noise vtp": ("a.vtp", b"<" + rng.bytes(2000), "cannot be read: pyvista: "),
    "huge npz": ("a.npz", huge_npz(), "not a readable npz file.*[Uu]nable to allocate"),
    "cut vtu": (
        "a.vtu",
        b'<VTKFile type="Unstructured',
        "pyvista: Error parsing XML in stream at line 1.*is it complete",
    ),
    "noise npz": ("a.npz", rng.bytes(2000), "not a readable npz file"),
    "nan": (
        "a.obj",
        b"v 0 0 0\nv 1 0 nan\nv 0 1 0\nf 1 2 3\n",
        "coordinates are NaN or infinite at 1 points.* number 1",
    ),
    "other": ("a.ply", b"ply", "not a file that can be read; expected .*.vtu"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(tmp_path: Path, case: str) -> None:
    name, content, message = HOSTILE[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as refused:
        read_mesh(tmp_path / name)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["a.vtu", "a.vtp"])
def test_truncated_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    solved().write(path) if name == "a.vtu" else poly().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UserError, match=r"cannot be read: .*pyvista: "):
        read_mesh(path)


def test_limits_of_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.msh"
    path.write_text("read by nobody")
    with monkeypatch.context() as patch:
        patch.setattr(mesh_format, "SECONDS", 0.01)
        patch.setattr(mesh_format, "SECONDS_PER_MB", 0.0)
        with pytest.raises(UserError, match="meshio was not done after 0 s"):
            read_mesh(path)
    program, real = tmp_path / "program.py", mesh_files.__file__
    monkeypatch.setattr(mesh_files, "__file__", str(program))
    program.write_text("import os\nos.abort()\n")
    with pytest.raises(UserError, match="meshio was ended by SIGABRT"):
        read_mesh(path)
    program.write_text("import sys\nprint('words', file=sys.stderr)\nsys.exit(1)\n")
    with pytest.raises(UserError, match="cannot be read: meshio: words"):
        read_mesh(path)
    if sys.platform.startswith("linux"):  # others keep to no limit of memory
        program.write_text(f"import runpy\nrunpy.run_path({real!r})['_limit'](300 << 20)\nbytearray(400 << 20)\n")
        with pytest.raises(UserError, match="cannot be read: meshio: MemoryError"):
            read_mesh(path)


def test_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"meshio", "pyvista"}
    monkeypatch.setattr(mesh_format, "find_spec", lambda name: None if name in missing else object())
    for name, library, extra in (("a.vtu", "meshio", "mesh"), ("a.vtp", "pyvista", "vtk"), ("a.msh", "meshio", "mesh")):
        (tmp_path / name).write_text("<VTKFile/>")
        with pytest.raises(UserError, match=rf"needs {library}, .*: pip install 'ikno\[{extra}\]'"):
            read_mesh(tmp_path / name)
    missing.remove("meshio")
    (tmp_path / "a.vtk").write_text("# vtk DataFile Version 3.0\nx\nASCII\nDATASET POLYDATA\nPOINTS 1 float\n0 0 0\n")
    with pytest.raises(UserError, match=r"cannot keep the data set POLYDATA; .*pip install 'ikno\[vtk\]'"):
        read_mesh(tmp_path / "a.vtk")


def test_a_mesh_that_changes_does_no_harm(tmp_path: Path) -> None:
    """The copy is of what was read; only if another library must read the file again it has to be the same."""
    surface().write(tmp_path / "a.vtu")
    with closing(opened(tmp_path / "a.vtu", ".vtu")) as mesh:
        (tmp_path / "a.vtu").write_text("something else")
        mesh.write(tmp_path / "b.vtu", NEW)
    np.testing.assert_array_equal(read_mesh(tmp_path / "b.vtu").points, POINTS)
    surface().write(tmp_path / "a.vtu")
    with closing(opened(tmp_path / "a.vtu", ".vtu")) as mesh:
        assert isinstance(mesh, mesh_format.MeshFile)
        meshio.Mesh(POINTS + 1, [("triangle", TRIANGLES)]).write(tmp_path / "a.vtu")
        mesh._child._process.kill()  # so that pyvista must do it
        with pytest.raises(UserError, match=r"c\.vtu: cannot be written: .*a\.vtu changed while it was used"):
            mesh.write(tmp_path / "c.vtu", NEW)
    assert not (tmp_path / "c.vtu").exists()
    (tmp_path / "a.csv").write_text("x,y\n0,1\n")
    with pytest.raises(UserError, match=r"a \.vtu file cannot be made from it; name the result \.csv, \.npz"):
        read_mesh(tmp_path / "a.csv", ".vtu")


def test_axes_and_inputs() -> None:
    points = np.concatenate([POINTS[:, :2], np.full((7, 1), 0.3)], 1)
    mesh = Mesh(Path("a.vtu"), points, {"f": np.arange(7), "v": POINTS, "bad": np.full(7, np.nan)})
    np.testing.assert_array_equal(mesh.plane(2), POINTS[:, :2])
    card = Card(name="c", format="csv", variables=("u",), conditions=("f", "Mach"))
    x, inputs = mesh_inputs(mesh, card, {"Mach": 0.5})
    assert x.dtype == inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs, np.stack([np.arange(7), np.full(7, 0.5)], 1))
    np.testing.assert_array_equal(mesh_inputs(mesh, card, {"Mach": 0.5, "f": 2.0})[1][:, 0], 2)  # goes before the array
    with pytest.raises(UserError, match=r"no point array 'Mach' \(found 'f', 'v', 'bad'\); add it, or .*: Mach=0\.5$"):
        mesh_inputs(mesh, card, {})
    with pytest.raises(UserError, match="no such input; did you mean 'Mach'"):
        mesh_inputs(mesh, card, {"mach": 0.5})
    moving = Card(name="c", variables=("v", "bad"), times=(0.0, 1.0), snapshots=3)
    with pytest.raises(UserError, match="v has 3 components at each point, expected 1"):
        mesh_inputs(mesh, moving, {})
    with pytest.raises(UserError, match="bad is NaN or infinite at 7 points, the first is number 0"):
        mesh_inputs(mesh, moving, {"v": 1.0})
    deep = Mesh(Path("a.vtu"), POINTS, {})
    with pytest.raises(UserError, match=r"3 coordinates that vary, but the model has 2 axes; it takes .* constant z"):
        deep.plane(2)
    with pytest.raises(UserError, match="2 coordinates, but the model has 3 axes; add a column z"):
        Mesh(Path("a.csv"), POINTS[:, :2], {}).plane(3)


CUBE = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
SOLIDS: dict[str, Any] = {
    # corners and cells, and the area of the surface
    "hexahedron": ([[x, y, z + k] for k in (0, 1, 2) for x, y, z in CUBE], [[*range(8)], [*range(4, 12)]], 10.0),
    "tetra": ([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 1, 2, 3]], 1.5 + 3**0.5 / 2),
    "wedge": ([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]], [[*range(6)]], 3 + 2**0.5),
    "pyramid": ([*CUBE, [0, 0, 1]], [[*range(5)]], 2 + 2**0.5),
    "quad": ([*CUBE, [2, 0, 0], [2, 1, 0]], [[0, 1, 2, 3], [1, 4, 5, 2]], 2.0),
    "triangle": (CUBE, [[0, 1, 2], [0, 2, 3]], 1.0),
}


@pytest.mark.parametrize("library", ["meshio", "pyvista"])
@pytest.mark.parametrize("kind", SOLIDS)
def test_the_surface_of_cells(tmp_path: Path, kind: str, library: str) -> None:
    """Its area, and that of two cells the face between them is not part of it."""
    points, cells, area = SOLIDS[kind]
    meshio.Mesh(np.array(points, float), [(kind, np.array(cells))]).write(tmp_path / "solid.vtu")
    mesh_files.read(library, tmp_path / "solid.vtu", tmp_path)
    with np.load(tmp_path / "read.npz") as made:
        a, b, c = made["points"][made["triangles"]].swapaxes(0, 1)
    assert np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2 == pytest.approx(area)
