"""What every form of the sums between points and grid offers, and what it asks of a kernel."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from ikno.linalg.geometry import Cloud, Grid

Values = Float[Tensor, "batch points width"]
OnGrid = Float[Tensor, "batch *grid width"]
Branches = Float[Tensor, "batch points branches width"]


@runtime_checkable
class Kernel(Protocol):
    """What a contraction needs of a kernel, usually a module."""

    def parameters(self) -> Iterable[Tensor]:
        """Return the tensors that the kernel depends on and that may be differentiated."""
        ...

    def matrix(self, points: Float[Tensor, "clouds points dim"], grid: Grid) -> Float[Tensor, "clouds points count"]:
        """Return k(x, y) for all points x and grid points y."""
        ...

    def factor(self, axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]) -> Float[Tensor, "*rows cols"]:
        """Return k_j(x, y) along one axis; only asked of kernels that are products over the axes."""
        ...

    def nodes(self, grid: Grid, tolerance: float, slope: bool) -> tuple[int, ...] | None:
        """Return the nodes per cell and axis that meet the tolerance, None if no product or too many."""
        ...


class Contraction(ABC):
    """Sums between a cloud and the grid for several kernels at once.

    Points to grid is ``collect(spread(values, cloud))``, grid to points ``sample(expand(grids, cloud), cloud)``.
    ``spread`` may be summed over parts of a cloud before ``collect``, and what ``expand`` returns serves any number of
    parts: so memory stays bounded for clouds of any size. Grids are one tensor per kernel. With ``summed`` what arrives
    at the points is one sum over all kernels: a single branch.
    """

    @abstractmethod
    def spread(self, values: Values, cloud: Cloud) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def collect(self, spread: tuple[Tensor, ...]) -> tuple[OnGrid, ...]: ...

    @abstractmethod
    def expand(self, grids: Sequence[OnGrid], cloud: Cloud) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def sample(self, expanded: tuple[Tensor, ...], cloud: Cloud) -> Branches: ...


def fold(x: Float[Tensor, "batch *space width"], cloud: Cloud) -> Float[Tensor, "clouds *space columns"]:
    """Put the samples that share a cloud beside each other, as one wide product."""
    return x if cloud.points.shape[0] == x.shape[0] else x.movedim(0, -2).flatten(-2)[None]


def unfold(x: Float[Tensor, "clouds *space columns"], batch: int) -> Float[Tensor, "batch *space width"]:
    """Undo ``fold``."""
    return x if x.shape[0] == batch else x[0].unflatten(-1, (batch, -1)).movedim(-2, 0)


def check_clouds(batch: int, cloud: Cloud) -> None:
    """Raise unless the cloud serves the batch."""
    if cloud.points.shape[0] not in (1, batch):
        raise ValueError(f"{batch} samples need one cloud or one each, found {cloud.points.shape[0]} clouds")
