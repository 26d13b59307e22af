"""Who receives from whom: servers and graphs."""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.protocol.topology import Graph, Server, _absent, _ends, _n_pairs, _number

KINDS = {
    "erdos-renyi": Graph("erdos-renyi", degree=6),
    "erdos-renyi by probability": Graph(probability=0.2),
    "barabasi-albert": Graph("barabasi-albert", degree=6),
    "random-geometric": Graph("random-geometric", degree=9),
    "complete": Graph("complete"),
    "dynamic": Graph(degree=6, rewire=0.3),
}
every_kind = pytest.mark.parametrize("graph", KINDS.values(), ids=KINDS.keys())


def clients(n: int) -> list[str]:
    return [f"client {i}" for i in random.Random(0).sample(range(10 * n), n)]


def named(graph: Graph, ids: list[str], seed: int, round: int) -> set[tuple[str, str]]:
    return {(ids[i], ids[j]) for i, j in graph.edges(ids, seed, round).T.tolist()}


def n_edges(graph: Graph, ids: list[str], seed: int, round: int) -> int:
    return (graph.edges(ids, seed, round).shape[1] - len(ids)) // 2


def refused(message: str) -> pytest.RaisesExc[CoterieError]:
    return pytest.raises(CoterieError, match=message)


@every_kind
def test_edges_are_symmetric_sorted_without_repetition_and_everyone_receives_from_itself(
    graph: Graph,
) -> None:
    n = 40
    edges = graph.edges(clients(n), seed=3, round=4)
    assert edges.dtype == torch.int64
    pairs = [tuple(pair) for pair in edges.T.tolist()]
    assert pairs == sorted(set(pairs))
    assert {(j, i) for i, j in pairs} == set(pairs)
    assert {(i, i) for i in range(n)} <= set(pairs)


@every_kind
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_first_graph_is_connected(graph: Graph, seed: int) -> None:
    edges = graph.edges(clients(50), seed, round=0)
    assert nx.is_connected(nx.Graph(edges.T.tolist()))


@every_kind
@given(seed=st.integers(0, 10_000), order=st.permutations(range(30)), round=st.integers(0, 5))
@settings(max_examples=8, deadline=None)
def test_permuting_clients_permutes_the_graph(graph: Graph, seed: int, order: list[int], round: int) -> None:
    ids = clients(30)
    permuted = [ids[i] for i in order]
    assert named(graph, ids, seed, round) == named(graph, permuted, seed, round)


@every_kind
def test_a_graph_is_a_function_of_its_seed(graph: Graph) -> None:
    ids = clients(30)
    again = Graph(**asdict(graph))
    assert torch.equal(graph.edges(ids, 1, 2), again.edges(ids, 1, 2))
    if graph.kind != "complete":
        assert named(graph, ids, 1, 2) != named(graph, ids, 2, 2)


@pytest.mark.parametrize("kind", ["erdos-renyi", "barabasi-albert", "random-geometric"])
@pytest.mark.parametrize("degree", [8, 12.4])
def test_the_mean_degree_is_near_the_one_asked_for_and_reported(kind: str, degree: float) -> None:
    graph, ids = Graph(kind, degree=degree), clients(300)  # type: ignore[arg-type]
    sent = graph.describe(ids, seed=5)
    assert sent["edges"] == n_edges(graph, ids, 5, 0)
    assert sent["mean_degree"] == pytest.approx(2 * sent["edges"] / 300)
    assert sent["mean_degree"] == pytest.approx(degree, rel=0.1)
    assert 1 <= sent["tries"] <= graph.tries


@given(n=st.integers(60, 120), degree=st.floats(12, 30), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_random_geometric_has_the_nearest_possible_degree(n: int, degree: float, seed: int) -> None:
    sent = Graph("random-geometric", degree=degree).describe(clients(n), seed)
    assert abs(sent["mean_degree"] - degree) <= 1 / n + 1e-9  # an edge more or less is 2/n


def test_complete_graph_by_hand() -> None:
    assert Graph("complete").edges(["b", "a"], seed=0, round=7).tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]


@pytest.mark.parametrize(
    "graph", [Graph("complete"), Graph(degree=5), Graph("barabasi-albert", degree=4, rewire=0.5)]
)
def test_a_client_alone_receives_from_itself(graph: Graph) -> None:
    graph.check(1)
    assert graph.edges(["only"], seed=0, round=3).tolist() == [[0], [0]]
    assert graph.describe(["only"], seed=0) == {"mean_degree": 0.0, "edges": 0.0, "tries": 1.0}


# Dynamic edges


def test_without_rewiring_edges_stay() -> None:
    graph, ids = Graph(degree=5), clients(30)
    assert torch.equal(graph.edges(ids, 0, 0), graph.edges(ids, 0, 50))


