"""Models made by the version before the contraction was rewritten give the values that they gave then.

tests/fixtures/models/make.py made the files.
"""

from pathlib import Path
from runpy import run_path

import pytest
import torch
from safetensors.torch import load_file

from ikno.models import build
from ikno.runs import former_names

FOLDER = Path(__file__).parents[1] / "fixtures" / "models"
MADE = run_path(str(FOLDER / "make.py"))


@pytest.mark.parametrize("case", list(MADE["CASES"]))
def test_same_values_and_gradients_from_the_same_weights(case: str) -> None:
    name, dim, settings = MADE["CASES"][case]
    stored = load_file(FOLDER / f"{case}.safetensors")
    model = build(name, in_channels=2, out_channels=3, dim=dim, **MADE["SMALL"], **settings)
    model.load_state_dict({k: stored[former_names(f"weights.{k}")[-1]] for k in model.state_dict()})
    values = model(stored["features"], stored["points"], stored["queries"])
    assert (values - stored["values"]).abs().max() <= 1e-5 * stored["values"].abs().max()
    values.square().sum().backward()
    found, expected = (
        torch.cat([g.flatten() for g in gradients])
        for gradients in zip(
            *((p.grad, stored[former_names(f"gradients.{k}")[-1]]) for k, p in model.named_parameters()), strict=True
        )
    )
    assert float((found - expected).norm() / expected.norm()) < 1e-4
