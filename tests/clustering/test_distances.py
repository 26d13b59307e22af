"""Short coordinates in place of long rows, and the nearest center."""

from __future__ import annotations

import torch

from coterie.clustering.distances import nearest, same_distances


def test_distances_are_the_same_and_rows_are_short() -> None:
    rows = torch.randn(20, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 5
    short = same_distances(rows)
    assert short.shape == (20, 20)
    torch.testing.assert_close(torch.cdist(short, short), torch.cdist(rows, rows), rtol=1e-9, atol=1e-9)


def test_rows_that_are_alike_stay_alike() -> None:
    rows = torch.ones(5, 100, dtype=torch.float64)
    rows[4] += 1
    found = torch.cdist(same_distances(rows), same_distances(rows))
    torch.testing.assert_close(found, torch.cdist(rows, rows), rtol=0, atol=1e-6)


def test_short_rows_are_left_as_they_are() -> None:
    rows = torch.randn(20, 7)
    assert same_distances(rows) is rows


def test_the_nearest_center_of_many_rows_that_are_nearly_alike() -> None:
    """Two groups of models at length 1000, apart by a ten-thousandth of that: inner products cannot part them."""
    chance = torch.Generator().manual_seed(0)
    common = 100 * torch.randn(100, generator=chance)
    centers = torch.stack([common, common + 0.01])
    group = torch.arange(40) % 2
    rows = centers[group] + 1e-3 * torch.randn(40, 100, generator=chance)
    assert nearest(rows, centers).tolist() == group.tolist()


def test_a_center_that_exploded_is_the_nearest_of_none() -> None:
    rows = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    centers = torch.stack([rows[:20].mean(0), torch.full((100,), 3e38), rows[20:].mean(0)])
    assert 1 not in nearest(rows, centers)
    centers[1] = torch.nan
    assert 1 not in nearest(rows, centers)
    centers[1] = rows.mean(0)
    assert 1 in nearest(rows, centers)
    assert 1 not in nearest(rows, centers, torch.tensor([True, False, True]))
