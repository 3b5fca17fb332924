"""Files that ikno writes: the released layouts, and named arrays. Each appears only when it is complete."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from ikno.atomic import whole_file
from ikno.data.catalog import NORMALS, Card
from ikno.data.formats import format_of
from ikno.data.records import Trajectory
from ikno.errors import UserError

Column = Float32[np.ndarray, "points"] | Int32[np.ndarray, "triangles 3"]
Group = tuple[Mapping[str, Column], Mapping[str, float]]


def files_of(card: Card, path: Path, samples: int) -> dict[Path, slice]:
    """Return which samples go to which file: all to ``path``, or the last ones to a second file beside it.

    That has the card's name for it and the share of the test samples in the published split.
    """
    if card.second is None or samples == 1:
        return {path: slice(0, samples)}
    training, _, test = card.split or (1, 0, 1)
    first = min(max(round(samples * training / (training + test)), 1), samples - 1)
    return {path: slice(0, first), path.with_name(f"{card.second}{path.suffix}"): slice(first, samples)}


def group_of(card: Card, made: Trajectory) -> Group:
    """Return a sample as the aircraft's file has it: arrays for coordinates, normals, variables and areas (Surface).

    The other conditions hold for all points and are numbers.
    """
    assert made.conditions is not None
    columns = {f"Coordinate{axis}": made.points[:, k] for k, axis in enumerate("XYZ")}
    columns |= {v: made.values[0, :, k] for k, v in enumerate(card.variables)}
    known = dict(zip(card.conditions, made.conditions[0].T, strict=True))
    columns |= {n: known.pop(n) for n in NORMALS}
    if made.areas is not None:
        columns["Surface"] = made.areas
    return columns, {k: float(values[0]) for k, values in known.items()}


def write_groups(path: Path, samples: Iterable[Group], attributes: Mapping[str, str]) -> int:
    """Write one group of arrays and numbers (attributes) per sample, as HDF5, and return how many.

    The file appears only when it is complete. Not with h5netcdf, whose attributes are arrays of one number.
    """
    import h5py

    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, h5py.File(partial, "w") as file:
            file.attrs.update(attributes)
            for columns, numbers in samples:
                group = file.create_group(f"{count:06d}")
                for name, values in columns.items():
                    group.create_dataset(name, data=values)
                group.attrs.update(numbers)
                count += 1
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    return count


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
    times, nodes, variables = first.values.shape
    with whole_file(path) as partial, h5netcdf.File(partial, "w") as file:
        file.attrs.update(attributes)
        sizes = {
            "sample": len(samples),
            "time": times,
            "node": nodes,
            "variable": variables,
            "shared": 1,
            "constant": 1,
        }
        sizes |= {"axis": first.points.shape[1]}
        if first.conditions is not None:
            sizes |= {"condition": first.conditions.shape[2]}
        file.dimensions = sizes
        u = file.create_variable("u", ("sample", "time", "node", "variable"), np.float32)
        x = file.create_variable(
            "x", ("shared" if cloud is not None else "sample", "constant", "node", "axis"), np.float32
        )
        c = None
        if first.conditions is not None:
            lead = "constant" if first.conditions.shape[0] == 1 else "time"
            c = file.create_variable("c", ("sample", lead, "node", "condition"), np.float32)
        if cloud is not None:
            x[0, 0] = cloud
        for i, name in enumerate(samples):
            made = read(name)
            u[i] = made.values
            if cloud is None:
                x[i, 0] = made.points
            if c is not None:
                c[i] = made.conditions


@contextmanager
def new_arrays(
    path: Path, shapes: Mapping[str, Sequence[int]], known: Mapping[str, np.ndarray], notes: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield float32 arrays to be filled, which become a file if the block ends well, and are then what is in it.

    Those of a format that is written on the disk take no memory. ``known`` arrays and notes go into the file too.
    """
    form = format_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, form.create(partial, shapes, known, notes) as arrays:
            yield arrays
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    arrays |= form.written(path, arrays)
