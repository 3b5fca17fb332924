"""Devices by name."""

import torch

from ikno.errors import UserError


def find_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name: cpu, cuda, cuda:1, or auto for the best there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device: {name!r} is no device; use cpu, cuda, cuda:0 or auto") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("device: no CUDA device is available here; use device=cpu")
        index = local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise UserError(f"device: cuda:{index} is not there, this machine has {torch.cuda.device_count()} of them")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device: {device.type} has no double precision, which the kernels need; use cpu or cuda")
    return device
