"""Hard clusters: what IFCA, HypCluster, FeSEM, WeCFL and OneShot share.

WeCFL's bi-level view: a client is represented somehow, assigned to the cluster at the least distance, and each
cluster's center is the weighted mean of its members' rows. The methods differ in representation, distance and weight:

    IFCA, HypCluster        a client is its data, the distance is a center's loss on it: assigned at the client
    FeSEM, WeCFL, OneShot   a client is (part of) its row, the distance is that of rows: assigned at the server
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal, chosen
from coterie.protocol.state import State


@dataclass(frozen=True)
class ChosenByLoss(Algorithm):
    """A client chooses the center of least loss on its training data."""

    n_clusters: int  # how many clusters, K

    init_at_server = "clients"  # from random centers, some are chosen by nobody
    init_over_graph = "sketch"

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return one_hot(least_loss(cohort, offer.centers), self.n_clusters).to(offer.centers.dtype)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.largest(offer.centers, self.importance(cohort, offer))


@dataclass(frozen=True)
class ClusteredByRow(Algorithm):
    """The server clusters the rows that it receives; a client is sent its cluster's center and no other.

    All clients begin at one common model (center 0), so that rows differ by data alone.
    """

    n_clusters: int  # how many clusters, K

    needs_server = True
    first_only = True

    def begin(self, state: State) -> State:
        member = torch.zeros(state.n_clients, dtype=torch.long, device=state.keys.device)
        return state.update(member=member, clustered=torch.zeros_like(member, dtype=torch.bool))

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        return state, self.final_offer(state)

    def final_offer(self, state: State) -> Messages:
        return state.offer(center=self._own_center(state), member=state.member)

    def _own_center(self, state: State) -> Tensor:
        """(client, width) that of a client's cluster; if it exploded, the mean of the others, so that it can leave."""
        centers, own = state.centers[0], state.centers[0, state.member]
        living = alive(centers)
        if bool(living.all()) or not bool(living.any()):
            return own
        return torch.where(living[state.member, None], own, centers[living].mean(0))

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"row": cohort.solve(offer.center), "size": cohort.sizes}

    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        return offer.center

    def trained_for(self, state: State, sent: Messages) -> Tensor:
        return state.member[sent.clients]

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return one_hot(offer.member, self.n_clusters).to(offer.center.dtype)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(offer.center)

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        return super().onboard(cohort, of_least_loss(cohort, offer))


def alive(centers: Tensor) -> Tensor:
    """(cluster,) bool: which of the centers (cluster, width) have not exploded."""
    return centers.square().sum(1).isfinite()


def least_loss(cohort: Cohort, centers: Tensor) -> Tensor:
    """(client,) the center of least mean loss on a client's data; one that diverged is nobody's choice."""
    return cohort.means(cohort.losses(centers)).argmin(1)


def of_least_loss(cohort: Cohort, offer: Messages) -> Messages:
    """What a server that clusters rows would send, to clients that choose for themselves among all centers."""
    member = least_loss(cohort, offer.centers)
    center = chosen(offer.centers, member)
    count = torch.full_like(member, offer.centers.shape[1])
    return Messages(offer.clients, {"center": center, "member": member, "clusters": count})
