"""A model of your own, compared with IKNO on the same data for the same seconds.

    ikno data generate poisson-gauss --samples 160 --points 256 --out poisson-gauss.nc
    ikno compare poisson-gauss.nc --models ikno-tp,own_model:Averages --budget '20 seconds'     # in this folder

A run of it is opened by `ikno --import own_model evaluate RUN`, or in Python after `import own_model`.
"""

import torch
from torch import Tensor, nn

import ikno
from ikno.models.layers import MLP


class AveragesSettings(ikno.models.Settings):
    """Sizes; `averages.width=128` changes one from the command line."""

    width: int = 64
    averages: int = 64


@ikno.models.register("averages", settings=AveragesSettings, summary="example: learned averages over the cloud")
class Averages(nn.Module):
    """u(y) = g(y, m) with m the mean of h(x_i, a_i) over the points of the cloud: a small neural operator."""

    def __init__(self, in_channels: int, out_channels: int, dim: int, settings: AveragesSettings) -> None:
        super().__init__()
        s = settings
        self.of_points = MLP(dim + in_channels, s.width, s.width, s.averages)
        self.at_queries = MLP(dim + s.averages, s.width, s.width, out_channels)

    def forward(self, features: Tensor, points: Tensor, queries=None, weights=None, mask=None) -> Tensor:
        """Return the values at the queries, by default at the points."""
        x = points.expand(len(features), -1, -1)
        h = self.of_points(torch.cat([x, features], -1))
        w = torch.ones_like(h[..., :1]) if weights is None else weights[..., None]
        w = w if mask is None else w * mask[..., None]
        mean = (w * h).sum(1, keepdim=True) / w.expand(len(h), -1, -1).sum(1, keepdim=True)
        y = x if queries is None else queries.expand(len(features), -1, -1)
        return self.at_queries(torch.cat([y, mean.expand(-1, y.shape[1], -1)], -1))
