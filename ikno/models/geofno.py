"""GeoFNO: a learned deformation of the points into a box, where a Fourier neural operator acts on a grid (2207.05209).

xi(x)  = x (1 + MLP(psi(x)))                              psi(x) = (x, angle, radius, their sines and cosines)
v_0(y) = gelu(Re sum_k c_k R_k v_k exp(i k.y) + B_0 y)    at nodes y of a grid; v_k = sum_i w_i v(x_i) exp(-i k.xi(x_i))
v_l(y) = gelu((K_l v_(l-1))(y) + W_l v_(l-1)(y) + B_l y)  spectral convolutions K_l on the grid
u(x)   = MLP(Re sum_k c_k R'_k v_L,k exp(i k.xi(x)) + B x)

``docs/systems.md`` says what differs from the original.
"""

from math import pi
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.models.fourier import Modes, SpectralConv, SpectralWeights, Waves, grid_to_spectrum, spectrum_to_grid
from ikno.models.layers import MLP, Width, per_axis
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, mean_weights
from ikno.models.variants import register


class GeoFNOSettings(Settings):
    """The published configuration of the elasticity problem. ``num_layers`` are those on the grid.

    ``deformation_width`` is a quarter of the width of the deformation's hidden layers.
    """

    modes: Modes | tuple[Modes, Modes] = 12
    width: Width = 32
    num_layers: Annotated[int, Field(ge=0, le=1000)] = 3
    fourier_grid: Annotated[int, Field(ge=2, le=2048)] = 40
    projection: Width = 128
    padding: Annotated[float, Field(ge=0, le=10)] = 0.0
    deformation_width: Annotated[int, Field(ge=4, le=16384)] = 32
    deformation_layers: Annotated[int, Field(ge=1, le=100)] = 3
    deformation_frequencies: Annotated[int, Field(ge=0, le=20)] = 8

    @model_validator(mode="after")
    def _resolved(self) -> "GeoFNOSettings":
        most = 2 * max(per_axis("modes", self.modes, 2))
        if self.fourier_grid < most:
            raise ValueError(f"fourier_grid must be at least twice the modes, {most}, found {self.fourier_grid}")
        return self


class Deformation(nn.Module):
    """xi(x) = x (1 + MLP(psi(x))): the learned coordinates of the points, at first next to their own."""

    def __init__(self, settings: GeoFNOSettings) -> None:
        super().__init__()
        width, hidden = settings.deformation_width, 4 * settings.deformation_width
        self.frequencies: Tensor
        self.register_buffer(
            "frequencies", pi * 2.0 ** torch.arange(settings.deformation_frequencies), persistent=False
        )
        self.embedding = nn.Linear(4, width)
        self.mix = nn.Linear(width + 8 * settings.deformation_frequencies, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(settings.deformation_layers))
        self.shift = nn.Linear(hidden, 2)
        nn.init.normal_(self.shift.weight, std=1e-3)
        nn.init.zeros_(self.shift.bias)

    def forward(self, x: Float[Tensor, "clouds points 2"]) -> Float[Tensor, "clouds points 2"]:
        """Return the coordinates in the box of the grid."""
        polar = x - 0.5
        angle, radius = torch.atan2(polar[..., 1], polar[..., 0]), polar.norm(dim=-1)
        psi = torch.cat([x, angle[..., None], radius[..., None]], -1)
        turns = (psi[..., None] * self.frequencies.to(psi.dtype)).flatten(-2)
        y = self.mix(torch.cat([self.embedding(psi), turns.sin(), turns.cos()], -1))
        for layer in self.hidden:
            y = layer(y).tanh()
        return x + x * self.shift(y)


SMALL = {
    "modes": 6,
    "width": 18,
    "num_layers": 2,
    "fourier_grid": 16,
    "projection": 64,
    "padding": 0.25,
    "deformation_width": 8,
    "deformation_frequencies": 3,
}


@register(
    "geofno",
    settings=GeoFNOSettings,
    summary="Fourier operator in learned coordinates, arXiv 2207.05209",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class GeoFNO(System):
    """Geometry-aware Fourier neural operator in two dimensions."""

    dimensions = (2,)

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: GeoFNOSettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or GeoFNOSettings()
        self.modes = per_axis("modes", s.modes, dim)
        self.grid = (s.fourier_grid, s.fourier_grid)
        self.deformation = Deformation(s)
        self.lift = nn.Linear(in_channels + dim, s.width)
        self.convolutions = nn.ModuleList(SpectralConv(s.width, s.width, self.modes) for _ in range(s.num_layers))
        self.pointwise = nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(s.num_layers))
        self.positions = nn.ModuleList(nn.Linear(dim, s.width) for _ in range(s.num_layers + 2))
        self.encoder = SpectralWeights(s.width, s.width, self.modes, alone=True)
        self.decoder = SpectralWeights(s.width, s.width, self.modes, alone=True)
        self.project = MLP(s.width, s.projection, out_channels)

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        x = (points + 1) / 2
        waves = self._waves(x)
        spectrum = waves.to_spectrum(
            self.lift(torch.cat([features, x.expand(len(features), -1, -1)], -1)), mean_weights(x, weights, mask)
        )
        v = self._on_grid(spectrum_to_grid(self.encoder(spectrum), self.modes, self.grid))
        if queries is not None:
            x = (queries + 1) / 2
            waves = self._waves(x)
        spectrum = self.decoder(grid_to_spectrum(v.to(self.lift.weight.dtype), self.modes))
        return self.project(waves.to_points(spectrum) + self.positions[-1](x))

    def _on_grid(self, v: Tensor) -> Tensor:
        """Return the values on the grid after all layers."""
        axes = [torch.linspace(0, 1, n, dtype=self.lift.weight.dtype, device=v.device) for n in self.grid]
        nodes = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
        first, *others, _ = self.positions
        v = F.gelu(v + first(nodes))
        for convolution, pointwise, position in zip(self.convolutions, self.pointwise, others, strict=True):
            v = F.gelu(convolution(v) + pointwise(v) + position(nodes))
        return v

    def _waves(self, x: Points) -> Waves:
        with torch.autocast(x.device.type, enabled=False):
            return Waves(self.deformation(x) / (1 + self.settings.padding), self.modes)
