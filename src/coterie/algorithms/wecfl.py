from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.algorithms.hard_clusters import ClusteredByRow, alive
from coterie.clustering.distances import nearest, same_distances
from coterie.engine.rows import Part
from coterie.prng import mix
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class WeCFL(ClusteredByRow):
    """Hard clusters by weighted k-means on the clients' models. Ma et al., 2022, Algorithm 1.

    Sent: my row and how many points I have. Kept: nothing.
    Initialisation: `random`, of which it takes one model for all; `warm-up` gives it a better one.
    Choice: all clients begin at one common model, so that rows differ by data alone; of random centers one would be
    the nearest for all.
    Choice: the first clustering is k-means. It begins at the clusters that k-means++ finds when updates are cut to
    their median length. Otherwise a single far row may become a cluster, as when batch norm saw two points: F of
    eq. (3b) falls, but two distributions are left to one center, and R of eq. (3a) rises. They then train from that
    center, so their rows stay together and no later clustering parts them.
    Choice: members of a center that exploded are sent the mean of the others, so that they can leave it.
    Choice: a client that comes later has sent the server no row; it takes the center of least loss on its data.
    Differs: the published program begins k-means++ anew each round, on rows as they are (`restart=True`, with labels
    matched to those before, while all clients take part). We take one expectation step from the present centers, as
    Algorithm 1 reads: a row that is far from all of them still has its nearest one, and a client in a wrong cluster
    can leave it. The program represents a client by the last layer's weight matrix (`represent="last"`).
    """

    weights: Literal["size", "equal"] = "size"  # λ_i of clients, in clustering and mean
    represent: Part = "dense"  # g_i: all parameters, those of dense layers, or the last dense weights
    distance: Literal["euclidean", "cosine"] = "euclidean"  # d, between a client and a center
    restart: bool = False  # cluster anew each round, or take one step from the present centers

    bibtex: ClassVar[str] = """@article{ma2022convergence,
  title={On the Convergence of Clustered Federated Learning},
  author={Ma, Jie and Long, Guodong and Zhou, Tianyi and Jiang, Jing and Zhang, Chengqi},
  journal={arXiv preprint arXiv:2202.06187},
  year={2022}
}"""

    # at the server
    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        """Distribution step: H_k goes to the clients of cluster k."""
        return state, self.final_offer(state)

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        """Local update step: from H_k, by the client's own data."""
        return {"row": cohort.solve(offer.center), "size": cohort.sizes}

    # at the server
    def combine(self, state: State, received: Received) -> State:
        weight = received.size if self.weights == "size" else torch.ones_like(received.size)  # λ_i
        member = self._expectation(state, received, weight)
        # maximization step: each center H_k becomes the weighted mean of its members' rows; one without stays
        share = one_hot(member, self.n_clusters) * weight[:, None]
        centers = received.mean("row", share, otherwise=state.centers)
        members = state.member.clone()
        members[received.clients] = member
        clustered = state.clustered | self._enough(state, received)
        return state.update(centers=centers, member=members, clustered=clustered)

    def _enough(self, state: State, received: Received) -> bool:
        """To be clustered: more rows than clusters, or those of all clients."""
        rows = len(received.clients)
        return rows > self.n_clusters or rows == state.n_clients

    def _expectation(self, state: State, received: Received, weight: Tensor) -> Tensor:
        """(message,) the cluster of each client: argmin_k λ_i·d(g_i, G_k)."""
        columns = state.rows.columns(self.represent).to(received.row.device)
        g, G = received.row[:, columns], state.centers[0][:, columns]
        if self.distance == "cosine":
            g, G = _directions(g), _directions(G)
        before = state.member[received.clients]
        if not bool(state.clustered.any()):  # the first clustering
            enough = self._enough(state, received)  # else it waits, as runs/alarms.py says
            return self._first_clusters(state, received, g, G[before], weight) if enough else before
        if self.restart and len(g) == state.n_clients:  # begun anew, as in the published program
            return _matched(self._k_means(state, received, g, weight), before, self.n_clusters)
        living = alive(state.centers[0])
        return nearest(g, G, living) if living.any() else before  # one step, as Algorithm 1 reads

    def _first_clusters(
        self, state: State, received: Received, g: Tensor, begun: Tensor, weight: Tensor
    ) -> Tensor:
        """(message,) k-means; without restarts, from a start that no far row decides."""
        if self.restart:
            return self._k_means(state, received, g, weight)
        start = self._k_means(state, received, _no_longer_than_the_median(g, begun), weight)
        return self._k_means(state, received, g, weight, start)

    def _k_means(
        self, state: State, received: Received, g: Tensor, weight: Tensor, start: Tensor | None = None
    ) -> Tensor:
        """(message,) weighted Lloyd, from clusters `start` (message,) or by k-means++.

        Rows are sorted by client key: their order changes nothing.
        """
        from sklearn.cluster import KMeans

        order = torch.argsort(state.keys[received.clients])
        context = state.context
        seed = int(mix(context.seed, context.stage, context.round, "k-means") % 2**32)
        if start is not None and not bool(torch.bincount(start, minlength=self.n_clusters).all()):
            start = None  # too few rows differ

        def labels() -> Tensor:
            rows, weights = same_distances(g[order].double()).cpu(), weight[order].double().cpu()
            how: dict[str, Any] = {"n_init": 10}
            if start is not None:
                share = one_hot(start[order].cpu(), self.n_clusters) * weights[:, None]
                how = {"n_init": 1, "init": ((share / share.sum(0)).T @ rows).numpy()}
            means = KMeans(self.n_clusters, random_state=seed, **how)
            return torch.as_tensor(means.fit(rows.numpy(), sample_weight=weights.numpy()).labels_).long()

        found = torch.empty_like(received.clients)
        found[order] = received.decided(labels)
        return found


def _directions(rows: Tensor) -> Tensor:
    """Rows of length 1; first divided by their largest number, since its square may be no number."""
    largest = rows.abs().amax(1, keepdim=True)
    return normalize(rows / largest.masked_fill(largest == 0, 1), dim=1)


def _no_longer_than_the_median(rows: Tensor, begun: Tensor) -> Tensor:
    """Rows whose updates, since `begun`, are cut to their median length, if they have any.

    In float64, where the length of finite float32 numbers is finite too.
    """
    begun = begun.double()
    update = rows.double() - begun
    length = update.norm(dim=1, keepdim=True)
    median = length.median()
    return begun + update * (median / length).clamp(max=1) if median > 0 else rows.double()


def _matched(found: Tensor, before: Tensor, clusters: int) -> Tensor:
    """The labels found, renamed so that as many clients as possible keep theirs."""
    from scipy.optimize import linear_sum_assignment

    agree = np.zeros((clusters, clusters))
    np.add.at(agree, (found.cpu().numpy(), before.cpu().numpy()), 1)
    _, name = linear_sum_assignment(-agree)
    return torch.as_tensor(name, device=found.device)[found]
