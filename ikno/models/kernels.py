"""The learnable base kernel of the paper and the fixed linear window of its finite-order study."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.functional import jvp

from ikno.linalg import Grid
from ikno.linalg.interpolation import lagrange, lobatto
from ikno.registry import Registry

MAX_NODES_PER_CELL = 40  # along one axis


class BaseKernel(nn.Module):
    """One branch of the multi-scale kernel, a product over the axes j of

        k_j(x, y) = c_j (exp(-(beta_j (x - y))^2) + exp(-gamma_j |x - y|)),

    with its decay coefficient alpha. Paper: section on the learnable multi-scale base kernel, ProdKernel.

    c, beta and gamma are kept positive by a softplus. alpha keeps the sign it starts with the same way, or is free; a
    negative alpha keeps I - alpha K positive definite.
    """

    def __init__(
        self,
        dim: int,
        alpha: float = -1.0,
        scale_l1: float = 1.0,
        scale_l2: float = 1.0,
        amplitude: float = 1.0,
        alpha_grad: bool = True,
        scales_grad: bool = True,
        alpha_sign: Literal["keep", "free"] = "keep",
    ) -> None:
        super().__init__()
        self.dim = dim
        self.sign = 0 if alpha_sign == "free" else int(math.copysign(1, alpha))
        self.raw_alpha = nn.Parameter(torch.tensor(_raw(abs(alpha)) if self.sign else alpha), alpha_grad)
        self.raw_c = nn.Parameter(torch.full((dim,), _raw(amplitude)), scales_grad)
        self.raw_beta = nn.Parameter(torch.full((dim,), _raw(scale_l2)), scales_grad)
        self.raw_gamma = nn.Parameter(torch.full((dim,), _raw(scale_l1)), scales_grad)

    @property
    def alpha(self) -> Float[Tensor, ""]:
        """The decay coefficient, weight of one more order of propagation."""
        return self.raw_alpha if self.sign == 0 else self.sign * nn.functional.softplus(self.raw_alpha)

    @property
    def c(self) -> Float[Tensor, "dim"]:
        """The amplitude along each axis."""
        return nn.functional.softplus(self.raw_c)

    @property
    def beta(self) -> Float[Tensor, "dim"]:
        """The scale of the Gaussian along each axis."""
        return nn.functional.softplus(self.raw_beta)

    @property
    def gamma(self) -> Float[Tensor, "dim"]:
        """The scale of the Laplace kernel along each axis."""
        return nn.functional.softplus(self.raw_gamma)

    @staticmethod
    def along(
        kernels: "Sequence[BaseKernel]", axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]
    ) -> Float[Tensor, "kernels *rows cols"]:
        """Return k_j(x, y) along one axis, of several kernels at once."""
        distance = x[..., None] - y
        c, beta, gamma = _shapes(kernels)[:, :, axis].to(distance.dtype).view(3, -1, *(1,) * distance.ndim)
        return c * (torch.exp(-((beta * distance) ** 2)) + torch.exp(-gamma * distance.abs()))

    def factor(self, axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]) -> Float[Tensor, "*rows cols"]:
        """Return k_j(x, y) along one axis."""
        return self.along([self], axis, x, y)[0]

    @staticmethod
    def grams(kernels: "Sequence[BaseKernel]", grid: Grid) -> list[Float[Tensor, "kernels _ _"]]:
        """Return the Kronecker factors of the Gram matrices on the grid, in float64. Paper: KronK."""
        axes = [grid.axis(j, kernels[0].raw_c.detach().double()) for j in range(grid.dim)]
        return [BaseKernel.along(kernels, j, y, y) for j, y in enumerate(axes)]

    def factors(self, grid: Grid) -> list[Float[Tensor, "_ _"]]:
        """Return the Kronecker factors of the Gram matrix of this kernel alone."""
        return [k[0] for k in self.grams([self], grid)]

    def matrix(self, points: Float[Tensor, "clouds points dim"], grid: Grid) -> Float[Tensor, "clouds points count"]:
        """Return k(x, y) for all points x and grid points y."""
        product = self.factor(0, points[..., 0], grid.axis(0, points))
        for j in range(1, self.dim):
            product = (product[..., None] * self.factor(j, points[..., j], grid.axis(j, points))[..., None, :]).flatten(
                -2
            )
        return product

    @staticmethod
    def nodes(kernels: "Sequence[BaseKernel]", grid: Grid, tolerance: float, slope: bool) -> tuple[int, ...] | None:
        """Return the interpolation nodes per cell that meet the tolerance along each axis, None if too many.

        The relative error of a product is at most the sum of those of its factors. Values are far more exact than
        derivatives, so each axis has .3 / dim of the tolerance for values; a derivative takes one axis' derivative and
        the values of the others, which leaves 1 - .3 (dim - 1) / dim for it.
        """
        d = grid.dim
        values, derivatives = 0.3 * tolerance / d, tolerance * (1 - 0.3 * (d - 1) / d)
        _, beta, gamma = _shapes(kernels).detach().amax(1).tolist()  # the narrowest kernel needs the most nodes
        counts = []
        for j in range(d):
            each = (("gaussian", beta[j]), ("laplace", gamma[j]))
            needed = [_nodes(k, _rounded_up(s * grid.spacing(j)), values, derivatives, slope) for k, s in each]
            if None in needed:
                return None
            counts.append(max(m for m in needed if m is not None))
        return tuple(counts)


def _shapes(kernels: Sequence[BaseKernel]) -> Float[Tensor, "3 kernels dim"]:
    """Return c, beta and gamma of several kernels."""
    raw = [[k.raw_c for k in kernels], [k.raw_beta for k in kernels], [k.raw_gamma for k in kernels]]
    return nn.functional.softplus(torch.stack([p for parameters in raw for p in parameters])).view(3, len(kernels), -1)


@lru_cache(maxsize=4096)
def _nodes(
    shape: Literal["gaussian", "laplace"], scale: float, values: float, derivatives: float, slope: bool
) -> int | None:
    """Return the nodes that a profile with the given scale per cell needs."""
    if shape == "gaussian":
        return nodes_needed(lambda u: torch.exp(-((scale * u) ** 2)), 4 / scale, values, derivatives, slope)
    return nodes_needed(lambda u: torch.exp(-scale * u), 8 / scale, values, derivatives, slope)


def _rounded_up(scale: float) -> float:
    """Return the next power of 2^(1/16): while a scale changes slowly, its number of nodes comes from the cache."""
    return 2.0 ** (math.ceil(16 * math.log2(max(scale, 1e-12))) / 16)


def _raw(value: float) -> float:
    """Return the parameter whose softplus is the value."""
    if not value > 0:
        raise ValueError(f"kernel scales, amplitudes and |alpha| are positive, found {value}")
    return value + math.log(-math.expm1(-value))


def _with_slope(function: Callable[[Tensor], Tensor], x: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Return an elementwise function, or one that adds a last axis, with its derivative."""
    result: Any = jvp(function, x, torch.ones_like(x))
    return result


