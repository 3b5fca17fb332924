"""Files that ikno writes: the released layouts, and named arrays. Each appears only when it is complete."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32

from ikno.atomic import whole_file
from ikno.data.catalog import Card
from ikno.data.formats import new_file
from ikno.data.records import Trajectory

Column = Float32[np.ndarray, "points"] | Int32[np.ndarray, "triangles 3"]
Group = tuple[Mapping[str, Column], Mapping[str, float]]


def files_of(card: Card, path: Path, samples: int) -> dict[Path, slice]:
    """Return which samples go to which file: all to ``path``, or the last ones to a second file beside it.

    That has the card's name for it and the share of the test samples in the published split.
    """
    if card.test_file is None or samples == 1:
        return {path: slice(0, samples)}
    training, _, test = card.split or (1, 0, 1)
    first = min(max(round(samples * training / (training + test)), 1), samples - 1)
    return {path: slice(0, first), path.with_name(f"{card.test_file}{path.suffix}"): slice(first, samples)}


def group_of(card: Card, made: Trajectory) -> Group:
    """Return a sample as the aircraft's file has it: arrays for coordinates, variables, normals and areas (Surface).

    Conditions that are the same at all points are numbers.
    """
    assert made.conditions is not None
    columns = {f"Coordinate{axis}": made.points[:, k] for k, axis in enumerate("XYZ")}
    columns |= {v: made.values[0, :, k] for k, v in enumerate(card.variables)}
    known = dict(zip(card.conditions, made.conditions[0].T, strict=True))
    numbers = {k: float(values[0]) for k, values in known.items() if not np.ptp(values)}
    columns |= {k: values for k, values in known.items() if k not in numbers}
    if made.areas is not None:
        columns["Surface"] = made.areas
    return columns, numbers


def write_groups(path: Path, samples: Iterable[Group], attributes: Mapping[str, str]) -> None:
    """Write one group of arrays and numbers (attributes) per sample, as HDF5.

    The file appears only when it is complete. Not with h5netcdf, whose attributes are arrays of one number.
    """
    import h5py

    with new_file(path) as partial, h5py.File(partial, "w") as file:
        file.attrs.update(attributes)
        for k, (columns, numbers) in enumerate(samples):
            group = file.create_group(f"{k:06d}")
            for name, values in columns.items():
                group.create_dataset(name, data=values)
            group.attrs.update(numbers)


def write_data(
    path: Path,
    cloud: Float32[np.ndarray, "points dim"] | None,
    samples: Sequence[Path],
    read,
    attributes: Mapping[str, str],
) -> None:
    """Write samples in the released layout (NetCDF4), one at a time; the file appears only when it is complete.

    ``read(path)`` returns one Trajectory; ``cloud`` is what all share, None if each has its own points.
    """
    import h5netcdf

    first = read(samples[0])
    names = {"u": ("sample", "time", "node", "variable")}
    sizes = dict(zip(names["u"], (len(samples), *first.values.shape), strict=True))
    sizes |= {"shared": 1, "constant": 1, "axis": first.points.shape[1]}
    names["x"] = ("shared" if cloud is not None else "sample", "constant", "node", "axis")
    if first.conditions is not None:
        sizes["condition"] = first.conditions.shape[2]
        names["c"] = ("sample", "constant" if len(first.conditions) == 1 else "time", "node", "condition")
    with whole_file(path) as partial, h5netcdf.File(partial, "w") as file:
        file.attrs.update(attributes)
        file.dimensions = sizes
        arrays = {name: file.create_variable(name, axes, np.float32) for name, axes in names.items()}
        if cloud is not None:
            arrays["x"][0, 0] = cloud
        for i, name in enumerate(samples):
            made = read(name)
            arrays["u"][i] = made.values
            if cloud is None:
                arrays["x"][i, 0] = made.points
            if made.conditions is not None:
                arrays["c"][i] = made.conditions
