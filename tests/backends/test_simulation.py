"""Stages, played in one process."""

from __future__ import annotations

import logging

import pytest
from torch import nn

from coterie import FedAvg, FedSoft, Graph, Participation, Stage, Stages, Training
from coterie.data import from_arrays, regressions
from coterie.data.federation import Federation
from coterie.engine.rows import Build
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


def of_sizes(*sizes: int) -> Federation:
    many = regressions(clients=len(sizes), sizes=(100, 100), seed=1).train
    clients = {str(i): (many.x[:size], many.y[:size]) for i, size in enumerate(sizes)}
    return from_arrays(clients, test_fraction=0.0, task="regression")


def said_at_the_start(
    caplog: pytest.LogCaptureFixture, build: Build, data: Federation, *trainings: Training
) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "coterie"):
        simulation(Stages(Stage(FedAvg(), 1, training) for training in trainings), data, model=build, seed=0)
    return caplog.text


def with_norm(norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), norm or nn.BatchNorm1d(8), nn.Linear(8, 1))


TENS = Training(batch_size=10)


def test_batches_too_small_for_batch_norm_are_said_before_training(caplog: pytest.LogCaptureFixture) -> None:
    """Last batches of 2, 3, none, 4, none (1, which is left out anyway), and a client of 3 points."""
    data = of_sizes(52, 53, 50, 54, 51, 3)
    said = said_at_the_start(caplog, with_norm, data, TENS, TENS)
    assert said.count("batch norm sees") == 1
    assert "fewer than 4 points in a batch of 3 of 6 clients (2 at the least)" in said
    assert "min_batch = 4" in said
    again = said_at_the_start(caplog, with_norm, data, TENS)
    assert "batch norm sees" not in again  # of the same points, cut alike, as when several methods are played


@pytest.mark.parametrize(
    ("training", "sees"),
    [
        (
            Training(batch_size=10, min_batch=4),
            "a batch of 1 of 3 clients (3 at the least)",
        ),  # it has no more
        (Training(batch_size=2), "a batch of 3 of 3 clients (2 at the least)"),
        (Training(batch_size=1), "a batch of 3 of 3 clients (1 at the least)"),
        (Training(batch_size=None), "a batch of 1 of 3 clients (3 at the least)"),
    ],
    ids=["min_batch", "twos", "ones", "all"],
)
def test_how_many_clients_have_small_batches(
    training: Training, sees: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert sees in said_at_the_start(caplog, with_norm, of_sizes(52, 40, 3), training)


def test_nothing_is_said_where_batches_are_large_or_nothing_needs_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = of_sizes(52, 40, 3)
    assert not said_at_the_start(caplog, with_norm, of_sizes(52, 40), Training(batch_size=10, min_batch=4))
    assert not said_at_the_start(caplog, lambda: with_norm(nn.GroupNorm(2, 8)), small, TENS)
    assert not said_at_the_start(caplog, lambda: nn.Linear(10, 1), small, TENS)
