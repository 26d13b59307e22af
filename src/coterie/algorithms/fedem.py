from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MASS, MODELS, SIZE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class FedEM(Algorithm):
    """Soft clusters by expectation-maximisation, one problem per client and cluster. Marfoq et al., NeurIPS 2021.

    Sent: a row for each cluster, and how many points I have. Kept: my importance π.
    The personal model is the π-weighted mixture of the centers' predictions. (In FedSoft's tables it is the center of
    the largest π: `predict="largest"`.)
    Initialisation: `clients` at a server and `sketch` over a graph; the paper's own is `random`.
    Choice: a personal model takes π from one more E-step on the last centers.
    Choice: a client that comes later repeats the E-step and π's mean 50 times from an even importance.
    Choice: `weights="mass"` divides a client's local loss by the responsibility that a cluster takes of its data, Σq,
    and weighs its rows by that. Both ways one full-batch round is a gradient step of EM on the pooled data; this one's
    length does not depend on how large a cluster is. A client then sends Σq of each cluster in place of its size.
    Choice: over a graph a peer takes the mean over its neighbours and itself, weighted by size. The paper's Algorithm 2
    has a doubly stochastic W: with clients of equal size that is `weights = "metropolis"` of the graph.
    """

    n_clusters: int  # how many components, M in the paper
    weights: Literal["size", "mass"] = "size"  # of rows in the mean: n_k, or the responsibility taken
    predict: Literal["mixture", "largest"] = "mixture"  # with all centers, or the one of largest π alone

    bibtex: ClassVar[str] = """@inproceedings{marfoq2021federated,
  title={Federated Multi-Task Learning under a Mixture of Distributions},
  author={Marfoq, Othmane and Neglia, Giovanni and Bellet, Aur{\\'e}lien and Kameni, Laetitia and Vidal, Richard},
  booktitle={NeurIPS},
  year={2021}
}"""

    soft: ClassVar[bool] = True
    init_at_server: ClassVar[str] = "clients"  # from random centers it may find classes, not clusters
    init_over_graph: ClassVar[str] = "sketch"

    @property
    def sends(self) -> Declared:  # type: ignore[override]
        return {"row": MODELS, "mass": MASS} if self.weights == "mass" else {"row": MODELS, "size": SIZE}

    # at the client
    def responsibilities(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(point, cluster) q ∝ π·exp(−loss), with the importance that the client kept."""
        even = offer.centers.new_full((len(cohort), self.n_clusters), 1 / self.n_clusters)
        pi = cohort.recall("importance", even)
        pi = pi[cohort.points.owner]
        q = torch.softmax(pi.clamp(min=1e-12).log() - cohort.losses(offer.centers), 1)  # E-step
        return torch.where(q.isfinite(), q, pi)  # where every center has diverged there is nothing to go by

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        q = self.responsibilities(cohort, offer)
        pi = cohort.means(q)
        cohort.keep("importance", pi)
        alive = cohort.alive(offer.centers)
        points = None if bool(alive.all()) else alive[cohort.points.owner]  # a diverged center is not trained
        by_mass = self.weights == "mass"
        # M-step: a gradient of Σ q·loss / n, or of Σ q·loss / Σ q
        rows = cohort.solve(offer.centers, points=points, weight=q, normalise=by_mass)
        return (
            {"row": rows, "mass": pi * cohort.sizes[:, None]}
            if by_mass
            else {"row": rows, "size": cohort.sizes}
        )

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
        weight = (
            received.mass if self.weights == "mass" else received.size[:, None].expand(-1, self.n_clusters)
        )
        return state.update(centers=received.mean("row", weight, otherwise=state.centers))
