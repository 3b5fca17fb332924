"""The tables as data: complete, consistent with models and sets, and readable by name and pattern."""

from pathlib import Path
from typing import Any

import pytest

from ikno.config import PRESETS, parse
from ikno.data.catalog import CATALOG
from ikno.data.generators import GENERATORS
from ikno.errors import UserError
from ikno.models import MODELS, complete_model
from ikno.paper import NAMES, Table, entries, load_preset, load_table
from ikno.paper.presets import Preset, Wanted, find_source
from ikno.paper.tables import FOLDER
from ikno.training.scales import rescaled

TABLES = [load_table(name) for name in NAMES]


def wanted(name: str, preset: Preset, settings: dict[str, Any], seed: int = 0, released: Path | None = None) -> Wanted:
    return Wanted(preset, name, *find_source(name, released), settings, seed)


def test_every_file_is_a_table_of_the_list() -> None:
    assert sorted(f.stem for f in FOLDER.glob("*.toml")) == sorted(NAMES)


@pytest.mark.parametrize("table", TABLES, ids=NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_cell_has_a_config(table: Table, preset: str) -> None:
    known = load_preset(preset)
    for entry in entries(table):
        assert entry.settings["model"] in MODELS
        if table.kind == "costs":
            continue
        card = CATALOG[str(entry.set)]
        config = wanted(card.name, known, entry.settings, 3).config("file.nc")
        assert (config.seed, config.preset, config.data.name) == (3, preset, "file.nc")
        model = complete_model(config.model, preset, card.grid, card.dim)  # all settings of the model are known to it
        if config.scales == "auto":
            rescaled(model, lambda largest: largest)  # fails for a model without scales


def test_the_tables_have_the_size_of_the_papers() -> None:
    sizes = {t.name: (len(t.rows), len(t.columns)) for t in TABLES}
    assert sizes == {
        "finite-order": (4, 1),
        "steady": (6, 8),
        "unsteady": (8, 8),
        "aircraft": (3, 4),
        "efficiency": (4, 2),
        "seeds": (4, 1),
        "modes": (2, 3),
        "grids": (5, 5),
        "encoders": (4, 4),
        "predictions": (2, 1),
    }
    for table in TABLES:
        numbers = [entry.published() for entry in entries(table)]
        assert (None in numbers) == (table.name in ("grids", "predictions"))


def test_tables_agree_where_the_paper_repeats_itself() -> None:
    def numbers(table: str) -> dict[tuple[str, str], float | None]:
        return {(e.row.name, e.column.name): e.published() for e in entries(load_table(table))}

    main = {**numbers("steady"), **numbers("unsteady")}
    for (model, name), value in numbers("encoders").items():
        if model.startswith("IKNO"):
            assert main[name, model] == value


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_speak_of_known_sets_and_of_settings_that_generators_have(preset: str) -> None:
    known = load_preset(preset)
    for name, part in known.sets.items():
        assert name in CATALOG
        if name in GENERATORS:
            parse(GENERATORS[name](), part.options, name)
    for name, card in CATALOG.items():
        if card.generated:
            samples = wanted(name, known, {}).samples
            assert samples > 0
            if preset == "paper":
                assert samples == sum(card.split or ())


def test_the_paper_preset_is_as_published() -> None:
    preset, card = load_preset("paper"), CATALOG["ns-gauss"]
    one = wanted("ns-gauss", preset, {"model": "ikno-tp"})
    config = one.config("file.nc")
    model = complete_model(config.model, config.preset, card.grid, card.dim)
    published = {
        "d_model": 256,
        "num_heads": 8,
        "num_layers": 12,
        "ff_mult": 4,
        "dropout": 0.0,
        "nerf_frequencies": 1,
        "grid_size": 32,
        "num_kernels": 3,
        "kernel_alpha": [-1, -1, -1],
        "init_scales_l1": [1, 2, 4],
        "init_scales_l2": [1, 2, 4],
        "normalize_branches": False,
        "point_weights": "uniform",
    }
    assert {k: model[k] for k in published} == published
    assert (config.data.split, config.train.optimizer, config.train.loss) == (None, "adamw", "relative_l2")
    assert one.searched(config)
    fixed = wanted("poisson-c-sines", preset, {"model": "ikno-finite"})
    assert not fixed.searched(fixed.config("file.nc"))  # its kernel is fixed
    other = wanted("ns-gauss", preset, {"model": "gaot"})
    assert not other.searched(other.config("file.nc"))


def test_a_preset_may_have_settings_for_a_model() -> None:
    preset = load_preset("smoke").model_copy(update={"models": {"upt": {"train.learning_rate": 0.25}}})
    rates = [wanted("ns-gauss", preset, {"model": name}).config("f.nc").train.learning_rate for name in ("upt", "gaot")]
    assert rates[0] == 0.25 != rates[1]


def test_patterns_choose_cells_without_case_and_separators() -> None:
    table = load_table("steady")

    def chosen(*patterns: str) -> list[str]:
        return [entry.name for entry in entries(table, patterns)]

    assert chosen("poisson-gauss/ikno_tp") == ["Poisson-Gauss/IKNO-TP"]
    assert chosen("/GAOT")[:2] == ["Poisson-C-Sines/GAOT", "Poisson-Gauss/GAOT"]
    assert len(chosen("naca*")) == 16
    assert len(chosen("naca*/ikno*", "elasticity/gino")) == 5
    assert len(chosen()) == 48
    assert chosen("no such row") == []


def test_keys_tell_apart_what_decides_a_result_and_nothing_else(tmp_path: Path) -> None:
    preset = load_preset("cpu")

    def key(settings: dict[str, Any], seed: int = 0, preset: Preset = preset, released: Path | None = None) -> str:
        return wanted("elasticity", preset, {"model": "ikno-tp", **settings}, seed, released).key

    first = key({})
    assert first == key({"data.name": "elsewhere/b.nc"})
    assert first == key({"device": "cuda"})
    others = [key({"model": "gaot"}), key({}, seed=1), key({"train.epochs": 2}), key({}, preset=load_preset("paper"))]
    (tmp_path / "Elasticity.nc").write_bytes(b"released")
    others.append(key({}, released=tmp_path))
    assert len({first, *others}) == 6


def test_mistakes_in_names_and_tables_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such table.*did you mean 'steady'"):
        load_table("stedy")
    with pytest.raises(UserError, match="no preset 'gpu'"):
        load_preset("gpu")
    own = tmp_path / "own.toml"
    head = 'title = "t"\ncaption = "c"\ncompare = "rows"\n[[columns]]\nname = "a"\n'
    own.write_text(head + '[[rows]]\nname = "r"\npublished = [1.0, 2.0]\n')
    with pytest.raises(UserError, match="row 'r' has 2 numbers for 1 columns"):
        load_table(str(own))
    own.write_text(head + '[[rows]]\nname = "GAOT"\n[[claims]]\ntext = "x"\nbetter = ["GOAT"]\n')
    with pytest.raises(UserError, match="speaks of 'GOAT'; did you mean 'GAOT'"):
        load_table(str(own))


def test_a_set_without_file_or_generator_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = CATALOG["nasa-crm"].model_copy(update={"generated": False})
    monkeypatch.setitem(CATALOG, "nasa-crm", alone)
    with pytest.raises(UserError, match="nasa-crm: it cannot be generated; fetch it from AIAA"):
        find_source("nasa-crm", None)
