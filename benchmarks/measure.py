"""What the benchmarks share beside ``ikno.cost``: the matrix-product peak, operation counts, tables."""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ikno.cost import Call

Row = Mapping[str, str | int | float]

# Fused attention has operators of its own on the CPU, which the counter does not know by itself.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, **__: (
        sdpa_backward_flop_count(grad, q, k, v)
    ),
}


def arguments(description: str | None, repeats: int, threads: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"timed rounds (default {repeats})")
    parser.add_argument("--threads", type=int, default=threads, help=f"threads of torch (default {threads})")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    return parser


def product_peak() -> float:
    """Return the GFLOP/s of the best of many float32 matrix products with the current number of threads."""
    best = 0.0
    for size, repeats in ((1024, 40), (2048, 8)):
        a, b, out = (torch.ones(size, size) for _ in range(3))
        for _ in range(repeats):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return best


def operations(call: Call) -> float:
    """Return the GFLOP of all matrix products and attention in a call, backward pass included; nothing else counts."""
    with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
        call()
    return counter.get_total_flops() / 1e9


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest |found - exact| / |exact| over pairs of tensors, in the Euclidean norm."""
    pairs = zip(found, exact, strict=True)
    return max(float((f.double() - e.double()).norm() / e.double().norm()) for f, e in pairs)


def report(title: str, rows: Sequence[Row], as_json: bool, **machine: float) -> None:
    """Print the rows as a table, or as JSON with the same numbers unrounded; ``machine`` is what holds for all rows."""
    if as_json:
        print(json.dumps({"title": title, "machine": machine, "rows": [dict(r) for r in rows]}, indent=2))
        return
    facts = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in machine.items())
    table = Table(title=f"{title}\n{facts}", title_justify="left")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right", overflow="fold")
    for row in rows:
        table.add_row(*(text(value) for value in row.values()))
    console = Console()
    Console(width=None if console.is_terminal else max(console.width, 160)).print(table)


def text(value: str | int | float) -> str:
    """Return a number with three digits, words as they are."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
