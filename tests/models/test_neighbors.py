"""Graphs between clouds beside loops over all pairs."""

import itertools
from collections import OrderedDict

import pytest
import torch
from torch import Tensor

from ikno.models import neighbors
from ikno.models.neighbors import Edges, along_curve, interpolated, nearest, with_everyone, within


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def pairs(edges: Edges) -> set[tuple[int, int]]:
    found = list(zip(edges.target.tolist(), edges.source.tolist(), strict=True))
    assert len(set(found)) == len(found)
    assert edges.target.tolist() == sorted(edges.target.tolist())
    return set(found)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    ("own_points", "own_centers", "masked"), [(0, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 0, 1)]
)
def test_all_within_the_radius(dim: int, own_points: int, own_centers: int, masked: int) -> None:
    x, y = cloud(1 + 2 * own_points, 40, dim), cloud(1 + 2 * own_centers, 25, dim, seed=1)
    clouds = max(len(x), len(y))
    mask = cloud(clouds, 40, seed=2) > 0 if masked else None
    expected = set()
    for b in range(clouds):
        for i in range(25):
            for j in range(40):
                near = bool((x[b % len(x), j].double() - y[b % len(y), i].double()).norm() <= 0.5)
                if near and (mask is None or mask[b, j]):
                    expected.add((b * 25 + i, b * 40 + j))
    edges = within(x, y, 0.5, mask)
    assert pairs(edges) == expected
    assert edges.targets == clouds * 25
    assert edges.counts.sum() == len(expected)


def test_the_nearest_of_many() -> None:
    x, y = cloud(2, 60, 2), cloud(2, 10, 2, seed=1)
    distance = torch.cdist(y, x)
    expected = {
        (b * 10 + i, b * 60 + int(j)) for b in range(2) for i in range(10) for j in distance[b, i].argsort()[:7]
    }
    assert pairs(nearest(x, y, 7)) == expected
    assert pairs(within(x, y, 10.0, limit=7)) == expected
    assert len(pairs(nearest(x[:1, :3], y[:1], 7))) == 30  # fewer points than asked for
    limited = pairs(within(x, y, 0.4, limit=3))
    assert limited == pairs(within(x, y, 0.4)) & pairs(nearest(x, y, 3))


def test_nobody_is_left_out() -> None:
    x, y = cloud(1, 30, 2), cloud(1, 50, 2, seed=1)
    few, one = within(x, y, 0.15), nearest(x, y, 1)
    assert (few.counts == 0).any()
    found = with_everyone(few, one)
    assert (found.counts >= 1).all()
    assert pairs(found) >= pairs(few)
    assert pairs(found) - pairs(few) == {p for p in pairs(one) if few.counts[p[0]] == 0}


def test_sums_means_and_softmax() -> None:
    x, y = cloud(1, 30, 2), cloud(1, 20, 2, seed=1)
    edges = within(x, y, 0.3)
    values = cloud(3, len(edges.source), 4, seed=2).double().requires_grad_()
    total, mean, weights = edges.sum(values), edges.mean(values), edges.softmax(50 * values)
    for i in range(20):
        mine = values[:, edges.target == i]
        torch.testing.assert_close(total[:, i], mine.sum(1))
        torch.testing.assert_close(mean[:, i], mine.mean(1) if mine.shape[1] else torch.zeros(3, 4).double())
        torch.testing.assert_close(weights[:, edges.target == i], (50 * mine).softmax(1))
    assert torch.autograd.gradcheck(lambda v: edges.softmax(v[:1]), [values], atol=1e-6)
    features = cloud(3, 30, 5, seed=3)
    assert torch.equal(edges.gather(features), features[:, edges.source])
    assert edges.gather_targets(total).shape == values.shape


