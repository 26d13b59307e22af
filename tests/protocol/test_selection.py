"""Whom a server invites: by hand, how often, what it costs, and that nothing else decides it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from coterie import (
    IFCA,
    CoterieError,
    FedAvg,
    Federation,
    FedSoft,
    Graph,
    Local,
    Participation,
    Stage,
    Stages,
)
from coterie.data import from_arrays
from coterie.engine.rows import Rows
from coterie.engine.training import Training
from coterie.experiment.experiment import load as load_experiment
from coterie.prng import id_keys
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.selection import CLUSTERS, SIZE, by_loss, by_size, diverse
from coterie.protocol.state import State
from coterie.protocol.traffic import Traffic
from tests import builders
from tests.builders import F64, apart, linear

TRAINING = Training(learning_rate=0.02, batch_size=10)
SELECTIONS: dict[str, dict[str, Any]] = {
    "size": {},
    "loss": {"candidates": 6},
    "loss-per-cluster": {"candidates": 8, "clusters": 2},
}


def clients() -> Federation:
    """Of 15 to 40 points; every other client's inputs lie elsewhere, so that k-FED has two clusters to find."""
    data = builders.clients()
    x = data.train.x[data.train.at] + 10.0 * (data.train.owner % 2)[:, None]
    return replace(data, train=replace(data.train, x=x, at=torch.arange(len(x))))


def plan(select: str, algorithm: Any = None, rounds: int = 3, **changed: Any) -> Stages:
    how = Participation(**{"fraction": 0.25, "select": select, **SELECTIONS.get(select, {}), **changed})
    return Stages((Stage(algorithm or FedAvg(), rounds, TRAINING, participation=how),))


def simulation(stages: Stages, data: Federation | None = None, seed: int = 3) -> Coordinator:
    return builders.simulation(stages, data or clients(), seed=seed)


ROWS = Rows(linear())


def state(sizes: list[int], round: int = 0, ids: list[str] | None = None) -> State:
    keys = id_keys(ids or [str(i) for i in range(len(sizes))])
    everyone = torch.ones(len(sizes), dtype=torch.bool)
    context = RoundContext(seed=5, round=round)
    return State(torch.zeros(1, 1, 10), keys, ROWS, True, context, everyone).update(
        **{SIZE: torch.tensor(sizes)}
    )


def one_hot(*cluster: int) -> torch.Tensor:
    return nn.functional.one_hot(torch.tensor(cluster)).bool()


# by hand


def test_twice_as_many_candidates_as_are_invited_unless_said() -> None:
    assert [Participation(f).n_candidates(12) for f in (0.25, 0.75)] == [6, 12]
    assert Participation(0.25, select="loss", candidates=9).n_candidates(12) == 9
    with pytest.raises(CoterieError, match="candidates is 9; allowed is none with select = 'uniform'"):
        Participation(0.25, candidates=9)
    with pytest.raises(CoterieError, match="clusters is 3; allowed is none with select = 'loss'"):
        Participation(0.25, select="loss", clusters=3)


def test_by_loss_the_highest_come_first_and_who_diverged_is_left_out() -> None:
    sent = Messages(torch.tensor([0, 2, 3, 5]), {"loss": torch.tensor([1.0, 3.0, torch.nan, 2.0])})
    assert by_loss(state([1] * 6), sent) == [2, 5, 0]
    assert by_loss(state([1] * 6), Messages(torch.tensor([], dtype=torch.long), {})) == []


def test_equal_losses_are_ranked_by_id_and_round_not_by_place() -> None:
    ids = ["a", "b", "c", "d"]
    sent = Messages(torch.arange(4), {"loss": torch.ones(4)})
    forward = [ids[i] for i in by_loss(state([1] * 4, ids=ids), sent)]
    backward = [ids[::-1][i] for i in by_loss(state([1] * 4, ids=ids[::-1]), sent)]
    assert forward == backward
    assert len({tuple(by_loss(state([1] * 4, round=t), sent)) for t in range(20)}) > 5


def test_the_filter_lets_through_who_brings_a_new_cluster() -> None:
    assert diverse([4, 2, 0, 1, 3], one_hot(0, 0, 1, 1, 0)) == [4, 2, 0, 3, 1]  # 4: A, 2: B; 0: A, 3: B; 1: A
    assert diverse([0, 1, 2], one_hot(0, 0, 0)) == [0, 1, 2]  # one cluster: as by loss
    assert diverse([], one_hot(0, 1)) == []
    several = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]).bool()
    assert diverse([0, 1, 2, 3], several) == [0, 2, 1, 3]  # 1 brings nothing new, nor does 3 after 2


def test_by_size_as_often_as_draws_without_replacement() -> None:
    sizes, rounds = [1, 2, 5, 12], 4000
    drawn = torch.stack([by_size(state(sizes, t), 2) for t in range(rounds)])
    assert (drawn.sum(1) == 2).all()
    expected = torch.zeros(4, dtype=F64)
    for first, second in permutations(range(4), 2):
        chance = sizes[first] / 20 * sizes[second] / (20 - sizes[first])
        expected[[first, second]] += chance
    torch.testing.assert_close(drawn.double().mean(0), expected, atol=0.03, rtol=0)


