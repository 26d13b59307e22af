"""IFCA and HypCluster, on tiny cases by hand."""

from __future__ import annotations

import pytest
import torch

from coterie import IFCA, HypCluster, Training
from coterie.protocol.received import Received
from tests.builders import F64, messages, one_number_cohort, state


def test_ifca_averages_what_chose_a_center() -> None:
    received = Received.by_server(
        messages([0, 1, 2], row=[[0.0], [4.0], [9.0]], size=[1, 3, 5], choice=[0, 0, 1])
    )
    before = state([[[1.0], [2.0], [7.0]]], 3)
    assert IFCA(3).combine(before, received).centers.tolist() == [[[2.0], [9.0], [7.0]]]
    assert HypCluster(3).combine(before, received).centers.tolist() == [[[3.0], [9.0], [7.0]]]


def test_ifca_averages_gradients_over_all_clients() -> None:
    """θ_j + 1/M·Σ (row − θ_j): with two of three in cluster 0, two thirds of the way to their mean."""
    received = Received.by_server(
        messages([0, 1, 2], row=[[4.0], [7.0], [9.0]], size=[1, 1, 1], choice=[0, 0, 1])
    )
    after = IFCA(2, averaging="gradient").combine(state([[[1.0], [3.0]]], 3), received).centers
    torch.testing.assert_close(after, torch.tensor([[[1 + (3 + 6) / 3], [3 + 6 / 3]]], dtype=F64))


def test_ifca_chooses_by_the_whole_of_its_data() -> None:
    """Two points say 0 and one says 10; the center at 4 has the least mean loss, though it is best on none."""
    cohort = one_number_cohort(([1, 1, 1], [0, 0, 10]))
    offer = messages([0], centers=[[[-1.0], [4.0], [10.0]]])
    assert IFCA(3).train(cohort, offer)["choice"].tolist() == [1]


def test_ifca_keeps_an_optimizer_state_for_each_cluster() -> None:
    """y = w·x with x = 1, target 0: the gradient at 1 is 2, so the first step is 0.2; momentum makes the second 0.3."""
    training = Training(learning_rate=0.1, batch_size=None, epochs=1, momentum=0.5, keep_optimizer=True)
    cohort = one_number_cohort(([1], [0]), training=training)
    near_first, near_second = ([[1.0], [50.0]], 0), ([[50.0], [1.0]], 1)
    for (centers, choice), row in ((near_first, 0.8), (near_second, 0.8), (near_first, 0.7)):
        sent = IFCA(2).train(cohort, messages([0], centers=[centers]))
        assert sent["choice"].tolist() == [choice]
        assert float(sent["row"]) == pytest.approx(row)


def test_ifca_gradient_mode_is_one_full_batch_step() -> None:
    """Whatever training says: from w = 1, data y = 3 and y = 5, rate 0.1: 1 − 0.1·2·(1 − 4)."""
    training = Training(learning_rate=0.1, batch_size=1, epochs=3, momentum=0.9, weight_decay=0.5)
    cohort = one_number_cohort(([1, 1], [3, 5]), training=training)
    sent = IFCA(1, averaging="gradient").train(cohort, messages([0], centers=[[[1.0]]]))
    assert float(sent["row"]) == pytest.approx(1.6)
