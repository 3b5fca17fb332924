"""Settings of the whole suite."""

from typing import Any

import torch

from ikno.config import CompleteConfig

# The tensors of the tests are small: a second thread costs more than it brings, and one gives the same bits anywhere.
torch.set_num_threads(1)


def complete_config(name: str, model: dict[str, Any], **data: Any) -> CompleteConfig:
    """Return the config of a run that was never trained."""
    settings = {"name": name, "split": (8, 1, 1), "sampling": "first", **data}
    return CompleteConfig.model_validate(
        {"data": settings, "model": model, "surrogate": {"mode": "direct"}, "train": {"epochs": 1}}
    )
