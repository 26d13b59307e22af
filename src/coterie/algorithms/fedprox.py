from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.fedavg import FedAvg
from coterie.errors import require
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are pulled to the model they were sent. Li et al., MLSys 2020, Algorithm 2.

    Sent: my row and how many points I have. Kept: nothing.
    Choice: rows are averaged by size as in FedAvg (the paper draws clients by size and takes a plain mean).
    """

    pull: float = 0.1  # μ, the proximal weight; the term is μ/2·‖w − w_t‖²

    bibtex: ClassVar[str] = """@inproceedings{li2020federated,
  title={Federated Optimization in Heterogeneous Networks},
  author={Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet
    and Smith, Virginia},
  booktitle={MLSys},
  year={2020}
}"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pull >= 0, "pull", self.pull, "0 or more")

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        center = offer.centers[:, 0]
        return {"row": cohort.solve(center, anchor=center, pull=self.pull), "size": cohort.sizes}
