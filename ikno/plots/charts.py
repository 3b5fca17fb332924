"""Pictures of numbers: training, errors, learned kernels."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ikno.errors import UserError
from ikno.linalg import Grid, tensor_product
from ikno.metrics import find_metric
from ikno.models.ikno import IKNO
from ikno.models.kernels import BaseKernel
from ikno.plots.canvas import LINES, charts, check_name, percent, save


def plot_training(log: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Draw the log of a run and return the file: loss, validation error and events above, learning rate below."""
    check_name(out)
    records = [r for r in log if "loss" in r]
    if not records:
        raise UserError(f"{out}: the log holds no record with a loss; train for at least one epoch")
    epochs, steps = (_numbers(r[key] for r in records) for key in ("epoch", "step"))
    figure, ((top,), (bottom,)) = charts(2, 1, (7.0, 5.6), sharex=True, height_ratios=(2.4, 1))
    curves = {"loss": (top, "training loss"), "validation": (top, "validation error"), "learning_rate": (bottom, "")}
    for color, (key, (axis, label)) in zip(LINES, curves.items(), strict=False):
        values = _numbers(r.get(key) for r in records)
        shown = np.isfinite(values) & (values > 0)  # a log scale has no place for others
        if not shown.any():
            continue
        x, y = epochs[shown], values[shown]
        axis.plot(x, y, color=color, marker="." if len(x) <= 60 else None, label=label)
        axis.set_yscale("log")
        if key == "validation":
            best = y.argmin()
            label = f"best: {y[best]:.3g} at epoch {x[best]:.0f}"
            axis.plot(x[best], y[best], "o", color=color, mfc="none", ms=9, label=label)
    # Events know their step; epochs are even to the last record and beyond.
    clock = [0.0, *steps, 2 * steps[-1]], [0.0, *epochs, 2 * epochs[-1]]
    events: dict[str, list[float]] = {}
    for r in (r for r in log if "loss" not in r and "step" in r):
        events.setdefault(str(r.get("event", "event")), []).append(r["step"])
    for color, (kind, at) in zip(LINES[::-1], events.items(), strict=False):
        style = {"color": color, "marker": "|", "ls": "", "ms": 9, "transform": top.get_xaxis_transform()}
        top.plot(np.interp(at, *clock), [0.025] * len(at), label=f"{kind} ({len(at)})", **style)
    if top.lines:
        top.legend(fontsize=9)
    top.set_ylabel("loss, error")
    bottom.set(xlabel="epoch", ylabel="learning rate")
    bottom.locator_params(axis="x", integer=True)
    return save(figure, out, "training")


def plot_errors(evaluation: dict[str, Any], out: Path) -> list[Path]:
    """Draw an evaluation and return the file: sorted errors of the samples, errors against time, and baselines."""
    check_name(out)
    errors = np.sort(_numbers(evaluation.get("sample_errors") or ()))
    if not errors.size:
        raise UserError(f"{out}: the evaluation holds no errors of samples; evaluate the run again")
    metric = find_metric(evaluation["main_metric"])
    curves = {s: c for s, c in (evaluation.get("error_against_time") or {}).items() if len(c["times"]) > 1}
    panels = 2 if curves else 1
    figure, (axes,) = charts(1, panels, (5.6 * panels, 4.2), sharey=True)
    # Samples that diverged are infinite: they come last and the curve ends before them.
    share, median = np.arange(len(errors) + 1) / len(errors), float(np.median(errors))
    finite = [np.where(np.isfinite(errors), errors, np.nan)]
    rollout = f", {evaluation['best']['strategy']}" if curves else ""
    label = f"{len(errors)} samples{rollout}"
    axes[0].plot(share, [finite[0][0], *finite[0]], ds="steps-pre", color=LINES[0], label=label)
    if np.isfinite(median):
        axes[0].plot(0.5, median, "o", color=LINES[1], zorder=3, label=f"median {metric.text(median)}")
    axes[0].set(xlabel="share of the samples, sorted by error", xlim=(0, 1))
    axes[0].set_ylabel(f"{metric.of_sample}, {metric.unit}" if metric.unit else metric.of_sample)
    axes[0].xaxis.set_major_formatter(lambda x, _: percent(x))
    for color, (strategy, curve) in zip(LINES, curves.items(), strict=False):
        values = _numbers(curve["errors"])
        finite.append(np.where(np.isfinite(values), values, np.nan))
        axes[1].plot(_numbers(curve["times"]), finite[-1], color=color, marker=".", label=strategy)
        axes[1].set(xlabel="time", ylabel=metric.name)
    for k, (name, measured) in enumerate((evaluation.get("baselines") or {}).items()):
        value = measured[metric.name]
        if value is not None and np.isfinite(value):
            finite.append(np.array([float(value)]))
            style = {"color": "0.45", "lw": 1.2, "zorder": 1, "dashes": ((6, 3), (2, 2), (8, 2, 2, 2))[k % 3]}
            for axis, label in zip(axes, (f"{name} {metric.text(value)}", None), strict=False):
                axis.axhline(value, label=label, **style)
    drawn = np.concatenate(finite)
    drawn = drawn[drawn > 0]
    if drawn.size and drawn.max() > 30 * drawn.min():
        axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{metric.factor * y:.3g}")
    for axis in axes:
        axis.legend(fontsize=9)
    about = [evaluation[key] for key in ("benchmark", "model", "split") if key in evaluation]
    return save(figure, out, ", ".join([*about, "errors of the samples"]))


