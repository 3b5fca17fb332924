"""Optimizers and the learning rate over time."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ikno.config import TrainSettings
from ikno.errors import UserError
from ikno.registry import Registry

WIDE = 16

# Functions (model, settings) -> optimizers, which between them have each parameter once.
OPTIMIZERS: Registry[Callable[[nn.Module, TrainSettings], list[torch.optim.Optimizer]]] = Registry(
    "optimizer", "train.optimizer"
)


class Muon(torch.optim.Muon):
    """Muon with its Newton-Schulz iteration in the precision of the weights, for all matrices of one shape at once.

    That of torch iterates in bfloat16 and matrix by matrix, which on CPUs takes half as long as the model itself.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the weights; the rule is that of torch's Muon with the rate matched to AdamW."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(p.shape, []).append(p)
                    self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            for shape, parameters in alike.items():
                gradients = [p.grad for p in parameters if p.grad is not None]
                averages = [self.state[p]["momentum_buffer"] for p in parameters]
                torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
                updates = torch.stack(torch._foreach_lerp(gradients, averages, group["momentum"]))  # pyright: ignore[reportPrivateImportUsage]
                updates = orthogonalized(updates, group["ns_coefficients"], group["ns_steps"], group["eps"])
                rate = group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])  # pyright: ignore[reportPrivateImportUsage]
                torch._foreach_add_(parameters, updates.unbind(), alpha=-rate)  # pyright: ignore[reportPrivateImportUsage]


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"], coefficients: tuple[float, float, float], steps: int, eps: float
) -> Float[Tensor, "count rows columns"]:
    """Return U S V^T -> about U V^T: steps of X <- a X + (b A + c A^2) X with A = X X^T, from X of norm 1."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


@OPTIMIZERS.register("adamw")
def adamw(model: nn.Module, settings: TrainSettings, others: Sequence[Tensor] = ()) -> list[torch.optim.Optimizer]:
    """Return AdamW, as in the paper, for all parameters but the others.

    Parts of a model may ask for another weight decay of some of their parameters (``own_decay``).
    """
    excluded = {id(p) for p in others}
    own = {id(p): d for m in model.modules() if hasattr(m, "own_decay") for p, d in m.own_decay()}  # pyright: ignore[reportCallIssue]
    groups: dict[float, list[Tensor]] = {}
    for p in model.parameters():
        if p.requires_grad and id(p) not in excluded:
            groups.setdefault(own.get(id(p), settings.weight_decay), []).append(p)
    each = [{"params": g, "weight_decay": d} for d, g in groups.items()]
    return [torch.optim.AdamW(each, lr=settings.learning_rate, fused=True)] if each else []


@OPTIMIZERS.register("muon")
def muon(model: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the model, and AdamW for the rest."""
    matrices = inner_matrices(model)
    if not matrices:
        raise UserError("train.optimizer: muon is for matrices inside a model, this one has none; use adamw")
    first = Muon(
        matrices, lr=settings.learning_rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [first, *adamw(model, settings, matrices)]


OPTIMIZERS.seal()


def inner_matrices(model: nn.Module) -> list[Tensor]:
    """Return the matrices for Muon: those of all wide linear maps, and of a processor of any width.

    Maps from or to a few channels are left out: their rows or columns are not alike.
    """
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and (min(module.weight.shape) >= WIDE or ".processor." in f".{name}")
    ]


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine to a hundredth of the peak."""
    warm = math.ceil(settings.warmup * steps)
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    done = (step - warm) / max(steps - warm, 1)
    return settings.learning_rate * (0.505 + 0.495 * math.cos(math.pi * done))


def state_of(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return all tensors of the optimizers by name."""
    return {
        f"optimizer.{i}.{j}.{name}": value
        for i, optimizer in enumerate(optimizers)
        for j, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def restore(optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put back what ``state_of`` returned."""
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, which, *place = key.split(".")
            if kind == "optimizer" and which == str(i):
                state.setdefault(int(place[0]), {})[place[1]] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
