"""Linear interpolation between scattered points."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.spatial import QhullError


def interpolator(
    points: Float[np.ndarray, "points dim"], values: Float[np.ndarray, "points channels"]
) -> Callable[[Float[np.ndarray, "queries dim"]], Float[np.ndarray, "queries channels"]]:
    """Return linear interpolation between the points as a function; outside their hull the value of the nearest."""
    if points.shape[1] == 1:
        order = points[:, 0].argsort()
        x, columns = points[order, 0], values[order].T
        return lambda queries: np.stack([np.interp(queries[:, 0], x, v) for v in columns], 1).astype(values.dtype)
    nearest = NearestNDInterpolator(points, values)
    try:
        linear = LinearNDInterpolator(points, values)
    except QhullError:  # all points on a line or plane: there is no inside
        linear = nearest

    def at(queries: Float[np.ndarray, "queries dim"]) -> Float[np.ndarray, "queries channels"]:
        inside = linear(queries)
        return np.where(np.isnan(inside), nearest(queries), inside).astype(values.dtype)

    return at
