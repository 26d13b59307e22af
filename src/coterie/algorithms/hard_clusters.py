"""Assign and aggregate: what IFCA, HypCluster, FeSEM and WeCFL share.

WeCFL's bi-level view: a client is represented somehow, assigned to the cluster at the least distance, and each
cluster's center is the weighted mean of its members' rows. The four differ in representation, distance and weight:

    IFCA, HypCluster   a client is its data, the distance is a center's loss on it: assigned at the client
    FeSEM, WeCFL       a client is (part of) its row, the distance is Euclidean or cosine: assigned at the server
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.prng import mix
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort, Personal, chosen
from coterie.protocol.message import Fields, Messages
from coterie.protocol.received import Received, State

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class HardClusters(Algorithm):
    """Every client is of one cluster."""

    n_clusters: int  # how many clusters, K

    def aggregate(self, state: State, received: Received, member: Tensor, weight: Tensor) -> State:
        """Each center becomes the weighted mean of its members' rows (letter,); one unheard of stays."""
        weight = one_hot(member, self.n_clusters) * weight[:, None]
        return state.update(centers=received.mean("row", weight, otherwise=state.centers))


@dataclass(frozen=True)
class ChosenByLoss(HardClusters):
    """A client chooses the center of least loss on its training data."""

    init_at_server = "clients"  # from random centers, some are chosen by nobody
    init_over_graph = "soft"

    def choose(self, cohort: Cohort, offer: Messages) -> Tensor:
        return least_loss(cohort, offer.centers)

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return one_hot(self.choose(cohort, offer), self.n_clusters).to(offer.centers.dtype)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.largest(offer.centers, self.importance(cohort, offer))


@dataclass(frozen=True)
class ClusteredByRow(HardClusters):
    """The server clusters the rows that it hears; a client is sent its cluster's center and no other.

    All clients begin at one common model (center 0), so that rows differ by data alone.
    """

    needs_server = True
    first_only = True

    def begin(self, state: State) -> State:
        member = torch.zeros(state.n_clients, dtype=torch.long, device=state.keys.device)
        return state.update(member=member, clustered=torch.zeros_like(member, dtype=torch.bool))

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        return state, self.final_offer(state)

    def final_offer(self, state: State) -> Messages:
        return state.offer(center=state.centers[0, state.member], member=state.member)

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"row": cohort.solve(offer.center), "size": cohort.sizes}

    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        return offer.center

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return one_hot(offer.member, self.n_clusters).to(offer.center.dtype)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(offer.center)

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        return super().onboard(cohort, of_least_loss(cohort, offer))


def least_loss(cohort: Cohort, centers: Tensor) -> Tensor:
    """(client,) the center of least mean loss on a client's data; one that diverged is nobody's choice."""
    return cohort.means(cohort.losses(centers)).nan_to_num(torch.inf).argmin(1)


def of_least_loss(cohort: Cohort, offer: Messages) -> Messages:
    """What a server that clusters rows would send, to clients that choose for themselves among all centers."""
    member = least_loss(cohort, offer.centers)
    center = chosen(offer.centers, member)
    count = torch.full_like(member, offer.centers.shape[1])
    return Messages(offer.clients, {"center": center, "member": member, "clusters": count})


def cluster_rows(
    state: State,
    received: Received,
    columns: Tensor,
    weight: Tensor,
    clusters: int,
    distance: Literal["euclidean", "cosine"],
    restart: bool,
) -> Tensor:
    """(letter,) weighted k-means on some columns of the rows heard.

    The first time more are heard than there are clusters, by k-means++. Later, with `restart` and all clients heard,
    again, its labels matched to the members of before; otherwise one expectation step from the present centers, for
    those who happen to be heard need not be of all clusters. Rows are sorted by client key: order changes nothing.
    """
    columns = columns.to(received.row.device)
    points, centers = received.row[:, columns], state.centers[0][:, columns]
    if distance == "cosine":
        points, centers = normalize(points, dim=1), normalize(centers, dim=1)
    first = not bool(state.clustered.any())
    if len(points) <= clusters and first:
        log.warning(
            "%d clients were heard; more are needed to find %d clusters, so all are one for now",
            len(points),
            clusters,
        )
        return state.member[received.clients]
    if not first and not (restart and len(points) == state.n_clients):
        return torch.cdist(points, centers).argmin(1)
    from sklearn.cluster import KMeans  # here, since importing it takes a second

    order = torch.argsort(state.keys[received.clients])
    seed = int(mix(state.context.seed, state.context.stage, state.context.round, "k-means") % 2**32)

    def k_means() -> Tensor:
        means = KMeans(clusters, n_init=10, random_state=seed)
        means.fit(points[order].double().cpu().numpy(), sample_weight=weight[order].double().cpu().numpy())
        return torch.as_tensor(means.labels_).long()

    found = torch.empty_like(state.member[received.clients])
    found[order] = received.decided(k_means)
    return found if first else _matched(found, state.member[received.clients], clusters)


def _matched(found: Tensor, before: Tensor, clusters: int) -> Tensor:
    """The labels found, renamed so that as many clients as possible keep theirs."""
    from scipy.optimize import linear_sum_assignment

    agree = np.zeros((clusters, clusters))
    np.add.at(agree, (found.cpu().numpy(), before.cpu().numpy()), 1)
    _, name = linear_sum_assignment(-agree)
    return torch.as_tensor(name, device=found.device)[found]
