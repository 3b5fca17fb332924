"""Times and peak memory of calls whose cost is known."""

import math
import os
import time
from functools import partial

import pytest
import torch

from ikno.cost import Call, interleaved, peak_memory


def allocate(megabytes: int) -> Call:
    return partial(torch.ones, megabytes * 250_000)


def die() -> Call:
    return partial(os._exit, 3)


def test_calls_take_turns() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: (order.append("b"), time.sleep(0.02))}
    found = interleaved(calls, 2)
    assert order == ["a", "b"] * 3  # one round of warm-up
    assert found["b"].wall >= 0.02
    assert found["b"].cpu < 0.02
    assert interleaved({"a": calls["a"]}, 1, warm_up=False)["a"].wall < 0.02


def test_peak_memory_in_a_new_process() -> None:
    assert peak_memory(allocate, 200) == pytest.approx(200, rel=0.05)
    assert math.isnan(peak_memory(die))
