from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """One model for all. McMahan et al., AISTATS 2017, Algorithm 1.

    Sent: my row and how many points I have. Kept: nothing.
    Over a graph every client averages its own row with those of its neighbours.
    """

    weights: Literal["size", "equal"] = "size"  # of clients in the mean: n_k, or all alike

    bibtex: ClassVar[str] = """@inproceedings{mcmahan2017communication,
  title={Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author={McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Arcas, Blaise Aguera y},
  booktitle={AISTATS},
  year={2017}
}"""

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {"row": cohort.solve(offer.centers[:, 0]), "size": cohort.sizes}

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        weight = received.size if self.weights == "size" else received.size.clamp(max=1)
        return state.update(centers=received.mean("row", weight[:, None], otherwise=state.centers))
