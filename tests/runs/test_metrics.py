"""The theory metrics: numbers by hand, relations, and what a run writes down."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import coterie
from coterie import (
    CFL,
    IFCA,
    FedAvg,
    FedEM,
    FedSoft,
    FedSPD,
    Graph,
    Local,
    Server,
    Stage,
    Stages,
    Training,
    WeCFL,
)
from coterie.backends.simulation import simulate
from coterie.data import regressions
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.topology import Topology
from coterie.report.compare import measured
from coterie.runs import metrics
from coterie.runs.folder import RunFolder
from coterie.runs.monitor import EACH_ROUND, EVALUATED, Monitor
from tests.builders import CPU, F64, one_number_cohort

TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=1)


def numbers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


# between centers


def test_delta_is_the_least_and_the_greatest_distance_of_two_centers() -> None:
    assert metrics.center_distances(numbers([0, 0], [3, 4], [0, 1])) == (1.0, 5.0)
    assert metrics.center_distances(numbers([1, 2], [1, 2])) == (0.0, 0.0)
    assert all(map(math.isnan, metrics.center_distances(numbers([1, 2]))))


def test_cosine_between_is_the_mean_over_pairs_of_centers() -> None:
    assert metrics.cosine_between(numbers([2, 0], [0, 5], [-1, 0])) == pytest.approx((0 - 1 + 0) / 3)
    assert metrics.cosine_between(numbers([1, 1], [3, 3])) == pytest.approx(1)


# clients in clusters


def test_cosine_within_by_hand() -> None:
    """Cluster 0: two at right angles and one along the first (0, 1, 0); 1: one alone; 2: nobody; 3: opposed."""
    rows = numbers([1, 0], [0, 7], [2, 0], [1, 1], [1, 0], [-3, 0])
    found = metrics.cosine_within(rows, torch.tensor([0, 0, 0, 1, 3, 3]), 4)
    assert found[[0, 3]].tolist() == pytest.approx([1 / 3, -1])
    assert found[[1, 2]].isnan().all()


@given(st.integers(0, 10_000))
def test_cosine_within_is_that_of_all_pairs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, label = draw.normal(size=(9, 3)), draw.integers(0, 2, 9)
    rows[0] = 0  # a row of zeros is like no other
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    found = metrics.cosine_within(torch.tensor(rows), torch.tensor(label), 2)
    for cluster in range(2):
        pairs = list(itertools.combinations(np.flatnonzero(label == cluster), 2))
        if pairs:
            by_pairs = np.mean([unit[i] @ unit[j] for i, j in pairs])
            assert float(found[cluster]) == pytest.approx(by_pairs, abs=1e-9)


def test_clustering_objective_by_hand() -> None:
    """Cluster 0: 1·1² and 3·2² over a weight of 4; cluster 1: 4·5²; all: (13 + 100) / 8. Nobody is in cluster 2."""
    rows, label, weight = numbers([1], [2], [15]), torch.tensor([0, 0, 1]), torch.tensor([1, 3, 4])
    found = metrics.clustering_objective(rows, label, weight, numbers([0], [10], [3]))
    assert found[:2].tolist() == [13 / 4, 25]
    assert found[2].isnan()
    assert metrics.over_clusters(found, label, weight) == (13 + 100) / 8


def test_clusterability_by_hand() -> None:
    """Cluster 0: mean gradient (2, 0) with weights 3 and 1, so 2/2 for the lighter; cluster 1: one alone, 0."""
    gradients = numbers([2, 1], [2, -3], [5, 5])
    blocks = [(slice(0, 1), gradients[:1]), (slice(1, 3), gradients[1:])]
    found = metrics.clusterability(lambda: blocks, torch.tensor([0, 0, 1]), torch.tensor([3, 1, 1]), 3)
    assert found[:2].tolist() == [3 / 2, 0]
    assert found[2].isnan()


def test_clients_with_the_same_gradient_are_perfectly_clusterable() -> None:
    same = [(slice(0, 3), numbers([1, 2], [1, 2], [1, 2]))]
    found = metrics.clusterability(lambda: same, torch.zeros(3, dtype=torch.long), torch.tensor([1, 2, 4]), 1)
    assert found.tolist() == pytest.approx([0], abs=1e-15)


def test_a_cohorts_gradient_is_that_of_the_mean_loss() -> None:
    """d/dw of the mean of (w − y)²: 2(w − mean y)."""
    cohort = one_number_cohort(([1, 1, 1], [0, 3, 6]), ([1], [5]))
    ((some, found),) = cohort.gradients(numbers([1], [1]))
    assert some == slice(0, 2)
    assert found[:, 0].tolist() == pytest.approx([2 * (1 - 3), 2 * (1 - 5)])


@pytest.mark.parametrize("batch_size", [None, 10, 64])
def test_a_gradient_summed_from_batches_is_that_of_all_points(batch_size: int | None) -> None:
    """Of 70 points the last batch has 6, and of a single point there is one."""
    y = torch.linspace(-1, 2, 70).tolist()
    cohort = one_number_cohort(([1] * 70, y), ([1], [5]))
    cohort = replace(cohort, training=Training(batch_size=batch_size, steps=3, epochs=None))
    ((_, found),) = cohort.gradients(numbers([1], [1]))
    assert found[:, 0].tolist() == pytest.approx([2 * (1 - sum(y) / 70), 2 * (1 - 5)])


# over a graph


def test_consensus_distance_by_hand() -> None:
    """Cluster 0 at 0 and 4: both 2 from the mean; cluster 1 at one place."""
    assert metrics.consensus_distance(numbers([[0], [7]], [[4], [7]])).tolist() == [4, 0]


def both_ways(graph: nx.Graph) -> Tensor:
    """(2, edge) as a topology gives them: both ways, and everyone to itself."""
    pairs = [*graph.edges, *((j, i) for i, j in graph.edges), *((i, i) for i in graph)]
    return torch.tensor(sorted(pairs)).T


def test_spectral_gap_of_known_graphs() -> None:
    assert metrics.spectral_gap(both_ways(nx.complete_graph(5)), 5) == pytest.approx(1)
    two_parts = nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(4))
    assert metrics.spectral_gap(both_ways(two_parts), 7) == pytest.approx(0)
    ring = 1 - (1 + 2 * math.cos(2 * math.pi / 12)) / 3  # a circulant of thirds
    assert metrics.spectral_gap(both_ways(nx.cycle_graph(12)), 12) == pytest.approx(ring)
    two_sides = nx.complete_bipartite_graph(5, 5)  # eigenvalues 1, 1/6 and −4/6: it is the size that counts
    assert metrics.spectral_gap(both_ways(two_sides), 10) == pytest.approx(1 / 3)
    assert metrics.spectral_gap(both_ways(nx.path_graph(2)), 2) == pytest.approx(1)
    assert metrics.spectral_gap(torch.tensor([[0], [0]]), 1) == 1


def test_spectral_gap_is_of_the_mixing_matrix() -> None:
    """The rows of W as eq. (1) has them, on a graph of unequal degrees."""
    graph = nx.barabasi_albert_graph(20, 2, seed=3)
    w = nx.to_numpy_array(graph) + np.eye(20)
    sizes = np.sort(np.abs(np.linalg.eigvals(w / w.sum(1, keepdims=True))))
    assert metrics.spectral_gap(both_ways(graph), 20) == pytest.approx(1 - sizes[-2])


@pytest.mark.parametrize(
    "graph",
    [nx.fast_gnp_random_graph(120, 0.08, seed=1), nx.complete_bipartite_graph(9, 9)],
    ids=["random", "two sides"],
)
def test_spectral_gap_of_a_large_graph_is_the_same(graph: nx.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = metrics.spectral_gap(both_ways(graph), len(graph))
    monkeypatch.setattr(metrics, "DENSE", 10)
    assert metrics.spectral_gap(both_ways(graph), len(graph)) == pytest.approx(dense, abs=1e-5)


# against what is known


def test_ari_of_perfect_renamed_and_useless_clusters() -> None:
    mixture = numbers([1, 0], [0.9, 0.1], [0.2, 0.8], [0, 1])
    assert metrics.ari(mixture, mixture) == 1
    assert metrics.ari(mixture.flip(1), mixture) == 1
    assert metrics.ari(torch.ones(4, 2), mixture) == 0
    assert metrics.ari(numbers([1, 0], [0, 1], [1, 0], [0, 1]), mixture) == pytest.approx(-0.5)


def test_spread_over_clients() -> None:
    accuracies = numbers(*[0.5] * 10, *[0.9] * 10, math.nan)
    std, worst = metrics.spread(accuracies)
    assert std == pytest.approx(0.2)
    assert worst == pytest.approx(0.5)
    assert metrics.spread(accuracies, low_is_bad=False)[1] == pytest.approx(0.9)
    assert metrics.spread(numbers(0.1, 0.7, 0.4))[1] == pytest.approx(0.1)  # a tenth of three is one
    assert all(map(math.isnan, metrics.spread(numbers(math.nan))))


# in a run


def linear() -> nn.Module:
    return nn.Linear(4, 1, bias=False)


def data(mixture: str = "pure") -> coterie.Federation:
    return regressions(clients=8, sizes=(10, 20), dimension=4, mixture=mixture, separation=50.0, seed=2)


def simulation(
    algorithm: coterie.Algorithm, topology: Topology | None = None, rounds: int = 3
) -> Coordinator:
    stages = Stages((Stage(algorithm, rounds, TRAINING, topology or Server()),))
    return simulate(linear, data(), stages, dtype=F64, device=CPU)


HARD = {"clustering_objective", "learning_objective", "clusterability"}
SEVERAL = {"center_distance_min", "center_distance_max", "cosine_between", "importance_error", "ari"}
PEERS = {"consensus_distance", "spectral_gap"}
SPREAD = {"test_loss_std", "test_loss_worst_tenth"}


@pytest.mark.parametrize(
    ("algorithm", "topology", "expected"),
    [
        (WeCFL(2), None, HARD | SEVERAL | SPREAD | {"cosine_within"}),
        (IFCA(2), Graph("complete"), HARD | SEVERAL | SPREAD | PEERS | {"cosine_within"}),
        (FedAvg(), None, HARD | SPREAD | {"cosine_within"}),
        (FedEM(2), None, SEVERAL | SPREAD | {"cosine_within"}),
        (FedSPD(2), Graph("complete"), SEVERAL | SPREAD | PEERS | {"cosine_within"}),
        (CFL(), None, {"learning_objective"} | SPREAD),
        (Local(), Graph("complete"), SPREAD),
    ],
    ids=lambda value: value.title() if isinstance(value, coterie.Algorithm) else "",
)
def test_a_run_has_the_metrics_that_apply(
    algorithm: Any, topology: Any, expected: set[str], tmp_path: Path
) -> None:
    run = coterie.run(
        linear,
        data(),
        algorithm,
        rounds=3,
        training=TRAINING,
        topology=topology,
        init="random",
        evaluate_every=2,
        out=tmp_path / "r",
    )
    records = [json.loads(line) for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()]
    first, second, last = records
    assert {name for name in (*EACH_ROUND, *EVALUATED) if name in last} == expected
    assert {name for name in (*EACH_ROUND, *EVALUATED) if name in first} == expected & set(EACH_ROUND)
    assert {name: last[name] for name in expected} == run.summary["metrics"]
    assert expected <= set(run.history.columns)
    columns = RunFolder(tmp_path / "r").columns(1)
    for name in expected & (HARD | {"consensus_distance", "cosine_within"}):
        assert columns[name].shape == (algorithm.clusters(),)
        assert second[name] is not None


def test_readings_are_those_of_the_run() -> None:
    """Recomputed from the messages, the state and the data."""
    played = simulation(WeCFL(2))
    for _ in range(3):
        sent = played.step()
    record, columns = Monitor(played, data().description).each_round(sent)
    centers, member, sizes = played.state.centers[0], played.state.member, data().train.sizes
    distance = (sent.row - centers[member]).square().sum(1)
    assert record["clustering_objective"] == pytest.approx(float((sizes * distance).sum() / sizes.sum()))
    assert record["center_distance_min"] == pytest.approx(float((centers[0] - centers[1]).norm()))
    result = played.evaluate()
    record, columns = Monitor(played, data().description).evaluated(sent, result)
    losses, gradients = [], []
    for i in range(8):
        own = slice(int(data().train.offset[i]), int(data().train.offset[i + 1]))
        x, y = data().train.x[own].double(), data().train.y[own].double().reshape(-1)
        losses.append(float((x @ centers[member[i]] - y).square().mean()))
        gradients.append(2 * x.T @ (x @ sent.row[i] - y) / len(x))
    assert record["learning_objective"] == pytest.approx(
        float((sizes * numbers(*losses)).sum() / sizes.sum())
    )
    worst = []
    for k in range(2):
        own = (member == k).nonzero()[:, 0]
        mean = sum(sizes[i] * gradients[i] for i in own) / sizes[own].sum()
        worst.append(max(float((mean - gradients[i]).norm() / mean.norm()) for i in own))
    assert columns["clusterability"].tolist() == pytest.approx(worst)
    assert record["clusterability"] == pytest.approx(max(worst))


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_clients_weigh_as_the_algorithm_has_it(weights: Any) -> None:
    played = simulation(IFCA(2, weights=weights))
    sent = played.step()
    record, _ = Monitor(played, data().description).each_round(sent)
    distance = (sent.row - played.state.centers[0, sent.choice]).square().sum(1)
    size = data().train.sizes if weights == "size" else torch.ones(8)
    assert record["clustering_objective"] == pytest.approx(float((size * distance).sum() / size.sum()))


def test_rows_of_soft_methods_belong_to_the_cluster_they_were_trained_for() -> None:
    """FedSPD's to the one drawn; FedSoft's to that of the largest importance; FedEM's one each."""
    for algorithm in (FedSPD(2), FedSoft(2), FedEM(2)):
        played = simulation(algorithm)
        sent = played.step()
        rows, label = sent.row, sent.fields.get("drew")
        if isinstance(algorithm, FedSoft):
            label = sent.importance.argmax(1)
        if label is None:
            rows, label = rows.reshape(-1, 4), torch.tensor([0, 1] * 8)
        _, columns = Monitor(played, data().description).each_round(sent)
        torch.testing.assert_close(
            columns["cosine_within"], metrics.cosine_within(rows, label, 2), equal_nan=True
        )


