"""Training step (forward + backward) of the paper-size 2-D model with the cell-local against the dense contraction.

IKNO-TP with width 256, 12 layers, 32 x 32 latent grid and three branches on 9,216 points, one cloud that all samples
share (the dense form then makes its matrix once per batch) or one per sample; as published, or with normalized branches
(then three branches instead of their sum go to the points). Both models run in turns with the same weights; the located
cloud is kept between steps. GFLOP counts matrix products and
attention only, so the fraction of the matrix-product peak charges everything else to the model.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from ikno import cost
from ikno.linalg import Cloud
from ikno.models import IKNO, build

POINTS, GRID = 9216, 32


def prepare(contraction: str, batch: int, clouds: int, normalize: bool):
    """Return one training step as a call that gives the model's output."""
    settings = {"grid_size": GRID, "contraction": contraction, "normalize_branches": normalize}
    model = build("ikno-tp", in_channels=1, out_channels=1, dim=2, **settings, seed=0)
    assert isinstance(model, IKNO)
    draw = torch.Generator().manual_seed(0)
    cloud = model.locate(2 * torch.rand(clouds, POINTS, 2, generator=draw) - 1)
    features = torch.randn(batch, POINTS, 1, generator=draw)
    target = torch.randn(batch, POINTS, 1, generator=draw)
    return partial(_step, model, features, cloud, target)


def _step(model: nn.Module, features: Tensor, cloud: Cloud, target: Tensor) -> Tensor:
    model.zero_grad()
    values = model(features, cloud)
    (values - target).square().mean().backward()
    return values.detach()


def measured(normalize: bool, batch: int, clouds: int, repeats: int, peak: float) -> list[dict[str, str | int | float]]:
    """Return one row per form of the contraction; ratios are to the dense form."""
    calls = {form: prepare(form, batch, clouds, normalize) for form in ("dense", "local")}
    seconds = cost.interleaved(calls, repeats)
    reference = calls["dense"]()
    rows: list[dict[str, str | int | float]] = []
    for form, call in calls.items():
        gigaflop = measure.operations(call)
        rows.append(
            {
                "model": "normalized" if normalize else "as published",
                "batch": batch,
                "clouds": clouds,
                "contraction": form,
                "wall s": seconds[form].wall,
                "ratio": seconds[form].wall / seconds["dense"].wall,
                "CPU s": seconds[form].cpu,
                "CPU ratio": seconds[form].cpu / seconds["dense"].cpu,
                "peak MB": cost.peak_memory(prepare, form, batch, clouds, normalize),
                "GFLOP": gigaflop,
                "GFLOP/s": gigaflop / seconds[form].wall,
                "of peak": gigaflop / seconds[form].wall / peak,
                "difference of outputs": measure.relative_error([call()], [reference]),
            }
        )
    return rows


def print_profile(batch: int) -> None:
    """Print the operators in which a step with the local contraction spends its time."""
    step = prepare("local", batch, 1, False)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=60))


def main() -> None:
    parser = measure.arguments(__doc__, repeats=3, threads=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="batch sizes (default 1 4)")
    parser.add_argument("--profile", action="store_true", help="print the 15 costliest operators instead of the table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.profile:
        for batch in args.batch:
            print_profile(batch)
        return
    peak = measure.product_peak()
    cases = [(n, batch, clouds) for n in (False, True) for batch in args.batch for clouds in dict.fromkeys((1, batch))]
    rows = [row for case in cases for row in measured(*case, args.repeats, peak)]
    title = f"Training step, IKNO-TP, width 256, 12 layers, {GRID}x{GRID}, {POINTS:,} points"
    measure.report(title, rows, args.json, threads=torch.get_num_threads(), product_peak_GFLOPs=peak)


if __name__ == "__main__":
    main()
