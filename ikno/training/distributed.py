"""Training on several processes and machines, started by ``torchrun``; without it there is one process."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ikno.device import find_device
from ikno.errors import UserError
from ikno.models import IKNO


@dataclass(frozen=True)
class PointTeam:
    """Processes that hold one cloud together (``ikno.linalg.Team``)."""

    processes: dist.ProcessGroup

    def all_reduce_sum(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return y = the sum of x over the processes, in each of them; differentiable: dx is the sum of dy over them.

        Every process p differentiates its own copy L_p of the loss, and gradients are those of sum_p L_p. x_q enters
        the y_p of every p, hence the sum. What each process computes again from y_p (the processor, its own points)
        receives only what came through its own points and its own L_p; so no gradient is counted twice once those of
        the parameters are added up over the processes, and as the L_p are equal that is the team's size times the
        gradient of the loss, of which the average over all processes takes care.
        """
        y = _reduced(x.detach(), self.processes, dist.ReduceOp.SUM)
        if x.requires_grad and torch.is_grad_enabled():
            y = y + (x - x.detach())  # zero, with the derivative of x
            y.register_hook(lambda dy: _reduced(dy, self.processes, dist.ReduceOp.SUM))
        return y

    def all_reduce_max(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the maximum over the processes, in each of them."""
        return _reduced(x.detach(), self.processes, dist.ReduceOp.MAX)


def _reduced(
    x: Float[Tensor, "*shape"], processes: dist.ProcessGroup, operation: dist.ReduceOp.RedOpType
) -> Float[Tensor, "*shape"]:
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, operation, processes)
    return y


@dataclass(frozen=True)
class Group:
    """The processes that train together, in teams of ``parts`` processes (1: each process has whole clouds).

    The samples of a batch are divided among the teams, the points of each sample among the processes of a team.
    """

    rank: int
    size: int
    device: torch.device
    parts: int = 1
    team: PointTeam | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def teams(self) -> int:
        """The number of teams."""
        return self.size // self.parts

    @property
    def number(self) -> int:
        """The index of this process's team."""
        return self.rank // self.parts

    @property
    def part(self) -> int:
        """The index of the part of each cloud that this process holds."""
        return self.rank % self.parts

    def divide_points(self, model: nn.Module, name: str) -> None:
        """Give the model its team if it sees only a part of each cloud."""
        if self.team is None:
            return
        if not isinstance(model, IKNO):
            raise UserError(f"train.point_processes: {name} needs whole clouds; set it to 1, or use an ikno model")
        model.team = self.team

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with gradients averaged over all processes."""
        if self.size == 1:
            return module
        devices = None if self.device.type == "cpu" else [self.device]
        # Buffers are constants. torch 2.13 has a new name for the option and warns of the old one.
        names = signature(DistributedDataParallel.__init__).parameters
        new = "forward_sync_buffers" in names
        option: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
        return DistributedDataParallel(module, device_ids=devices, **option)

    def without_sync(self, module: nn.Module, last: bool) -> AbstractContextManager:
        """Return a context in which gradients are not yet exchanged, except for the last part of a batch."""
        return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.total(torch.tensor([float(flag)], device=self.device)) > 0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def mine(self, items: list[int]) -> list[int]:
        """Return this team's part of a batch."""
        return items[self.number :: self.teams]


@contextmanager
def group(device: str, parts: int = 1) -> Iterator[Group]:
    """Yield the group that ``torchrun`` describes in the environment, in teams of ``parts``, or a group of one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size > 1 and chosen.type == "cuda" and ":" in device:
        raise UserError(f"device: {device} would be used by all {size} processes; write device=cuda")
    if size % parts:
        raise UserError(
            f"train.point_processes: teams of {parts} cannot be made of {size} process{'es' * (size > 1)}; start a "
            f"multiple of {parts}, as in torchrun --nproc-per-node {parts} -m ikno ..., or set it to 1"
        )
    if size == 1:
        yield Group(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        team = None
        if parts > 1:  # every process takes part in making every team
            made = [dist.new_group(list(range(i, i + parts))) for i in range(0, size, parts)][rank // parts]
            assert isinstance(made, dist.ProcessGroup)
            team = PointTeam(made)
        yield Group(rank, size, chosen, parts, team)
        dist.barrier()  # all leave together: one that is still connected when another ends may abort
    finally:
        gc.collect()  # a wrapped model holds the group, whose threads must end before the process does
        dist.destroy_process_group()