def test_no_gradient_is_no_reading() -> None:
    """All clients at the best place for them: the mean gradient is 0, and so B is 0/0."""
    flat = [(slice(0, 2), numbers([0], [0]))]
    found = metrics.clusterability(lambda: flat, torch.tensor([0, 0]), torch.tensor([1, 1]), 1)
    assert found.isnan().all()
    points = torch.zeros(4, 4), torch.zeros(4)
    run = coterie.run(linear, [points, points], FedAvg(), rounds=1, training=TRAINING)
    assert run.summary["metrics"]["clusterability"] is None
    assert run.summary["metrics"]["learning_objective"] == 0


def test_over_a_complete_graph_all_agree() -> None:
    run = coterie.run(
        linear, data(), FedAvg(), rounds=2, training=TRAINING, topology=Graph("complete"), dtype=F64
    )
    assert run.history["spectral_gap"].tolist() == pytest.approx([1, 1])
    assert run.history["consensus_distance"].tolist() == pytest.approx([0, 0], abs=1e-20)


def test_the_gap_of_a_graph_that_changes_is_read_each_round() -> None:
    fixed, changing = (
        coterie.run(
            linear, data(), FedAvg(), rounds=4, training=TRAINING, topology=Graph(degree=3, rewire=chance)
        ).history["spectral_gap"]
        for chance in (0.0, 0.4)
    )
    assert fixed.nunique() == 1
    assert changing.nunique() > 1


