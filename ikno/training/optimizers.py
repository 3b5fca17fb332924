"""Optimizers and the learning rate over time."""

import math

import torch
from torch import Tensor, nn

from ikno.config import TrainSettings
from ikno.errors import UserError


def make_optimizers(model: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Return AdamW as in the paper, or Muon for the matrices of the transformer with AdamW for the rest."""
    rest = [p for p in model.parameters() if p.requires_grad]
    made: list[torch.optim.Optimizer] = []
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "muon":
        matrices = [p for name, p in model.named_parameters() if ".transformer." in f".{name}" and p.ndim == 2]
        if not matrices:
            raise UserError(
                "train.optimizer: muon is for the matrices of a transformer, this model has none; use adamw"
            )
        made.append(torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
        chosen = {id(p) for p in matrices}
        rest = [p for p in rest if id(p) not in chosen]
    if rest:
        made.append(torch.optim.AdamW(rest, lr=rate, weight_decay=decay))
    return made


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine to a hundredth of the peak."""
    warm = math.ceil(settings.warmup * steps)
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    done = (step - warm) / max(steps - warm, 1)
    return settings.learning_rate * (0.505 + 0.495 * math.cos(math.pi * done))


def state_of(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return all tensors of the optimizers by name."""
    found = {}
    for i, optimizer in enumerate(optimizers):
        for j, values in optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{i}.{j}.{name}": value for name, value in values.items() if isinstance(value, Tensor)}
    return found


def restore(optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put back what ``state_of`` returned."""
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, which, *place = key.split(".")
            if kind == "optimizer" and which == str(i):
                state.setdefault(int(place[0]), {})[place[1]] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