@pytest.mark.parametrize(("degree", "rewire"), [(6, 0.3), (6, 1.0), (24, 0.2)])
def test_rewiring_keeps_the_expected_number_of_edges(degree: float, rewire: float) -> None:
    graph, ids = Graph(degree=degree, rewire=rewire), clients(40)
    counts = [n_edges(graph, ids, 1, round) for round in range(201)]
    assert np.mean(counts[1:]) == pytest.approx(counts[0], rel=0.1)
    assert len(set(counts)) > 1


def test_rewiring_removes_each_edge_with_the_chance_given() -> None:
    graph, ids = Graph(degree=20, rewire=0.25), clients(300)
    pairs = [named(graph, ids, 0, round) - {(i, i) for i in ids} for round in range(4)]
    for before, after in pairwise(pairs):
        assert len(before - after) / len(before) == pytest.approx(0.25, abs=0.03)


def test_a_round_is_the_same_whether_asked_first_or_after_others() -> None:
    ids = clients(40)
    walked, direct = Graph(degree=6, rewire=0.2), Graph(degree=6, rewire=0.2)
    in_turn = [walked.edges(ids, 9, round) for round in range(12)]
    for round in (11, 3, 7, 0):
        assert torch.equal(direct.edges(ids, 9, round), in_turn[round])


def test_rewiring_a_graph_too_full_is_refused() -> None:
    with refused("^rewire is 0.1; allowed is at most 0 with 45 edges among 10 clients"):
        Graph("complete", rewire=0.1).check(10)
    Graph(degree=6, rewire=0.5).check(10)  # 30 edges, 15 absent
    with refused("at most 0.5 with 30 edges"):
        Graph(degree=6, rewire=0.6).check(10)


# Counting pairs


@given(n=st.integers(2, 40), data=st.data())
@settings(max_examples=30, deadline=None)
def test_absent_pairs_are_found_without_listing_them(n: int, data: st.DataObject) -> None:
    everything = range(_n_pairs(n))
    pairs = np.array(sorted(data.draw(st.sets(st.sampled_from(everything)))), dtype=np.int64)
    absent = np.setdiff1d(np.arange(_n_pairs(n)), pairs)
    assert np.array_equal(_absent(pairs, np.arange(len(absent))), absent)


@given(high=st.integers(1, 5_000_000), share=st.floats(0, 1))
def test_a_pair_is_its_number_and_back(high: int, share: float) -> None:
    for low in (0, int(share * (high - 1)), high - 1):
        number = _number(np.array([high]), np.array([low]))
        assert [int(end[0]) for end in _ends(number)] == [low, high]


# A big graph


