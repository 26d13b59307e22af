from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from coterie.errors import require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MODEL, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State
from coterie.validation import LARGEST


@dataclass(frozen=True)
class pFedMe(Algorithm):
    """Personal models by Moreau envelopes. T. Dinh, Tran & Nguyen, NeurIPS 2020, Algorithm 1.

    Sent: my local w. Kept: θ, which is my personal model.
    Choice: the paper does not say where an inner problem begins. It continues from the last θ of the round, and the
    first of a round begins at w, as in the published program (`inner_start="w"`: each begins at the present w).
    Choice: rows are averaged with equal weights, as in the paper; an epoch's length of the training is not used.
    Choice: over a graph, which the paper does not have, a peer takes the plain mean over its neighbours and itself;
    `weights = "metropolis"` of the graph makes that a doubly stochastic one.
    Choice: a client that comes later trains for one round from the center and keeps its θ.
    Differs: the published program reports w; we report θ.
    """

    pull: float = 15.0  # λ, the proximal weight: how strongly θ is held to w
    local_rounds: int = 20  # R: batches a round
    inner_steps: int = 5  # K: steps on one fixed batch
    local_rate: float = 0.005  # η: the step of w is η·λ of the way to θ
    server_step: float = 1.0  # β: how far the center goes to the mean
    inner_start: Literal["theta", "w"] = "theta"  # of an inner problem: the last θ of the round, or w

    bibtex: ClassVar[str] = """@inproceedings{tdinh2020personalized,
  title={Personalized Federated Learning with Moreau Envelopes},
  author={T. Dinh, Canh and Tran, Nguyen H. and Nguyen, Tuan Dung},
  booktitle={NeurIPS},
  year={2020}
}"""

    sends: ClassVar[Declared] = {"row": MODEL}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pull > 0, "pull", self.pull, "above 0")
        require(self.local_rounds >= 1, "local_rounds", self.local_rounds, "1 or more")
        require(self.inner_steps >= 1, "inner_steps", self.inner_steps, "1 or more")
        require(
            0 < self.local_rate * self.pull <= 1, "local_rate", self.local_rate, "above 0 and at most 1/pull"
        )
        allowed = f"above 0 and at most {LARGEST:g}"
        require(0 < self.server_step <= LARGEST, "server_step", self.server_step, allowed)

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        w, rows = offer.centers[:, 0], cohort.model.rows
        theta = w
        inner = replace(
            cohort.training, batch_size=None, epochs=None, steps=self.inner_steps, keep_optimizer=False
        )
        for r in range(self.local_rounds):
            batch = cohort.batch(f"batch {r}")
            # θ ≈ argmin f(θ; batch) + λ/2·‖θ − w‖², then w ← w − ηλ(w − θ)
            start = theta if self.inner_start == "theta" else w
            theta = cohort.solve(
                start, points=batch, anchor=w, pull=self.pull, training=inner, purpose=f"train {r}"
            )
            w = rows.stepped(w, theta, self.local_rate * self.pull)
        cohort.keep("theta", theta)
        return {"row": w}

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(cohort.recall("theta", offer.centers[:, 0]))

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        self.train(cohort, offer)
        return super().onboard(cohort, offer)

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        mean = received.mean("row", state.centers.new_ones(len(received.clients), 1), otherwise=state.centers)
        return state.update(
            centers=state.rows.stepped(state.centers, mean, self.server_step)
        )  # (1 − β)·w + β·mean
