from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.algorithms.hard_clusters import of_least_loss
from coterie.errors import require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import SIZE, UPDATE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class CFL(Algorithm):
    """Clusters that split when they are stationary but their clients are not. Sattler et al., TNNLS 2020.

    Sent: my update and how many points I have. Kept: nothing. The server finds the number of clusters.
    Choice: the thresholds are lengths, as in the paper, and so depend on model and data; 0.4 and 1.6 are those of
    the authors' example.
    Choice: in the round of a split each half already takes its own mean update from the center they had in common.
    Choice: a member that sent nothing when its cluster split stays with the half that keeps the name; it can split
    off later, but never join another. With many absent clients this leaves too many clusters.
    Choice: a client that comes later has sent no update; it takes the center of least loss on its data.
    Differs: public ports of the authors' program part by complete linkage (`linkage="complete"`); single linkage is
    what makes the greatest cosine between the halves as small as it can be, which the paper asks for.
    """

    stationary: float = 0.4  # ε1: a cluster whose mean update is shorter than this ...
    restless: float = 1.6  # ε2: ... while some member's is longer than this, splits
    first_split: int = 10  # rounds before the first split, for updates to settle
    most_alike: float = 1.0  # a split that would part two clients of this cosine or more is not made
    linkage: Literal["single", "complete"] = "single"  # how the two halves are found
    smallest: int = 1  # clients that either half must have

    bibtex: ClassVar[str] = """@article{sattler2020clustered,
  title={Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints},
  author={Sattler, Felix and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal={IEEE Transactions on Neural Networks and Learning Systems},
  year={2020}
}"""

    sends: ClassVar[Declared] = {"update": UPDATE, "size": SIZE}
    needs_server: ClassVar[bool] = True
    last_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.stationary > 0, "stationary", self.stationary, "above 0")
        require(self.restless > 0, "restless", self.restless, "above 0")
        require(self.first_split >= 0, "first_split", self.first_split, "0 or more")
        require(-1 <= self.most_alike <= 1, "most_alike", self.most_alike, "a cosine, between -1 and 1")
        require(self.smallest >= 1, "smallest", self.smallest, "1 or more")

    # at the aggregator
    def begin(self, state: State) -> State:
        return state.update(member=torch.zeros(state.n_clients, dtype=torch.long, device=state.keys.device))

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        return state, self.final_offer(state)

    def final_offer(self, state: State) -> Messages:
        count = torch.full_like(state.member, state.centers.shape[1])
        return state.offer(center=state.centers[0, state.member], member=state.member, clusters=count)

    def combine(self, state: State, received: Received) -> State:
        member, parent = state.member.clone(), list(range(state.centers.shape[1]))
        for cluster in range(len(parent)) if state.context.round >= self.first_split else ():
            which = (state.member[received.clients] == cluster).nonzero()[:, 0]
            leaves = self._split(state, received, which)
            if leaves is not None:  # messages are not clients: go back to who sent them
                member[received.clients[which[leaves]]] = len(parent)  # who sent nothing stays
                parent.append(cluster)
        centers = state.centers[:, parent]
        weight = one_hot(member[received.clients], centers.shape[1]) * received.size[:, None]
        still = torch.zeros_like(centers)
        return state.update(centers=centers + received.mean("update", weight, otherwise=still), member=member)

    def _split(self, state: State, received: Received, which: Tensor) -> Tensor | None:
        """(message,) bool: the half of a cluster that leaves it, if it is to be split."""
        if len(which) < 2 * self.smallest:
            return None
        updates = received.update[which][:, : state.rows.n_parameters].double()
        size = received.size[which].double()
        mean = (size[:, None] * updates).sum(0) / size.sum()
        if mean.norm() >= self.stationary or updates.norm(dim=1).max() <= self.restless:
            return None  # the cluster still moves, or all its clients have come to rest
        order = torch.argsort(
            state.keys[received.clients[which]]
        )  # the result must not depend on their order
        unit = normalize(updates[order], dim=1)
        cosine = (unit @ unit.T).clamp(-1, 1)
        from sklearn.cluster import AgglomerativeClustering  # here, since importing it takes a second

        halves = AgglomerativeClustering(2, metric="precomputed", linkage=self.linkage)
        label = torch.as_tensor(halves.fit_predict((1 - cosine).cpu().numpy()), device=order.device)
        leaves = torch.empty_like(label, dtype=torch.bool)
        leaves[order] = label != label[0]
        one, two = label == 0, label == 1
        if (
            min(int(one.sum()), int(two.sum())) < self.smallest
            or cosine[one][:, two].max() >= self.most_alike
        ):
            return None
        return leaves

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"update": cohort.solve(offer.center) - offer.center, "size": cohort.sizes}

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return one_hot(offer.member, int(offer.clusters.max())).to(offer.center.dtype)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(offer.center)

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        return super().onboard(cohort, of_least_loss(cohort, offer))
