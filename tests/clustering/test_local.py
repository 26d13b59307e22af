"""The steps of one device: the filter, separations, the number of clusters."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering import local
from coterie.clustering.local import choose, filtered_means, separations
from tests.builders import column

# by hand


def test_the_filter_takes_what_is_three_times_nearer() -> None:
    x = column(0, 2, 4, 9, 10)
    assert filtered_means(x, x, column(0, 10)).tolist() == [[1], [9.5]]  # up to 2.5, and from 7.5


def test_an_empty_filtered_set_takes_the_nearest() -> None:
    x = column(4, 6)
    assert filtered_means(x, x, column(0, 10)).tolist() == [[4], [6]]
    assert filtered_means(x, x, column(0, 10, 20)).tolist() == [[4], [6], [6]]


def test_the_filter_uses_the_projection_and_the_means_do_not() -> None:
    x = np.array([[0, 5], [2, 7], [10, 1]], float)
    assert filtered_means(x, x[:, :1], column(0, 10)).tolist() == [[1, 6], [10, 1]]


def test_separations() -> None:
    found = separations(column(0, 2, 10, 12), [0, 0, 1, 1])  # ‖A − C‖ = 2, Δ = √2·2/√2
    assert found == pytest.approx([10 / (2 * (2 + 2))])
    assert separations(column(0, 2, 10, 12), [0, 0, 1, 1], m0=4, factor=2) == pytest.approx(
        found / 2 / 2**0.5
    )
    assert separations(column(0, 0, 1), [0, 0, 1]).tolist() == [np.inf]


def test_choosing_by_the_share_of_separated_pairs() -> None:
    assert choose({2: 1.0, 3: 0.7, 4: 1.0, 5: 0.9}, least=1) == 4
    assert choose({2: 0.0, 3: 0.4}, least=1) == 1
    assert choose({}, least=1) == 1


def test_the_norm_of_many_points_and_features_is_nearly_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).normal(size=(60, 40)) * np.linspace(3, 1, 40)
    exact = separations(points, np.arange(60) % 3)
    monkeypatch.setattr(local, "EXACT", 10)
    assert separations(points, np.arange(60) % 3) == pytest.approx(exact, rel=0.02)
