"""How many clusters: points held out, their losses, numbers tried, kept and resumed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie import ALGORITHMS, IFCA, Choosing, FedEM, Graph, Stage, Stages, Training, WeCFL
from coterie.algorithms import Algorithm
from coterie.backends.simulation import simulate
from coterie.data import from_arrays, regressions
from coterie.data.federation import Federation
from coterie.errors import CoterieError
from coterie.model_selection.choice import Tried
from coterie.model_selection.search import _scored, choose_clusters, hold_out
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.evaluation import smoothed
from coterie.protocol.stages import is_clustered
from tests.builders import finish

# points held out


def _federation(sizes: list[int]) -> Federation:
    """Every point is a number of its own; test points are negative."""
    clients: dict[str, Any] = {}
    start = 0
    for i, size in enumerate(sizes):
        x = torch.arange(start, start + size).float()
        clients[f"client {i}"] = (x, x, -1 - x[:1], x[:1])
        start += size
    return from_arrays(clients, task="regression")


def _points(data: Federation, part: str) -> dict[str, list[float]]:
    points = getattr(data, part)
    own = {}
    for i, name in enumerate(data.ids):
        at = points.at[points.offset[i] : points.offset[i + 1]]
        own[name] = points.x[at].flatten().tolist()
    return own


def test_a_share_of_each_clients_own_training_points_is_held_out() -> None:
    data = _federation([1, 2, 4, 10, 40])
    split = hold_out(data, 0.25, seed=3)
    kept, held = _points(split, "train"), _points(split, "test")
    assert [len(each) for each in held.values()] == [
        0,
        1,
        1,
        3,
        10,
    ]  # a half is rounded up; one point is kept
    for name, every in _points(data, "train").items():
        assert sorted(kept[name] + held[name]) == every  # no test point, none twice, none of others
    assert split.train.y.flatten().tolist() == [one for each in kept.values() for one in each]
    assert split.distributions is None


def test_who_else_takes_part_does_not_change_what_is_held_out() -> None:
    data = _federation([6, 9, 12])
    held = _points(hold_out(data, 0.3, 0), "test")
    assert _points(hold_out(data.permuted([2, 0, 1]), 0.3, 0), "test") == held
    assert _points(hold_out(data.permuted([1]), 0.3, 0), "test") == {"client 1": held["client 1"]}
    assert _points(hold_out(data, 0.3, 1), "test") != held


def test_a_client_always_keeps_a_point_to_train_on() -> None:
    split = hold_out(_federation([1, 2, 10]), 0.99, 0)
    assert split.train.sizes.tolist() == [1, 1, 1]


def test_nothing_to_hold_out_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"held_out is 0.25, which holds out no point"):
        hold_out(_federation([1, 1]), 0.25, 0)


# scores

TRAINING = Training(learning_rate=0.2, batch_size=None, epochs=4)  # whole batches: quick, and nearly exact


def _lines(clusters: int, mixture: str = "pure", clients: int = 16, seed: int = 0) -> Federation:
    return regressions(
        clients, clusters, mixture, sizes=(30, 40), dimension=4, distribution_points=10, seed=seed
    )


def linear() -> nn.Module:
    return nn.Linear(4, 1)


def _played(data: Federation, *stages: Stage) -> Coordinator:
    return finish(simulate(linear, hold_out(data, 0.25, 0), Stages(stages)))


def _errors(simulation: Coordinator, center: torch.Tensor, client: int) -> torch.Tensor:
    """Squared errors of one center on the points that a client holds out."""
    test = simulation.clients.cohort.test
    assert test is not None
    own = test.take(torch.tensor([client]))
    x, y = own.x[own.at], own.y
    return ((x @ center[:4] + center[4]) - y[:, 0]) ** 2


def test_what_has_one_cluster_per_client_is_scored_by_its_loss() -> None:
    simulation = _played(_lines(2), Stage(WeCFL(2), 3, TRAINING))
    found = simulation.ask_everyone("likelihood").held_out
    for client, member in enumerate(simulation.state.member.tolist()):
        errors = _errors(simulation, simulation.state.centers[0, member], client)
        assert found[client].item() == pytest.approx(errors.mean().item(), rel=1e-5)


def test_what_has_one_cluster_per_point_is_scored_by_its_likelihood() -> None:
    simulation = _played(_lines(2, "10:90"), Stage(WeCFL(2), 2, TRAINING), Stage(FedEM(2), 2, TRAINING))
    found = simulation.ask_everyone("likelihood").held_out
    importance = smoothed(simulation.evaluate().importance, simulation.clients.cohort.sizes)
    for client in range(len(simulation)):
        errors = [_errors(simulation, center, client) for center in simulation.state.centers[0]]
        likely = sum(u * torch.exp(-e.double()) for u, e in zip(importance[client], errors, strict=True))
        assert found[client].item() == pytest.approx(-torch.log(likely).mean().item(), rel=1e-4)


@pytest.mark.parametrize("wild", [1e30, math.nan])
def test_a_loss_that_is_not_finite_is_sent_as_infinite(wild: float) -> None:
    """Were it only very large, one such client would be taken for chance."""
    data = _lines(2)
    simulation = _played(data, Stage(WeCFL(2), 1, TRAINING))
    simulation.state.centers[0] = wild  # all of them, for of several the others would be sent
    assert _scored(simulation, hold_out(data, 0.25, 0)).losses[0] == math.inf


def test_importance_is_smoothed_by_one_point() -> None:
    importance = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert smoothed(importance, torch.tensor([3, 4])).tolist() == [[3.5 / 4, 0.5 / 4], [0.5, 0.5]]


def test_what_is_sent_is_counted() -> None:
    data, stage = _lines(2), Stage(WeCFL(1), 2, TRAINING)
    choice = choose_clusters(linear, data, stage, choosing=Choosing(most=2, n_init=1))
    simulation = _played(data, Stage(WeCFL(2), 2, TRAINING))
    simulation.count_final_offer()
    sent = 2 * 4 * len(data)  # two float32 numbers of each client
    assert choice.lines[1].megabytes == (simulation.traffic.total() + sent) / 1e6


# choosing

STAGE = Stage(WeCFL(1), 4, TRAINING)
FEW = Choosing(most=4, n_init=1)


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_the_true_number_is_found(clusters: int) -> None:
    assert choose_clusters(linear, _lines(clusters), STAGE, choosing=FEW).n_clusters == clusters


def test_order_of_clients_and_test_points_change_nothing() -> None:
    data = _lines(2)
    found = choose_clusters(linear, data, STAGE, choosing=FEW, dtype=torch.float64)
    other = replace(data.permuted(list(range(16))[::-1]), test=None)
    again = choose_clusters(linear, other, STAGE, choosing=FEW, dtype=torch.float64)
    for one, two in zip(found.lines, again.lines, strict=True):
        assert two.held_out_loss == pytest.approx(one.held_out_loss, rel=1e-9)
        assert two.excess_error == pytest.approx(one.excess_error, rel=1e-6, abs=1e-12)


def test_more_initialisations_never_have_a_higher_held_out_loss() -> None:
    few = Choosing(least=2, most=4, n_init=1)
    stage = Stage(coterie.IFCA(1), 3, TRAINING)
    one = choose_clusters(linear, _lines(3), stage, choosing=few)
    three = choose_clusters(linear, _lines(3), stage, choosing=replace(few, n_init=3))
    pairs = [(a.held_out_loss, b.held_out_loss) for a, b in zip(one.lines, three.lines, strict=True)]
    assert all(b <= a for a, b in pairs)
    assert any(b < a for a, b in pairs)


def test_always_fewer_clusters_than_clients() -> None:
    choice = choose_clusters(linear, _lines(1, clients=4), Stage(FedEM(1), 1), choosing=Choosing(n_init=1))
    assert [line.n_clusters for line in choice.lines] == [1, 2, 3]
    assert Choosing().numbers(1) == range(1, 2)


CLUSTERED = [kind for kind in ALGORITHMS.values() if is_clustered(kind)]


@pytest.mark.parametrize("kind", CLUSTERED, ids=lambda kind: kind.title())
@pytest.mark.parametrize("place", ["server", "graph"])
def test_every_clustered_algorithm_can_be_asked(kind: type[Algorithm], place: str) -> None:
    if kind.needs_server and place == "graph":
        pytest.skip("needs a server")
    topology = coterie.Server() if place == "server" else Graph("complete")
    stage = Stage(kind(n_clusters=5), 2, TRAINING, topology)  # type: ignore[call-arg]
    choice = choose_clusters(linear, _lines(2, clients=6), stage, choosing=Choosing(most=3, n_init=1))
    assert [line.n_clusters for line in choice.lines] == [1, 2, 3]
    assert [line.parameters for line in choice.lines] == [5, 10, 15]
    assert all(math.isfinite(line.held_out_loss) for line in choice.lines)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (coterie.FedAvg(), "FedAvg has no number of clusters; allowed is an algorithm with n_clusters"),
        (coterie.CFL(), "CFL finds the number of clusters itself; run it without one"),
    ],
)
def test_what_has_no_number_is_refused(algorithm: Algorithm, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        choose_clusters(linear, _lines(2), algorithm)


# kept, interrupted, resumed


class Counter:
    """Counts rounds by number of clusters, and stops at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.rounds: dict[int, int] = {}
        self.stop = stop

    def __call__(self, clusters: int, record: dict[str, Any], rounds: int) -> None:
        assert rounds == 8
        assert record["round"] == self.rounds.get(clusters, 0)
        self.rounds[clusters] = self.rounds.get(clusters, 0) + 1
        if clusters == self.stop and record["round"] == 5:
            raise KeyboardInterrupt


