"""WeCFL and FeSEM: how clients are clustered by their rows."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import nn

import coterie
from coterie import FeSEM, Participation, Stage, Stages, Training, WeCFL
from coterie.data import digits, from_arrays, regressions
from coterie.protocol.message import Messages
from coterie.protocol.received import Received
from coterie.runs.metrics import ari
from tests.builders import F64, finish, linear, messages, simulation, state, trained


def test_wecfl_with_equal_weights_is_fesem() -> None:
    wecfl, fesem = trained(WeCFL(2, weights="equal", represent="all")), trained(FeSEM(2))
    assert torch.equal(wecfl.state.centers, fesem.state.centers)
    assert torch.equal(wecfl.state.member, fesem.state.member)


def test_weight_two_is_the_client_twice() -> None:
    """Full batches: a client that has every point twice counts as two clients."""
    data = regressions(clients=6, mixture="pure", sizes=(30, 30), separation=166.0, seed=3)
    clients = [(data.train.x[i * 30 : i * 30 + 30], data.train.y[i * 30 : i * 30 + 30]) for i in range(6)]
    full = Training(learning_rate=0.05, batch_size=None, epochs=5)
    doubled = {str(i): c for i, c in enumerate(clients)} | {"0": tuple(torch.cat([t, t]) for t in clients[0])}
    twice = {str(i): c for i, c in enumerate(clients)} | {"again": clients[0]}
    one, two = (
        trained(WeCFL(2), from_arrays(d, test_fraction=0.0, task="regression"), training=full)
        for d in (doubled, twice)
    )
    order = [0, 1] if torch.allclose(one.state.centers[0, 0], two.state.centers[0, 0], atol=1e-6) else [1, 0]
    torch.testing.assert_close(one.state.centers[0], two.state.centers[0, order], rtol=0, atol=1e-10)


def clustered(
    rows: list, algorithm: WeCFL, member: list[int] | None = None, sizes: list[int] | None = None
) -> list[int]:
    """The members that WeCFL finds among rows; with `member`, not for the first time."""
    start = algorithm.begin(state([[[0.0] * len(rows[0])] * algorithm.n_clusters], len(rows)))
    if member is not None:
        before = torch.tensor(member)
        centers = torch.stack(
            [torch.tensor(rows, dtype=F64)[before == s].mean(0) for s in range(algorithm.n_clusters)]
        )
        start = start.update(
            centers=centers[None], member=before, clustered=torch.ones_like(before, dtype=torch.bool)
        )
    received = Received.by_server(messages(list(range(len(rows))), row=rows, size=sizes or [1] * len(rows)))
    return algorithm.combine(start, received).member.tolist()


def test_wecfl_weighs_clients_in_the_clustering() -> None:
    """0 and 1 are nearest to each other; but if most of the weight is on these two, parting them costs least."""
    rows = [[0.0, 9.0], [1.0, 9.0], [2.4, 9.0]]
    light, heavy = clustered(rows, WeCFL(2)), clustered(rows, WeCFL(2), sizes=[1000, 1000, 1])
    assert light[0] == light[1] != light[2]
    assert heavy[0] != heavy[1] == heavy[2]
    assert clustered(rows, WeCFL(2, weights="equal"), sizes=[1000, 1000, 1])[:2] in ([0, 0], [1, 1])


def test_wecfl_by_direction_or_by_distance() -> None:
    rows = [[1.0, 0.0], [10.0, 0.1], [0.0, 1.0], [0.1, 10.0], [0.9, 0.8]]
    by_direction = clustered(rows[:4], WeCFL(2, distance="cosine"))
    assert by_direction[0] == by_direction[1] != by_direction[2] == by_direction[3]
    by_distance = clustered(rows, WeCFL(3))
    assert by_distance[0] == by_distance[2] == by_distance[4]


def test_wecfl_keeps_its_labels_from_round_to_round() -> None:
    rows = [[0.0], [0.1], [5.0], [5.1]]
    for member in ([0, 0, 1, 1], [1, 1, 0, 0]):
        assert clustered(rows, WeCFL(2), member) == member


def test_wecfl_takes_one_step_without_a_restart() -> None:
    """Centers at 20.7 and 100: 60 is nearer to the first; k-means anew parts it from 0 and 2."""
    rows, member = [[0.0], [2.0], [60.0], [100.0]], [0, 0, 0, 1]
    assert clustered(rows, WeCFL(2, restart=False), member) == [0, 0, 0, 1]
    assert clustered(rows, WeCFL(2, restart=True), member) == [0, 0, 1, 1]


def test_one_far_row_does_not_decide_the_first_clustering() -> None:
    """Two distributions of four clients, one of which was thrown far off by a bad step.

    F is least where it is alone in a cluster, 64 against 115; but then the others share a center.
    """
    rows = [[4.0, 0.0, 0.0]] * 4 + [[0.0, 4.0, 0.0]] * 4 + [[0.0, 4.0, 12.0]]
    anew, found = (clustered(rows, WeCFL(2, restart=restart)) for restart in (True, False))
    assert anew == [anew[0]] * 8 + [1 - anew[0]]
    assert found == [found[0]] * 4 + [1 - found[0]] * 5


def test_one_far_row_does_not_unmake_the_clusters() -> None:
    rows = [[4.0, 0.0], [5.0, 0.0], [0.0, 4.0], [0.0, 5.0]]
    at = torch.tensor([[4.5, 0.0], [0.0, 4.5]], dtype=F64)
    thrown = [*rows[:3], [18.0, 24.0]]
    for restart, member in ((False, [0, 0, 1, 1]), (True, [0, 0, 0, 1])):
        wecfl = WeCFL(2, restart=restart)
        start = wecfl.begin(state([[[0.0, 0.0]] * 2], 4)).update(
            centers=at[None],
            member=torch.tensor([0, 0, 1, 1]),
            clustered=torch.ones(4, dtype=torch.bool),
        )
        received = Received.by_server(messages([0, 1, 2, 3], row=thrown, size=[1] * 4))
        assert wecfl.combine(start, received).member.tolist() == member


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


@pytest.mark.parametrize("seed", [2, 3])
def test_batch_norm_of_two_points_loses_no_clusters(seed: int) -> None:
    """With k-means++ anew each round seed 2 never finds them, and seed 3 has lost them by round 4."""
    ragged = {"clients": 12, "train_points": (50, 200)}
    data = digits(seed, distributions="relabel", clusters=3, shift=3, mixture="pure", **ragged)
    assert bool((data.train.sizes % 10 == 2).any())
    training = Training(learning_rate=0.1, batch_size=10, epochs=5)
    run = simulation(Stages((Stage(WeCFL(3), 5, training),)), data, model=with_batch_norm, seed=seed)
    result = finish(run).evaluate()
    assert data.mixture is not None
    assert ari(result.importance, data.mixture) == 1


def test_clusters_that_differ_in_the_length_of_updates_alone() -> None:
    """Cut to their median length they are all alike; k-means on the rows as they are still finds them."""
    rows = [[1.0], [1.1], [0.9], [1.05], [0.95], [3.0], [3.1], [2.9], [3.05]]
    found = clustered(rows, WeCFL(2))
    assert found == [found[0]] * 5 + [1 - found[0]] * 4


def test_when_most_clients_do_not_move_the_others_are_clustered() -> None:
    found = clustered([[0.0], [0.0], [0.0], [5.0], [5.1]], WeCFL(2))
    assert found == [found[0]] * 3 + [1 - found[0]] * 2


def test_wecfl_does_not_make_two_clusters_of_one_that_is_received() -> None:
    """Only messages of clients of cluster 1 arrive: all of them stay there, and center 0 stays where it is."""
    wecfl = WeCFL(2)
    start = wecfl.begin(state([[[0.0], [9.0]]], 8))
    everyone = torch.ones(8, dtype=torch.bool)
    start = start.update(member=torch.tensor([0] * 4 + [1] * 4), clustered=everyone)
    received = Received.by_server(messages([4, 5, 6, 7], row=[[8.0], [9.0], [10.0], [11.0]], size=[1] * 4))
    after = wecfl.combine(start, received)
    assert after.member.tolist() == [0] * 4 + [1] * 4
    assert after.centers.tolist() == [[[0.0], [9.5]]]


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("size", [1e20, 1e30])
def test_rows_are_clustered_though_float32_has_no_square_of_them(
    distance: Literal["euclidean", "cosine"], size: float
) -> None:
    """In the first round, and in a later one, where centers so large are nobody's choice: clients stay."""
    rows = torch.tensor([[size, 0.0, 0.0]] * 4 + [[0.0, size, 0.0]] * 4).repeat(1, 4)
    algorithm = WeCFL(2, distance=distance)
    after = algorithm.begin(state(torch.zeros(1, 2, 12).tolist(), 8))
    after = after.update(centers=after.centers.float())
    sent = {"row": rows, "size": torch.ones(8, dtype=torch.long)}
    for _ in range(2):
        after = algorithm.combine(after, Received.by_server(Messages(torch.arange(8), sent)))
        found = after.member.tolist()
        assert found == [found[0]] * 4 + [1 - found[0]] * 4


