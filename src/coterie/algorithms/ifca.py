from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.algorithms.hard_clusters import ChosenByLoss, least_loss
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import CHOICE, MODEL, SIZE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import chosen
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class IFCA(ChosenByLoss):
    """Hard clusters, chosen by loss. Ghosh et al., NeurIPS 2020, Algorithm 1.

    Sent: the center I chose, my row trained from it, how many points I have. Kept: nothing.
    Choice: clusters are averaged with equal weights as in the paper, where all clients have as many points.
    Choice: `averaging="gradient"` is one full-batch step per round, with the rate of the training.
    Over a graph every client has centers of its own.
    Initialisation: `clients` at a server and `sketch` over a graph; the paper's own is `random`, or several of them.
    """

    averaging: Literal["model", "gradient"] = "model"  # rows trained as training says, or one full-batch step
    weights: Literal["equal", "size"] = "equal"  # of clients in the mean: all alike, or n_k

    bibtex: ClassVar[str] = """@inproceedings{ghosh2020efficient,
  title={An Efficient Framework for Clustered Federated Learning},
  author={Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan},
  booktitle={NeurIPS},
  year={2020}
}"""

    sends: ClassVar[Declared] = {"choice": CHOICE, "row": MODEL, "size": SIZE}

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        choice = least_loss(cohort, offer.centers)
        start = chosen(offer.centers, choice)
        training = cohort.training
        if self.averaging == "gradient":
            training = replace(
                training,
                optimizer="sgd",
                momentum=0.0,
                nesterov=False,
                weight_decay=0.0,
                batch_size=None,
                epochs=None,
                steps=1,
                keep_optimizer=False,
            )
        row = cohort.solve(start, training=training, optimizer_slot=choice)
        return {"choice": choice, "row": row, "size": cohort.sizes}

    # under privacy
    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        return chosen(offer.centers, sent["choice"])

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        weight = received.size if self.weights == "size" else torch.ones_like(received.size)
        member = one_hot(received.choice, self.n_clusters) * weight[:, None]
        centers = received.mean("row", member, otherwise=state.centers)  # one that nobody chose stays
        if self.averaging == "gradient":
            # θ_j − γ/m·Σ s_ij g_i: a sum over the cluster, divided by the number of all that were received
            total = received.totals(member.to(centers.dtype))
            share = (total / total.sum(1, keepdim=True).clamp(min=1e-12))[:, :, None]
            centers = state.rows.stepped(state.centers, centers, share)
        return state.update(centers=centers)