def test_an_interrupted_choice_goes_on_at_the_number_it_was_at(tmp_path: Path) -> None:
    choosing, data = Choosing(most=4, n_init=2), _lines(2)
    with pytest.raises(KeyboardInterrupt):
        choose_clusters(linear, data, STAGE, choosing=choosing, out=tmp_path, watch=Counter(stop=3))
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["1.json", "2.json"]
    rest = Counter()
    resumed = choose_clusters(linear, data, STAGE, choosing=choosing, out=tmp_path, watch=rest)
    assert rest.rounds == {3: 8, 4: 8}
    assert resumed == choose_clusters(linear, data, STAGE, choosing=choosing)


def test_what_was_tried_with_other_settings_is_not_taken(tmp_path: Path) -> None:
    few = Choosing(most=1, n_init=1)
    choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)
    for changed in (
        {"algorithm": replace(STAGE, rounds=9)},
        {"data": _lines(2, seed=1)},
        {"choosing": replace(few, held_out=0.4)},
        {"choosing": replace(few, n_init=2)},
        {"experiment": "another model"},
    ):
        given = {"model": linear, "data": _lines(2), "algorithm": STAGE, "choosing": few, **changed}
        with pytest.raises(CoterieError, match=r"1\.json was tried with other settings"):
            choose_clusters(**given, out=tmp_path)


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    few = Choosing(most=1, n_init=1)
    choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)
    tried = tmp_path / "tried" / "1.json"
    whole = tried.read_text()
    other = re.sub(r'"training": \d', '"training": 7', whole)
    assert other != whole
    for text in ("[1", "{}", other):
        tried.write_text(text)
        with pytest.raises(
            CoterieError, match=r"1\.json (is damaged: .* tried again|holds nothing that was)"
        ):
            choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)


def test_a_number_that_diverged_is_kept_as_such(tmp_path: Path) -> None:
    tried = Tried(2, (1.0, math.inf), math.inf, 3, 0.5)
    tried.save(tmp_path / "2.json", "this")
    assert Tried.load(tmp_path / "2.json", "this") == tried
    assert "Infinity" not in (tmp_path / "2.json").read_text()


def test_nothing_is_kept_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tried").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CoterieError, match="tried is a link"):
        Tried(2, (1.0,), 1.0, 3, 0.5).save(tmp_path / "tried" / "2.json", "this")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_clients_choose_no_models_while_the_number_is_chosen() -> None:
    """They would hold points out twice, and train a model that nobody wants."""
    data = _lines(2, clients=6)
    how: dict[str, Any] = {"choosing": Choosing(least=1, most=2, n_init=1), "device": "cpu"}
    own, auto = (
        choose_clusters(linear, data, Stage(IFCA(2), 2, TRAINING, personal=personal), **how)
        for personal in ("own", "auto")
    )
    assert own.lines == auto.lines
