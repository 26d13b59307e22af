"""How far messages go in a round: floods and trees over graphs that can be followed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.prng import id_keys
from coterie.protocol.message import Messages
from coterie.protocol.spread import MOST, count_flood, reached, tree
from coterie.protocol.traffic import Traffic


def edges(n: int, pairs: list[tuple[int, int]], silent: tuple[int, ...] = ()) -> Tensor:
    """(2, edge) both ways, and itself; what those who are silent send is lost."""
    both = {(i, j) for pair in pairs for i, j in (pair, pair[::-1]) if j not in silent}
    return torch.tensor(sorted(both | {(i, i) for i in range(n)})).T


def ring(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


def keys(n: int) -> Tensor:
    return id_keys(map(str, range(n)))


def numbers(n: int) -> Messages:
    return Messages(torch.arange(n), {"value": torch.zeros(n, 5)})  # 20 bytes each


GRAPHS = {
    "ring": ring(9),
    "star": [(0, i) for i in range(1, 9)],
    "line": [(i, i + 1) for i in range(8)],
    "complete": [(i, j) for i in range(9) for j in range(i)],
    "two parts": [*ring(4), (4, 5), (5, 6), (6, 7), (7, 8)],
}
PARTS = {"two parts": [[0, 1, 2, 3], [4, 5, 6, 7, 8]]}


def carried(hops: list[Tensor], values: Tensor) -> Tensor:
    """What everyone has after each hop replaced it by the sum of what it received."""
    for hop in hops:
        received, sums = torch.zeros(len(values), dtype=torch.bool), torch.zeros_like(values)
        received[hop[0]] = True
        values = torch.where(received, sums.index_add_(0, hop[0], values[hop[1]]), values)
    return values


@pytest.mark.parametrize("graph", GRAPHS)
def test_up_and_down_a_tree_everyone_has_the_sum_of_all(graph: str) -> None:
    values = 2.0 ** torch.arange(9)
    found = carried(tree(edges(9, GRAPHS[graph]), keys(9)), values)
    for part in PARTS.get(graph, [list(range(9))]):
        assert found[part].tolist() == [float(values[part].sum())] * len(part)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_tree_is_made_of_edges_each_used_once_a_way(graph: str) -> None:
    drawn = edges(9, GRAPHS[graph])
    allowed = set(map(tuple, drawn.T.tolist()))
    used = [tuple(pair) for hop in tree(drawn, keys(9)) for pair in hop.T.tolist()]
    assert set(used) <= allowed
    others = [pair for pair in used if pair[0] != pair[1]]
    assert len(others) == len(set(others)) == 2 * (9 - len(PARTS.get(graph, [1])))


def test_the_order_of_the_clients_makes_no_other_tree() -> None:
    drawn, order = edges(9, GRAPHS["complete"][:20] + ring(9)), torch.randperm(9)
    place = torch.argsort(order)
    straight, moved = tree(drawn, keys(9)), tree(place[drawn], keys(9)[order])
    for one, other in zip(straight, moved, strict=True):
        assert set(map(tuple, one.T.tolist())) == set(map(tuple, order[other].T.tolist()))


def test_what_a_straggler_sends_is_not_added_but_it_is_told_the_sum() -> None:
    values = 2.0 ** torch.arange(5)
    hops = tree(edges(5, ring(5), silent=(2,)), keys(5))
    assert carried(hops, values).tolist() == [1 + 2 + 8 + 16.0] * 5


def test_a_straggler_between_two_parts_hears_one_and_joins_none() -> None:
    values = 2.0 ** torch.arange(5)
    found = carried(tree(edges(5, GRAPHS["line"][:4], silent=(2,)), keys(5)), values).tolist()
    assert found[:2] == [3, 3]
    assert found[3:] == [24, 24]
    assert found[2] in (3, 24)


def test_one_peer_alone_has_no_hops() -> None:
    assert tree(edges(1, []), keys(1)) == []


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_flood_reaches_all_who_are_connected(graph: str) -> None:
    drawn, sent, traffic = edges(9, GRAPHS[graph]), numbers(9), Traffic()
    found = reached(drawn, sent, keys(9), 0)
    parts = PARTS.get(graph, [list(range(9))])
    assert found.T.tolist() == [[i, j] for part in parts for i in part for j in part]
    count_flood(drawn, sent, found, traffic)
    # each passes every message on once; to its neighbours, but not to the one that it has it from
    passed = sum(len(part) ** 2 for part in parts)
    degree = torch.bincount(drawn[0]) - 1
    crossings = sum(len(part) * (int(degree[part].sum()) - len(part) + 1) for part in parts)
    assert traffic == Traffic(messages=passed, multicast=20 * passed, point_to_point=20 * crossings)


def test_what_a_straggler_sends_reaches_nobody_else_and_nothing_goes_through_it() -> None:
    found = reached(edges(5, GRAPHS["line"][:4], silent=(2,)), numbers(5), keys(5), 0)
    has = [sorted(found[1, found[0] == i].tolist()) for i in range(5)]
    assert has == [[0, 1], [0, 1], [0, 1, 2, 3, 4], [3, 4], [3, 4]]


def test_of_many_peers_a_flood_takes_some_and_all_the_same() -> None:
    n = MOST + 40
    found = reached(edges(n, ring(n)), numbers(n), keys(n), 0)
    assert found.shape[1] == n * MOST
    assert len(torch.unique(found[1])) == MOST
    other = reached(edges(n, ring(n)), numbers(n), keys(n), 1)
    assert not torch.equal(torch.unique(found[1]), torch.unique(other[1]))
