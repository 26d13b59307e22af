from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MASS, MODELS, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class FedEM(Algorithm):
    """Soft clusters by expectation-maximisation, one problem per client and cluster. Marfoq et al., NeurIPS 2021.

    Sent: a row for each cluster, and how much of my data it took. Kept: my importance π.
    The personal model is the π-weighted mixture of the centers' predictions. (In FedSoft's tables it is the center of
    the largest π: `predict="largest"`.)
    Initialisation: `clients` at a server and `soft` over a graph; the paper's own is `random`.
    Choice: a personal model takes π from one more E-step on the last centers.
    Choice: a client that comes later repeats the E-step and π's mean 50 times from an even importance.
    Differs: the published program weighs a client's rows by its size (`weights="size"`), not by responsibility.
    """

    n_clusters: int  # how many components, M in the paper
    weights: Literal["mass", "size"] = "mass"  # of rows in the mean: responsibility taken, or n_k
    predict: Literal["mixture", "largest"] = "mixture"  # with all centers, or the one of largest π alone

    bibtex: ClassVar[str] = """@inproceedings{marfoq2021federated,
  title={Federated Multi-Task Learning under a Mixture of Distributions},
  author={Marfoq, Othmane and Neglia, Giovanni and Bellet, Aur{\\'e}lien and Kameni, Laetitia and Vidal, Richard},
  booktitle={NeurIPS},
  year={2021}
}"""

    sends: ClassVar[Declared] = {"row": MODELS, "mass": MASS}
    soft: ClassVar[bool] = True
    init_at_server: ClassVar[str] = "clients"  # from random centers it may find classes, not clusters
    init_over_graph: ClassVar[str] = "soft"

    # at the client
    def responsibilities(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(point, cluster) q ∝ π·exp(−loss), with the importance that the client kept."""
        even = offer.centers.new_full((len(cohort), self.n_clusters), 1 / self.n_clusters)
        pi = cohort.recall("importance", even)
        scores = pi.clamp(min=1e-12).log()[cohort.points.owner] - cohort.losses(offer.centers)
        return torch.softmax(scores, 1)  # E-step

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        q = self.responsibilities(cohort, offer)
        pi = cohort.means(q)
        cohort.keep("importance", pi)
        rows = cohort.solve(offer.centers, weight=q, normalise=False)  # M-step: a gradient of Σ q·loss / n
        mass = pi * cohort.sizes[:, None]
        return {
            "row": rows,
            "mass": mass if self.weights == "mass" else mass.sum(1, keepdim=True).expand_as(mass),
        }

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return cohort.means(self.responsibilities(cohort, offer))

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        pi = self.importance(cohort, offer)
        if self.predict == "largest":
            return Personal.largest(offer.centers, pi)
        return Personal(offer.centers, pi)

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        for _ in range(50):  # eqs. (12) and (13) with the centers as they are: a concave problem in π
            cohort.keep("importance", self.importance(cohort, offer))
        return super().onboard(cohort, offer)

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        return state.update(centers=received.mean("row", received.mass, otherwise=state.centers))