def test_twenty_thousand_clients_take_seconds_and_no_dense_matrix() -> None:
    graph, ids = Graph(degree=10, rewire=0.1), clients(20_000)
    start = time.perf_counter()
    edges = graph.edges(ids, seed=0, round=2)
    assert time.perf_counter() - start < 8
    assert edges.shape[1] == pytest.approx(20_000 * 11, rel=0.05)

    tracemalloc.start()  # a round more: 20,000² bits would be 50 MB
    graph.edges(ids, seed=0, round=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6


# Mistakes


def test_a_graph_too_sparse_to_connect_is_refused_in_one_sentence() -> None:
    with refused(
        "degree is 1, and no connected erdos-renyi graph over 200 clients was found in 7 tries; a larger"
    ) as sent:
        Graph(degree=1, tries=7).edges(clients(200), seed=0, round=0)
    assert "\n" not in str(sent.value)
    with refused("degree is 0.5, and no connected random-geometric graph over 2 clients"):
        Graph("random-geometric", degree=0.5).describe(clients(2), seed=0)
    with refused("probability is 0.01, and .* over 100 clients .* a larger probability"):
        Graph(probability=0.01).describe(clients(100), seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "ring"}, "^kind is 'ring'; allowed is one of 'erdos-renyi', 'barabasi-albert'"),
        ({}, "kind is 'erdos-renyi' with none of degree, probability; give exactly one"),
        ({"degree": 3, "probability": 0.1}, "with both of degree, probability; give exactly one"),
        ({"kind": "barabasi-albert"}, "kind is 'barabasi-albert' with none of degree; give exactly one"),
        ({"kind": "file"}, "kind is 'file' with none of path; give exactly one"),
        ({"kind": "complete", "degree": 3}, "^degree is 3; allowed is none with kind 'complete'"),
        (
            {"kind": "barabasi-albert", "degree": 3, "probability": 0.5},
            "^probability is 0.5; allowed is none",
        ),
        ({"degree": 3, "path": "edges.txt"}, "^path is 'edges.txt'; allowed is none"),
        ({"degree": 0}, "^degree is 0; allowed is a number above 0"),
        ({"degree": float("nan")}, "^degree is nan"),
        ({"degree": float("inf")}, "^degree is inf"),
        ({"probability": 0.0}, "^probability is 0.0; allowed is above 0 and at most 1"),
        ({"probability": 1.5}, "^probability is 1.5"),
        ({"degree": 3, "rewire": -0.1}, "^rewire is -0.1; allowed is between 0 and 1"),
        ({"degree": 3, "tries": 0}, "^tries is 0; allowed is at least 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with refused(message):
        Graph(**wrong)  # type: ignore[arg-type]


def test_settings_impossible_with_so_many_clients_are_refused_before_a_run() -> None:
    with refused("^degree is 25; allowed is above 0 and at most 24 with kind 'erdos-renyi' and 25 clients"):
        Graph(degree=25).check(25)
    with refused("^degree is 1; allowed is from 1.98 to 99 with kind 'barabasi-albert' and 100 clients"):
        Graph("barabasi-albert", degree=1).check(100)
    for topology in (Server(), Graph("complete")):
        with refused("the number of clients is 0; allowed is at least 1"):
            topology.check(0)
    Graph(degree=24).check(25)


# A graph from a file


def test_an_edge_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# who receives from whom\na, b\n\nc\tb   # the far one\nb a\n")
    graph = Graph("file", path=str(path))
    assert named(graph, ["c", "a", "b"], 0, 0) == {(i, j) for i in "abc" for j in "abc"} - {
        ("a", "c"),
        ("c", "a"),
    }
    assert graph.describe(["c", "a", "b"], 0)["edges"] == 2


def test_a_file_changed_is_read_anew_by_a_new_graph(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    for text, n in (("a b\nb c\n", 2), ("a b\nb c\na c\n", 3)):
        path.write_text(text)
        assert Graph("file", path=str(path)).describe(["a", "b", "c"], 0)["edges"] == n


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\nb x\n", "path is .*, whose line 2 names 'x', which is no client"),
        ("# first\na a\n", "path is .*, whose line 2 joins 'a' to itself"),
        ("a b c\n", "path is .*, whose line 1 has 3 entries; allowed are two client ids"),
        ("a,\n", "path is .*, whose line 1 names '', which is no client"),
        ("a b\n", "path is .*edges.txt', a graph that is not connected over the 3 clients"),
        ("", "not connected"),
    ],
)
def test_a_wrong_edge_list_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with refused(message):
        Graph("file", path=str(path)).edges(["a", "b", "c"], 0, 0)


def test_an_edge_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with refused(r"cannot be read \(No such file or directory\)"):
        Graph("file", path=str(tmp_path / "none.txt")).describe(["a"], 0)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x80")
    with refused(r"cannot be read \(not UTF-8\)"):
        Graph("file", path=str(tmp_path / "bytes.txt")).describe(["a"], 0)


def test_a_server_is_a_server() -> None:
    assert Server().is_server
    assert not Graph("complete").is_server
    assert Server().describe(["a"], seed=0) == {}
    assert asdict(Graph("complete")).keys() == {
        *("kind", "degree", "probability", "path", "rewire", "tries", "weights")
    }


def test_a_graph_that_stays_is_sorted_once() -> None:
    ids = tuple(str(i) for i in range(50))
    graph = Graph("erdos-renyi", degree=8)
    assert graph.edges(ids, 0, 1) is graph.edges(ids, 0, 2)
    changing = replace(graph, rewire=0.1)
    assert not torch.equal(changing.edges(ids, 0, 1), changing.edges(ids, 0, 2))


def test_attachments_are_the_nearest() -> None:
    for clients in range(2, 40):
        for degree in (2.0, 3.7, 5.0, 11.3, clients - 1):
            if 2 * (clients - 1) / clients <= degree <= clients - 1:
                off = {m: abs(m * (clients - m) - degree * clients / 2) for m in range(1, clients // 2 + 1)}
                found = Graph("barabasi-albert", degree=degree)._attachments(clients)
                assert found == min(off, key=off.__getitem__)


def test_metropolis_weights_by_hand() -> None:
    """A path 0 - 1 - 2: 1/3 along each edge, and what is left of 1 for oneself."""
    edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
    graph = Graph("complete", weights="metropolis")
    weights = graph.edge_weights(edges, 3)
    assert weights is not None
    assert weights.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert Graph("complete").edge_weights(edges, 3) is None


def test_metropolis_weights_are_doubly_stochastic() -> None:
    graph = Graph(degree=4.0, weights="metropolis")
    edges = graph.edges(clients(30), 1, 0)
    weights = graph.edge_weights(edges, 30)
    assert weights is not None
    matrix = torch.zeros(30, 30, dtype=torch.float64)
    matrix[edges[0], edges[1]] = weights
    assert bool((weights > 0).all())
    for axis in (0, 1):
        torch.testing.assert_close(matrix.sum(axis), torch.ones(30, dtype=torch.float64))
