"""FedSPD: a reduction to FedAvg, and its steps on tiny cases by hand."""

from __future__ import annotations

import pytest
import torch

from coterie import FedAvg, FedSPD, Graph, Training
from coterie.protocol.message import RoundContext
from coterie.protocol.received import Received
from tests.builders import messages, one_number_cohort, state, trained


def test_fedspd_with_one_cluster_on_the_complete_graph_is_fedavg() -> None:
    spd = trained(FedSPD(n_clusters=1, first_times=1), topology=Graph("complete"))
    expected = trained(FedAvg(weights="equal")).state.centers.expand(10, -1, -1)
    torch.testing.assert_close(spd.state.centers, expected, rtol=0, atol=1e-12)


def test_fedspd_changes_only_the_cluster_it_drew() -> None:
    """A path 0 - 1 - 2 that drew 0, 0, 1: 0 and 1 average their rows; 2 receives from no other of its own."""
    sent = messages([0, 1, 2], row=[[2.0], [4.0], [8.0]], drew=[0, 0, 1])
    edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
    received = Received.by_peers(sent, 3, edges)
    after = FedSPD(2).combine(state([[[1.0], [-1.0]]] * 3, 3, at_server=False), received).centers[:, :, 0]
    assert after.tolist() == [[3.0, -1.0], [3.0, -1.0], [1.0, 8.0]]
    # of the messages to others only 0 <-> 1 are needed (section 6.3)
    needed = FedSPD(2).needed(received)
    assert edges.T[needed].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]


def test_fedspd_absent_aggregator_keeps_its_centers() -> None:
    sent = messages([1], row=[[4.0]], drew=[0])
    received = Received.by_peers(sent, 2, torch.tensor([[1], [1]]))
    after = FedSPD(2).combine(state([[[1.0], [-1.0]]] * 2, 2, at_server=False), received).centers[:, :, 0]
    assert after.tolist() == [[1.0, -1.0], [4.0, -1.0]]


def test_fedspd_aligns_by_the_greatest_cosine() -> None:
    """The sender calls by 0 what the aggregator calls by 1; aligned, it goes where it belongs."""
    sent = messages([0, 1], row=[[1.0, 0.1], [0.0, 2.0]], drew=[0, 0])
    edges = torch.tensor([[0, 0], [0, 1]])
    start = state([[[1.0, 0.0], [0.0, 1.0]]] * 2, 2, at_server=False)
    received = Received.by_peers(sent, 2, edges)
    aligned = FedSPD(2, align=True).combine(start, received).centers[0]
    assert aligned.tolist() == [[1.0, 0.1], [0.0, 1.0]]
    plain = FedSPD(2).combine(start, received).centers[0]
    assert plain.tolist() == [[0.5, 1.05], [0.0, 1.0]]


def test_fedspd_files_its_own_row_under_what_it_drew() -> None:
    """Its row resembles its other center more; filed there it would be lost, for only what was drawn is changed."""
    sent = messages([0], row=[[0.1, 3.0]], drew=[0])
    start = state([[[1.0, 0.0], [0.0, 1.0]]], 1, at_server=False)
    received = Received.by_peers(sent, 1, torch.tensor([[0], [0]]))
    assert FedSPD(2, align=True).combine(start, received).centers[0].tolist() == [[0.1, 3.0], [0.0, 1.0]]


def test_fedspd_draws_by_its_importance() -> None:
    """Nine points in ten at one center: that one is drawn by about nine clients in ten."""
    cohort = one_number_cohort(*[([1] * 10, [0] + [4] * 9)] * 400)
    offer = messages(list(range(400)), centers=[[[0.0], [4.0]]] * 400)
    share = float(FedSPD(2).train(cohort, offer)["drew"].double().mean())
    assert share == pytest.approx(0.9, abs=4 * (0.9 * 0.1 / 400) ** 0.5)


def test_fedspd_trains_on_the_points_of_the_cluster_drawn() -> None:
    """With its points half at w = 0 and half at w = 4 a client goes to one or the other, never between."""
    exact = Training(learning_rate=0.2, batch_size=None, epochs=400)
    cohort = one_number_cohort(*[([1, 1], [0, 4])] * 20, training=exact)
    offer = messages(list(range(20)), centers=[[[1.0], [3.0]]] * 20)
    sent = FedSPD(2).train(cohort, offer)
    assert set(sent["drew"].tolist()) == {0, 1}
    torch.testing.assert_close(sent["row"][:, 0], 4.0 * sent["drew"].double(), rtol=0, atol=1e-10)


def test_fedspd_points_of_the_first_round_may_be_drawn() -> None:
    """All eight points are at the first center; at random both clusters have four of them, whatever the centers."""
    exact = Training(learning_rate=0.2, batch_size=None, epochs=200)
    targets = [0, 1, 2, 3, 4, 5, 6, 7]
    cohort = one_number_cohort(*[([1] * 8, targets)] * 200, training=exact)
    offer = messages(list(range(200)), centers=[[[3.5], [99.0]]] * 200)
    first = FedSPD(2, first_points="random").train(cohort.when(RoundContext(0, round=0)), offer)
    assert float(first["drew"].double().mean()) == pytest.approx(0.5, abs=4 * (0.25 / 200) ** 0.5)
    quarters = first["row"][:, 0] * 4  # a row ends at the mean of four targets
    torch.testing.assert_close(quarters, quarters.round(), rtol=0, atol=1e-9)
    assert len(quarters.round().unique()) > 5
    later = FedSPD(2, first_points="random").train(cohort.when(RoundContext(0, round=1)), offer)
    assert later["drew"].tolist() == [0] * 200


def test_fedspd_first_round_is_twice_as_long() -> None:
    """y = w·x with x = 1, target 0, full batch: each step multiplies w by 1 − 2·rate."""
    step = Training(learning_rate=0.1, batch_size=None, epochs=1)
    cohort = one_number_cohort(([1], [0]), training=step)
    offer = messages([0], centers=[[[1.0]]])
    first = FedSPD(1).train(cohort.when(RoundContext(0, round=0)), offer)["row"]
    later = FedSPD(1).train(cohort.when(RoundContext(0, round=1)), offer)["row"]
    assert float(first) == pytest.approx(0.8**2)
    assert float(later) == pytest.approx(0.8)


def test_fedspd_personal_model_is_the_mixture_then_trained_on_all() -> None:
    step = Training(learning_rate=0.1, batch_size=None, epochs=1)
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 4, 4, 4]), training=step)
    offer = messages([0], centers=[[[0.0], [4.0]]])
    spd = FedSPD(2, final_epochs=1, final_rate=0.5)
    assert spd.personal(cohort, offer).rows.item() == pytest.approx(3.0)  # eq. (2): 0.25·0 + 0.75·4
    off = FedSPD(2, final_epochs=1).finish(cohort, messages([0], centers=[[[0.0], [8.0]]])).rows.item()
    # labels: 4 is as near to 0 as to 8, argmin takes the first: all of cluster 0, mixed = 0; gradient of the
    # mean of (w − y)² at 0 is −2·3, times 0.1·0.5
    assert off == pytest.approx(0.05 * 6)
