"""FedEM, on tiny cases by hand."""

from __future__ import annotations

import torch

from coterie import FedEM, Training
from coterie.protocol.received import Received
from tests.builders import F64, messages, one_number_cohort, state


def test_fedem_responsibilities() -> None:
    """One point at distance 0 and 1 from two centers, π = (0.2, 0.8): q ∝ (0.2·1, 0.8/e)."""
    cohort = one_number_cohort(([1], [0]))
    cohort.keep("importance", torch.tensor([[0.2, 0.8]], dtype=F64))
    q = FedEM(2).responsibilities(cohort, messages([0], centers=[[[0.0], [1.0]]]))
    by_hand = torch.tensor([0.2, 0.8 * torch.e**-1], dtype=F64)
    torch.testing.assert_close(q[0], by_hand / by_hand.sum())


def test_fedem_weighs_rows_by_mass() -> None:
    received = Received.by_server(
        messages([0, 1], row=[[[0.0], [2.0]], [[4.0], [6.0]]], mass=[[3.0, 0.0], [1.0, 5.0]])
    )
    assert FedEM(2).combine(state([[[9.0], [9.0]]], 2), received).centers.tolist() == [[[1.0], [6.0]]]


def test_fedem_sends_its_mass_and_keeps_its_importance() -> None:
    """Points at 0 and 10 for centers at 0 and 10: each takes one, π = (½, ½), mass (1, 1), weight 1 of 2 in a step."""
    cohort = one_number_cohort(
        ([1, 1, 1, 1], [0, 10, 10, 10]), training=Training(learning_rate=0.1, batch_size=None)
    )
    cohort.keep("importance", torch.tensor([[0.9, 0.1]], dtype=F64))
    sent = FedEM(2).train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    torch.testing.assert_close(sent["mass"], torch.tensor([[1.0, 3.0]], dtype=F64))
    torch.testing.assert_close(
        cohort.recall("importance", torch.zeros(1, 2, dtype=F64)), torch.tensor([[0.25, 0.75]], dtype=F64)
    )
    # gradients of Σ q·(w − y)²/n: ¼·2·(1 − 0) and ¾·2·(9 − 10)
    by_hand = torch.tensor([[[1 - 0.1 * 0.5], [9 + 0.1 * 1.5]]], dtype=F64)
    torch.testing.assert_close(sent["row"], by_hand)
    by_size = FedEM(2, weights="size").train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    assert by_size["mass"].tolist() == [[4.0, 4.0]]
    personal = FedEM(2).personal(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    torch.testing.assert_close(personal.weights, torch.tensor([[0.25, 0.75]], dtype=F64))


def test_fedem_predicts_with_the_largest_center_if_asked() -> None:
    step = Training(learning_rate=0.1, batch_size=None, epochs=1)
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 9, 9, 9]), ([1], [0]), training=step)
    offer = messages([0, 1], centers=[[[0], [9]]] * 2)
    largest = FedEM(2, predict="largest").personal(cohort, offer)
    assert largest.rows.tolist() == [[[9.0]], [[0.0]]]
    assert largest.weights.tolist() == [[1.0], [1.0]]
    assert FedEM(2).personal(cohort, offer).rows.shape == (2, 2, 1)
