from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from coterie.errors import SettingError, require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import IMPORTANCE, MODEL, SIZE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal, mix_rows
from coterie.protocol.received import Received
from coterie.protocol.state import State
from coterie.protocol.topology import Topology


@dataclass(frozen=True)
class FedSoft(Algorithm):
    """Soft clusters from one proximal problem per client. Ruan & Joe-Wong, AAAI 2022, Algorithm 1.

    Sent: my importance of each cluster and my size, every `refresh` rounds; my row, when drawn.
    Kept: my row, which is also my personal model.
    Initialisation: `clients` at a server and `sketch` over a graph; the paper's own is `random`.
    Choice: line 17 names no starting point; we start at the weighted center (`start="own"`: at my last row).
    Choice: eq. (6) normalises over the set that it is used to draw; we take all clients.
    Choice: over a graph everybody trains, anchored at its own centers, and an aggregator takes the rows of all its
    neighbours, weighted by importance·size; there are no draws.
    Choice: where only a fraction of the clients is invited to a round, only they are asked and drawn.
    Choice: a client sends u and n back with its row, so that over a graph neighbours have them with the row.
    Bytes: clients that are asked in a refresh round are sent the centers, and those drawn are sent them once more with
    their importance; both are counted.
    Choice: a client that comes later solves line 17 once, from the weighted center in any case.
    Differs: the published program starts at the client's last row, draws without replacement, smooths only
    where the count is zero, keeps Adam's state between rounds and does not shuffle. The first three are
    `as_published`; the last two are `Training(keep_optimizer=True, shuffle=False)`. It begins at random centers, which
    `as_published` needs too: `init="random"`.
    """

    n_clusters: int  # how many clusters, S
    pull: float = 0.1  # λ of eq. (4), the proximal weight: how strongly a client is held to its centers
    draws: int | None = None  # K per cluster, line 16; None: 60 as in the paper, or all if there are fewer
    refresh: int = 2  # τ, line 3: importance is estimated anew each so many rounds
    smoothing: float = 1e-4  # σ, line 10: the least importance that a client reports
    start: Literal["center", "own"] = "center"  # of a local solve: the weighted center, or my last row
    replacement: bool = True  # are the K draws independent?
    smooth: Literal["small", "zero"] = "small"  # importance below σ becomes σ, or only where it is zero

    bibtex: ClassVar[str] = """@inproceedings{ruan2022fedsoft,
  title={FedSoft: Soft Clustered Federated Learning with Proximal Local Updating},
  author={Ruan, Yichen and Joe-Wong, Carlee},
  booktitle={AAAI},
  year={2022}
}"""

    reports: ClassVar[Declared] = {"importance": IMPORTANCE, "size": SIZE}
    sends: ClassVar[Declared] = {"row": MODEL, "importance": IMPORTANCE.echoed(), "size": SIZE}
    soft: ClassVar[bool] = True
    init_at_server: ClassVar[str] = "clients"
    init_over_graph: ClassVar[str] = "sketch"

    @classmethod
    def as_published(cls, n_clusters: int, **settings: Any) -> Self:
        """The options of the published program."""
        return cls(n_clusters, **{"start": "own", "replacement": False, "smooth": "zero", **settings})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pull >= 0, "pull", self.pull, "0 or more")
        require(self.draws is None or self.draws >= 1, "draws", self.draws, "1 or more")
        require(self.refresh >= 1, "refresh", self.refresh, "1 or more")
        require(0 < self.smoothing < 1, "smoothing", self.smoothing, "above 0 and below 1")

    def check(self, n_clients: int, topology: Topology) -> None:
        super().check(n_clients, topology)
        if self.draws is not None and not topology.is_server:
            raise SettingError("draws", "is given, but over a graph nobody is drawn; leave it out there")
        most = f"1 to {n_clients}, the number of clients"
        require(self.draws is None or self.draws <= n_clients, "draws", self.draws, most)

    # at the aggregator
    def begin(self, state: State) -> State:
        u = state.centers.new_full((state.n_clients, self.n_clusters), 1 / self.n_clusters)
        size = torch.zeros(state.n_clients, dtype=torch.long, device=u.device)  # not known yet
        return state.update(importance=u, size=size, drawn=torch.ones_like(u))

    def ask(self, state: State) -> Messages | None:
        """Lines 3-4: everyone, every τ rounds."""
        return state.offer(centers=state.centers) if state.context.round % self.refresh == 0 else None

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        state = state.note(reports)  # line 13: else as before
        u, n = state.importance, _known(state.size)[:, None]
        if not state.at_server:
            return state, state.offer(centers=state.centers, importance=u)
        v = u * n
        v /= v.sum(0).clamp(min=torch.finfo(v.dtype).tiny)  # eq. (6); a center that diverged has none
        draws = self.draws or min(60, state.n_clients)
        state = state.update(drawn=state.draw(v, draws, self.replacement))  # line 16
        return state, state.offer(to=state.drawn.any(1), centers=state.centers, importance=u)

    def combine(self, state: State, received: Received) -> State:
        weight = self._weights(state, received)
        return state.update(centers=received.mean("row", weight, otherwise=state.centers))  # line 18

    def _weights(self, state: State, received: Received) -> Tensor:
        """(message, cluster) how often a client was drawn; over a graph, u·n."""
        if received.at_server:
            return state.drawn[received.clients]
        return received.importance * received.size[:, None]

    # under privacy
    def n_reports(self, rounds: int) -> int:
        return math.ceil(rounds / self.refresh)

    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        return mix_rows(offer.importance, offer.centers)

    # at the client
    def report(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"importance": self._smoothed(cohort, offer), "size": cohort.sizes}

    def _smoothed(self, cohort: Cohort, offer: Messages) -> Tensor:
        """Lines 5-10. Of a center that diverged not even σ: it would be the largest part of the anchor."""
        u, alive = self.importance(cohort, offer), cohort.alive(offer.centers)
        least = self.smoothing * (alive | ~alive.any(1, keepdim=True)).to(u.dtype)
        return torch.where(u == 0, least, u) if self.smooth == "zero" else torch.maximum(u, least)

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        u = offer.importance
        anchor = mix_rows(u, offer.centers)  # the S proximal terms of eq. (4) are one, toward Σu·c / Σu ...
        pull = self.pull * u.sum(1)  # ... of weight λ·Σu; eq. (5) is Σu = 1
        start = anchor if self.start == "center" else cohort.recall("row", cohort.initial)
        row = cohort.solve(start, anchor=anchor, pull=pull)  # line 17
        cohort.keep("row", row)
        return {"row": row, "importance": u, "size": cohort.sizes}

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        if self.start == "own":
            return Personal.single(cohort.recall("row", cohort.initial))
        never_drawn = mix_rows(self.importance(cohort, offer), offer.centers)
        return Personal.single(cohort.recall("row", never_drawn))

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        u = self.importance(cohort, offer)
        cohort.keep("row", mix_rows(u, offer.centers))  # it has no last row to start at
        smoothed = self._smoothed(cohort, offer)
        self.train(cohort, Messages(offer.clients, {**offer.fields, "importance": smoothed}))
        return u, self.personal(cohort, offer)


def _known(size: Tensor) -> Tensor:
    """(client,) sizes, with the mean of those known for clients that have not reported yet."""
    known = size > 0
    typical = size[known].double().mean() if known.any() else 1.0
    return torch.where(known, size, typical)
