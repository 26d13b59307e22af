from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.engine.training import Training
from coterie.errors import require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import CHOICE, MODEL, Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal, chosen, mix_rows
from coterie.protocol.received import Received
from coterie.protocol.state import State
from coterie.validation import LARGEST

EPOCHS = (0, 1, 2, 5, 10, 20)  # what "auto" chooses from


@dataclass(frozen=True)
class FedSPD(Algorithm):
    """Soft clusters with no server. Lin, Yağan & Joe-Wong, Algorithm 1.

    Sent: the cluster I drew and its row. Kept: nothing but my data; my centers are my aggregator's.
    Initialisation: `sketch` over a graph and `clients` at a server; the paper's own is `random`.
    Choice: all clients begin at common random centers, so that cluster s means the same to all.
    Choice: `first_points`: before the first round no point has a cluster yet (line 32 comes at the end of one). By
    default it has the center of least loss, which from random centers tends to divide classes; "random" divides each
    client's points into S equal parts, as the published program does. That gives up what an initialisation found: it
    belongs with `init = "random"`.
    Choice: `align` files a row under the aggregator's center that it resembles most (section 6 names the
    cosine similarity, not the rule). It is off by default: from common centers there is nothing to align.
    Choice: the final phase begins anew at half the first rate; a schedule has taken the last round's near to 0.
    Choice: `final_epochs="auto"`: a client holds out a fifth of its points, trains the others for 0, 1, 2, 5, 10 and 20
    epochs, and then all for as many as had the least loss on those held out. The centers have seen them before.
    Choice: `predict="mixture"`: the centers' predictions are averaged by u in place of their parameters, eq. (2); the
    final phase then trains each center on its own points D_is, for on all of them the centers would become alike.
    Choice: at a server, which draws nothing itself, every cluster that was received is averaged.
    Differs: the published program splits clients into S groups instead of drawing by u, trains every cluster in
    the first round, and aligns by the least similarity.
    """

    n_clusters: int  # how many clusters, S
    final_epochs: int | Literal["auto"] = 10  # τ_final, line 41: passes over all of my data at the end
    final_rate: float = 0.5  # times the rate that training began with, in the final phase
    first_times: int = 2  # times as long is the first round
    first_points: Literal["nearest", "random"] = "nearest"  # which center's a point is in the first round
    predict: Literal["parameters", "mixture"] = "parameters"  # average the centers, or their predictions
    align: bool = False  # file a row by likeness, not by the name its sender has for it

    bibtex: ClassVar[str] = """@article{lin2024fedspd,
  title={FedSPD: A Soft-clustering Approach for Personalized Decentralized Federated Learning},
  author={Lin, I-Cheng and Yagan, Osman and Joe-Wong, Carlee},
  journal={arXiv preprint arXiv:2410.18862},
  year={2024}
}"""

    sends: ClassVar[Declared] = {"drew": CHOICE, "row": MODEL}
    soft: ClassVar[bool] = True
    init_at_server: ClassVar[str] = "clients"  # from random centers it may find classes, not clusters
    init_over_graph: ClassVar[str] = "sketch"

    def __post_init__(self) -> None:
        super().__post_init__()
        long = self.final_epochs == "auto" or self.final_epochs >= 0
        require(long, "final_epochs", self.final_epochs, "0 or more, or 'auto'")
        allowed = f"above 0 and at most {LARGEST:g}"
        require(0 < self.final_rate <= LARGEST, "final_rate", self.final_rate, allowed)
        require(self.first_times >= 1, "first_times", self.first_times, "1 or more")

    # at the client
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        label = self._labels(cohort, offer)  # lines 29-36, of the round before
        drew = cohort.draw(cohort.fractions(label, self.n_clusters))  # line 14: with probability u_is
        start = chosen(offer.centers, drew)
        own = label == drew[cohort.points.owner]  # the points of D_is
        training = cohort.training.times(self.first_times if cohort.context.round == 0 else 1)
        return {
            "drew": drew,
            "row": cohort.solve(start, points=own, training=training, optimizer_slot=drew),
        }  # line 15

    def _labels(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(point,) the cluster of each point."""
        if self.first_points == "random" and cohort.context.round == 0:
            return cohort.divided(self.n_clusters, "first points")
        return cohort.nearest(offer.centers)

    # under privacy
    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        return chosen(offer.centers, sent["drew"])

    # at the aggregator
    def combine(self, state: State, received: Received) -> State:
        aggregator, message = received.edges
        drew = one_hot(received.drew, self.n_clusters)
        weight = drew[message]  # eq. (1)
        if self.align:
            alike = received.cosines("row", state.centers, state.rows.n_parameters)
            own = (received.clients[message] == aggregator) & (not received.at_server)
            # my own row is of what I drew, whatever it resembles: filed elsewhere, line 24 would discard it
            weight = torch.where(own[:, None], weight, one_hot(alike.argmax(1), self.n_clusters))
        if not received.at_server:
            weight = weight * received.own(drew)[aggregator]  # line 24: only what I drew
        return state.update(centers=received.mean_by_edge("row", weight, otherwise=state.centers))

    def needed(self, received: Received) -> Tensor:
        if self.align:  # a row may be filed under another name
            return super().needed(received)
        mine = received.own(received.drew + 1)  # 0: sent nothing itself
        aggregator, message = received.edges
        return mine[aggregator] == received.drew[message] + 1  # section 6.3

    # at the end, at the client
    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        u = self.importance(cohort, offer)
        if self.predict == "mixture":
            return Personal(offer.centers, u)
        return Personal.single(mix_rows(u, offer.centers))  # eq. (2)

    def finish(self, cohort: Cohort, offer: Messages) -> Personal:
        """The final phase, lines 37-43."""
        if self.predict == "mixture" or self.final_epochs == "auto":
            return self._our_final_phase(cohort, offer)
        x = mix_rows(self.importance(cohort, offer), offer.centers)  # lines 38-40: x_i = Σ_s u_is c_is
        training = self._final_training(cohort.training, self.final_epochs)
        x = cohort.solve(x, training=training, purpose="final")  # lines 41-43: on all data of the client
        return Personal.single(x)

    def _final_training(self, training: Training, epochs: int) -> Training:
        return replace(
            training,
            learning_rate=min(LARGEST, training.learning_rate * self.final_rate),
            schedule="constant",
            epochs=epochs,
            steps=None,
            keep_optimizer=False,
        )

    # what is ours of the final phase: each center by itself, and a length that the client chooses

    def _our_final_phase(self, cohort: Cohort, offer: Messages) -> Personal:
        start, points = self.personal(cohort, offer), self._points(cohort, offer)
        if self.final_epochs != "auto":
            return replace(start, rows=self._final(cohort, start.rows, points, self.final_epochs))
        choice, rows = self._best_length(cohort, start, points), start.rows.clone()
        for number, epochs in enumerate(EPOCHS):
            at = (choice == number).nonzero()[:, 0]
            if epochs and len(at):
                theirs = points[(choice == number)[cohort.points.owner]]
                rows[at] = self._final(cohort.take(at), start.rows[at], theirs, epochs)
        return replace(start, rows=rows)

    def _points(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(point, part) what each part is trained on at the end: all of D_i, or each center on its D_is."""
        if self.predict == "mixture":
            return one_hot(cohort.nearest(offer.centers), self.n_clusters).bool()
        return torch.ones_like(cohort.points.at, dtype=torch.bool)[:, None]

    def _best_length(self, cohort: Cohort, start: Personal, points: Tensor) -> Tensor:
        """(client,) which of EPOCHS had the least loss on points held out; the first, 0, where there are none."""
        held = cohort.part(5, "held out")
        if not held.any():
            return torch.zeros_like(cohort.at)
        losses = []
        for epochs in EPOCHS:
            rows = self._final(cohort, start.rows, points & ~held[:, None], epochs)
            losses.append(cohort.score(replace(start, rows=rows), cohort.points.only(held)).loss)
        return torch.stack(losses, 1).nan_to_num(torch.inf).argmin(1)

    def _final(self, cohort: Cohort, rows: Tensor, points: Tensor, epochs: int) -> Tensor:
        """Rows (client, part, width), each trained on some of the points (point, part)."""
        training = self._final_training(cohort.training, epochs)
        return cohort.solve(rows, points=points, training=training, purpose="final")
