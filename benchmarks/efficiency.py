"""The page docs/results/efficiency.md: what a training step costs all systems at their published sizes.

The paper's table (the shape of Wave-C-Sines), and all models on 9,216 points, also with twice as many.
"""

from pathlib import Path

import torch

from benchmarks import measure
from ikno.comparison import Shape, costs_of, markdown_table, measure_efficiency
from ikno.models import MODELS

EFFICIENT = ("ikno-tp", "gaot", "transolver", "ikno-dense")  # the paper's table
PAIRS = 1024 * 28  # samples of an epoch of Wave-C-Sines


def page() -> str:
    """Return both tables."""
    text = ["# Efficiency", "", "Made by `python -m benchmarks.efficiency`.", ""]
    for models, shape in ((EFFICIENT, Shape()), (list(MODELS), Shape(points=9216))):
        rows = measure_efficiency(models, shape, double=len(models) > len(EFFICIENT), say=print)
        threads = torch.get_num_threads()
        title = f"{shape.points:,} points in a disc, batch {shape.batch}, published sizes, {threads} threads."
        text += [title, "", markdown_table(*costs_of(rows, shape.batch, PAIRS)), ""]
    return "\n".join(text)


def main() -> None:
    args = measure.arguments(__doc__, repeats=1, threads=2).parse_args()
    torch.set_num_threads(args.threads)
    (Path(__file__).parents[1] / "docs" / "results" / "efficiency.md").write_text(page())


if __name__ == "__main__":
    main()
