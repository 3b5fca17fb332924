"""FNO-DSE: a Fourier neural operator whose transforms are direct sums at irregular points (arXiv 2305.19663).

v_(l+1)(x) = gelu(W_l v_l(x) + Re sum_k c_k R_l,k v_l,k exp(i k.x)),   v_l,k = sum_i w_i v_l(x_i) exp(-i k.x_i)

A linear lift of (features, coordinates), such layers (no gelu after the last), a pointwise perceptron.

``docs/systems.md`` says what differs from the original.
"""

from typing import Annotated

from pydantic import Field
from torch import nn
from torch.nn import functional as F

from ikno.config import Settings
from ikno.models.fourier import Modes, SpectralWeights, Waves
from ikno.models.layers import MLP, Count, Width, per_axis
from ikno.models.neighbors import interpolated
from ikno.models.system import Features, Mask, Points, Queries, System, Values, Weights, mean_weights, with_points
from ikno.models.variants import register


class FNODSESettings(Settings):
    """The published configuration of the elasticity problem; ``padding`` widens the period beyond the domain."""

    modes: Modes | tuple[Modes, ...] = 12
    width: Width = 32
    num_layers: Count = 4
    projection: Width = 128
    padding: Annotated[float, Field(ge=0, le=10)] = 0.0


SMALL = {
    "modes": 5,
    "width": 20,
    "num_layers": 4,
    "projection": 64,
    "padding": 0.5,
}


@register(
    "fno-dse",
    settings=FNODSESettings,
    summary="direct spectral transforms at the points, arXiv 2305.19663",
    sizes={"smoke": SMALL, "cpu": SMALL},
)
class FNODSE(System):
    """Fourier neural operator with direct spectral evaluations at the points."""

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: FNODSESettings | None = None) -> None:
        super().__init__(in_channels, out_channels, dim)
        s = self.settings = settings or FNODSESettings()
        self.modes = per_axis("modes", s.modes, dim)
        self.lift = nn.Linear(in_channels + dim, s.width)
        self.spectral = nn.ModuleList(SpectralWeights(s.width, s.width, self.modes) for _ in range(s.num_layers))
        self.pointwise = nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(s.num_layers))
        self.project = MLP(s.width, s.projection, out_channels)

    def _values(self, features: Features, points: Points, queries: Queries, weights: Weights, mask: Mask) -> Values:
        weights = mean_weights(points, weights, mask)
        tokens, waves = [self.lift(with_points(features, points))], [self._waves(points)]
        if queries is not None:
            tokens.append(self.lift(with_points(interpolated(features, points, queries, mask), queries)))
            waves.append(self._waves(queries))
        # The points alone decide the spectra. After the last layer only the values asked for are computed.
        *layers, (spectral, pointwise) = zip(self.spectral, self.pointwise, strict=True)
        for convolution, linear in layers:
            spectrum = convolution(waves[0].to_spectrum(tokens[0], weights))
            tokens = [F.gelu(linear(v) + w.to_points(spectrum)) for v, w in zip(tokens, waves, strict=True)]
        spectrum = spectral(waves[0].to_spectrum(tokens[0], weights))
        return self.project(pointwise(tokens[-1]) + waves[-1].to_points(spectrum))

    def _waves(self, points: Points) -> Waves:
        return Waves((points + 1) / (2 * (1 + self.settings.padding)), self.modes)
