"""Where every setting of a run comes from: `ikno train ... --show`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ikno.config import config_layers, flattened, make_config
from ikno.data.problem import open_problem
from ikno.models import model_layers
from ikno.training.prepare import complete


@dataclass(frozen=True)
class Setting:
    """A setting of a complete config: its dotted name, its value, and what decided it."""

    name: str
    value: Any
    origin: str


def explain(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[list[Setting], list[str]]:
    """Return every setting of the run that a name and overrides lead to, and what was chosen from the data.

    Args:
        name: What to train on, as in ``make_config``.
        overrides: Dotted settings.

    The data is opened, and looked at where a setting asks for it; nothing is trained or written.
    """
    config, notes = make_config(name, overrides), list[str]()
    problem = open_problem(config.data, config.seed)
    card = problem.card
    completed = flattened(complete(config, problem, notes.append).model_dump(mode="json"))
    said: dict[str, tuple[str, Any]] = {}
    for origin, layer in model_layers(config.model, config.preset, card.grid, card.dim, card.steady).items():
        if origin != "given":
            said |= {f"model.{k}": (origin, v) for k, v in layer.items()}
    for origin, layer in config_layers(name, overrides).items():
        said |= {k: (origin, v) for k, v in flattened(layer).items()}
    of_card = {"data": ("split", "points", "stride", "final_snapshot"), "train": ("epochs",)}
    in_card = {f"{part}.{k}": getattr(card, k) for part, names in of_card.items() for k in names}

    def origin_of(key: str, value: Any) -> str:
        if key in said:
            origin, wanted = said[key]
            same = _plain(wanted) == value
            return origin if same else f"data ({origin}: {wanted})"
        if value is not None and _plain(in_card.get(key)) == value:
            return "card"
        return "default" if value == before.get(key) else "data"

    before = flattened(config.model_dump(mode="json"))
    before |= {k: v for k, v in completed.items() if k.startswith("model.")}  # what no layer of a model says
    return [Setting(k, v, origin_of(k, v)) for k, v in completed.items()], notes


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
