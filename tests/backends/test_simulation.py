"""Stages, played in one process."""

from __future__ import annotations

from torch import nn

from coterie import FedAvg, FedSoft, Graph, Participation, Stage
from coterie.data import regressions
from tests.builders import TRAINING, simulation, trained


def test_a_run_of_no_rounds_still_gives_models() -> None:
    assert trained(FedSoft(2), rounds=0).finish().personal.rows[:, 0].shape == (10, 10)


def test_handing_centers_to_a_graph_goes_over_the_wire() -> None:
    data = regressions(clients=10, sizes=(20, 40), seed=1)
    first, second = Stage(FedAvg(), 1, TRAINING), Stage(FedAvg(), 1, TRAINING, Graph("complete"))
    run = simulation(first.then(second).then(first), data, seed=0)
    for _ in range(3):
        run.step()
    assert run.traffic.down == 10 * 80 + 10 * 80 + 10 * 80  # round, hand-over, round
    assert run.traffic.up == 10 * 88 + 10 * 80 + 10 * 88


def test_clients_come_in_another_order_in_another_stage() -> None:
    data = regressions(clients=20, sizes=(5, 5), seed=1)
    few = Stage(FedAvg(), 4, TRAINING, participation=Participation(fraction=0.3))
    run = simulation(few.then(few), data, model=lambda: nn.Linear(10, 1), seed=0)
    came = [run.step().clients.tolist() for _ in range(8)]
    assert came[:4] != came[4:]