def test_monitoring_changes_nothing() -> None:
    """The same run with and without a monitor, in the same bits, memory included."""
    for algorithm, topology in ((IFCA(2), None), (FedSPD(2), Graph("complete")), (WeCFL(2), None)):
        monitored, plain = simulation(algorithm, topology), simulation(algorithm, topology)
        monitor = Monitor(monitored, data().description)
        for _ in range(3):
            sent = monitored.step()
            result = monitored.evaluate()
            monitor.each_round(sent)
            monitor.evaluated(sent, result)
            plain.step()
        with_metrics, without = monitored.save(), plain.save()
        assert with_metrics[1] == without[1]
        assert with_metrics[0].keys() == without[0].keys()
        assert all(torch.equal(with_metrics[0][name], without[0][name]) for name in without[0])


def test_ari_is_in_the_table_where_clients_are_pure() -> None:
    pure, mixed = (
        coterie.run(linear, data(mixture), WeCFL(2), rounds=3, training=TRAINING).summary
        for mixture in ("pure", "10:90")
    )
    assert pure["pure_clients"]
    assert not mixed["pure_clients"]
    assert measured(pure)["ARI"] == pure["ari"] == 1
    assert "ARI" not in measured(mixed)
    assert mixed["ari"] is not None


def test_no_messages_leave_no_metric() -> None:
    played = simulation(FedAvg())
    sent = played.step()
    nobody = sent.take(torch.zeros(0, dtype=torch.long))
    record, _ = Monitor(played, data().description).each_round(nobody)
    assert "clustering_objective" not in record
    assert "cosine_within" not in record
