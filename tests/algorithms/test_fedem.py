"""FedEM, on tiny cases by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import FedEM, Training
from coterie.protocol.message import Messages
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
    by_mass = FedEM(2, weights="mass").combine(state([[[9.0], [9.0]]], 2), received)
    assert by_mass.centers.tolist() == [[[1.0], [6.0]]]


def test_fedem_weighs_rows_by_size() -> None:
    received = Received.by_server(messages([0, 1], row=[[[0.0], [2.0]], [[4.0], [6.0]]], size=[3, 1]))
    assert FedEM(2).combine(state([[[9.0], [9.0]]], 2), received).centers.tolist() == [[[1.0], [3.0]]]


def pooled_step(w: Tensor, pi: Tensor, clients: list[list[float]], rate: float, by_mass: bool) -> Tensor:
    """One gradient step of EM on all points at once: for each center Σ q·2(w − y), over N or over Σ q."""
    gradient, mass = torch.zeros_like(w), torch.zeros_like(w)
    for own, points in zip(pi, clients, strict=True):
        for y in points:
            q = own * torch.exp(-((w - y) ** 2))
            q = q / q.sum()
            gradient, mass = gradient + q * 2 * (w - y), mass + q
    return w - rate * gradient / (mass if by_mass else sum(map(len, clients)))


@pytest.mark.parametrize("weights", ["size", "mass"])
def test_one_full_batch_round_is_the_pooled_em_gradient_step(weights: Any) -> None:
    clients = [[0.0, 0.3, 3.0], [2.5, 3.1, 2.9, 0.1, 3.3]]  # of unequal sizes
    step = Training(learning_rate=0.1, batch_size=None, epochs=1)
    cohort = one_number_cohort(*(([1.0] * len(y), y) for y in clients), training=step)
    pi = torch.tensor([[0.6, 0.4], [0.2, 0.8]], dtype=F64)
    cohort.keep("importance", pi)
    algorithm = FedEM(2, weights=weights)
    offer = messages([0, 1], centers=[[[0.5], [2.0]]] * 2)
    received = Received.by_server(Messages(torch.arange(2), algorithm.train(cohort, offer)))
    after = algorithm.combine(state([[[0.5], [2.0]]], 2), received).centers[0, :, 0]
    by_hand = pooled_step(torch.tensor([0.5, 2.0], dtype=F64), pi, clients, 0.1, weights == "mass")
    torch.testing.assert_close(after, by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["size", "mass"])
def test_fedem_goes_where_em_goes(weights: Any) -> None:
    """Two clients, one center of which is near all their points: the other's fixed point is EM's, not another."""
    clients = [[0.0, 2.0], [2.0, 1.5, 4.0, 2.2]]
    step = Training(learning_rate=0.05, batch_size=None, epochs=1)
    cohort = one_number_cohort(*(([1.0] * len(y), y) for y in clients), training=step)
    algorithm, centers = FedEM(2, weights=weights), torch.tensor([[[0.0], [2.0]]], dtype=F64)
    for _ in range(600):
        offer = Messages(torch.arange(2), {"centers": centers.expand(2, -1, -1)})
        received = Received.by_server(Messages(torch.arange(2), algorithm.train(cohort, offer)))
        centers = algorithm.combine(state(centers.tolist(), 2), received).centers
    w, pi = torch.tensor([0.0, 2.0], dtype=F64), torch.full((2, 2), 0.5, dtype=F64)
    for _ in range(2000):  # EM on the pooled points, with the M-step solved exactly
        total, mass, mine = torch.zeros(2, dtype=F64), torch.zeros(2, dtype=F64), []
        for own, points in zip(pi, clients, strict=True):
            y = torch.tensor(points, dtype=F64)
            q = own * torch.exp(-((w - y[:, None]) ** 2))
            q = q / q.sum(1, keepdim=True)
            total, mass = total + (q * y[:, None]).sum(0), mass + q.sum(0)
            mine.append(q.mean(0))
        w, pi = total / mass, torch.stack(mine)
    torch.testing.assert_close(centers[0, :, 0], w, rtol=0, atol=1e-4)


def test_fedem_sends_its_mass_and_keeps_its_importance() -> None:
    """Points at 0 and 10 for centers at 1 and 9: π = (¼, ¾), and the centers take 1 and 3 of the four points."""
    cohort = one_number_cohort(
        ([1, 1, 1, 1], [0, 10, 10, 10]), training=Training(learning_rate=0.1, batch_size=None)
    )
    cohort.keep("importance", torch.tensor([[0.9, 0.1]], dtype=F64))
    sent = FedEM(2).train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    assert sent["size"].tolist() == [4]
    assert "mass" not in sent
    torch.testing.assert_close(
        cohort.recall("importance", torch.zeros(1, 2, dtype=F64)), torch.tensor([[0.25, 0.75]], dtype=F64)
    )
    # gradients of Σ q·(w − y)²/n: ¼·2·(1 − 0) and ¾·2·(9 − 10)
    by_hand = torch.tensor([[[1 - 0.1 * 0.5], [9 + 0.1 * 1.5]]], dtype=F64)
    torch.testing.assert_close(sent["row"], by_hand)
    by_mass = FedEM(2, weights="mass").train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    torch.testing.assert_close(by_mass["mass"], torch.tensor([[1.0, 3.0]], dtype=F64))
    assert "size" not in by_mass
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
