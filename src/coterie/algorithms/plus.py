"""FedAvg+ and FedProx+: several independent runs whose predictions are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from coterie.algorithms.wecfl import WeCFL
from coterie.errors import require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MODELS, SIZE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class FedAvgPlus(Algorithm):
    """As many runs of FedAvg as there are clusters, from other random initialisations; soft voting (WeCFL, section 7).

    Sent: a row for each run and how many points I have. Kept: nothing.
    """

    n_clusters: int  # how many runs, K
    weights: Literal["size", "equal"] = "size"  # of clients in the mean: n_k, or all alike

    bibtex: ClassVar[str] = WeCFL.bibtex
    sends: ClassVar[Declared] = {"row": MODELS, "size": SIZE}
    needs_server: ClassVar[bool] = True
    votes: ClassVar[bool] = True

    @classmethod
    def title(cls) -> str:
        return "FedAvg+"

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"row": cohort.solve(offer.centers), "size": cohort.sizes}

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return offer.centers.new_full((len(cohort), self.n_clusters), 1 / self.n_clusters)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal(offer.centers, self.importance(cohort, offer))

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        weight = received.size if self.weights == "size" else received.size.clamp(max=1)
        each = weight[:, None].expand(-1, self.n_clusters)
        return state.update(centers=received.mean("row", each, otherwise=state.centers))


@dataclass(frozen=True)
class FedProxPlus(FedAvgPlus):
    """As many runs of FedProx as there are clusters, from other random initialisations; soft voting (WeCFL, section 7).

    Sent: a row for each run and how many points I have. Kept: nothing.
    """

    pull: float = 0.95  # μ, the proximal weight; 0.95 in WeCFL's section 7.2

    @classmethod
    def title(cls) -> str:
        return "FedProx+"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pull >= 0, "pull", self.pull, "0 or more")

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        rows = cohort.solve(offer.centers, anchor=offer.centers, pull=self.pull)
        return {"row": rows, "size": cohort.sizes}
