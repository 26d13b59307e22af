"""CFL: when it splits a cluster, and whom it parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie import CFL, Federation, Training
from coterie.data import from_arrays
from coterie.protocol.received import Received
from tests.builders import F64, finish, messages, simulation, state, trained


def opposed(*targets: float, each: int = 4) -> Federation:
    """Clients whose regressions have the given coefficients: opposed where the signs differ."""
    g = torch.Generator().manual_seed(0)
    clients = {}
    for j, target in enumerate(targets):
        for i in range(each):
            x = torch.randn(40, 2, generator=g, dtype=F64)
            aim = torch.tensor([target, 1.0 if j < 2 else -1.0], dtype=F64) * 3
            clients[f"{j}-{i}"] = (x, x @ aim[:, None])
    return from_arrays(clients, test_fraction=0.0, task="regression")


def test_cfl_does_not_split_clients_that_agree() -> None:
    run = trained(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        opposed(1.0),
        rounds=30,
        training=Training(learning_rate=0.1),
    )
    assert run.state.centers.shape[1] == 1


def test_cfl_splits_two_opposed_groups_once() -> None:
    run = trained(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        opposed(1.0, -1.0),
        rounds=30,
        training=Training(learning_rate=0.1, epochs=1),
    )
    assert run.state.centers.shape[1] == 2
    assert len(set(run.state.member[:4].tolist())) == 1
    assert sorted(run.state.member.tolist()) == [0] * 4 + [1] * 4


def test_cfl_loses_nobody_through_two_levels() -> None:
    data = opposed(1.0, -1.0, 1.0, -1.0)
    run = trained(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        data,
        rounds=60,
        training=Training(learning_rate=0.1, epochs=1),
    )
    members = [sorted(set(run.state.member[i : i + 4].tolist())) for i in range(0, 16, 4)]
    assert sorted(members) == [[0], [1], [2], [3]]
    loss = run.clients.cohort.score(run.finish().personal).loss
    assert loss.max() < 0.05


def test_cfl_goes_on_after_a_checkpoint_with_more_clusters() -> None:
    data, training = opposed(1.0, -1.0), Training(learning_rate=0.1, epochs=1)
    straight = trained(CFL(stationary=0.3, restless=0.5, first_split=3), data, rounds=30, training=training)
    half = simulation(straight.stages, data, model=lambda: nn.Linear(2, 1, bias=False), seed=0)
    while half.state.centers.shape[1] == 1:
        half.step()
    assert not half.done
    again = simulation(half.stages, data, model=lambda: nn.Linear(2, 1, bias=False), seed=0)
    again.load(*half.save())
    finish(again)
    assert torch.equal(again.finish().personal.rows, straight.finish().personal.rows)


def test_cfl_maps_messages_back_to_clients() -> None:
    """Clients 5, 2, 9 and 7 send, in this order; 2 and 7 are opposed to 5 and 9, and leave with their own ids."""
    received = Received.by_server(
        messages([5, 2, 9, 7], update=[[2.0], [-2.0], [2.0], [-2.0]], size=[1, 1, 1, 1])
    )
    cfl = CFL(stationary=0.5, restless=1.0, first_split=0)
    after = cfl.combine(cfl.begin(state([[[0.0]]], 10)), received)
    leaves = after.member.nonzero()[:, 0].tolist()
    assert leaves in (
        [2, 7],
        [5, 9],
    )  # whoever leaves, the others keep the name, and so do all that sent nothing
    assert sorted(after.centers[0, :, 0].tolist()) == [-2.0, 2.0]  # each half took its own mean update
    again = cfl.combine(after, received)
    assert torch.equal(again.member, after.member)  # a cluster that agrees does not split


@pytest.mark.parametrize(
    "settings", [{"first_split": 1}, {"smallest": 3}, {"most_alike": -1.0}, {"restless": 3.0}], ids=str
)
def test_cfl_does_not_split(settings: dict) -> None:
    received = Received.by_server(
        messages([0, 1, 2, 3], update=[[2.0], [-2.0], [2.0], [-2.0]], size=[1, 1, 1, 1])
    )
    cfl = CFL(**{"stationary": 0.5, "restless": 1.0, "first_split": 0, **settings})
    assert cfl.combine(cfl.begin(state([[[0.0]]], 4)), received).centers.shape[1] == 1


def test_cfl_makes_the_greatest_cosine_between_halves_as_small_as_can_be() -> None:
    """Six directions for which complete linkage parts two that are much alike, and single linkage does not."""
    angles = torch.tensor([-56.0, -35, -118, -161, 69, -84], dtype=F64).deg2rad()
    updates = torch.stack([angles.cos(), angles.sin()], 1)

    def halves(linkage: str) -> float:
        cfl = CFL(stationary=5.0, restless=0.1, first_split=0, linkage=linkage)
        start = cfl.begin(state([[[0.0, 0.0]]], 6))
        received = Received.by_server(messages(list(range(6)), update=updates.tolist(), size=[1] * 6))
        member = cfl.combine(start, received).member
        cosine = updates @ updates.T
        return float(cosine[member == 0][:, member == 1].max())

    assert halves("single") == pytest.approx(-0.25, abs=0.01)
    assert halves("complete") > 0.8
