"""Naive distributed k-means: by hand, and as if the points were in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

from coterie import CoterieError
from coterie.clustering.distributed_kmeans import distributed_kmeans, local_sums
from coterie.clustering.local import lloyd
from tests.builders import column


def devices(seed: int = 0) -> list[Any]:
    chance = np.random.default_rng(seed)
    return [chance.normal(size=(n, 3)) + 4 * chance.integers(0, 2, (n, 1)) for n in (30, 1, 12, 25)]


def test_two_rounds_by_hand() -> None:
    found = distributed_kmeans([column(0, 6), column(10, 5)], 2, init=column(0, 10))
    # 0 and 5 (a tie goes to the first) to 0; 6 and 10 to 10: then 2.5 and 8; then nothing moves
    assert found.costs == [25 + 16, 2 * 2.5**2 + 2 * 2**2]
    assert found.centers.ravel().tolist() == [2.5, 8]
    assert [own.tolist() for own in found.labels] == [[0, 1], [1, 0]]
    assert found.bytes == [8 * 2 * (2 * 2 * 1 + 2 + 1)] * 2


def test_what_a_device_sends() -> None:
    sums, counts, cost = local_sums(column(1, 2, 9), column(0, 10, 50))
    assert sums.ravel().tolist() == [3, 9, 0]
    assert counts.tolist() == [2, 1, 0]
    assert cost == 1 + 4 + 1


def test_a_center_that_nobody_is_nearest_to_stays() -> None:
    found = distributed_kmeans([column(1), column(3)], 2, init=column(0, 100))
    assert found.centers.ravel().tolist() == [2, 100]


def test_the_initial_centers_are_points_each_as_likely_and_are_counted() -> None:
    points = [column(0, 1, 2), column(3)]
    drawn = [distributed_kmeans(points, 1, rounds=1, random_state=s) for s in range(600)]
    cost = {float(sum((np.arange(4) - c) ** 2)): c for c in (0, 1)}  # 0 and 3, 1 and 2 cost the same
    share = np.mean([cost[found.costs[0]] for found in drawn])
    assert share == pytest.approx(0.5, abs=0.07)
    assert drawn[0].bytes == [8 * 2 * (2 + 1 + 1) + 8 * (2 + 1)]


def test_it_is_lloyd_on_the_pooled_points() -> None:
    points = devices()
    init = np.concatenate(points)[:4]
    found = distributed_kmeans(points, 4, init=init)
    labels, centers = lloyd(np.concatenate(points), init)
    assert found.centers == pytest.approx(centers)
    assert np.array_equal(np.concatenate(found.labels), labels)
    pooled = KMeans(4, init=init, n_init=1, tol=0, algorithm="lloyd").fit(np.concatenate(points))
    assert found.costs[-1] == pytest.approx(pooled.inertia_)
    assert found.costs == sorted(found.costs, reverse=True)
    one = distributed_kmeans(points, 4, init=init, rounds=1)
    assert one.centers == pytest.approx(lloyd(np.concatenate(points), init, 1)[1])
    assert len(one.costs) == len(one.bytes) == 1


def test_the_order_of_devices_does_not_matter() -> None:
    points = devices(1)
    one, other = (distributed_kmeans(p, 5, random_state=2) for p in (points, points[::-1]))
    assert np.array_equal(one.centers, other.centers)
    assert one.costs == other.costs
    for here, there in zip(one.labels, other.labels[::-1], strict=True):
        assert np.array_equal(here, there)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_clusters": 0}, "n_clusters is 0; allowed is a whole number from 1"),
        ({"n_clusters": 69}, "n_clusters is 69; allowed is at most 68, the number of points"),
        ({"rounds": 0}, "rounds is 0"),
        ({"init": [[1.0]]}, r"init is 'of shape \(1, 1\)'; allowed is an array of shape \(2, 3\)"),
        ({"X": [np.ones((2, 3)), np.ones((2, 2))]}, "the points of device 1, of shape"),
        ({"X": [np.full((4, 3), np.nan)]}, "the points of device 0"),
        ({"X": []}, "n_clusters is 2; allowed is at most 0"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        distributed_kmeans(**{"X": devices(), "n_clusters": 2, **settings})
