from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.algorithms.hard_clusters import ClusteredByRow, alive
from coterie.clustering.distances import nearest
from coterie.clustering.paper import BIBTEX
from coterie.engine.rows import Part
from coterie.prng import mix
from coterie.protocol.message import Messages
from coterie.protocol.received import Received
from coterie.protocol.state import State

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class OneShot(ClusteredByRow):
    """Hard clusters found once, by k-FED on the clients' first updates; then FedAvg in each of them.

    k-FED (Dennis, Li & Smith, ICML 2021, Algorithm 2) clusters what devices send in one round. Here a device is a
    client, and its one mean is its first row, trained from a model common to all.

    Sent: my row and how many points I have. Kept: nothing.
    Choice: a client that first sends a row later is sent the mean of all centers, and joins the cluster whose center is
    nearest to what it made of it (Theorem 3.2).
    Choice: members of a center that exploded are sent the mean of the others, and so train it anew.
    Initialisation: none is needed, for the first round finds the clusters.
    """

    represent: Part = (
        "all"  # what of a row is clustered: all parameters, dense layers, the last dense weights
    )

    bibtex: ClassVar[str] = BIBTEX

    def final_offer(self, state: State) -> Messages:
        """Who has no cluster yet is sent the mean of all centers that are alive, which favours none."""
        if not bool(state.clustered.any()):
            return super().final_offer(state)
        used = state.centers[0, self.in_use(state)]
        living = used[alive(used)]
        middle = (living if len(living) else used).mean(0)
        center = torch.where(state.clustered[:, None], self._own_center(state), middle)
        return state.offer(center=center, member=state.member)

    def in_use(self, state: State) -> Tensor:
        """The clusters that have members."""
        used = torch.bincount(state.member[state.clustered], minlength=self.n_clusters) > 0
        return used.nonzero()[:, 0]

    def combine(self, state: State, received: Received) -> State:
        columns = state.rows.columns(self.represent).to(received.row.device)
        if not bool(state.clustered.any()):
            found = self.one_round(state, received, columns)
        else:
            used = self.in_use(state)
            centers = state.centers[0, used]
            likely = used[nearest(received.row[:, columns], centers[:, columns], alive(centers))]
            found = torch.where(state.clustered[received.clients], state.member[received.clients], likely)
        member, clustered = state.member.clone(), state.clustered.clone()
        member[received.clients], clustered[received.clients] = found, True
        state = state.update(member=member, clustered=clustered)
        share = one_hot(found, self.n_clusters) * received.size[:, None]
        return state.update(centers=received.mean("row", share, otherwise=state.centers))

    def one_round(self, state: State, received: Received, columns: Tensor) -> Tensor:
        """(message,) Algorithm 2: from one client, farthest-first, then one round of Lloyd.

        By whom it begins is drawn by key, for rounding must not decide it. Fewer clusters where fewer rows differ.
        """
        from coterie.clustering.kfed import farthest_first  # here, since scikit-learn comes with it
        from coterie.clustering.local import lloyd

        rows = received.row[:, columns].double().cpu().numpy()
        if len(rows) < self.n_clusters:
            log.warning(
                "%d clients sent a model, too few to find %d clusters at once", len(rows), self.n_clusters
            )
        m = state.context
        begins = int(mix(m.seed, m.stage, "one shot", state.keys[received.clients]).argmin())
        chosen = farthest_first(rows, rows[[begins]], self.n_clusters)
        return torch.from_numpy(lloyd(rows, chosen, 1)[0]).to(received.clients)
