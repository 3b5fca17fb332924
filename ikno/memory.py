"""Memory: how much is available, and reuse of large blocks instead of allocating them anew each time."""

import ctypes
import math
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

# Parameters of mallopt (malloc.h of the GNU C library), and their values after some large allocations: the library
# raises both thresholds up to these.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 128 << 10, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20, _MMAP_MAX: 0}


@contextmanager
def reused_memory(needed: float | None = None) -> Iterator[None]:
    """Let the process keep freed memory until the end of the block, unless twice the ``needed`` bytes exceed the rest.

    By default the C library requests each block above 32 MB from the kernel and returns it at once; every page is then
    cleared again at its next use. A training step allocates the same blocks over and over: this takes 4 to 48 % of its
    time on a CPU (``benchmarks.memory``). The price is a higher peak: by 0 to 4 % in small steps, by 60 % where single
    blocks have hundreds of megabytes and leave gaps (440,000 points, width 256). Without the GNU C library nothing is
    changed.
    """
    scarce = needed is not None and 2 * needed > available_memory(torch.device("cpu"))
    if scarce or platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    for name, value in _KEEPING.items():
        library.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in _USUAL.items():
            library.mallopt(name, value)
        library.malloc_trim(0)


def available_memory(device: torch.device, root: Path = Path("/")) -> float:
    """Return the bytes that this process may still take: of a GPU what is free, else of the machine.

    The latter is the minimum of what the kernel reports, what the control group leaves, and what `ulimit -v` leaves;
    infinity if nothing is known. ``root`` contains proc and sys.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    limits = [_number(root / "proc/meminfo", "MemAvailable"), _left_in_groups(root)]
    with suppress(ModuleNotFoundError):  # not on Windows
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            used = _number(root / "proc/self/status", "VmSize")
            limits.append(most - used if math.isfinite(used) else most)
    if not math.isfinite(min(limits)) and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        limits.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return max(float(min(limits)), 0.0)


def _left_in_groups(root: Path) -> float:
    """Return what the control groups of this process and their parents leave; file caches count as free."""
    left = [math.inf]
    members = root / "proc/self/cgroup"
    for line in members.read_text().splitlines() if members.exists() else []:
        _, names, place = line.split(":", 2)
        if names not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / names
        limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if names else ("memory.max", "memory.current")
        folder = top / place.strip("/")
        for group in (folder, *folder.parents):
            if (group / limit).exists() and (group / usage).exists():
                most = (group / limit).read_text().strip()
                used = int((group / usage).read_text())
                cache = _number(group / "memory.stat", "inactive_file", 1)
                left.append(math.inf if most == "max" else int(most) - used + (cache if math.isfinite(cache) else 0))
            if group == top:
                break
    return float(min(left))


def _number(file: Path, name: str, unit: int = 1024) -> float:
    """Return a number of bytes from a file of the kernel, infinity if it is not there."""
    match = re.search(rf"^{name}:?\s+(\d+)", file.read_text(), re.MULTILINE) if file.exists() else None
    return math.inf if match is None else float(match[1]) * unit
