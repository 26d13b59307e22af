"""Who receives from whom: a server is one aggregator; in a graph every client is one.

Graphs are drawn over the clients sorted by id, so that the order in which clients are listed changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import SettingError, require
from coterie.prng import id_keys, mix, uniform
from coterie.validation import Checked

Kind = Literal["erdos-renyi", "barabasi-albert", "random-geometric", "complete", "file"]
Pairs = NDArray[np.int64]  # sorted pair numbers, see _number; never a dense matrix


@dataclass(frozen=True)
class Server:
    """One aggregator receives from every participant."""

    is_server: ClassVar[bool] = True

    def check(self, n_clients: int) -> None:
        require(n_clients >= 1, "the number of clients", n_clients, "at least 1")

    def describe(self, ids: Sequence[str], seed: int) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Graph(Checked):
    """Every client is an aggregator, which receives from its neighbours and itself.

    A peer takes the mean of what it received, itself included, by the algorithm's own weights. `weights="metropolis"`
    multiplies them by 1 / (1 + the larger number of neighbours of the two), and its own by what is left of 1: where the
    algorithm's weights are equal and every message arrives, that is a doubly stochastic matrix, which keeps the mean
    over all peers.
    A graph is redrawn until it is connected. With `rewire` its edges then change from round to round (FedSPD
    B.2.4): an edge goes with that chance, and absent ones come so that their number is kept in expectation.
    """

    kind: Kind = "erdos-renyi"  # how edges are drawn, or where they come from
    degree: float | None = None  # the mean number of neighbours
    probability: float | None = None  # of an edge, in place of the degree (erdos-renyi only)
    path: str | None = None  # of an edge list: two client ids on a line
    rewire: float = 0.0  # the chance that an edge goes in a round, p of B.2.4
    tries: int = 100  # graphs drawn before it is given up to find a connected one
    weights: Literal["uniform", "metropolis"] = "uniform"  # of the messages that a peer averages

    is_server: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_which_are_given()
        require(self.degree is None or 0 < self.degree < math.inf, "degree", self.degree, "a number above 0")
        chance = self.probability
        require(chance is None or 0 < chance <= 1, "probability", chance, "above 0 and at most 1")
        require(0 <= self.rewire <= 1, "rewire", self.rewire, "between 0 and 1")
        require(self.tries >= 1, "tries", self.tries, "at least 1")

    def _check_which_are_given(self) -> None:
        """Each kind has its own settings, and needs exactly one of them."""
        drawn = ("erdos-renyi", "barabasi-albert", "random-geometric")
        belongs_to = {"degree": drawn, "probability": drawn[:1], "path": ("file",)}
        for name, kinds in belongs_to.items():
            value = getattr(self, name)
            allowed = f"none with kind {self.kind!r}, it belongs to {', '.join(kinds)}"
            require(value is None or self.kind in kinds, name, value, allowed)
        own = [name for name, kinds in belongs_to.items() if self.kind in kinds]
        given = [name for name in own if getattr(self, name) is not None]
        if own and len(given) != 1:
            number = "none" if not given else "both"
            raise SettingError(
                "kind", f"is {self.kind!r} with {number} of {', '.join(own)}; give exactly one"
            )

    def check(self, n_clients: int) -> None:
        """Refuse settings that cannot be had with this many clients."""
        require(n_clients >= 1, "the number of clients", n_clients, "at least 1")
        if n_clients == 1:
            return  # a client alone receives from itself, whatever the settings
        most = n_clients - 1
        if self.degree is not None:
            least = 2 * most / n_clients if self.kind == "barabasi-albert" else 0.0  # m = 1 is a tree
            allowed = f"from {least:g} to {most}" if least else f"above 0 and at most {most}"
            allowed += f" with kind {self.kind!r} and {n_clients} clients"
            require(least <= self.degree <= most, "degree", self.degree, allowed)
        if self.kind != "file":
            self._check_rewire(self._expected_edges(n_clients), n_clients)

    def _expected_edges(self, n_clients: int) -> float:
        if self.kind == "barabasi-albert":
            return float(self._attachments(n_clients) * (n_clients - self._attachments(n_clients)))
        return self._edge_chance(n_clients) * _n_pairs(n_clients)

    def _attachments(self, n_clients: int) -> int:
        """m of Barabási and Albert: all clients but the first m bring m edges; the nearest to the degree asked."""
        assert self.degree is not None
        wanted = self.degree * n_clients / 2
        most = max(1, n_clients // 2)  # m(n − m) edges grow up to there
        root = (n_clients - math.sqrt(max(0.0, n_clients**2 - 4 * wanted))) / 2  # m(n − m) = wanted
        near = {min(max(1, m), most) for m in (math.floor(root), math.ceil(root))}
        return min(sorted(near), key=lambda m: abs(m * (n_clients - m) - wanted))

    def _edge_chance(self, n_clients: int) -> float:
        if self.kind == "complete":
            return 1.0
        if self.probability is not None:
            return self.probability
        assert self.degree is not None
        return self.degree / (n_clients - 1)

    def _check_rewire(self, n_edges: float, n_clients: int) -> None:
        """The edges that go can be made up for only if there are as many absent ones."""
        most = (_n_pairs(n_clients) - n_edges) / n_edges if n_edges else 1.0
        allowed = (
            f"at most {max(most, 0.0):.3g} with {n_edges:.0f} edges among {n_clients} clients, so that absent edges "
            "can replace those removed"
        )
        require(self.rewire <= most + 1e-9, "rewire", self.rewire, allowed)

    def edges(self, ids: Sequence[str], seed: int, round: int) -> Tensor:
        """(2, edge): the position of an aggregator and of a client it receives from, sorted; itself included."""
        return self._walk(tuple(ids), seed).edges(round)

    def edge_weights(self, edges: Tensor, n_clients: int) -> Tensor | None:
        """(edge,) what the message on each edge of a round counts at its aggregator; None: all alike."""
        if self.weights == "uniform":
            return None
        aggregator, sender = edges
        received = torch.bincount(aggregator, minlength=n_clients)  # neighbours and itself
        weight = 1 / torch.maximum(received[aggregator], received[sender]).double()
        own = aggregator == sender
        others = weight.new_zeros(n_clients).index_add_(0, aggregator[~own], weight[~own])
        weight[own] = 1 - others[aggregator[own]]
        return weight

    def describe(self, ids: Sequence[str], seed: int) -> dict[str, float]:
        """What was obtained at the start."""
        walk = self._walk(tuple(ids), seed)
        n_edges = len(walk.start)
        return {"mean_degree": 2 * n_edges / len(ids), "edges": float(n_edges), "tries": float(walk.tries)}

    def _walk(self, ids: tuple[str, ...], seed: int) -> _Walk:
        """The walk of these clients and this seed, the last one asked for being remembered."""
        if (ids, seed) not in self._remembered:
            walk = _Walk(self, ids, seed)
            self._remembered.clear()
            self._remembered[ids, seed] = walk
        return self._remembered[ids, seed]

    @cached_property
    def _remembered(self) -> dict[tuple[tuple[str, ...], int], _Walk]:
        return {}

    def _start(self, ids: tuple[str, ...], seed: int) -> tuple[Pairs, int]:
        """The connected graph that a run starts with, and how many were drawn to find it."""
        n = len(ids)
        self.check(n)
        if self.kind == "file":
            pairs = _read_pairs(str(self.path), ids)
            if not _is_connected(pairs, n):
                raise SettingError(
                    "path",
                    f"is {self.path!r}, a graph that is not connected over the {n} clients; "
                    "allowed is an edge list by which every client can be reached from every other",
                )
            self._check_rewire(len(pairs), n)
            return pairs, 1
        for attempt in range(self.tries):
            pairs = self._draw(n, _number_seed(mix(seed, "graph", attempt)))
            if _is_connected(pairs, n):
                return pairs, attempt + 1
        name, value = ("probability", self.probability) if self.degree is None else ("degree", self.degree)
        raise SettingError(
            name,
            f"is {value}, and no connected {self.kind} graph over {n} clients was found in {self.tries} tries; "
            f"a larger {name} would help, or more tries if it is nearly enough",
        )

    def _draw(self, n: int, seed: int) -> Pairs:
        if n == 1:
            return np.empty(0, dtype=np.int64)
        if self.kind == "complete":
            return np.arange(_n_pairs(n))
        import networkx as nx  # here, since importing it takes a while

        if self.kind == "barabasi-albert":
            return _pairs(nx.barabasi_albert_graph(n, self._attachments(n), seed=seed).edges)
        if self.kind == "random-geometric":
            return _random_geometric(n, round(self._expected_edges(n)), seed)
        return _pairs(nx.fast_gnp_random_graph(n, self._edge_chance(n), seed=seed).edges)


Topology = Server | Graph


class _Walk:
    """A graph from round to round; the last round is remembered, for the next is a change of it."""

    def __init__(self, graph: Graph, ids: tuple[str, ...], seed: int) -> None:
        self.order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        ids = tuple(ids[i] for i in self.order)
        self.rewire, self.seed, self.keys = graph.rewire, seed, id_keys(ids)
        self.start, self.tries = graph._start(ids, seed)
        self.last = (0, self.start)
        self._edges: tuple[Pairs, Tensor] | None = None  # of which pairs

    def edges(self, round: int) -> Tensor:
        """(2, edge) as Graph.edges has them."""
        pairs = self.at(round)
        if self._edges is None or self._edges[0] is not pairs:
            low, high = (self.order[end] for end in _ends(pairs))
            aggregator = np.concatenate((low, high, self.order))
            speaker = np.concatenate((high, low, self.order))
            sort = np.argsort(aggregator * len(self.order) + speaker)
            self._edges = pairs, torch.from_numpy(np.stack((aggregator[sort], speaker[sort])))
        return self._edges[1]

    def at(self, round: int) -> Pairs:
        if self.rewire == 0:
            return self.start
        known, pairs = self.last if self.last[0] <= round else (0, self.start)
        for later in range(known + 1, round + 1):
            pairs = self._rewired(pairs, later)
        self.last = (round, pairs)
        return pairs

    def _rewired(self, pairs: Pairs, round: int) -> Pairs:
        low, high = (self.keys[torch.from_numpy(end)] for end in _ends(pairs))
        stays = (uniform(mix(self.seed, "rewire", round, low, high)) >= self.rewire).numpy()
        n_absent = _n_pairs(len(self.keys)) - len(pairs)
        missing = len(self.start) - (1 - self.rewire) * len(pairs)
        add_chance = min(max(missing / n_absent, 0.0), 1.0) if n_absent else 0.0  # p_add, anew each round
        chance = np.random.default_rng(_number_seed(mix(self.seed, "rewire", round)))
        added = chance.choice(n_absent, chance.binomial(n_absent, add_chance), replace=False)
        return np.sort(np.concatenate((pairs[stays], _absent(pairs, added))))


def _absent(pairs: Pairs, which: Pairs) -> Pairs:
    """The which-th of the pairs that are not edges, found without listing them."""
    absent_before = pairs - np.arange(len(pairs))
    return which + np.searchsorted(absent_before, which, side="right")


def _n_pairs(n: int) -> int:
    return n * (n - 1) // 2


def _number(one: Pairs, other: Pairs) -> Pairs:
    """Pairs (low, high) of different numbers counted as (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    low: Pairs = np.minimum(one, other)
    high: Pairs = np.maximum(one, other)
    return high * (high - 1) // 2 + low


def _ends(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The inverse of _number; the root is exact enough for millions of clients."""
    high = ((1 + np.sqrt(1 + 8 * pairs.astype(np.float64))) / 2).astype(np.int64)
    return pairs - high * (high - 1) // 2, high


def _pairs(edges: Iterable[tuple[int, int]]) -> Pairs:
    ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    return np.unique(_number(ends[:, 0], ends[:, 1]))


def _is_connected(pairs: Pairs, n: int) -> bool:
    from scipy.sparse import coo_array  # here, since importing it takes a while
    from scipy.sparse.csgraph import connected_components

    low, high = _ends(pairs)
    matrix = coo_array((np.ones(len(pairs), dtype=np.int8), (low, high)), shape=(n, n))
    return bool(connected_components(matrix, directed=False, return_labels=False) == 1)


def _number_seed(key: Tensor) -> int:
    return int(key) & (2**63 - 1)  # numpy refuses negative seeds


def _random_geometric(n: int, n_edges: int, seed: int) -> Pairs:
    """Clients at random places in the unit square, the `n_edges` nearest pairs being joined.

    This is the graph of the radius at which the mean degree is nearest to the one asked for; a radius
    computed beforehand would miss it by chance and at the square's border.
    """
    import networkx as nx

    radius = 1.1 * math.sqrt(2 * n_edges / (math.pi * n * (n - 1)))  # n π r² neighbours, away from the border
    drawn = nx.random_geometric_graph(n, radius, seed=seed)
    while drawn.number_of_edges() < n_edges:
        radius *= 1.2
        drawn = nx.random_geometric_graph(n, radius, seed=seed)  # the same places
    place = np.array([drawn.nodes[i]["pos"] for i in range(n)])
    ends = np.array(list(drawn.edges), dtype=np.int64).reshape(-1, 2)
    distance = np.linalg.norm(place[ends[:, 0]] - place[ends[:, 1]], axis=1)
    return _pairs(ends[np.argsort(distance, kind="stable")[:n_edges]])


def _read_pairs(path: str, ids: tuple[str, ...]) -> Pairs:
    """An edge list: two client ids on a line, with a comma or spaces between them; # starts a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(
            "path", f"is {path!r}, which cannot be read ({reason}); allowed is a text file"
        ) from error
    position = {name: i for i, name in enumerate(ids)}
    edges = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            names = [name.strip() for name in text.split(",")] if "," in text else text.split()
            edges.append(_edge(names, position, f"is {path!r}, whose line {number}"))
    return _pairs(edges)


def _edge(names: list[str], position: dict[str, int], where: str) -> tuple[int, int]:
    if len(names) != 2:
        raise SettingError("path", f"{where} has {len(names)} entries; allowed are two client ids")
    for name in names:
        if name not in position:
            raise SettingError(
                "path", f"{where} names {name!r}, which is no client; allowed are the ids of the data"
            )
    if names[0] == names[1]:
        raise SettingError("path", f"{where} joins {names[0]!r} to itself; allowed are two different clients")
    return position[names[0]], position[names[1]]
