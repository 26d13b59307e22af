"""One round, recomputed by hand: the server's half has no second program to be compared with."""

from __future__ import annotations

import torch

from coterie import FedAvg, FedSoft, Graph, Local, Participation, Server, Stage, Stages
from coterie.protocol.participation import Participation as How
from coterie.protocol.traffic import Traffic
from tests.builders import TRAINING, clients, finish, simulation

ROW, SIZE = 10 * 8, 8  # bytes of a row of ten float64, and of a size


def plan(algorithm: object, topology: Server | Graph | None = None, rounds: int = 1, **how: float) -> Stages:
    return Stages((Stage(algorithm, rounds, TRAINING, topology or Server(), Participation(**how)),))


def test_a_server_gets_nothing_from_stragglers() -> None:
    """All are late: the center stays, nothing came up, but all was sent down."""
    run = simulation(plan(FedAvg(), stragglers=0.999999))
    before = run.state.centers.clone()
    assert len(run.step()) == 0
    assert torch.equal(run.state.centers, before)
    assert run.traffic == Traffic(messages=12, down=12 * ROW)


def test_a_server_averages_those_in_time_by_size() -> None:
    run = simulation(plan(FedAvg(), stragglers=0.4))
    in_time = How(stragglers=0.4).in_time(run.keys, 3, 0)
    assert 0 < int(in_time.sum()) < 12
    everyone = simulation(plan(FedAvg())).step()
    sent = run.step()
    assert sent.clients.tolist() == in_time.nonzero()[:, 0].tolist()
    weight = clients().train.sizes[in_time].double()
    by_hand = (weight[:, None] * everyone.row[in_time]).sum(0) / weight.sum()
    torch.testing.assert_close(run.state.centers[0, 0], by_hand, rtol=0, atol=1e-12)
    late = int((~in_time).sum())
    assert run.traffic == Traffic(messages=12 + 12 - late, down=12 * ROW, up=(12 - late) * (ROW + SIZE))


def test_a_server_asks_nobody_who_is_absent() -> None:
    run = simulation(plan(FedAvg(), absent=0.999999))
    before = run.state.centers.clone()
    assert len(run.step()) == 0
    assert torch.equal(run.state.centers, before)
    assert run.traffic == Traffic()


def test_reports_are_asked_for_and_counted_apart_from_rows() -> None:
    """FedSoft's first round asks everyone (down: two centers; up: importance and size), then trains those drawn."""
    run = simulation(plan(FedSoft(2, draws=3)))
    sent = run.step()
    drawn = len(sent)
    assert drawn == int(run.state.drawn.any(1).sum()) <= 6
    importance = 2 * 8
    assert run.traffic.down == 12 * 2 * ROW + drawn * (2 * ROW + importance)
    assert run.traffic.up == 12 * (importance + SIZE) + drawn * (ROW + importance + SIZE)
    assert run.traffic.messages == 12 + 12 + drawn + drawn


def test_over_a_graph_the_late_still_have_their_own() -> None:
    """Everybody's message is lost on the way: each averages with itself alone, and nothing was received."""
    run = simulation(plan(FedAvg(), Graph("complete"), stragglers=0.999999))
    everyone = simulation(plan(FedAvg(), Graph("complete"))).step()
    assert len(run.step()) == 0
    torch.testing.assert_close(run.state.centers[:, 0], everyone.row, rtol=0, atol=1e-12)
    assert run.traffic.total() == 0


def test_over_a_graph_the_absent_keep_what_they_had() -> None:
    run = simulation(plan(FedAvg(), Graph("complete"), absent=0.4))
    before = run.state.centers.clone()
    came = How(absent=0.4).came(run.keys, 3, 0)
    assert 0 < int(came.sum()) < 12
    run.step()
    assert torch.equal(run.state.centers[~came], before[~came])
    weight = clients().train.sizes[came].double()
    everyone = simulation(plan(FedAvg(), Graph("complete"))).step()
    by_hand = (weight[:, None] * everyone.row[came]).sum(0) / weight.sum()
    for center in run.state.centers[came, 0]:
        torch.testing.assert_close(center, by_hand, rtol=0, atol=1e-12)


def test_who_sends_nothing_costs_nothing() -> None:
    assert finish(simulation(plan(Local(), rounds=2))).traffic == Traffic()
