import subprocess
import sys

import pytest

SCRIPT = """
import torch
from ikno.models import build

g = torch.Generator().manual_seed(0)
points, features = 2 * torch.rand(1, 300, 2, generator=g) - 1, torch.randn(2, 300, 1, generator=g)
found = []
for compiled in (False, True):
    small = {"d_model": 16, "num_heads": 2, "num_layers": 1, "grid_size": 6}
    model = build(NAME, in_channels=1, out_channels=1, dim=2, seed=0, **small)
    call = torch.compile(model, backend="aot_eager") if compiled else model
    values = call(features, points)
    values.square().mean().backward()
    found.append([values.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
assert len(found[0]) > 20
for a, b in zip(*found, strict=True):
    torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ikno-tp", "ikno-vanilla"])
def test_a_compiled_model_gives_the_same(name):
    """torch.compile may cut the graph at the custom functions, but neither values nor gradients change.

    In a process of its own: the shape checks of the tests cannot be compiled.
    """
    command = [sys.executable, "-c", SCRIPT.replace("NAME", repr(name))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "same", result.stderr
