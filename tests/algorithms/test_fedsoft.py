"""FedSoft: reductions, its steps on tiny cases by hand, traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie import FedAvg, FedSoft, Local, Participation, Stage, Stages, Training
from coterie.data import regressions
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import RoundContext
from coterie.protocol.received import Received
from tests.builders import F64, TRAINING, messages, one_number_cohort, simulation, state, trained


def rows(run: Coordinator) -> Tensor:
    return run.finish().personal.rows[:, 0]


def test_fedsoft_with_one_cluster_everyone_drawn_and_no_pull_is_fedavg() -> None:
    soft = trained(FedSoft(n_clusters=1, pull=0.0, draws=10, replacement=False))
    torch.testing.assert_close(
        soft.state.centers, trained(FedAvg(weights="equal")).state.centers, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("keep", [False, True])
def test_fedsoft_from_its_own_rows_without_pull_is_local(keep: bool) -> None:
    training = Training(optimizer="adam", learning_rate=0.01, batch_size=10, epochs=2, keep_optimizer=keep)
    soft = trained(
        FedSoft(n_clusters=2, pull=0.0, draws=10, start="own", replacement=False), training=training
    )
    torch.testing.assert_close(rows(soft), rows(trained(Local(), training=training)), rtol=0, atol=1e-12)


def test_fedsoft_averages_the_rows_drawn() -> None:
    """Client 0 drawn twice and client 1 once for cluster 0; nobody who sent a row for cluster 1."""
    drawn = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    received = Received.by_server(
        messages([0, 1], row=[[0.0], [9.0]], importance=[[1, 0], [1, 0]], size=[1, 1])
    )
    after = FedSoft(2).combine(state([[[5.0], [7.0]]], 3, drawn=drawn), received)
    assert after.centers.tolist() == [[[3.0], [7.0]]]


def test_fedsoft_over_a_graph_weighs_by_importance_and_size() -> None:
    """A path 0 - 1 - 2. Client 0 receives from 0 and 1: cluster 0 is (0.5·10·0 + 1·10·6) / 15 = 4."""
    sent = messages(
        [0, 1, 2], row=[[0.0], [6.0], [9.0]], importance=[[0.5, 0.5], [1, 0], [0, 1]], size=[10, 10, 20]
    )
    edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
    start = state([[[1.0], [1.0]]] * 3, 3, at_server=False)
    after = FedSoft(2).combine(start, Received.by_peers(sent, 3, edges)).centers[:, :, 0]
    expected = [[4.0, 0.0], [4.0, (5 * 0 + 20 * 9) / 25], [6.0, 9.0]]
    torch.testing.assert_close(after, torch.tensor(expected, dtype=F64))


def test_fedsoft_reports_importance_and_smooths_it() -> None:
    """Centers w = 0 and w = 2 on points (1, y): y = 2 is the second's; y = 0 the first's."""
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 2, 2, 2]), ([1], [2]))
    offer = messages([0, 1], centers=[[[0.0], [2.0]]] * 2)
    sent = FedSoft(2, smoothing=0.3).report(cohort, offer)
    assert sent["importance"].tolist() == [[0.3, 0.75], [0.3, 1.0]]
    sent = FedSoft(2, smoothing=0.3, smooth="zero").report(cohort, offer)
    assert sent["importance"].tolist() == [[0.25, 0.75], [0.3, 1.0]]
    assert sent["size"].tolist() == [4, 1]


def test_fedsoft_solves_its_proximal_problem() -> None:
    """min (w − 3)² + λ/2·Σ u_s (w − c_s)², by hand: w = (2·3 + λ·Σ u·c) / (2 + λ·Σ u)."""
    exact = Training(learning_rate=0.2, batch_size=None, epochs=400)
    cohort = one_number_cohort(([1], [3]), training=exact)
    importance, centers, pull = [0.25, 0.9], [0.0, 10.0], 0.7
    offer = messages([0], centers=[[[c] for c in centers]], importance=[importance])
    row = float(FedSoft(2, pull=pull).train(cohort, offer)["row"])
    by_hand = (2 * 3 + pull * (0.9 * 10)) / (2 + pull * (0.25 + 0.9))
    assert row == pytest.approx(by_hand, abs=1e-10)


def test_fedsoft_asks_every_other_round() -> None:
    def asked(round: int) -> bool:
        s = state([[[0.0], [1.0]]], 3)
        return FedSoft(2, refresh=2).ask(replace(s, context=RoundContext(0, round=round))) is not None

    assert [asked(t) for t in range(5)] == [True, False, True, False, True]


def test_fedsoft_draws_by_importance_and_size() -> None:
    """Eq. (6): v_sk = u_ks·n_k / Σ u·n, over all clients; with K = 4000 draws the counts show it."""
    soft = FedSoft(2, draws=3)
    start = soft.begin(state([[[0.0], [1.0]]], 3))
    reports = messages([0, 1, 2], importance=[[0.5, 0.5], [1.0, 1e-4], [0.25, 0.75]], size=[100, 50, 200])
    weight = torch.tensor([[50.0, 50.0], [50.0, 0.005], [50.0, 150.0]], dtype=F64)
    counts = torch.zeros(3, 2, dtype=F64)
    for t in range(1500):
        after, offer = soft.plan(replace(start, context=RoundContext(0, round=t)), reports)
        counts += after.drawn
        assert set(offer.clients.tolist()) == set(after.drawn.any(1).nonzero()[:, 0].tolist())
    torch.testing.assert_close(counts / counts.sum(0), weight / weight.sum(0), rtol=0, atol=0.03)


def test_fedsoft_receives_all_it_drew_among_a_fraction() -> None:
    data = regressions(clients=100, sizes=(10, 20), seed=1)
    stage = Stage(FedSoft(2, draws=60), 6, TRAINING, participation=Participation(fraction=0.1))
    run = simulation(Stages((stage,)), data, seed=0)
    received = [len(run.step()) for _ in range(6)]
    assert min(received) >= 5


def test_traffic_of_fedsoft_by_hand() -> None:
    """10 clients, 2 centers of 10 float64 (160 bytes). Round 0 asks all: down 10·160, up 10·(2·8 + 8). Each round
    the drawn are offered centers and importance (176 bytes) and send row, importance and size (80 + 16 + 8)."""
    run = trained(FedSoft(2, draws=10, replacement=False), rounds=2)
    assert run.traffic.down == 10 * 160 + 2 * 10 * 176
    assert run.traffic.up == 10 * 24 + 2 * 10 * 104
