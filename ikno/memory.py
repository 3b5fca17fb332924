"""Memory that is used again: large blocks stay with the process while it computes, instead of coming anew each time."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of mallopt (malloc.h of the GNU C library), and what they are by default after some large blocks: the
# library raises both thresholds up to these.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 128 << 10, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20, _MMAP_MAX: 0}


@contextmanager
def reused_memory() -> Iterator[None]:
    """Let the process keep what it frees, and give it back at the end.

    By default the C library asks the kernel for each block above 32 MB, returns it at once, and gives back free memory
    in between; every page is then cleared again at its first use. A training step allocates the same blocks over and
    over: this takes 4 to 48 % of its time on a processor (``benchmarks.memory``). The price is a somewhat higher peak.
    Elsewhere than with the GNU C library nothing is changed.
    """
    if platform.libc_ver()[0] != "glibc":
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
