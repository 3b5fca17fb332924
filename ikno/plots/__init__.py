"""Pictures of data sets and of runs, written to files."""

from ikno.plots.canvas import Canvas
from ikno.plots.charts import plot_errors, plot_kernels, plot_training
from ikno.plots.fields import plot_data, plot_fields, plot_rollout

__all__ = ["Canvas", "plot_data", "plot_errors", "plot_fields", "plot_kernels", "plot_rollout", "plot_training"]