@torch.inference_mode(False)
def nodes_needed(
    profile: Callable[[Tensor], Tensor], reach: float, tolerance: float, derivatives: float, slope: bool
) -> int | None:
    """Return the smallest node count for which interpolation in all cells meets two tolerances, None if too many.

    Root-mean-square errors are measured on a fine sample, relative to the root mean square of the quantity itself.

    Args:
        profile: The kernel f(u) at a distance of u >= 0 cells.
        reach: The distance beyond which it is negligible.
        tolerance: Bound of the error of f(u).
        derivatives: Bound of the error of u f'(u), the derivative in the scale parameter.
        slope: Whether ``derivatives`` also bounds the error of f'(u), the derivative in the coordinates, at the worst
            position in a cell: errors are largest at its ends, where clouds may have all their points.
    """

    def with_derivatives(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return f(u), u f'(u) and f'(u)."""
        value, slopes = _with_slope(profile, u)
        return value, u * slopes, slopes

    def relative(error: Tensor, exact: Tensor) -> float:
        return float(error.square().mean().sqrt() / exact.square().mean().sqrt())

    offsets = torch.unique(torch.linspace(0, max(math.ceil(reach), 1), 129, dtype=torch.float64).round())
    t = ((torch.arange(-1, 129, dtype=torch.float64) + 0.5) / 128).clamp(0, 1)  # middles of 128 parts, and both ends
    exact = with_derivatives(t[:, None] + offsets)
    for count in range(2, MAX_NODES_PER_CELL + 1):
        nodal = with_derivatives(torch.tensor(lobatto(count), dtype=torch.float64)[:, None] + offsets)
        basis, derivative = _with_slope(partial(lagrange, count=count), t)
        errors = [relative(basis @ n - e, e) for n, e in zip(nodal[:2], exact[:2], strict=True)]
        if slope:
            worst = (derivative @ nodal[0] - exact[2]).square().mean(1).argmax()
            errors.append(relative(derivative[worst] @ nodal[0] - exact[2][worst], exact[2]))
        if errors[0] <= tolerance and max(errors[1:]) <= derivatives:
            return count
    return None


class LinearWindow(nn.Module):
    """The fixed kernel k(x, y) = max(1 - |x - y| / radius, 0) with a fixed alpha. Paper: preliminary study.

    It depends on the distance in space, so it is no product over the axes: its Gram matrix is a single factor on the
    flattened grid.
    """

    def __init__(self, radius: float = 0.2, alpha: float = -0.15) -> None:
        super().__init__()
        if not radius > 0:
            raise ValueError(f"the radius of the linear window is positive, found {radius}")
        self.radius = radius
        self.alpha: Tensor
        self.register_buffer("alpha", torch.tensor(alpha))

    @staticmethod
    def grams(kernels: "Sequence[LinearWindow]", grid: Grid) -> list[Float[Tensor, "kernels count count"]]:
        """Return the Gram matrices on the flattened grid as the only factor."""
        return [torch.cat([k.matrix(grid.points(k.alpha)[None], grid) for k in kernels])]

    def factors(self, grid: Grid) -> list[Float[Tensor, "count count"]]:
        """Return the Gram matrix of this kernel alone."""
        return [k[0] for k in self.grams([self], grid)]

    @staticmethod
    def along(
        kernels: "Sequence[LinearWindow]", axis: int, x: Float[Tensor, "*rows"], y: Float[Tensor, "cols"]
    ) -> Float[Tensor, "kernels *rows cols"]:
        """Raise a ValueError: ``nodes`` says that this kernel is no product."""
        raise ValueError("the linear window is no product of axis kernels")

    def matrix(self, points: Float[Tensor, "clouds points dim"], grid: Grid) -> Float[Tensor, "clouds points count"]:
        """Return k(x, y) for all points x and grid points y."""
        distance = torch.cdist(points, grid.points(points), compute_mode="donot_use_mm_for_euclid_dist")
        return (1 - distance / self.radius).clamp(min=0)

    @staticmethod
    def nodes(kernels: "Sequence[LinearWindow]", grid: Grid, tolerance: float, slope: bool) -> tuple[int, ...] | None:
        """Return None: no product over the axes."""
        return None


# Functions (settings of the model, dim) -> one kernel per branch, all of one class: modules as ``linalg.Kernel`` says,
# with ``alpha`` and ``grams`` beside.
KERNELS: Registry[Callable[[Any, int], Sequence[nn.Module]]] = Registry("kernel", "model.kernel")


@KERNELS.register("base")
def _base(settings: Any, dim: int) -> list[BaseKernel]:
    s = settings
    options = {"alpha_grad": s.kernel_alpha_grad, "scales_grad": s.scales_grad, "alpha_sign": s.alpha_sign}
    each = zip(s.kernel_alpha, s.init_scales_l1, s.init_scales_l2, strict=True)
    return [BaseKernel(dim, alpha, l1, l2, **options) for alpha, l1, l2 in each]


@KERNELS.register("linear_window")
def _linear_window(settings: Any, dim: int) -> list[LinearWindow]:
    return [LinearWindow(settings.window_radius, alpha) for alpha in settings.kernel_alpha]
