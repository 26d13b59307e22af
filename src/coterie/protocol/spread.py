"""How messages get farther than to neighbours in one round: hops, each from neighbour to neighbour.

A hop is edges (2, edge), the position of a receiver and of a sender, as those of a graph. What is sent anew in each hop
is added up on the way along a tree; in a flood every message is passed on as it is.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.prng import mix
from coterie.protocol.message import Messages
from coterie.protocol.traffic import Traffic

Spread = Literal["neighbours", "flood", "tree"]

MOST = 128  # messages that a flood passes on; of more peers, those of the least keys


def reached(edges: Tensor, sent: Messages, keys: Tensor, seed: int) -> Tensor:
    """(2, edge) who has the message of whom after a flood over these edges.

    Everybody passes on what it has not heard before, until nobody has: nothing comes later than after as many hops as
    there are peers, so that peers without a clock in common may wait for that long.
    """
    from scipy.sparse.csgraph import dijkstra

    order = torch.argsort(mix(seed, "flood", keys[sent.clients]))
    senders = sent.clients[order[:MOST]].sort().values
    hops = dijkstra(_matrix(edges, len(keys)), unweighted=True, indices=senders.cpu().numpy())
    sender, receiver = (torch.from_numpy(each).to(edges.device) for each in np.isfinite(hops).nonzero())
    found = torch.stack([receiver, senders[sender]])
    return found[:, torch.argsort(found[0] * len(keys) + found[1])]


def count_flood(edges: Tensor, sent: Messages, found: Tensor, traffic: Traffic) -> None:
    """A peer sends each message that it has once: to all its neighbours, or to all but whom it has it from."""
    others = edges[:, edges[0] != edges[1]]
    neighbours = torch.bincount(others[1], minlength=int(edges.max()) + 1)
    passed = found[:, neighbours[found[0]] > 0]
    relayed = int((passed[0] != passed[1]).sum())
    traffic.messages += passed.shape[1]
    traffic.multicast += passed.shape[1] * sent.message_bytes
    traffic.point_to_point += (int(neighbours[passed[0]].sum()) - relayed) * sent.message_bytes


def tree(edges: Tensor, keys: Tensor) -> list[Tensor]:
    """Hops up a spanning tree of these edges, and down again; of each part of the graph that is connected.

    The root is the peer of the least key, and who hears of it first is nearest to it. On the way up a peer also counts
    what it has itself.
    """
    parent, depth = _parents(edges, keys)
    peers = torch.arange(len(keys), device=edges.device)
    speaks = torch.zeros_like(peers, dtype=torch.bool)
    speaks[edges[1, edges[0] != edges[1]]] = True  # what a straggler sends is lost
    up, down = [], []
    for level in range(int(depth.max()), 0, -1):
        here = peers[depth == level]
        down.append(torch.stack([here, parent[here]]))
        here = here[speaks[here]]
        if len(here):
            above = torch.unique(parent[here])
            hop = torch.cat([torch.stack([parent[here], here]), torch.stack([above, above])], 1)
            up.append(hop[:, torch.argsort(hop[0] * len(keys) + hop[1])])
    return up + down[::-1]


def _parents(edges: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """(peer,) its parent and how far it is from its root; -1 and 0 of a root, and of who takes no part."""
    from scipy.sparse.csgraph import breadth_first_order

    order = torch.argsort(keys).cpu()  # by key, so that the order of the clients changes nothing
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    matrix = _matrix(place[edges.cpu()], len(keys))
    parent, depth = np.full(len(keys), -1), np.zeros(len(keys), dtype=np.int64)
    free = np.ones(len(keys), dtype=bool)
    for root in np.flatnonzero(np.diff(matrix.indptr) > 0):  # who speaks
        if not free[root]:
            continue
        found, before = breadth_first_order(matrix, root, directed=True, return_predecessors=True)
        for peer in found[1:]:
            if free[peer]:  # a straggler hears several parts, and speaks to none
                parent[peer], depth[peer] = before[peer], depth[before[peer]] + 1
        free[found] = False
    named = np.where(parent < 0, -1, order.numpy()[parent])
    back = place.numpy()
    return torch.from_numpy(named[back]).to(edges.device), torch.from_numpy(depth[back]).to(edges.device)


def _matrix(edges: Tensor, n: int) -> Any:
    """(sender, receiver) sparse, of peers that are not the same."""
    from scipy.sparse import csr_array

    receiver, sender = edges[:, edges[0] != edges[1]].cpu().numpy()
    return csr_array((np.ones(len(sender), dtype=np.int8), (sender, receiver)), shape=(n, n))
