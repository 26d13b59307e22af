"""The clustered and personal methods: reductions, tiny cases by hand, and recovery on small problems."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie import (
    CFL,
    IFCA,
    Algorithm,
    CoterieError,
    FedAvg,
    FedAvgPlus,
    FedEM,
    Federation,
    FedProx,
    FedProxPlus,
    FeSEM,
    Graph,
    HypCluster,
    Server,
    Stage,
    Stages,
    Training,
    WeCFL,
    pFedMe,
)
from coterie.backends.simulation import Simulation
from coterie.data import from_arrays, regressions
from coterie.protocol.received import Received
from coterie.runs.summary import summarise
from tests.algorithms.test_algorithms import messages, one_number_cohort, state

F64 = torch.float64
TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=2)


def play(
    algorithm: Algorithm,
    data: Federation | None = None,
    *,
    rounds: int = 4,
    training: Training = TRAINING,
    topology=None,
    seed: int = 0,
) -> Simulation:
    data = data or regressions(clients=10, sizes=(20, 40), separation=166.0, seed=1)
    plan = Stages((Stage(algorithm, rounds, training, topology or Server()),))
    build = lambda: nn.Linear(data.train.x.shape[1], 1, bias=False)  # noqa: E731
    simulation = Simulation(build, data, plan, seed=seed, dtype=F64, device=torch.device("cpu"))
    while not simulation.done:
        simulation.step()
    return simulation


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        (IFCA(1), "equal"),
        (HypCluster(1), "size"),
        (FeSEM(1), "equal"),
        (WeCFL(1), "size"),
        (FedEM(1), "size"),
        (FedAvgPlus(1), "size"),
        (CFL(first_split=99), "size"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.title(),
)
def test_with_one_cluster_it_is_fedavg(algorithm: Algorithm, weights: str) -> None:
    expected = play(FedAvg(weights=weights)).state.centers
    torch.testing.assert_close(play(algorithm).state.centers, expected, rtol=0, atol=1e-12)


def test_one_run_of_fedprox_plus_is_fedprox() -> None:
    expected = play(FedProx(pull=0.3)).state.centers
    torch.testing.assert_close(play(FedProxPlus(1, pull=0.3)).state.centers, expected, rtol=0, atol=1e-12)


def test_the_runs_of_fedavg_plus_do_not_touch() -> None:
    """The first of two runs is FedAvg alone; its prediction is the mean of both."""
    two = play(FedAvgPlus(2))
    torch.testing.assert_close(two.state.centers[:, :1], play(FedAvg()).state.centers, rtol=0, atol=1e-12)
    assert two.result().personal.weights.tolist() == [[0.5, 0.5]] * 10


def test_wecfl_with_equal_weights_is_fesem() -> None:
    wecfl, fesem = play(WeCFL(2, weights="equal", represent="all")), play(FeSEM(2))
    assert torch.equal(wecfl.state.centers, fesem.state.centers)
    assert torch.equal(wecfl.state.member, fesem.state.member)


def test_weight_two_is_the_client_twice() -> None:
    """Full batches: a client that has every point twice counts as two clients."""
    data = regressions(clients=6, pattern="pure", sizes=(30, 30), separation=166.0, seed=3)
    clients = [(data.train.x[i * 30 : i * 30 + 30], data.train.y[i * 30 : i * 30 + 30]) for i in range(6)]
    full = Training(learning_rate=0.05, batch_size=None, epochs=5)
    doubled = {str(i): c for i, c in enumerate(clients)} | {"0": tuple(torch.cat([t, t]) for t in clients[0])}
    twice = {str(i): c for i, c in enumerate(clients)} | {"again": clients[0]}
    one, two = (
        play(WeCFL(2), from_arrays(d, test_fraction=0.0, task="regression"), training=full)
        for d in (doubled, twice)
    )
    order = [0, 1] if torch.allclose(one.state.centers[0, 0], two.state.centers[0, 0], atol=1e-6) else [1, 0]
    torch.testing.assert_close(one.state.centers[0], two.state.centers[0, order], rtol=0, atol=1e-10)


# by hand


def test_ifca_averages_what_chose_a_center() -> None:
    received = Received.by_server(
        messages([0, 1, 2], row=[[0.0], [4.0], [9.0]], size=[1, 3, 5], choice=[0, 0, 1])
    )
    before = state([[[1.0], [2.0], [7.0]]], 3)
    assert IFCA(3).combine(before, received).centers.tolist() == [[[2.0], [9.0], [7.0]]]
    assert HypCluster(3).combine(before, received).centers.tolist() == [[[3.0], [9.0], [7.0]]]


def test_ifca_averages_gradients_over_all_clients() -> None:
    """θ_j + 1/M·Σ (row − θ_j): with two of three in cluster 0, two thirds of the way to their mean."""
    received = Received.by_server(
        messages([0, 1, 2], row=[[4.0], [7.0], [9.0]], size=[1, 1, 1], choice=[0, 0, 1])
    )
    after = IFCA(2, averaging="gradient").combine(state([[[1.0], [3.0]]], 3), received).centers
    torch.testing.assert_close(after, torch.tensor([[[1 + (3 + 6) / 3], [3 + 6 / 3]]], dtype=F64))


def test_ifca_chooses_by_the_whole_of_its_data() -> None:
    """Two points say 0 and one says 10; the center at 4 has the least mean loss, though it is best on none."""
    cohort = one_number_cohort(([1, 1, 1], [0, 0, 10]))
    offer = messages([0], centers=[[[-1.0], [4.0], [10.0]]])
    assert IFCA(3).choose(cohort, offer).tolist() == [1]


def test_fedem_responsibilities() -> None:
    """One point at distance 0 and 1 from two centers, π = (0.2, 0.8): q ∝ (0.2·1, 0.8/e)."""
    cohort = one_number_cohort(([1], [0]))
    cohort.keep("mixture", torch.tensor([[0.2, 0.8]], dtype=F64))
    q = FedEM(2).responsibilities(cohort, messages([0], centers=[[[0.0], [1.0]]]))
    by_hand = torch.tensor([0.2, 0.8 * torch.e**-1], dtype=F64)
    torch.testing.assert_close(q[0], by_hand / by_hand.sum())


def test_fedem_weighs_rows_by_mass() -> None:
    received = Received.by_server(
        messages([0, 1], row=[[[0.0], [2.0]], [[4.0], [6.0]]], mass=[[3.0, 0.0], [1.0, 5.0]])
    )
    assert FedEM(2).combine(state([[[9.0], [9.0]]], 2), received).centers.tolist() == [[[1.0], [6.0]]]


def test_pfedme_on_a_quadratic() -> None:
    """Loss (w − 3)²; the inner problem solved exactly is θ = (2·3 + λw)/(2 + λ), and w goes ηλ of the way to it."""
    cohort = one_number_cohort(([1], [3]), training=Training(learning_rate=0.05, batch_size=None))
    algorithm = pFedMe(pull=2.0, local_rounds=3, inner_steps=400, local_rate=0.1)
    w = 1.0
    for _ in range(3):
        theta = (2 * 3 + 2 * w) / (2 + 2)
        w = w - 0.1 * 2 * (w - theta)
    offer = messages([0], centers=[[[1.0]]])
    assert float(algorithm.train(cohort, offer)["row"]) == pytest.approx(w, abs=1e-10)
    assert float(algorithm.personal(cohort, offer).rows) == pytest.approx(theta, abs=1e-10)


def test_pfedme_server_step() -> None:
    received = Received.by_server(messages([0, 1], row=[[2.0], [4.0]]))
    assert pFedMe(server_step=0.5).combine(state([[[1.0]]], 2), received).centers.tolist() == [[[2.0]]]


def test_a_batch_of_each_client() -> None:
    cohort = one_number_cohort(([1] * 25, [0] * 25), ([1] * 4, [0] * 4))
    first, second = cohort.batch("a"), cohort.batch("b")
    assert [int(first[:25].sum()), int(first[25:].sum())] == [10, 4]
    assert not torch.equal(first, second)


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
    simulation = play(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        opposed(1.0),
        rounds=30,
        training=Training(learning_rate=0.1),
    )
    assert simulation.state.centers.shape[1] == 1


def test_cfl_splits_two_opposed_groups_once() -> None:
    simulation = play(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        opposed(1.0, -1.0),
        rounds=30,
        training=Training(learning_rate=0.1, epochs=1),
    )
    assert simulation.state.centers.shape[1] == 2
    assert len(set(simulation.state.member[:4].tolist())) == 1
    assert sorted(simulation.state.member.tolist()) == [0] * 4 + [1] * 4


def test_cfl_loses_nobody_through_two_levels() -> None:
    data = opposed(1.0, -1.0, 1.0, -1.0)
    simulation = play(
        CFL(stationary=0.3, restless=0.5, first_split=3),
        data,
        rounds=60,
        training=Training(learning_rate=0.1, epochs=1),
    )
    members = [sorted(set(simulation.state.member[i : i + 4].tolist())) for i in range(0, 16, 4)]
    assert sorted(members) == [[0], [1], [2], [3]]
    loss = simulation.clients.cohort.score(simulation.result().personal).loss
    assert loss.max() < 0.05


def test_cfl_goes_on_after_a_checkpoint_with_more_clusters() -> None:
    data, training = opposed(1.0, -1.0), Training(learning_rate=0.1, epochs=1)
    straight = play(CFL(stationary=0.3, restless=0.5, first_split=3), data, rounds=30, training=training)
    half = Simulation(
        lambda: nn.Linear(2, 1, bias=False), data, straight.stages, dtype=F64, device=torch.device("cpu")
    )
    while half.state.centers.shape[1] == 1:
        half.step()
    assert not half.done
    again = Simulation(
        lambda: nn.Linear(2, 1, bias=False), data, half.stages, dtype=F64, device=torch.device("cpu")
    )
    again.load(*half.save())
    while not again.done:
        again.step()
    assert torch.equal(again.result().personal.rows, straight.result().personal.rows)


@pytest.mark.parametrize(
    "algorithm", [FeSEM(2), WeCFL(2), CFL(), FedAvgPlus(2), FedProxPlus(2)], ids=lambda a: a.title()
)
def test_what_needs_a_server_says_so(algorithm: Algorithm) -> None:
    with pytest.raises(CoterieError, match=r"needs a server; it cannot run over a graph"):
        play(algorithm, topology=Graph("complete"))


def test_parts_of_a_model() -> None:
    from coterie.engine.rows import Rows

    rows = Rows(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3)))
    assert len(rows.columns("all")) == rows.n_parameters == 20 + 45 + 18
    assert rows.columns("dense").tolist() == list(range(20, 83))
    assert rows.columns("last").tolist() == list(range(65, 80))
    with pytest.raises(CoterieError, match="no fully-connected layer"):
        Rows(nn.Conv2d(1, 2, 3)).columns("last")


# recovery, two seeds each; many seeds are in benchmarks/


def own_mse(
    algorithm: Algorithm, pattern: str, seed: int, clusters: int = 2, rounds: int = 25
) -> list[float]:
    data = regressions(clients=40, clusters=clusters, pattern=pattern, separation=166.0, seed=seed)
    simulation = play(algorithm, data, rounds=rounds, seed=seed)
    centers = summarise(simulation, simulation.result())["centers"]
    return [centers["loss"][s][d] for d, s in enumerate(centers["center_of_distribution"])]


@pytest.mark.parametrize("seed", [0, 1])
def test_fedem_finds_both_regressions_in_a_mixture(seed: int) -> None:
    assert max(own_mse(FedEM(2), "10:90", seed)) < 1.2


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("algorithm", [IFCA(2), WeCFL(2), FeSEM(2)], ids=lambda a: a.title())
def test_hard_methods_find_pure_regressions(algorithm: Algorithm, seed: int) -> None:
    assert max(own_mse(algorithm, "pure", seed)) < 1.2


def test_ifca_over_a_graph_finds_pure_regressions() -> None:
    data = regressions(clients=30, pattern="pure", separation=166.0, seed=0)
    simulation = play(IFCA(2), data, rounds=40, topology=Graph("erdos-renyi", degree=6))
    centers = summarise(simulation, simulation.result())["centers"]
    assert max(centers["loss"][s][d] for d, s in enumerate(centers["center_of_distribution"])) < 1.5


# what each option changes, by hand


def test_cfl_maps_letters_back_to_clients() -> None:
    """Clients 5, 2, 9 and 7 are heard, in this order; 2 and 7 are opposed to 5 and 9, and leave with their own ids."""
    received = Received.by_server(
        messages([5, 2, 9, 7], update=[[2.0], [-2.0], [2.0], [-2.0]], size=[1, 1, 1, 1])
    )
    cfl = CFL(stationary=0.5, restless=1.0, first_split=0)
    after = cfl.combine(cfl.begin(state([[[0.0]]], 10)), received)
    leaves = after.member.nonzero()[:, 0].tolist()
    assert leaves in (
        [2, 7],
        [5, 9],
    )  # whoever leaves, the others keep the name, and so do all that were not heard
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


def test_fedem_tells_its_mass_and_keeps_its_mixture() -> None:
    """Points at 0 and 10 for centers at 0 and 10: each takes one, π = (½, ½), mass (1, 1), weight 1 of 2 in a step."""
    cohort = one_number_cohort(
        ([1, 1, 1, 1], [0, 10, 10, 10]), training=Training(learning_rate=0.1, batch_size=None)
    )
    cohort.keep("mixture", torch.tensor([[0.9, 0.1]], dtype=F64))
    sent = FedEM(2).train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    torch.testing.assert_close(sent["mass"], torch.tensor([[1.0, 3.0]], dtype=F64))
    torch.testing.assert_close(
        cohort.recall("mixture", torch.zeros(1, 2, dtype=F64)), torch.tensor([[0.25, 0.75]], dtype=F64)
    )
    # gradients of Σ q·(w − y)²/n: ¼·2·(1 − 0) and ¾·2·(9 − 10)
    by_hand = torch.tensor([[[1 - 0.1 * 0.5], [9 + 0.1 * 1.5]]], dtype=F64)
    torch.testing.assert_close(sent["row"], by_hand)
    by_size = FedEM(2, weights="size").train(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    assert by_size["mass"].tolist() == [[4.0, 4.0]]
    personal = FedEM(2).personal(cohort, messages([0], centers=[[[1.0], [9.0]]]))
    torch.testing.assert_close(personal.weights, torch.tensor([[0.25, 0.75]], dtype=F64))


@pytest.mark.parametrize("seed", [0, 1])
def test_fedem_weighed_by_size_finds_pure_regressions(seed: int) -> None:
    assert max(own_mse(FedEM(2, weights="size"), "pure", seed)) < 1.2


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
    rows = [[0.0], [1.0], [2.4]]
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


def test_wecfl_does_not_make_two_clusters_of_one_that_is_heard() -> None:
    """Only clients of cluster 1 are heard: all of them stay there, and center 0 stays where it is."""
    wecfl = WeCFL(2)
    start = wecfl.begin(state([[[0.0], [9.0]]], 8))
    everyone = torch.ones(8, dtype=torch.bool)
    start = start.update(member=torch.tensor([0] * 4 + [1] * 4), clustered=everyone)
    received = Received.by_server(messages([4, 5, 6, 7], row=[[8.0], [9.0], [10.0], [11.0]], size=[1] * 4))
    after = wecfl.combine(start, received)
    assert after.member.tolist() == [0] * 4 + [1] * 4
    assert after.centers.tolist() == [[[0.0], [9.5]]]


@pytest.mark.parametrize("kind", [WeCFL, FeSEM])
def test_who_is_heard_first_changes_no_cluster(kind: type[WeCFL]) -> None:
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


def test_ifca_keeps_an_optimizer_state_for_each_cluster() -> None:
    """y = w·x with x = 1, target 0: the gradient at 1 is 2, so the first step is 0.2; momentum makes the second 0.3."""
    training = Training(learning_rate=0.1, batch_size=None, epochs=1, momentum=0.5, keep_optimizer=True)
    cohort = one_number_cohort(([1], [0]), training=training)
    near_first, near_second = ([[1.0], [50.0]], 0), ([[50.0], [1.0]], 1)
    for (centers, choice), row in ((near_first, 0.8), (near_second, 0.8), (near_first, 0.7)):
        sent = IFCA(2).train(cohort, messages([0], centers=[centers]))
        assert sent["choice"].tolist() == [choice]
        assert float(sent["row"]) == pytest.approx(row)


def test_ifca_gradient_mode_is_one_full_batch_step() -> None:
    """Whatever training says: from w = 1, data y = 3 and y = 5, rate 0.1: 1 − 0.1·2·(1 − 4)."""
    training = Training(learning_rate=0.1, batch_size=1, epochs=3, momentum=0.9, weight_decay=0.5)
    cohort = one_number_cohort(([1, 1], [3, 5]), training=training)
    sent = IFCA(1, averaging="gradient").train(cohort, messages([0], centers=[[[1.0]]]))
    assert float(sent["row"]) == pytest.approx(1.6)


def test_the_runs_of_fedavg_plus_shuffle_by_themselves() -> None:
    """From the same start two runs come out different, for their batches do."""
    cohort = one_number_cohort(
        ([1.0] * 30, list(range(30))), training=Training(learning_rate=0.05, batch_size=4)
    )
    rows = FedAvgPlus(2).train(cohort, messages([0], centers=[[[1.0], [1.0]]]))["row"][0, :, 0]
    assert float(rows[0]) != float(rows[1])


def test_pfedme_takes_another_batch_each_local_round() -> None:
    training = Training(learning_rate=0.05, batch_size=2)
    cohort = one_number_cohort(([1.0] * 8, [0, 1, 2, 3, 4, 5, 6, 7]), training=training)
    w, offer = torch.tensor([[0.0]], dtype=F64), messages([0], centers=[[[0.0]]])
    algorithm = pFedMe(pull=2.0, local_rounds=3, inner_steps=400, local_rate=0.1)
    batches = [cohort.points.y[cohort.batch(f"batch {r}")] for r in range(3)]
    assert len({tuple(b.flatten().tolist()) for b in batches}) > 1
    for batch in batches:
        theta = (2 * batch.mean() + 2 * w) / (2 + 2)
        w = w - 0.1 * 2 * (w - theta)
    torch.testing.assert_close(algorithm.train(cohort, offer)["row"], w)


def test_stages_that_cannot_follow() -> None:
    cfl, wecfl, fedem = Stage(CFL(), 1), Stage(WeCFL(2), 1), Stage(FedEM(2), 1)
    with pytest.raises(CoterieError, match="CFL finds the number of clusters; no stage can follow it"):
        cfl.then(Stage(FedAvg(), 1)).check(4)
    with pytest.raises(CoterieError, match="WeCFL begins at one common model; it must be the first stage"):
        fedem.then(wecfl).check(4)
    wecfl.then(fedem).check(4)
