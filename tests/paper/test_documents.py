"""The tables in docs/results are what the stored results give: no number in them is written by hand."""

import json
from pathlib import Path

import pytest

from ikno.config import PRESETS
from ikno.paper import NAMES, fill, latex, load_preset, load_table, markdown

ROOT = Path(__file__).parents[2]
OWN = {name: str(Path("examples") / "tables" / f"{name}.toml") for name in ("longer", "real")}
PAGES = [p for preset in PRESETS for p in sorted((ROOT / "docs" / "results" / preset).glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_tables_follow_from_stored_results(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    preset, table = load_preset(path.parent.name), load_table(OWN.get(path.stem, path.stem))
    filled = fill(table, preset, path.parent)
    pictures = [p.name for p in table.pictures(path.parent) if p.exists()]
    assert markdown(filled, preset, pictures) == path.read_text()
    assert latex(filled) == path.with_suffix(".tex").read_text()
    assert json.loads(json.dumps(filled)) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("folder", sorted({p.parent for p in PAGES}), ids=lambda p: p.name)
def test_every_stored_result_is_in_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = [*NAMES, *(OWN[n] for n in OWN if (folder / f"{n}.md").exists())]
    preset = load_preset(folder.name)
    used = sum(fill(load_table(name), preset, folder)["trainings"] for name in names)
    assert used >= len([p for p in (folder / "cells").glob("*.json") if "seed" in p.name])
