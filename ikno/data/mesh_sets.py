"""A folder of solved meshes becomes a training set: one group per mesh in an HDF5 file, and a card beside it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from ikno.atomic import whole_file
from ikno.data.catalog import Card, read_card
from ikno.data.files import AXES, TRIANGLES
from ikno.data.formats import open_mesh, suffixes
from ikno.data.formats.hdf5 import Group, write_groups
from ikno.errors import UserError


def import_meshes(
    folder: Path,
    inputs: Sequence[str],
    targets: Sequence[str],
    out: Path,
    force: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Card:
    """Write the meshes of a folder, in the order of their names, to ``out`` (.h5), and a card (.toml) beside it.

    ``inputs`` and ``targets`` are point arrays that all meshes have. The set has two axes if the third coordinate of
    the first mesh is constant, else three; the meshes may differ in their number of points. In space the triangles of
    their surfaces are kept for pictures.
    """
    if out.suffix not in (".h5", ".hdf5"):
        raise UserError(f"{out}: the set is an .h5 file; name it so")
    names = [*inputs, *targets]
    if not targets:
        raise UserError("--targets: what is to be predicted? name point arrays of the meshes")
    odd = [n for n in names if names.count(n) > 1 or n in (*AXES, TRIANGLES) or "/" in n or not n.strip(". ")]
    if odd:
        raise UserError(f"{odd[0]!r}: not a name that the set can hold, or there twice; rename the point array")
    card = out.with_suffix(".toml")
    for path in (out, card):
        if path.exists() and not force:
            raise UserError(f"{path}: exists already; choose another place with --out, or --force to replace it")
    if not folder.is_dir():
        raise UserError(f"{folder}: {'is a file, expected a folder' if folder.exists() else 'no such folder'}")
    able = suffixes("points")
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in able and p.is_file())
    if not files:
        raise UserError(f"{folder}: no meshes here; expected files with the suffix {', '.join(able)}")
    with closing(open_mesh(files[0])) as first:
        x = first.points
    dim = 3 if x.shape[1] == 3 and np.ptp(x[:, 2]) > 1e-6 * np.ptp(x, 0).max() else 2

    def samples() -> Iterator[Group]:
        for k, path in enumerate(files):
            with closing(open_mesh(path) if k else first) as mesh:
                columns = dict(zip(AXES[:dim], mesh.plane(dim).T, strict=True))
                columns |= {name: mesh.column(name) for name in names}
                drawn = {TRIANGLES: mesh.triangles} if dim == 3 and len(mesh.triangles) else {}
                yield {**{name: column.astype(np.float32) for name, column in columns.items()}, **drawn}, {}
            progress(k + 1, len(files))

    write_groups(out, samples(), {})
    entries = {"name": out.stem, "file": out.name, "format": "groups", "dim": dim}
    entries |= {"variables": list(targets), "conditions": list(inputs)}
    lines = [f"# {len(files)} meshes, in the order of their names: {files[0].name} to {files[-1].name}"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    with whole_file(card) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_card(card)
