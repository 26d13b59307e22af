"""Which clients take part in a round, and whose messages arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.errors import SettingError, require
from coterie.prng import mix, uniform
from coterie.validation import Checked

Select = Literal["uniform", "size", "loss", "loss-per-cluster"]


@dataclass(frozen=True)
class Participation(Checked):
    """Everybody, unless said otherwise.

    `select` says how a server chooses whom it invites: all alike; by size; by loss, among candidates drawn by size
    (power-of-d-choices, Cho, Wang & Joshi, 2020); or so that they are of different clusters (Dennis, Li & Smith,
    ICML 2021, section 4.2.2), which k-FED finds before the first round.
    """

    fraction: float = 1.0  # of the clients, invited anew each round
    absent: float = 0.0  # the chance that a client neither reports, trains nor receives in a round
    stragglers: float = 0.0  # the chance that what a client trained is lost on the way
    select: Select = "uniform"  # how a server chooses the fraction
    candidates: int | None = None  # by loss: d, who send their losses; None: twice as many as are invited
    clusters: int | None = None  # per cluster: k of k-FED; None: chosen by separation
    local_clusters: int = 1  # per cluster: k' of k-FED, the means that a client sends

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0 and at most 1")
        require(0 <= self.absent < 1, "absent", self.absent, "from 0 to below 1: somebody must come")
        require(
            0 <= self.stragglers < 1,
            "stragglers",
            self.stragglers,
            "from 0 to below 1: somebody must be heard",
        )
        require(self.candidates is None or self.candidates >= 1, "candidates", self.candidates, "1 or more")
        require(self.clusters is None or self.clusters >= 1, "clusters", self.clusters, "1 or more")
        require(self.local_clusters >= 1, "local_clusters", self.local_clusters, "1 or more")
        by_loss, per_cluster = self.select.startswith("loss"), self.select == "loss-per-cluster"
        allowed = f"none with select = {self.select!r}"
        require(by_loss or self.candidates is None, "candidates", self.candidates, allowed)
        require(per_cluster or self.clusters is None, "clusters", self.clusters, allowed)

    def check(self, n_clients: int, at_server: bool) -> None:
        """Refuse before the start what could not run."""
        if self.select == "uniform":
            return
        if not at_server:
            raise SettingError(
                "select", f"is {self.select!r}, but over a graph nobody selects; allowed is 'uniform'"
            )
        if self.fraction == 1:
            says = f"is {self.select!r}, but fraction is 1, so everyone is invited; allowed is 'uniform'"
            raise SettingError("select", says)
        invited, d = self.n_invited(n_clients), self.candidates
        allowed = f"from {invited}, as many as are invited, to {n_clients}, all clients"
        require(d is None or invited <= d <= n_clients, "candidates", d, allowed)
        most = n_clients * self.local_clusters
        allowed = f"at most {most}, local_clusters times the number of clients"
        require(self.clusters is None or self.clusters <= most, "clusters", self.clusters, allowed)

    def n_invited(self, n_clients: int) -> int:
        return max(1, round(self.fraction * n_clients))

    def n_candidates(self, n_clients: int) -> int:
        return self.candidates or min(n_clients, 2 * self.n_invited(n_clients))

    def invited(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: whom the aggregator means to ask; `keys` are those of all clients."""
        if self.fraction == 1:
            return everyone.mask(len(keys), keys.device)
        invited = torch.zeros_like(keys, dtype=torch.bool)
        invited[uniform(mix(seed, round, "invited", keys)).topk(self.n_invited(len(keys))).indices] = True
        return invited

    def came(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: who would come if invited, which no aggregator knows before."""
        if self.absent == 0:
            return everyone.mask(len(keys), keys.device)
        return uniform(mix(seed, round, "absent", keys)) >= self.absent

    def present(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: who was invited and came."""
        return everyone.both(self.invited(keys, seed, round), self.came(keys, seed, round))

    def in_time(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: whose message, if one is sent, arrives."""
        if self.stragglers == 0:
            return everyone.mask(len(keys), keys.device)
        return uniform(mix(seed, round, "straggler", keys)) >= self.stragglers
