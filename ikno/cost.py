"""The cost of a call: times measured in turns, and peak memory."""

import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from ikno.memory import reused_memory

Call = Callable[[], object]


@dataclass(frozen=True)
class Step:
    """One step of training as a call, and the number of parameters of its model."""

    run: Call
    parameters: int

    def __call__(self) -> None:
        self.run()


@dataclass(frozen=True)
class Seconds:
    """Median times of a call: wall-clock time, and processor time summed over threads."""

    wall: float
    cpu: float


def interleaved(calls: Mapping[str, Call], repeats: int, warm_up: bool = True) -> dict[str, Seconds]:
    """Return the times of calls made in turns, A, B, A, B, ..., so that other load on the machine slows all alike.

    A round of warm-up comes first, unless ``warm_up`` is false. Freed memory is reused as in training.
    """
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    with reused_memory():
        for turn in range(-1 if warm_up else 0, repeats):
            for name, call in calls.items():
                wall_start, cpu_start = time.perf_counter(), time.process_time()
                call()
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
                wall_stop, cpu_stop = time.perf_counter(), time.process_time()
                if turn >= 0:
                    wall[name].append(wall_stop - wall_start)
                    cpu[name].append(cpu_stop - cpu_start)
    return {name: Seconds(statistics.median(wall[name]), statistics.median(cpu[name])) for name in calls}


def resident(field: str) -> float:
    """Return a memory field of this process in MB: VmRSS (resident now) or VmHWM (the peak so far); NaN if not Linux.

    ``getrusage`` is no substitute: there a child process inherits the peak of its parent.
    """
    status = Path("/proc/self/status")
    found = re.search(rf"{field}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else math.nan


def peak_memory(prepare: Callable[..., Call], *settings: object) -> float:
    """Return the peak memory of a call in MB beyond that of its inputs, measured in a new process.

    It is the memory of the GPU if the call uses one, else that of the process (Linux). NaN if it is unknown or the
    process does not survive.

    Args:
        prepare: Makes the inputs and returns the call; a function of a module.
        settings: Its arguments, which can be pickled.
    """
    threads, context = torch.get_num_threads(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,)) as pool:
        try:
            return pool.submit(_peak, prepare, settings).result()
        except (RuntimeError, MemoryError):
            return math.nan


def _peak(prepare: Callable[..., Call], settings: tuple[object, ...]) -> float:
    call = prepare(*settings)
    if torch.cuda.is_initialized():
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - base) / 1e6
    warm = torch.ones(64, 64, requires_grad=True)
    (warm @ warm).sum().backward()  # buffers and threads that any first product and backward pass make
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")  # sets VmHWM to VmRSS
    base = resident("VmRSS")
    with reused_memory():
        call()
    return resident("VmHWM") - base