def test_clouds_side_by_side() -> None:
    """Sums on clouds of their own are those of each cloud alone."""
    x, y, f = cloud(3, 30, 2), cloud(3, 20, 2, seed=1), cloud(3, 30, 4, seed=2)
    edges = within(x, y, 0.4)
    together = edges.sum(edges.gather(f))
    offsets = edges.offsets(x, y)
    for b in range(3):
        own = within(x[b : b + 1], y[b : b + 1], 0.4)
        torch.testing.assert_close(together[b], own.sum(own.gather(f[b : b + 1]))[0])
        apart = x[b][own.source] - y[b][own.target]
        assert torch.equal(offsets[0, (edges.target // 20) == b], apart)


def test_graphs_are_kept_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shape is not the same cloud; an equal copy is, also among others."""
    monkeypatch.setattr(neighbors, "_graphs", OrderedDict())
    searched = []
    search = neighbors._searched
    monkeypatch.setattr(neighbors, "_searched", lambda *a: searched.append(1) or search(*a))
    x, y = cloud(1, 30, 2), cloud(1, 20, 2, seed=1)
    first = within(x, y, 0.4)
    assert within(x.clone(), y.clone(), 0.4).source is first.source
    other = within(cloud(1, 30, 2, seed=5), y, 0.4)
    assert pairs(other) != pairs(first)
    assert pairs(within(x, y, 0.3)) < pairs(first)
    assert len(searched) == 3
    both = within(torch.cat([cloud(1, 30, 2, seed=5), x]), y, 0.4)
    assert len(searched) == 3
    assert pairs(both) == pairs(other) | {(i + 20, j + 30) for i, j in pairs(first)}
    within(x, y, 0.4, torch.ones(1, 30, dtype=torch.bool))
    assert len(searched) == 3
    within(x, y, 0.4, torch.arange(30)[None] > 0)
    assert len(searched) == 4
    monkeypatch.setattr(neighbors, "KEPT_BYTES", 0)
    within(x, y, 0.2)
    assert len(neighbors._graphs) == 1
    assert pairs(within(x, y, 0.4)) == pairs(first)


def test_no_points_at_all() -> None:
    x, y = cloud(1, 30, 2), cloud(1, 20, 2, seed=1)
    nobody = torch.zeros(1, 30, dtype=torch.bool)
    for edges in (within(x, y, 0.4, nobody), nearest(x, y, 3, nobody), within(x, y + 10, 0.1)):
        assert len(edges.source) == 0
        assert (edges.mean(torch.zeros(1, 0, 2)) == 0).all()


@pytest.mark.parametrize("clouds", [1, 2])
def test_values_between_points(clouds: int) -> None:
    features, points, queries = cloud(2, 40, 3), cloud(clouds, 40, 2, seed=1), cloud(clouds, 11, 2, seed=2)
    mask = cloud(2, 40, seed=3) < 0.6
    for m in (None, mask):
        found = interpolated(features, points, queries, m)
        for b, q in itertools.product(range(2), range(11)):
            squares = [(p - queries[b % clouds, q]).square().sum().item() for p in points[b % clouds]]
            real = [i for i in range(40) if m is None or m[b, i]]
            four = sorted(real, key=lambda i: squares[i])[:4]
            total = sum(1 / squares[i] for i in four)
            expected = torch.stack([features[b, i] / squares[i] / total for i in four]).sum(0)
            torch.testing.assert_close(found[b, q], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(interpolated(features, points, points), features)
    empty = interpolated(features, points, queries, torch.zeros(1, 40, dtype=torch.bool))
    assert (empty == 0).all()


def test_the_curve_goes_through_quadrants() -> None:
    points = torch.tensor([[[0.5, 0.5], [-0.5, 0.5], [0.9, -0.1], [-0.5, -0.5], [-0.6, -0.6], [0.1, -0.9], [0.5, 0.4]]])
    assert along_curve(points).tolist() == [[4, 3, 5, 2, 1, 6, 0]]
    mask = torch.tensor([[True, True, True, False, True, True, True]])
    assert along_curve(points, mask).tolist() == [[4, 5, 2, 1, 6, 0, 3]]