def plot_curves(filled: dict[str, Any], out: Path) -> list[Path]:
    """Draw a table whose columns are numbers, a curve for each row, and return the file; none without any result."""
    check_name(out)
    figure, ((axis,),) = charts(1, 1, (6.4, 4.2))
    x = _numbers(float(name) for name in filled["columns"])
    for color, row in zip(LINES, filled["rows"], strict=False):
        measured = [cell.get("measured", {"mean": None, "std": None}) for cell in row["cells"]]
        y, spread = _numbers(m["mean"] for m in measured), [m["std"] or 0.0 for m in measured]
        shown = np.isfinite(y) & (y > 0)
        if shown.any():
            bars = np.array(spread)[shown]
            axis.errorbar(x[shown], y[shown], bars if bars.any() else None, color=color, marker="o", label=row["name"])
    if not axis.has_data():
        return []
    axis.set(xlabel=filled["axis"], ylabel=f"error, {filled['unit']}", yscale="log")
    axis.set_xticks(x, filled["columns"])
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axis.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "235" else "")
    axis.legend(fontsize=9)
    return save(figure, out, filled["title"])


@torch.no_grad()
def plot_kernels(model: nn.Module, out: Path) -> list[Path]:
    """Draw learned kernels and return the file: k_j(r) above, below the middle row of (I - alpha K_j)^-1 K_j."""
    check_name(out)
    branches = [k for k in model.branches if isinstance(k, BaseKernel)] if isinstance(model, IKNO) else []
    if not isinstance(model, IKNO) or not branches:
        raise UserError(
            f"{out}: {type(model).__name__} has no learned axis kernels; use an ikno model with kernel=base"
        )
    grid = model.grid
    effective = [_effective(kernel, grid) for kernel in branches]
    figure, axes = charts(2, grid.dim, (4.6 * grid.dim, 7.2))
    for q, kernel in enumerate(branches):
        style = {"color": LINES[q % len(LINES)]}
        for j, (top, bottom) in enumerate(axes.T):
            r = torch.linspace(0, grid.upper[j] - grid.lower[j], 400, dtype=torch.float64).to(kernel.raw_c.device)
            numbers = {r"\beta": kernel.beta[j], r"\gamma": kernel.gamma[j], "c": kernel.c[j], r"\alpha": kernel.alpha}
            label = f"branch {q + 1}:  " + ",  ".join(f"${n} = {float(x):.3g}$" for n, x in numbers.items())
            top.plot(r.cpu(), kernel.factor(j, r, r[:1])[:, 0].cpu(), label=label, **style)
            bottom.plot(grid.axis(j, r).cpu(), effective[q][j].cpu(), marker=".", **style)
    for j, (top, bottom) in enumerate(axes.T):
        top.set(title=f"axis {j + 1}", xlabel="distance $r$", xlim=(0, grid.upper[j] - grid.lower[j]), ylim=(0, None))
        top.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
        top.locator_params(axis="x", nbins=5)
        bottom.locator_params(axis="x", nbins=5)
        bottom.set(xlabel=f"latent grid coordinate $y_{{{j + 1}}}$", xlim=(grid.lower[j], grid.upper[j]))
    axes[0][0].set_ylabel("base kernel $k_j(r)$")
    axes[1][0].set_ylabel("effective kernel, middle row of\n" + r"$(I - \alpha K_j)^{-1} K_j$")
    return save(figure, out, "learned kernels")


def _effective(kernel: BaseKernel, grid: Grid) -> list[Float[Tensor, "_"]]:
    """Return the middle row of (I - alpha K_j)^-1 K_j for each axis."""
    try:
        return [tensor_product([k], kernel.alpha)(k)[len(k) // 2] for k in kernel.factors(grid)]
    except ValueError as error:
        raise UserError(f"the learned kernels cannot be drawn: {error}") from None


def _numbers(values: Iterable[float | None]) -> Float[np.ndarray, "_"]:
    """Return an array in which what is missing is infinite."""
    return np.array([np.inf if v is None or np.isnan(v) else v for v in values], dtype=np.float64)
