"""Pictures of fields on clouds: data sets, predictions, rollouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ikno.data.files import Dataset
from ikno.errors import UserError
from ikno.evaluation import Fields
from ikno.metrics import relative_errors, sums
from ikno.plots.canvas import ERRORS, Panel, Strip, canvas_of, check_name, colors_of, movie, percent, save, stack

MAX_VARIABLES = 4


def plot_data(dataset: Dataset, out: Path, samples: int = 3, columns: int = 6) -> list[Path]:
    """Draw a data set and return the files: inputs and solutions of some samples, or snapshots and an animation."""
    check_name(out)
    if dataset.card.dim == 1:
        raise UserError(f"{dataset.card.name}: pictures are for two and three dimensions")
    return _steady(dataset, out, min(samples, len(dataset))) if dataset.card.steady else _in_time(dataset, out, columns)


def plot_fields(fields: Sequence[Fields], out: Path) -> list[Path]:
    """Draw predictions and return the file: input, truth, prediction and error, a strip per sample and variable.

    Problems in time are shown at their final time. The input is the channel named like the variable, or the first one.
    Relative errors are of the physical values, not of the normalized ones that an evaluation measures.
    """
    check_name(out)
    if not fields:
        raise UserError(f"{out}: there is no sample to draw; give at least one")
    strips = []
    for field in fields:
        canvas, names = canvas_of(field.points, field.triangles), field.input_names
        for v, name in enumerate(field.variables[:MAX_VARIABLES]):
            panels = _compared(field, v, slice(-1, None))(-1)
            if names:
                k = names.index(name) if name in names else 0
                values = field.inputs[:, k]
                panels.insert(0, Panel(values, colors_of(values), f"input {names[k]}", names[k]))
            label = f"sample {field.sample}" + (f", {name}" if len(field.variables) > 1 else "")
            strips.append(Strip(canvas, label, panels))
    first = fields[0]
    when = f"final time, t = {first.times[-1]:.4g}" if first.times != (0.0,) else "prediction and truth"
    return save(stack(strips), out, f"{', '.join(first.variables[:MAX_VARIABLES])}: {when}")


def plot_rollout(field: Fields, out: Path, columns: int = 5) -> list[Path]:
    """Draw one prediction in time and return the files: snapshots of truth, prediction and error, and an animation."""
    check_name(out)
    if len(field.times) < 2:
        raise UserError(f"{out}: a rollout needs several times, found {len(field.times)}; draw the fields instead")
    canvas = canvas_of(field.points, field.triangles)
    named = [(name, _compared(field, v, slice(None))) for v, name in enumerate(field.variables[:MAX_VARIABLES])]

    def at(k: int) -> list[Strip]:
        return [Strip(canvas, name, panels(k)) for name, panels in named]

    sample = f"sample {field.sample}"
    return _over_time([], at, field.times, columns, out, (f"{sample}: prediction and truth", sample))


def plot_errors_of(fields: Mapping[str, Fields], out: Path, columns: int = 5) -> list[Path]:
    """Draw the errors of several models for one sample, all in the same colors, and return the file.

    The first variable at the final time. Half of the models have larger errors than the colors show: one that
    fails must not hide the others.
    """
    check_name(out)
    if not fields:
        raise UserError(f"{out}: there is no model to draw; give at least one")
    first = next(iter(fields.values()))
    canvas, truth = canvas_of(first.points, first.triangles), first.truth[-1, :, 0]
    errors = {label: field.prediction[-1, :, 0] - truth for label, field in fields.items()}
    tops = sorted(float(np.quantile(np.abs(e), 0.998)) if np.isfinite(e).all() else np.inf for e in errors.values())
    top = tops[(len(tops) - 1) // 2]
    top = top if 0 < top < np.inf else 1.0
    panels = [Panel(truth, colors_of(truth), f"truth, {first.variables[0]}")]
    for label, error in errors.items():
        share = percent(float(np.abs(error).sum() / max(np.abs(truth).sum(), 1e-30)))
        panels.append(Panel(error, (-top, top, ERRORS), f"{label}: {share}"))
    strips = [Strip(canvas, "", panels[i : i + columns]) for i in range(0, len(panels), columns)]
    when = f", t = {first.times[-1]:.4g}" if first.times != (0.0,) else ""
    return save(stack(strips), out, f"sample {first.sample}{when}: errors")


def _steady(dataset: Dataset, out: Path, samples: int) -> list[Path]:
    """Draw one strip per sample; conditions that are the same at all points of a sample are written beside it."""
    card, strips = dataset.card, []
    drawn = [dataset[i] for i in range(samples)]
    given = [() if made.conditions is None else made.conditions[0].T for made in drawn]
    constant = [all(np.ptp(column) == 0 for column in columns) for columns in zip(*given, strict=True)]
    for i, (made, columns) in enumerate(zip(drawn, given, strict=True)):
        inputs = list(zip(card.conditions, columns, constant, strict=False))
        label = f"sample {i}" + "".join(f"\n{name} {column[0]:.3g}" for name, column, same in inputs if same)
        fields = [(name, column) for name, column, same in inputs if not same][:6]
        fields += [(v, made.values[0, :, card.variables.index(v)]) for v in card.targets]
        panels = [Panel(column, (0.0, 1.0, ""), name if i == 0 else "", name) for name, column in fields]
        strips.append(Strip(canvas_of(made.points, made.triangles), label, panels))
    for column in zip(*(strip.panels for strip in strips), strict=True):
        shared = colors_of(np.concatenate([p.values for p in column]))
        for panel in column:
            panel.colors = shared
    return save(stack(strips), out, f"{card.name}: inputs and solution")


def _in_time(dataset: Dataset, out: Path, columns: int) -> list[Path]:
    card, made = dataset.card, dataset[0]
    assert card.times is not None
    canvas, strips = canvas_of(made.points, made.triangles), []
    fields = {v: made.values[..., card.variables.index(v)] for v in card.targets}
    colors = {v: colors_of(field) for v, field in fields.items()}
    if made.conditions is not None:
        condition = made.conditions[0, :, 0]
        strips.append(Strip(canvas, card.conditions[0], [Panel(condition, colors_of(condition))]))

    def at(k: int) -> list[Strip]:
        return [Strip(canvas, "", [Panel(field[k], colors[v], v) for v, field in fields.items()])]

    times = np.linspace(*card.times, card.snapshots).tolist()
    return _over_time(strips, at, times, columns, out, (f"{card.name}: sample 0", card.name))


def _over_time(
    strips: list[Strip],
    at: Callable[[int], list[Strip]],
    times: Sequence[float],
    columns: int,
    out: Path,
    titles: tuple[str, str],
) -> list[Path]:
    """Draw the given strips, below them snapshots of each panel that ``at`` gives, and an animation of these."""
    count, chosen = len(strips), np.unique(np.linspace(0, len(times) - 1, columns).round().astype(int)).tolist()
    for moments in zip(*(at(k) for k in chosen), strict=True):
        for panels in zip(*(strip.panels for strip in moments), strict=True):
            label = f"{panels[0].title} {moments[0].label}".strip()
            strips.append(Strip(moments[0].canvas, label, [replace(panel, title="") for panel in panels]))
    for panel, k in zip(strips[count].panels, chosen, strict=True):
        panel.note = f"t = {times[k]:.4g}"
    files = save(stack(strips), out, titles[0])
    return [*files, movie(at, [f"{titles[1]}, t = {time:.4g}" for time in times], out.with_suffix(".gif"))]


def _compared(field: Fields, v: int, times: slice) -> Callable[[int], list[Panel]]:
    """Return what gives truth, prediction and error of a variable at a time, with colors for all the given times."""
    # The truth sets the colors of both: a prediction that blows up must not hide what is right.
    common, name = colors_of(field.truth[times, :, v]), field.variables[v]
    with np.errstate(invalid="ignore", over="ignore"):
        errors = field.prediction[..., v] - field.truth[..., v]
    sizes = np.abs(errors[times][np.isfinite(errors[times])])
    top = (float(np.quantile(sizes, 0.998)) if sizes.size else 0.0) or 1.0

    def at(k: int) -> list[Panel]:
        truth, prediction = field.truth[k, :, v], field.prediction[k, :, v]
        error = relative_errors([sums(truth[:, None], prediction[:, None], [0.0], [1.0])], [[0]]).item()
        return [
            Panel(truth, common, "truth", name),
            Panel(prediction, common, "prediction", name),
            Panel(
                errors[k], (-top, top, ERRORS), "error", f"error of {name}", f"relative $L^1$ error {percent(error)}"
            ),
        ]

    return at
