from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from coterie.algorithms.hard_clusters import ClusteredByRow, cluster_rows
from coterie.engine.rows import Part
from coterie.protocol.received import Received, State


@dataclass(frozen=True)
class WeCFL(ClusteredByRow):
    """Hard clusters by weighted k-means on the clients' models. Ma et al., 2022, Algorithm 1.

    Told: my row and how many points I have. Kept: nothing.
    Initialisation: `random`, of which it takes one model for all; `warm-up` gives it a better one.
    Choice: all clients begin at one common model, so that rows differ by data alone, and the first clustering is
    k-means with k-means++ starts: from random centers the nearest one would be the same for all.
    Choice: when some clients are not heard, those heard take one expectation step from the present centers.
    Choice: a client that comes later has told the server no row; it takes the center of least loss on its data.
    Differs: the published program begins the clustering anew each round; so do we, with labels matched to those
    before (`restart=False`: one expectation step a round, as Algorithm 1 reads). It represents a client by the last
    layer's weight matrix (`represent="last"`).
    """

    weights: Literal["size", "equal"] = "size"  # λ_i of clients, in clustering and mean
    represent: Part = "dense"  # g_i: all parameters, those of dense layers, or the last dense weights
    distance: Literal["euclidean", "cosine"] = "euclidean"  # d, between a client and a center
    restart: bool = True  # cluster anew each round, or take one step from the present centers

    bibtex: ClassVar[str] = """@article{ma2022convergence,
  title={On the Convergence of Clustered Federated Learning},
  author={Ma, Jie and Long, Guodong and Zhou, Tianyi and Jiang, Jing and Zhang, Chengqi},
  journal={arXiv preprint arXiv:2202.06187},
  year={2022}
}"""

    def combine(self, state: State, received: Received) -> State:
        weight = received.size if self.weights == "size" else torch.ones_like(received.size)
        columns = state.rows.columns(self.represent)
        member = cluster_rows(
            state, received, columns, weight, self.n_clusters, self.distance, self.restart
        )  # expectation
        members = state.member.clone()
        members[received.clients] = member
        clustered = state.clustered | (len(member) > self.n_clusters)
        return self.aggregate(
            state.update(member=members, clustered=clustered), received, member, weight
        )  # maximization
