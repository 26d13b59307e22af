from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.algorithms.hard import ClusteredByRow
from coterie.chance import mix
from coterie.clustering import KFed, combine
from coterie.listener import Heard, State
from coterie.rows import Part

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class OneShot(ClusteredByRow):
    """Hard clusters found once, by k-FED on the clients' first updates; then FedAvg in each of them.

    k-FED (Dennis, Li & Smith, ICML 2021, Algorithm 2) clusters what devices tell in one round. Here a device is a
    client, and its one mean is its first row, trained from a model common to all.

    Told: my row and how many points I have. Kept: nothing.
    Choice: a client that is first heard later joins the cluster of the nearest center (Theorem 3.2).
    Start: none is needed, for the first round finds the clusters.
    """

    represent: Part = (
        "all"  # what of a row is clustered: all parameters, dense layers, the last dense weights
    )

    bibtex: ClassVar[str] = KFed.bibtex

    def combine(self, state: State, heard: Heard) -> State:
        columns = state.rows.columns(self.represent).to(heard.row.device)
        if not bool(state.clustered.any()):
            found = self.one_round(state, heard, columns)
        else:
            nearest = torch.cdist(heard.row[:, columns], state.centers[0][:, columns]).argmin(1)
            found = torch.where(state.clustered[heard.clients], state.member[heard.clients], nearest)
        member, clustered = state.member.clone(), state.clustered.clone()
        member[heard.clients], clustered[heard.clients] = found, True
        state = state.update(member=member, clustered=clustered)
        return self.aggregate(state, heard, found, heard.size)

    def one_round(self, state: State, heard: Heard, columns: Tensor) -> Tensor:
        """(letter,) farthest-first, then one round of Lloyd; fewer clusters where fewer clients were heard."""
        rows = heard.row[:, columns].double().cpu().numpy()
        if len(rows) < self.n_clusters:
            log.warning(
                "%d clients were heard, too few to find %d clusters at once", len(rows), self.n_clusters
            )
        seed = int(mix(state.moment.seed, state.moment.stage, "one shot") % 2**32)
        with warnings.catch_warnings(action="ignore"):  # rows that are all alike are one cluster
            found = combine(list(rows[:, None]), min(self.n_clusters, len(rows)), random_state=seed)
        return torch.as_tensor([int(own[0]) for own in found.clusters], device=heard.clients.device)
