from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.algorithms.hard_clusters import least_loss
from coterie.clustering.corners import coordinates, corners
from coterie.errors import require
from coterie.prng import mix
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import CHOICE, KEY, MODEL, MODELS, SIZE, SKETCH, Declared, Field
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.personal import Personal, chosen
from coterie.protocol.received import Received
from coterie.protocol.spread import Spread
from coterie.protocol.state import State

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Corners(Algorithm):
    """Clusters found once, as the corners between which the clients' models lie; then FedAvg in each of them.

    From one common model all clients train alone for a few rounds. Whose points are of several distributions then has a
    model between those of the distributions, so the models of all lie in a simplex: its corners are the clusters, and
    where a client lies in it is its importance. Ours: no paper has it.

    Sent: a sketch of my row, once; then my row, how many points I have and the cluster of my largest importance.
    Kept: my row and its sketch.
    Initialisation: `random`, of which it takes one model for all.
    Choice: a sketch is 256 sums of the parameters' changes, each counted in one of them with a sign (CountSketch), in
    half precision. Distances of sketches are nearly those of rows, and a sketch is as small for any model.
    Choice: corners are found by successive projection among the principal components, each point being the mean of its
    four nearest, or of fewer if there are few clients; clusters have the order of the clients at their corners.
    Choice: over a graph a sketch goes to all by a flood. If there are more than 128 peers, only those of 128, chosen by
    key, do; the others find their own place between the corners.
    Choice: over a graph rows are added up along a spanning tree, to its root, and the means come back the same way. So
    every peer has the centers that a server would have, on any graph; each edge of the tree carries 2·S rows.
    Choice: peers that did not get the same sketches, being absent or cut off, may find other corners. Those found by
    more sketches count: they come along the tree too, and who has others, or none, takes them for the next round.
    Limit: a cluster with fewer members than a corner is the mean of may be missed. Where clients of one cluster differ
    more (by their classes, say) than clusters do, corners are of that.
    """

    n_clusters: int  # how many clusters, S
    alone: int = 4  # rounds in which clients train alone, up to the sketch; at most half of all
    numbers: int = 256  # of a sketch; a model of no more parameters is sent itself

    bibtex: ClassVar[str] = ""
    sends: ClassVar[Declared] = {
        name: replace(field, optional=True)
        for name, field in {
            "sketch": SKETCH,
            "key": KEY,
            "row": MODEL,
            "size": SIZE,
            "cluster": CHOICE,
        }.items()
    }
    passes: ClassVar[Declared] = {
        "centers": MODELS,
        "weight": Field("mass", ("cluster",)),
        "corners": Field("number", None),
        "agreed": KEY,
    }
    first_only: ClassVar[bool] = True
    not_private: ClassVar[str] = "every client send all others a sketch of its model, which no noise covers"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alone >= 1, "alone", self.alone, "1 or more")
        require(self.numbers >= 1, "numbers", self.numbers, "1 or more")

    def sketched(self, rounds: int) -> int:
        """The round whose rows are sketched: half of the rounds are left to average in."""
        return min(self.alone, (rounds + 1) // 2) - 1

    def times_sent(self, rounds: int) -> dict[str, int]:
        once = ("sketch", "key")
        return {name: 1 if name in once else rounds - 1 - self.sketched(rounds) for name in self.sends}

    # at the aggregator
    def begin(self, state: State) -> State:
        width = min(self.numbers, state.rows.n_parameters)
        n, like = state.n_clients, state.centers
        return state.update(
            corners=like.new_zeros(n, self.n_clusters, width),
            weight=like.new_zeros(n, self.n_clusters),  # of the rows that a center is the mean of
            agreed=torch.zeros_like(state.keys),  # a name of those by whom corners were found; 0: none yet
        )

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        if state.context.round <= self.sketched(state.context.rounds):
            return state, state.offer()
        return state, self.final_offer(state)

    def final_offer(self, state: State) -> Messages:
        known = {name: state.fields[name] for name in ("corners", "weight", "agreed")}
        return state.offer(centers=state.centers, **known)

    def spread(self, context: RoundContext) -> Spread:
        if context.round == self.sketched(context.rounds):
            return "flood"
        return "tree" if context.round > self.sketched(context.rounds) else "neighbours"

    def combine(self, state: State, received: Received) -> State:
        sketched = self.sketched(state.context.rounds)
        if state.context.round < sketched:
            return state
        if state.context.round == sketched:
            return self._find_corners(state, received)
        return self._average(state, received)

    def _find_corners(self, state: State, received: Received) -> State:
        """Whoever has the same sketches finds the same corners, in the order of their clients' keys."""
        found, agreed = state.corners.clone(), state.agreed.clone()
        aggregator, message = received.edges
        received_any, count = torch.unique(aggregator, return_counts=True)
        known: dict[tuple[int, ...], tuple[Tensor, int]] = {}
        for one, mine in zip(received_any.tolist(), message.split(count.tolist()), strict=True):
            which = tuple(mine.tolist())
            if which not in known:
                known[which] = self._corners_of(received.messages.take(mine), found)
            at = slice(None) if received.at_server else one
            found[at], agreed[at] = known[which]
        return state.update(corners=found, agreed=agreed)

    def _corners_of(self, sent: Messages, like: Tensor) -> tuple[Tensor, int]:
        """(cluster, number) corners, and a name of the clients by whom they were found: of more, a higher one."""
        if len(sent) < self.n_clusters:  # peers that are cut off take those of others later
            return torch.zeros_like(like[0]), 0
        order = torch.argsort(sent.key)
        digest = hashlib.blake2b(sent.key[order].cpu().numpy().tobytes(), digest_size=4).digest()
        found = corners(sent.sketch[order].double().cpu().numpy(), self.n_clusters)
        return torch.from_numpy(found).to(like), (len(sent) << 32) + int.from_bytes(digest, "little")

    def _average(self, state: State, received: Received) -> State:
        """A server averages all rows; a peer has its own alone, which it passes on."""
        aggregator, message = received.edges
        weight = (one_hot(received.cluster, self.n_clusters) * received.size[:, None])[message]
        weight = weight * (state.agreed[aggregator] > 0)[:, None]  # who has no corners yet has no cluster
        return self._averaged(state, received, "row", weight)

    def _averaged(self, state: State, received: Received, name: str, weight: Tensor) -> State:
        """Centers from rows, by weights (edge, cluster), of those who received any."""
        weight = weight.to(state.centers.dtype)
        centers = received.mean_by_edge(name, weight, otherwise=state.centers)
        total = weight.new_zeros(received.aggregators, self.n_clusters)
        total.index_add_(0, received.edges[0], weight)
        total = torch.where(received.any[:, None], total, state.weight)  # at a server, of every client
        return state.update(centers=centers, weight=total)

    # over a graph: rows are added up along a tree, to the root, and their means come back
    def passed(self, state: State) -> Messages:
        return self.final_offer(state)

    def join(self, state: State, received: Received) -> State:
        """Who found corners by fewer sketches takes those found by more; what was averaged by other corners is left."""
        aggregator, message = received.edges
        name = received.agreed[message]
        best = torch.zeros_like(state.agreed).scatter_reduce(0, aggregator, name, "amax")
        agrees = name == best[aggregator]
        found = state.corners.clone()
        found[aggregator[agrees]] = received.corners[message[agrees]]
        agreed = torch.where(received.any, best, state.agreed)
        state = state.update(corners=found, agreed=agreed)
        return self._averaged(state, received, "centers", received.weight[message] * agrees[:, None])

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        row = cohort.recall("row", cohort.initial)
        if cohort.context.round <= self.sketched(cohort.context.rounds):
            row = cohort.solve(row)
            cohort.keep("row", row)
            if cohort.context.round < self.sketched(cohort.context.rounds):
                return {}
            return {"sketch": self._kept_sketch(cohort), "key": cohort.keys}
        cluster = self.importance(cohort, offer).argmax(1)
        known = (offer.weight > 0).gather(1, cluster[:, None])  # until then a client goes on by itself
        row = cohort.solve(torch.where(known, chosen(offer.centers, cluster), row))
        cohort.keep("row", row)
        return {"row": row, "size": cohort.sizes, "cluster": cluster}

    def _kept_sketch(self, cohort: Cohort) -> Tensor:
        """(client, number) the sketch that was sent; who was absent then has one of the first row that is asked for."""
        width = min(self.numbers, cohort.model.rows.n_parameters)
        unknown = torch.full((len(cohort), width), torch.nan, dtype=torch.float16, device=cohort.at.device)
        sketch = cohort.recall("sketch", unknown)
        missing = sketch.isnan().any(1).nonzero()[:, 0]
        if len(missing):
            without = cohort.take(missing)
            sketch = sketch.index_copy(0, missing, self._sketch(without))
            cohort.keep("sketch", sketch)
        return sketch

    def _sketch(self, cohort: Cohort) -> Tensor:
        """(client, number) how far parameters moved, each added to one of few sums (Charikar et al., 2002)."""
        row = cohort.recall("row", cohort.initial)
        moved = cohort.model.rows.split(row - cohort.initial)[0]
        if moved.shape[1] <= self.numbers:
            return moved.half()
        column = torch.arange(moved.shape[1], device=row.device)
        key = mix(cohort.context.seed, "sketch", column)
        sign = 1 - 2 * (mix(key, "sign") & 1)
        sums = moved.new_zeros(len(moved), self.numbers)
        return sums.index_add_(1, mix(key, "bucket") % self.numbers, moved * sign).half()

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(client, cluster) where a client's sketch lies between the corners; even before they are found."""
        if "corners" not in offer.fields:  # who comes after the end is offered the centers alone
            return one_hot(least_loss(cohort, offer.centers), self.n_clusters).to(offer.centers.dtype)
        shares = offer.corners.new_full((len(cohort), self.n_clusters), 1 / self.n_clusters)
        who = (offer.agreed > 0).nonzero()[:, 0]
        if not len(who):
            return shares
        some = cohort.take(who)  # others make their sketch when they need it
        sketch = self._kept_sketch(some).double().cpu().numpy()
        found = coordinates(sketch, offer.corners[who].double().cpu().numpy())
        return shares.index_copy(0, who, torch.from_numpy(found).to(shares))

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(cohort.recall("row", cohort.initial))

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        """By the center of least loss, for it has no row."""
        importance = self.importance(cohort, offer)
        return importance, Personal.largest(offer.centers, importance)
