"""Several processes and machines: everything with a rank. Started by ``torchrun``; without it there is one process."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ikno.device import find_device
from ikno.errors import UserError


@dataclass(frozen=True)
class Group:
    """The processes that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with gradients averaged over all processes."""
        if self.size == 1:
            return module
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(module, device_ids=devices, broadcast_buffers=False)

    def without_sync(self, module: nn.Module, last: bool) -> AbstractContextManager:
        """Return a context in which gradients are not yet exchanged, except for the last part of a batch."""
        return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Tell whether the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.total(torch.tensor([float(flag)], device=self.device)) > 0)

    def wait(self) -> None:
        """Return when all processes are here."""
        if self.size > 1:
            dist.barrier()

    def mine(self, items: list[int]) -> list[int]:
        """Return this process's part of a batch."""
        return items[self.rank :: self.size]


@contextmanager
def group(device: str) -> Iterator[Group]:
    """Yield the group that ``torchrun`` describes in the environment, or a group of one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size > 1 and chosen.type == "cuda" and ":" in device:
        raise UserError(f"device: {device} would be used by all {size} processes; write device=cuda")
    if size == 1:
        yield Group(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Group(rank, size, chosen)
    finally:
        dist.destroy_process_group()
