"""IKNO as published and its ablations: one class with the settings that ``ikno.toml`` lists."""

from pathlib import Path

from ikno.config import read_toml
from ikno.models.ikno import IKNO, IKNOSettings
from ikno.models.variants import register

_LISTED = read_toml(Path(__file__).with_name("ikno.toml"))
for _name, _about in _LISTED["models"].items():
    _wide = _about["defaults"].get("encoder") == "cross_attention"  # needs all channels
    _sizes = {p: {k: v for k, v in s.items() if not _wide or k != "point_width"} for p, s in _LISTED["ikno"].items()}
    register(_name, settings=IKNOSettings, summary=_about["summary"], defaults=_about["defaults"], sizes=_sizes)(IKNO)