def at_center(data: Federation, center: torch.Tensor) -> torch.Tensor:
    """(client,) the mean squared error of a linear model on each client's training data."""
    each = [slice(int(a), int(b)) for a, b in zip(data.train.offset, data.train.offset[1:], strict=False)]
    x, y = data.train.x[data.train.at].to(F64), data.train.y.to(F64)
    return torch.stack([((x[own] @ center - y[own].flatten()) ** 2).mean() for own in each])


def test_those_of_highest_loss_train() -> None:
    run = simulation(plan("loss", candidates=12))
    for _ in range(3):
        expected = at_center(clients(), run.state.centers[0, 0]).topk(3).indices
        assert sorted(run.step().clients.tolist()) == sorted(expected.tolist())


def test_a_client_of_several_centers_sends_the_loss_of_the_one_it_would_use() -> None:
    run = simulation(plan("loss", IFCA(2), candidates=12))
    run.step()
    least = torch.stack([at_center(clients(), center) for center in run.state.centers[0]]).min(0).values
    assert sorted(run.step().clients.tolist()) == sorted(least.topk(3).indices.tolist())


def test_those_invited_are_of_different_clusters() -> None:
    run = simulation(plan("loss-per-cluster", fraction=1 / 6, rounds=8, candidates=12))
    for _ in range(8):
        loss = at_center(clients(), run.state.centers[0, 0])
        expected = {int(loss[::2].argmax()) * 2, int(loss[1::2].argmax()) * 2 + 1}
        assert set(run.step().clients.tolist()) == expected
    found = run.state.fields[CLUSTERS]
    assert found.sum(1).tolist() == [1] * 12
    assert (found[:, 0] == found[0, 0]).tolist() == [True, False] * 6
    plain = simulation(plan("loss", fraction=1 / 6, rounds=8, candidates=12))
    assert any(len({c % 2 for c in plain.step().clients.tolist()}) == 1 for _ in range(8))


def test_the_number_of_clusters_can_be_chosen_and_clients_can_be_of_several() -> None:
    how = {"clusters": None, "local_clusters": 2, "candidates": 12}
    run = simulation(plan("loss-per-cluster", **how))
    run.step()
    assert run.state.fields[CLUSTERS].shape[0] == 12
    assert run.state.fields[CLUSTERS].sum(1).max() == 2
    tiny = from_arrays(
        [(torch.randn(n, 10), torch.randn(n, 1)) for n in (1, 1, 3, 9)], 0.0, task="regression"
    )
    stages = plan("loss-per-cluster", local_clusters=3, clusters=2, candidates=4)
    run = simulation(stages, tiny)  # with fewer points than means
    run.step()
    assert run.state.fields[CLUSTERS].any(1).all()


# what it costs


ROW, NUMBER = 10 * 8, 8


def traffic_of(stages: Stages, rounds: int = 1) -> Traffic:
    run = simulation(stages)
    for _ in range(rounds):
        run.step()
    return run.traffic


def test_bytes_by_size() -> None:
    one = Traffic(messages=12 + 3 + 3, up=12 * NUMBER + 3 * (ROW + NUMBER), down=3 * ROW)
    assert traffic_of(plan("size")) == one
    assert traffic_of(plan("size"), 2).up == one.up + 3 * (ROW + NUMBER)  # sizes are sent once


def test_bytes_by_loss_a_candidate_is_sent_the_model_once() -> None:
    expected = Traffic(
        messages=12 + 6 + 6 + 3, up=12 * NUMBER + 6 * NUMBER + 3 * (ROW + NUMBER), down=6 * ROW
    )
    assert traffic_of(plan("loss")) == expected


def test_bytes_by_loss_what_is_new_in_the_offer_is_counted() -> None:
    found = traffic_of(plan("loss", FedSoft(2, draws=12, replacement=False)))
    assert found.down == 6 * 2 * ROW + 3 * 2 * NUMBER  # centers to six; importance to the three invited
    assert found.up == 12 * NUMBER + 6 * NUMBER + 3 * 3 * NUMBER + 3 * (ROW + 3 * NUMBER)


def test_bytes_of_the_means() -> None:
    by_loss, per_cluster = traffic_of(plan("loss", candidates=8)), traffic_of(plan("loss-per-cluster"))
    assert per_cluster.up - by_loss.up == 12 * 10 * 8
    assert per_cluster.down == by_loss.down


def test_local_training_needs_no_model_to_send_a_loss() -> None:
    found = traffic_of(plan("loss", Local()))
    assert (found.down, found.up) == (0, 12 * NUMBER + 6 * NUMBER)


# absent clients


def test_absent_candidates_send_nothing_and_are_not_chosen() -> None:
    run = simulation(plan("loss", rounds=20, absent=0.5, candidates=5))
    received = []
    for t in range(20):
        came = run.stage.participation.came(run.keys, 3, t)
        before = run.traffic.messages
        sent = run.step()
        assert came[sent.clients].all()
        candidates = int((by_size(run.state, 5) & came).sum())
        assert len(sent) == min(3, candidates)  # who came takes the place of who did not
        assert run.traffic.messages - before == 2 * candidates + len(sent) + (12 if t == 0 else 0)
        received.append(len(sent))
    assert len(set(received)) > 2


