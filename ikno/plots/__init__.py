"""Pictures of data sets and of runs, written to files."""

from ikno.plots.canvas import Canvas
from ikno.plots.charts import plot_curves, plot_errors, plot_kernels, plot_training
from ikno.plots.fields import plot_data, plot_fields, plot_rollout
from ikno.plots.runs import plot_comparison, plot_predictions, plot_run

__all__ = [
    "Canvas",
    "plot_comparison",
    "plot_curves",
    "plot_data",
    "plot_errors",
    "plot_fields",
    "plot_kernels",
    "plot_predictions",
    "plot_rollout",
    "plot_run",
    "plot_training",
]
