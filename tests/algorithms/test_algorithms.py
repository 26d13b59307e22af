"""Reductions between algorithms, and tiny cases computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from coterie import (
    CoterieError,
    FedAvg,
    FedProx,
    FedSoft,
    FedSPD,
    Graph,
    Local,
    Participation,
    Server,
    Stage,
    Stages,
    Training,
)
from coterie.algorithms import Algorithm
from coterie.backends.simulation import Simulation
from coterie.data import from_arrays, regressions
from coterie.data.federation import Points
from coterie.engine.model import FunctionalModel, squared_error
from coterie.engine.rows import Rows
from coterie.prng import id_keys
from coterie.protocol.cohort import Cohort, RoundContext
from coterie.protocol.message import Messages, Traffic
from coterie.protocol.received import Received, State
from coterie.runs.summary import importance_error, match

F64 = torch.float64
CPU = torch.device("cpu")
TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=2)


def play(algorithm: Algorithm, topology=None, training: Training = TRAINING, rounds: int = 4) -> Simulation:
    data = regressions(clients=10, sizes=(20, 40), separation=166.0, seed=1)
    plan = Stages((Stage(algorithm, rounds, training, topology or Server()),))
    simulation = Simulation(lambda: nn.Linear(10, 1, bias=False), data, plan, dtype=F64, device=CPU)
    while not simulation.done:
        simulation.step()
    return simulation


def rows(simulation: Simulation) -> Tensor:
    return simulation.result().personal.rows[:, 0]


def test_fedprox_without_pull_is_fedavg() -> None:
    assert torch.equal(play(FedProx(pull=0.0)).state.centers, play(FedAvg()).state.centers)
    assert not torch.allclose(play(FedProx(pull=5.0)).state.centers, play(FedAvg()).state.centers, atol=1e-3)


def test_fedsoft_with_one_cluster_everyone_drawn_and_no_pull_is_fedavg() -> None:
    soft = play(FedSoft(n_clusters=1, pull=0.0, draws=10, replacement=False))
    torch.testing.assert_close(
        soft.state.centers, play(FedAvg(weights="equal")).state.centers, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("keep", [False, True])
def test_fedsoft_from_its_own_rows_without_pull_is_local(keep: bool) -> None:
    training = Training(optimizer="adam", learning_rate=0.01, batch_size=10, epochs=2, keep_optimizer=keep)
    soft = play(FedSoft(n_clusters=2, pull=0.0, draws=10, start="own", replacement=False), training=training)
    torch.testing.assert_close(rows(soft), rows(play(Local(), training=training)), rtol=0, atol=1e-12)


def test_fedspd_with_one_cluster_on_the_complete_graph_is_fedavg() -> None:
    spd = play(FedSPD(n_clusters=1, first_times=1), Graph("complete"))
    expected = play(FedAvg(weights="equal")).state.centers.expand(10, -1, -1)
    torch.testing.assert_close(spd.state.centers, expected, rtol=0, atol=1e-12)


def test_fedavg_over_the_complete_graph_is_fedavg_at_a_server() -> None:
    graph, server = play(FedAvg(), Graph("complete")), play(FedAvg())
    torch.testing.assert_close(
        graph.state.centers, server.state.centers.expand(10, -1, -1), rtol=0, atol=1e-12
    )


# Tiny cases. Rows are single numbers.


def state(centers: list, clients: int, at_server: bool = True, **fields: Tensor) -> State:
    keys = id_keys(map(str, range(clients)))
    rows = Rows(nn.Linear(len(centers[0][0]), 1, bias=False))
    everyone = torch.ones(clients, dtype=torch.bool)
    return State(torch.tensor(centers, dtype=F64), keys, rows, at_server, RoundContext(0), everyone, fields)


def messages(clients: list[int], **sent: list) -> Messages:
    whole = {"drew", "size", "choice"}
    fields = {n: torch.tensor(v, dtype=torch.long if n in whole else F64) for n, v in sent.items()}
    return Messages(torch.tensor(clients), fields)


def test_fedavg_weighs_by_size() -> None:
    received = Received.by_server(messages([0, 1], row=[[0.0], [10.0]], size=[30, 10]))
    assert FedAvg().combine(state([[[5.0]]], 2), received).centers.tolist() == [[[2.5]]]
    assert FedAvg("equal").combine(state([[[5.0]]], 2), received).centers.tolist() == [[[5.0]]]


def test_fedsoft_averages_the_rows_drawn() -> None:
    """Client 0 drawn twice and client 1 once for cluster 0; nobody who was heard for cluster 1."""
    drawn = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    received = Received.by_server(messages([0, 1], row=[[0.0], [9.0]], share=[[1, 0], [1, 0]], size=[1, 1]))
    after = FedSoft(2).combine(state([[[5.0], [7.0]]], 3, drawn=drawn), received)
    assert after.centers.tolist() == [[[3.0], [7.0]]]


def test_fedsoft_over_a_graph_weighs_by_share_and_size() -> None:
    """A path 0 - 1 - 2. Listener 0 hears 0 and 1: cluster 0 is (0.5·10·0 + 1·10·6) / 15 = 4."""
    sent = messages(
        [0, 1, 2], row=[[0.0], [6.0], [9.0]], share=[[0.5, 0.5], [1, 0], [0, 1]], size=[10, 10, 20]
    )
    edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
    start = state([[[1.0], [1.0]]] * 3, 3, at_server=False)
    after = FedSoft(2).combine(start, Received.by_peers(sent, 3, edges)).centers[:, :, 0]
    expected = [[4.0, 0.0], [4.0, (5 * 0 + 20 * 9) / 25], [6.0, 9.0]]
    torch.testing.assert_close(after, torch.tensor(expected, dtype=F64))


def test_fedspd_changes_only_the_cluster_it_drew() -> None:
    """A path 0 - 1 - 2 that drew 0, 0, 1: 0 and 1 average their rows; 2 hears no other of its own."""
    sent = messages([0, 1, 2], row=[[2.0], [4.0], [8.0]], drew=[0, 0, 1])
    edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
    received = Received.by_peers(sent, 3, edges)
    after = FedSPD(2).combine(state([[[1.0], [-1.0]]] * 3, 3, at_server=False), received).centers[:, :, 0]
    assert after.tolist() == [[3.0, -1.0], [3.0, -1.0], [1.0, 8.0]]
    # of the letters to others only 0 <-> 1 are needed (section 6.3)
    needed = FedSPD(2).needed(received)
    assert edges.T[needed].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]


def test_fedspd_away_listener_keeps_its_centers() -> None:
    sent = messages([1], row=[[4.0]], drew=[0])
    received = Received.by_peers(sent, 2, torch.tensor([[1], [1]]))
    after = FedSPD(2).combine(state([[[1.0], [-1.0]]] * 2, 2, at_server=False), received).centers[:, :, 0]
    assert after.tolist() == [[1.0, -1.0], [4.0, -1.0]]


def test_fedspd_aligns_by_the_greatest_cosine() -> None:
    """The speaker calls by 0 what the listener calls by 1; aligned, it goes where it belongs."""
    sent = messages([0, 1], row=[[1.0, 0.1], [0.0, 2.0]], drew=[0, 0])
    edges = torch.tensor([[0, 0], [0, 1]])
    start = state([[[1.0, 0.0], [0.0, 1.0]]] * 2, 2, at_server=False)
    received = Received.by_peers(sent, 2, edges)
    aligned = FedSPD(2, align=True).combine(start, received).centers[0]
    assert aligned.tolist() == [[1.0, 0.1], [0.0, 1.0]]
    plain = FedSPD(2).combine(start, received).centers[0]
    assert plain.tolist() == [[0.5, 1.05], [0.0, 1.0]]


def one_number_cohort(*clients: tuple[list[float], list[float]], training: Training = TRAINING) -> Cohort:
    """Clients of (x, y) for the model y = w·x."""
    model = FunctionalModel(lambda: nn.Linear(1, 1, bias=False), squared_error, device=CPU, dtype=F64)
    points = [(torch.tensor(x, dtype=F64)[:, None], torch.tensor(y, dtype=F64)) for x, y in clients]
    keys = id_keys(map(str, range(len(clients))))
    return Cohort.whole(model, training, Points.of(points), keys, "regression", 0)


def test_fedsoft_reports_shares_and_smooths_them() -> None:
    """Centers w = 0 and w = 2 on points (1, y): y = 2 is the second's; y = 0 the first's."""
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 2, 2, 2]), ([1], [2]))
    offer = messages([0, 1], centers=[[[0.0], [2.0]]] * 2)
    sent = FedSoft(2, smoothing=0.3).report(cohort, offer)
    assert sent["share"].tolist() == [[0.3, 0.75], [0.3, 1.0]]
    sent = FedSoft(2, smoothing=0.3, smooth="zero").report(cohort, offer)
    assert sent["share"].tolist() == [[0.25, 0.75], [0.3, 1.0]]
    assert sent["size"].tolist() == [4, 1]


def test_fedsoft_solves_its_proximal_problem() -> None:
    """min (w − 3)² + λ/2·Σ u_s (w − c_s)², by hand: w = (2·3 + λ·Σ u·c) / (2 + λ·Σ u)."""
    exact = Training(learning_rate=0.2, batch_size=None, epochs=400)
    cohort = one_number_cohort(([1], [3]), training=exact)
    share, centers, pull = [0.25, 0.9], [0.0, 10.0], 0.7
    offer = messages([0], centers=[[[c] for c in centers]], share=[share])
    row = float(FedSoft(2, pull=pull).train(cohort, offer)["row"])
    by_hand = (2 * 3 + pull * (0.9 * 10)) / (2 + pull * (0.25 + 0.9))
    assert row == pytest.approx(by_hand, abs=1e-10)


def test_fedspd_trains_on_the_points_of_the_cluster_drawn() -> None:
    """With its points half at w = 0 and half at w = 4 a client goes to one or the other, never between."""
    exact = Training(learning_rate=0.2, batch_size=None, epochs=400)
    cohort = one_number_cohort(*[([1, 1], [0, 4])] * 20, training=exact)
    offer = messages(list(range(20)), centers=[[[1.0], [3.0]]] * 20)
    sent = FedSPD(2).train(cohort, offer)
    assert set(sent["drew"].tolist()) == {0, 1}
    torch.testing.assert_close(sent["row"][:, 0], 4.0 * sent["drew"].double(), rtol=0, atol=1e-10)


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


def test_draws_follow_their_chances() -> None:
    s = state([[[0.0], [0.0]]], 4)
    chance = torch.tensor([[0.7, 0.0], [0.2, 0.0], [0.1, 0.5], [0.0, 0.5]], dtype=F64)
    drawn = s.draw(chance, 4000, replacement=True)
    assert drawn.sum(0).tolist() == [4000, 4000]
    torch.testing.assert_close(drawn / 4000, chance, rtol=0, atol=0.03)
    once = s.draw(chance, 2, replacement=False)
    assert once.max() == 1
    assert once[:, 1].tolist() == [0, 0, 1, 1]


def test_draws_without_replacement_reach_everybody() -> None:
    s = state([[[0.0]]], 5)
    assert s.draw(torch.full((5, 1), 0.2), 5, replacement=False).tolist() == [[1.0]] * 5


# What crosses the wire.


def test_traffic_by_hand() -> None:
    """Path 0 - 1 - 2, float64 rows of width 1 (8 bytes) and a choice (8 bytes): letters of 16 bytes."""
    sent = messages([0, 1, 2], row=[[2.0], [4.0], [8.0]], drew=[0, 0, 1])
    traffic = Traffic()
    traffic.between(sent, torch.tensor([1, 2, 1]), needed=torch.tensor([1, 1, 0]))
    assert traffic.messages == 3
    assert traffic.multicast == 3 * 16
    assert traffic.point_to_point == 2 * 8 + 4 * 8  # rows where needed, choices to every neighbour


def test_traffic_of_fedavg_at_a_server() -> None:
    """4 rounds, 10 clients: down a row of 10 float64, up the same and a size."""
    simulation = play(FedAvg())
    assert simulation.traffic.down == 4 * 10 * 80
    assert simulation.traffic.up == 4 * 10 * 88
    assert simulation.traffic.messages == 80


def test_local_sends_nothing() -> None:
    assert play(Local()).traffic == Traffic()


# What is refused.


def test_refusals() -> None:
    with pytest.raises(CoterieError, match=r"draws is 11; allowed is 1 to 10"):
        play(FedSoft(2, draws=11))
    with pytest.raises(CoterieError, match="over a graph nobody is drawn"):
        play(FedSoft(2, draws=5), Graph("complete"))
    with pytest.raises(CoterieError, match="n_clusters is 0"):
        play(FedSPD(0))
    with pytest.raises(CoterieError, match="FedSoft leaves 3 centers but FedSPD"):
        Stage(FedSoft(3), 1).then(Stage(FedSPD(2), 1)).check(3)


def test_a_run_of_no_rounds_still_gives_models() -> None:
    assert rows(play(FedSoft(2), rounds=0)).shape == (10, 10)


def test_client_ids_not_positions() -> None:
    """A client does the same whoever else takes part."""
    g = torch.Generator().manual_seed(0)
    data = {n: (torch.randn(20, 10, generator=g), torch.randn(20, 1, generator=g)) for n in "abc"}

    def row_of_b(federation: dict) -> Tensor:
        plan = Stages((Stage(Local(), 2, TRAINING),))
        federation = from_arrays(federation, test_fraction=0.0, task="regression")
        simulation = Simulation(lambda: nn.Linear(10, 1), federation, plan, dtype=F64, device=CPU)
        while not simulation.done:
            simulation.step()
        return rows(simulation)[federation.ids.index("b")]

    alone = {"b": data["b"]}
    torch.testing.assert_close(row_of_b(data), row_of_b(alone), rtol=0, atol=1e-12)


# FedSoft at its listener, by hand.


def test_fedsoft_asks_every_other_round() -> None:
    def asked(round: int) -> bool:
        s = state([[[0.0], [1.0]]], 3)
        return FedSoft(2, refresh=2).ask(replace(s, context=RoundContext(0, round=round))) is not None

    assert [asked(t) for t in range(5)] == [True, False, True, False, True]


def test_fedsoft_draws_by_share_and_size() -> None:
    """Eq. (6): v_sk = u_ks·n_k / Σ u·n, over all clients; with K = 4000 draws the counts show it."""
    soft = FedSoft(2, draws=3)
    start = soft.begin(state([[[0.0], [1.0]]], 3))
    reports = messages([0, 1, 2], share=[[0.5, 0.5], [1.0, 1e-4], [0.25, 0.75]], size=[100, 50, 200])
    weight = torch.tensor([[50.0, 50.0], [50.0, 0.005], [50.0, 150.0]], dtype=F64)
    counts = torch.zeros(3, 2, dtype=F64)
    for t in range(1500):
        after, offer = soft.plan(replace(start, context=RoundContext(0, round=t)), reports)
        counts += after.drawn
        assert set(offer.clients.tolist()) == set(after.drawn.any(1).nonzero()[:, 0].tolist())
    torch.testing.assert_close(counts / counts.sum(0), weight / weight.sum(0), rtol=0, atol=0.03)


def test_draws_differ_from_round_to_round_and_stage_to_stage() -> None:
    even = torch.full((50, 1), 0.02, dtype=F64)
    moments = [RoundContext(0), RoundContext(0, round=1), RoundContext(0, stage=1), RoundContext(1)]
    drawn = [replace(state([[[0.0]]], 50), context=m).draw(even, 10, replacement=False) for m in moments]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_only_the_invited_are_drawn_and_offered() -> None:
    invited = torch.tensor([True, False, True, False])
    s = replace(state([[[0.0]]], 4), invited=invited)
    drawn = s.draw(torch.full((4, 1), 0.25, dtype=F64), 4, replacement=True)
    assert drawn.sum() == 4
    assert drawn[~invited].sum() == 0
    assert s.draw(torch.full((4, 1), 0.25), 4, replacement=False)[:, 0].tolist() == [1, 0, 1, 0]
    assert s.offer(centers=s.centers).clients.tolist() == [0, 2]


def test_fedsoft_hears_all_it_drew_among_a_fraction() -> None:
    data = regressions(clients=100, sizes=(10, 20), seed=1)
    stage = Stage(FedSoft(2, draws=60), 6, TRAINING, participation=Participation(fraction=0.1))
    simulation = Simulation(
        lambda: nn.Linear(10, 1, bias=False), data, Stages((stage,)), dtype=F64, device=CPU
    )
    received = [len(simulation.step()) for _ in range(6)]
    assert min(received) >= 5


def test_traffic_of_fedsoft_by_hand() -> None:
    """10 clients, 2 centers of 10 float64 (160 bytes). Round 0 asks all: down 10·160, up 10·(2·8 + 8). Each round
    the drawn are offered centers and shares (176 bytes) and tell row, share and size (80 + 16 + 8)."""
    simulation = play(FedSoft(2, draws=10, replacement=False), rounds=2)
    assert simulation.traffic.down == 10 * 160 + 2 * 10 * 176
    assert simulation.traffic.up == 10 * 24 + 2 * 10 * 104


def test_handing_centers_to_a_graph_goes_over_the_wire() -> None:
    data = regressions(clients=10, sizes=(20, 40), seed=1)
    first, second = Stage(FedAvg(), 1, TRAINING), Stage(FedAvg(), 1, TRAINING, Graph("complete"))
    simulation = Simulation(
        lambda: nn.Linear(10, 1, bias=False), data, first.then(second).then(first), dtype=F64, device=CPU
    )
    for _ in range(3):
        simulation.step()
    assert simulation.traffic.down == 10 * 80 + 10 * 80 + 10 * 80  # round, hand-over, round
    assert simulation.traffic.up == 10 * 88 + 10 * 80 + 10 * 88


def test_clients_come_in_another_order_in_another_stage() -> None:
    data = regressions(clients=20, sizes=(5, 5), seed=1)
    few = Stage(FedAvg(), 4, TRAINING, participation=Participation(fraction=0.3))
    simulation = Simulation(lambda: nn.Linear(10, 1), data, few.then(few), dtype=F64, device=CPU)
    came = [simulation.step().clients.tolist() for _ in range(8)]
    assert came[:4] != came[4:]


# The final table's numbers.


def test_centers_are_matched_at_the_least_total_loss() -> None:
    """Greedily, distribution 0 would take center 0 (1 < 2) and leave 10; together 2 + 3 is less than 1 + 10."""
    assert match(torch.tensor([[1.0, 3.0], [2.0, 10.0]])) == ([0, 1], [1, 0])
    assert match(torch.tensor([[torch.nan, 1.0], [1.0, torch.inf]])) == ([0, 1], [1, 0])


def test_importance_error_by_hand() -> None:
    found, true = torch.tensor([[0.1, 0.9], [0.6, 0.4]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert importance_error(found, true, ([0, 1], [1, 0])) == pytest.approx((0.1 + 0.1 + 0.1 + 0.1) / 4)
