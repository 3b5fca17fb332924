"""Memory that is used again: fewer pages from the kernel, the same numbers, and all given back at the end."""

import multiprocessing
import platform
import resource
from unittest.mock import Mock

import pytest
import torch

from ikno.cost import resident
from ikno.memory import reused_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library has these settings")

SIZE = 12_000_000  # 48 MB: above what the C library keeps by itself


def faults() -> int:
    """Return how many pages a few allocations of the same size take from the kernel, after some others."""
    for _ in range(20):
        torch.ones(SIZE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(SIZE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_blocks_are_used_again_and_given_back() -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:  # where the C library is as it was
        usual = pool.apply(faults)
    with reused_memory():
        kept = faults()
        held = [torch.ones(SIZE) for _ in range(4)]
        during = resident("VmRSS")
        del held
    assert usual > 10_000
    assert kept < usual / 2  # usually none at all, but the heap may still grow once or twice
    assert resident("VmRSS") < during - 50


def test_all_is_given_back_after_an_error() -> None:
    during = 0.0

    def fail() -> None:
        nonlocal during
        held = [torch.ones(SIZE) for _ in range(4)]
        during = resident("VmRSS")
        del held
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), reused_memory():
        fail()
    assert resident("VmRSS") < during - 50


@pytest.mark.parametrize(("needed", "kept"), [(0.4e9, True), (0.6e9, False), (None, True)])
def test_nothing_is_kept_where_memory_is_scarce(monkeypatch: pytest.MonkeyPatch, needed: float, kept: bool) -> None:
    called = []
    monkeypatch.setattr("ikno.memory.available_memory", lambda device: 1e9)
    monkeypatch.setattr("ikno.memory.ctypes.CDLL", lambda name: called.append(name) or Mock())
    with reused_memory(needed):
        pass
    assert bool(called) is kept


def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ikno.memory.platform.libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr("ikno.memory.ctypes.CDLL", lambda name: pytest.fail("the C library was called"))
    with reused_memory():
        pass