@pytest.mark.parametrize("kind", [WeCFL, FeSEM])
def test_whose_message_comes_first_changes_no_cluster(kind: type[WeCFL]) -> None:
    """Rows without clear clusters, where k-means goes by the order that it sees them in."""
    rows = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = []
    for order in (list(range(40)), list(range(39, -1, -1)), [i * 7 % 40 for i in range(40)]):
        start = kind(4).begin(state([[[0.0, 0.0]] * 4], 40))
        received = Received.by_server(
            messages(order, row=rows[order].tolist(), size=[1 + i % 7 for i in order])
        )
        found.append(kind(4).combine(start, received).member.tolist())
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {0, 1, 2, 3}


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("wild", [3e38, torch.inf])
def test_a_center_that_exploded_takes_no_client_of_another(wild: float, distance: Any) -> None:
    """3e38 is finite, but not its square; by inner products it would be the nearest for all, being no number.

    Normalised, it is a zero, which is nearer than what points elsewhere.
    """
    rows = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    centers = torch.stack([rows[:20].mean(0), torch.full((100,), wild), rows[20:].mean(0)])
    wecfl = WeCFL(3, distance=distance)
    start = wecfl.begin(state(centers[None].tolist(), 40)).update(
        centers=centers[None], clustered=torch.ones(40, dtype=torch.bool)
    )
    sent = {"row": rows, "size": torch.ones(40, dtype=torch.long)}
    after = wecfl.combine(start, Received.by_server(Messages(torch.arange(40), sent)))
    assert 1 not in after.member
    assert bool(after.centers[0, [0, 2]].isfinite().all())
    assert torch.equal(after.centers[0, 1], centers[1])


def test_as_many_clusters_as_clients() -> None:
    """Each has its own; but of fewer clients than there are, some more are waited for."""
    assert sorted(clustered([[0.0], [5.0]], WeCFL(2))) == [0, 1]
    wecfl = WeCFL(2)
    start = wecfl.begin(state([[[0.0]] * 2], 3))
    some = Received.by_server(messages([0, 2], row=[[0.0], [5.0]], size=[1, 1]))
    after = wecfl.combine(start, some)
    assert after.member.tolist() == [0, 0, 0]
    assert not after.clustered.any()


def test_too_few_rows_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    data = regressions(clients=3, mixture="pure", sizes=(30, 30), separation=166.0, seed=3)
    some = Participation(fraction=0.67)
    stages = Stages((Stage(WeCFL(2), 4, participation=some, n_init=2),))
    coterie.run(linear, data, stages)
    assert caplog.messages == [
        "2 clients sent a model; more are needed to find 2 clusters, so all are one for now"
    ]
