"""Imports go downwards only, and special libraries stay in their own file (docs/design.md)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ikno"

# A part may import parts of lower layers only; parts of one layer never import each other, but for the exceptions.
LAYERS = [
    {"errors"},
    {"linalg", "metrics", "atomic", "memory"},
    {"config", "device", "cost"},
    {"registry"},
    {"models", "data"},
    {"surrogate"},
    {"runs"},
    {"training", "evaluation"},
    {"comparison"},
    {"paper", "plots"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# Where a library may be imported: everywhere else it is out of place.
ONLY_IN = {
    "h5py": "data/formats/hdf5.py",
    "h5netcdf": "data/formats/hdf5.py",
    "matplotlib": "plots/canvas.py",
    "meshio": "data/mesh_files.py",
    "pyvista": ("data/mesh_files.py", "plots/surfaces.py"),
}


def part_of(module: str) -> str:
    """Return the top-level part of a dotted module name below ikno."""
    return module.split(".")[1] if "." in module else "ikno"


def imports(path: Path) -> list[str]:
    """Return the absolute names of all modules a file imports, at any depth of nesting."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names += [f"ikno.{a.name}" for a in node.names] if node.module == "ikno" else [node.module]
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    if relative.name in ("__init__.py", "__main__.py") and len(relative.parts) == 1:
        return
    own = relative.parts[0].removesuffix(".py")
    assert own in RANK, f"{relative} has no place in the layers"
    for name in imports(path):
        top = name.split(".")[0]
        if top in ONLY_IN:
            assert str(relative).startswith(ONLY_IN[top]), f"{relative} imports {name}"
        if name.startswith("torch.distributed"):
            assert str(relative) == "training/distributed.py"
        if top != "ikno" or name == "ikno.__version__":
            continue
        other = part_of(name)
        assert other == own or RANK[other] < RANK[own], f"{relative} imports {name}, which is not below it"


def test_no_model_file_imports_another_model() -> None:
    for path in (PACKAGE / "models").glob("*.py"):
        if path.name in ("__init__.py", "ikno_variants.py"):
            continue
        allowed = {
            f"ikno.models.{name}"
            for name in (
                "layers",
                "kernels",
                "processors",
                "propagation",
                "stretching",
                "neighbors",
                "fourier",
                "system",
                "variants",
            )
        }
        others = {n for n in imports(path) if n.startswith("ikno.models.")} - allowed
        assert not others, f"{path.name} imports {others}"


def test_tree_stays_small() -> None:
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        assert len(relative.parts) <= 3
        assert len(path.read_text().splitlines()) <= 400, f"{relative} is too long"
        assert relative.stem not in {"utils", "helpers", "misc", "common", "base", "core"}
        text = path.read_text()
        for word in ("pickle.load", "weights_only=False", "except Exception", "from __future__ import annotations"):
            assert word not in text, f"{relative} has {word}"
