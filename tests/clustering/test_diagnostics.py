"""What k-FED's theorem asks of the data, measured."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import CoterieError, KFed
from coterie.clustering.diagnostics import active_pairs, cost, counted, gaps, points_short, separation
from tests.builders import column, devices


def test_m0_and_active_pairs_by_hand() -> None:
    """Cluster 0: 6 of 8 on one device and 2 on another, so m0 = 4; 1 and 2 meet nowhere; 3 has no points."""
    counts = np.array([[6, 3, 0, 0], [2, 0, 5, 0], [0, 0, 0, 0]])
    assert points_short(counts) == 4
    assert np.argwhere(np.triu(active_pairs(counts))).tolist() == [[0, 1], [0, 2]]
    assert not active_pairs(counts).diagonal().any()
    assert points_short(np.array([[5, 0], [0, 7]])) == 1


def test_separation_by_hand() -> None:
    """Points 0, 2 | 10, 12 | 40: ‖A − C‖ = 2; k' = 2, m0 = 2, so Δ = 4/√2, 4/√2, 4/√1, and λ = √2·2/√1."""
    labels = [np.array([0, 1]), np.array([0, 1]), np.array([3])]
    found = separation(column(0, 10, 2, 12, 40), np.concatenate(labels), counted(labels, 4))
    assert found.m0 == 2
    root = 2**0.5
    assert found.separations[0, 1] == pytest.approx(10 / (2 * root * (4 / root + 4 / root)))
    assert found.separations[3, 0] == pytest.approx(39 / (2 * root * (4 / root + 4)))
    assert found.inactive_separations[1, 3] == pytest.approx(29 / (10 * root * root * 2))
    assert np.isnan(found.separations[2]).all()
    assert np.isnan(found.separations.diagonal()).all()
    assert np.argwhere(np.triu(found.active)).tolist() == [[0, 1]]


def test_gaps_by_hand() -> None:
    """Along the line to the nearest mean 0, 2 | 10, 14 | 60, 60 have variances 1, 4 and 0; across it nothing counts."""
    points = np.array([[0, 5], [2, -5], [10, 1], [14, -1], [60, 0], [60, 0]], float)
    across = 10 * points[:, 1]
    found = gaps(np.column_stack([points[:, 0], across]), [7, 7, 3, 3, 9, 9])
    assert found == pytest.approx([11 / 2.5**0.5, 11 / 2.5**0.5, 48 / 2**0.5])
    assert gaps(column(1, 1, 5, 5), [0, 0, 1, 1]).tolist() == [np.inf, np.inf]
    assert len(gaps(column(1, 2), [0, 0])) == 0
    assert KFed(1, random_state=0).fit(points).gap_ == np.inf


def test_the_cost_and_its_ratio() -> None:
    assert cost(column(0, 2, 10, 12), [5, 5, 7, 7]) == 4
    assert cost(column(0, 2, 10, 12), [0, 0, 0, 0]) == 36 + 16 + 16 + 36
    points, truth = devices()
    model = KFed(6, 2, random_state=0).fit(points)
    assert model.cost_ == pytest.approx(cost(np.concatenate(points), model.labels_))
    assert model.cost_ratio(points, np.concatenate(truth)) == pytest.approx(1)  # they are far apart
    one = np.zeros(len(model.labels_))
    assert model.cost_ratio(np.concatenate(points), one) == pytest.approx(
        model.cost_ / cost(np.concatenate(points), one)
    )
    with pytest.raises(CoterieError, match=r"labels have the shape \(3,\)"):
        model.cost_ratio(points, [0, 1, 2])


def test_what_is_measured_does_not_hang_on_the_order_of_devices() -> None:
    points, _ = devices()
    one, other = (KFed(6, 2, random_state=0).fit(p) for p in (points, points[::-1]))
    assert one.m0_ == other.m0_
    assert one.cost_ == pytest.approx(other.cost_)
    assert np.nanmin(one.separations_) == pytest.approx(np.nanmin(other.separations_))
    assert one.active_pairs_.sum() == other.active_pairs_.sum()
