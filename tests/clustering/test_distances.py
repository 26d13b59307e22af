"""Short coordinates in place of long rows."""

from __future__ import annotations

import torch

from coterie.clustering.distances import same_distances


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