@pytest.mark.parametrize("select", SELECTIONS)
def test_nobody_may_ever_come(select: str) -> None:
    run = simulation(plan(select, FedSoft(2), absent=0.999999))
    before = run.state.centers
    while not run.done:
        assert not len(run.step())
    assert torch.equal(run.state.centers, before)


# nothing else decides


def choices(run: Coordinator) -> list[set[str]]:
    found = []
    while not run.done:
        found.append({run.ids[i] for i in run.step().clients.tolist()})
    return found


@pytest.mark.parametrize("select", SELECTIONS)
def test_same_seed_same_choice_in_any_order(select: str) -> None:
    order = [3, 1, 4, 11, 5, 9, 2, 6, 0, 8, 7, 10]
    stages = plan(select, IFCA(2), rounds=6)
    one = choices(simulation(stages))
    assert one == choices(simulation(stages, clients().permuted(order)))
    assert one != choices(simulation(stages, seed=4))
    assert len({frozenset(c) for c in one}) > 1


@pytest.mark.parametrize("select", SELECTIONS)
def test_resumed_in_another_order_it_goes_on_as_it_would(select: str) -> None:
    stages = plan(select, rounds=6, absent=0.2)
    straight = simulation(stages)
    expected = choices(straight)
    first = simulation(stages)
    first.step()
    first.step()
    again = simulation(stages, clients().permuted(range(11, -1, -1)))
    again.load(*first.save())
    assert choices(again) == expected[2:]
    assert again.traffic == straight.traffic
    torch.testing.assert_close(again.state.centers, straight.state.centers, rtol=1e-12, atol=1e-12)


def test_each_stage_of_several_has_its_own() -> None:
    stages = Stages((*plan("loss"), *plan("size"), *plan("loss-per-cluster"), *plan("uniform")))
    run = simulation(stages)
    expected = choices(run)
    half = simulation(stages)
    for _ in range(5):
        half.step()
    again = simulation(stages)
    again.load(*half.save())
    assert choices(again) == expected[5:]
    assert torch.equal(again.state.centers, run.state.centers)
    alone, traffic = apart(linear, clients(), stages, seed=3)
    torch.testing.assert_close(alone.centers, run.state.centers[0], rtol=1e-8, atol=1e-8)
    assert traffic == run.traffic


# what is refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"select": "loss", "fraction": 1.0}, "^select is 'loss', but fraction is 1, so everyone is invited"),
        (
            {"candidates": 2},
            "^candidates is 2; allowed is from 3, as many as are invited, to 12, all clients",
        ),
        ({"candidates": 13}, "^candidates is 13"),
        ({"select": "loss-per-cluster", "clusters": 13}, "^clusters is 13; allowed is at most 12"),
        ({"select": "often"}, "^select is 'often'; allowed is one of 'uniform', 'size', 'loss'"),
        ({"candidates": 0}, "^candidates is 0; allowed is 1 or more"),
        ({"clusters": 0}, "^clusters is 0"),
        ({"local_clusters": 0}, "^local_clusters is 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        simulation(plan(how.pop("select", "loss"), **how))


def test_more_clusters_than_means_are_refused_when_the_means_are_known() -> None:
    one_each = from_arrays([(torch.full((3, 10), float(i)), torch.ones(3, 1)) for i in range(4)], 0.0)
    stages = plan("loss-per-cluster", local_clusters=2, clusters=5, candidates=4)
    with pytest.raises(
        CoterieError, match=r"^clusters is 5; allowed is at most 4, the means that clients sent"
    ):
        simulation(stages, one_each).step()


@pytest.mark.parametrize("select", SELECTIONS)
def test_over_a_graph_nobody_selects(select: str) -> None:
    stages = Stages((replace(plan(select)[0], topology=Graph("complete")),))
    with pytest.raises(
        CoterieError, match=f"^select is '{select}', but over a graph nobody selects; allowed"
    ):
        simulation(stages)


FILE = """
rounds = 2
data = {{ source = "digits", clients = 12, train_points = 20 }}
model = {{ name = "linear" }}
participation = {{ fraction = 0.25, select = "loss-per-cluster", candidates = {candidates}, clusters = 2 }}
algorithm = {{ name = "FedAvg" }}
"""


def test_in_an_experiment_file(tmp_path: Any) -> None:
    path = tmp_path / "chosen.toml"
    path.write_text(FILE.format(candidates=6))
    experiment = load_experiment(path)
    assert experiment.methods[0].stages[0].participation == Participation(
        fraction=0.25, select="loss-per-cluster", candidates=6, clusters=2
    )
    experiment.methods[0].check([str(i) for i in range(12)], 0)
    path.write_text(FILE.format(candidates=2))
    with pytest.raises(CoterieError, match=r"^participation\.candidates is 2; allowed is from 3"):
        load_experiment(path).methods[0].check([str(i) for i in range(12)], 0)
