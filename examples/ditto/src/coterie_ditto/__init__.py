from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie import CoterieError
from coterie.protocol import (
    MODEL,
    SIZE,
    Algorithm,
    Cohort,
    Declared,
    Fields,
    Messages,
    Personal,
    Received,
    State,
)


@dataclass(frozen=True)
class Ditto(Algorithm):
    """One model for all, and a personal model held near it. Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1.

    Sent: my row and how many points I have. Kept: v, which is my personal model.
    Choice: v begins at the first model that I am sent (the paper takes it as given).
    Choice: both models are trained equally long, on batches of their own.
    Choice: rows are averaged by size, as in FedAvg.
    Choice: a client that comes later trains for one round from the center and keeps its v.
    Differs: the published program takes a plain mean of the rows, and trains both models on the same batches.
    """

    pull: float = 1.0  # λ: the proximal weight: how strongly v is held to the model that was sent

    bibtex: ClassVar[str] = """@inproceedings{li2021ditto,
  title={Ditto: Fair and Robust Federated Learning Through Personalization},
  author={Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle={ICML},
  year={2021}
}"""

    sends: ClassVar[Declared] = {"row": MODEL, "size": SIZE}

    def __post_init__(self) -> None:
        super().__post_init__()  # is every setting of its type?
        if self.pull < 0:
            raise CoterieError(f"pull is {self.pull}; allowed is 0 or more")

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        w = offer.centers[:, 0]  # (client, width)
        v = cohort.recall("v", w)
        # two problems for each client, (client, 2, width): min F(w), and min F(v) + λ/2·‖v − w‖²
        pull = w.new_tensor([0.0, self.pull])
        rows = cohort.solve(torch.stack([w, v], 1), anchor=torch.stack([w, w], 1), pull=pull)
        cohort.keep("v", rows[:, 1])
        return {"row": rows[:, 0], "size": cohort.sizes}

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(cohort.recall("v", offer.centers[:, 0]))

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        self.train(cohort, offer)
        return super().onboard(cohort, offer)

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        mean = received.mean("row", received.size[:, None], otherwise=state.centers)
        return state.update(centers=mean)
