"""The seam between a run and its clients: questions by name. A backend implements `Clients` and nothing else."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from coterie.errors import CoterieError
from coterie.protocol.message import Group, Messages, RoundContext

Question = Literal[
    # in a round: what the algorithm has clients send
    "report",
    "train",
    # beside the algorithm: whom to invite, and when to end a stage
    "enrol",
    "loss",
    "separation",
    "choose",  # to score the ways to a personal model; see protocol/personalise.py
    "common",  # to train the model that all have in common; see protocol/common_model.py
    # for the record of a run; a backend may refuse these
    "size",
    "training_loss",
    "scale",  # how large the numbers of their data are; asked if a client diverges
    "evaluate",
    "finish",  # the models that clients take away
    "fit",
    "likelihood",
    "judge",  # are the clusters any good? see protocol/judgement.py
    "gradient",
    "center_loss",
    # about what clients keep: forget it as a stage or an attempt begins, keep it as the best so far, go back to that
    "begin",
    "keep",
    "restore",
    # of peers, who aggregate themselves: what neighbours sent, and what a peer knows
    "combine",
    "state",
    # and, where a round has several hops: what a peer passes on, and what it makes of what neighbours passed on
    "pass",
    "join",
    # of clients elsewhere, who keep their state on a disk of their own
    "save",
    "load",
]


class Refused(CoterieError):
    """A backend does not ask its clients this; the message says why."""


class Clients(Protocol):
    """The clients of a run, wherever they are: offers go in, what they answer comes out."""

    @property
    def group(self) -> Group:
        """The processes that compute them."""

    @property
    def peers(self) -> bool:
        """Over a graph, does each hold what its own aggregator knows?"""

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        """The answers of those who answered; raises `Refused`."""

    def deliver(self, sent: Messages, edges: Tensor, context: RoundContext) -> None:
        """Peers combine what was sent: edges (2, edge) say which aggregator receives the message of which sender."""

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        """What clients keep between rounds; nothing, where they save it themselves."""

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        """Go back to it; order (client,) is where each client of now is among those saved."""
