"""What every algorithm is made of: train, send, combine.

An algorithm is a frozen dataclass of hyperparameters with both halves in one file. What its client methods return is
exactly what leaves a client. In a round, in this order:

    ask      at the aggregator   who reports, if anybody
    report   at the client       something cheap
    plan     at the aggregator   who trains, and what each is offered
    train    at the client       the local problem, and what is sent of it
    combine  at the aggregator   what was received, into centers

and, when models are wanted, `final_offer` at the aggregator, then `importance`, `personal` and (once, at the end)
`finish` at the client. A client that comes later has `onboard`.

`reports` and `sends` declare the fields of the two messages. A message that differs from what was declared is refused,
and privacy treats every field by its role; for models it needs `trained_from`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.errors import CoterieError, require
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MODEL, ROWS, SIZE, Declared, Role
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.spread import Spread
from coterie.protocol.state import State
from coterie.protocol.topology import Topology
from coterie.validation import Checked


@dataclass(frozen=True)
class Algorithm(Checked):
    """The base of all; its defaults are those of a single shared model."""

    bibtex: ClassVar[str]
    reports: ClassVar[Declared] = {}  # the fields of a report
    sends: ClassVar[Declared] = {"row": MODEL, "size": SIZE}  # the fields of what is sent after training
    passes: ClassVar[Declared] = {}  # the fields of what a peer passes on along a tree; see `spread`
    needs_server: ClassVar[bool] = False
    first_only: ClassVar[bool] = False  # begins at one common model, whatever centers it is handed
    last_only: ClassVar[bool] = False  # finds how many centers it leaves, which no next stage could plan for
    init_at_server: ClassVar[str] = (
        "random"  # of a lone algorithm, where none is named; see algorithms/initialisation.py
    )
    init_over_graph: ClassVar[str] = "random"
    votes: ClassVar[bool] = (
        False  # do its models vote for every client, in place of being centers of clusters?
    )
    soft: ClassVar[bool] = False  # does each point have a cluster, or the client as a whole?
    not_private: ClassVar[str] = ""  # what privacy cannot cover of what it sends
    exempt: ClassVar[dict[str, str]] = {}  # contract tests that cannot apply, with the reason

    @classmethod
    def title(cls) -> str:
        return cls.__name__

    def settings(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def clusters(self) -> int:
        return int(getattr(self, "n_clusters", 1))

    def check(self, n_clients: int, topology: Topology) -> None:
        """Refuse before the start what could not run."""
        require(self.clusters() >= 1, "n_clusters", self.clusters(), "1 or more")
        enough = self.soft or self.votes or self.clusters() <= max(n_clients, 1)
        require(enough, "n_clusters", self.clusters(), f"up to {n_clients}, the number of clients")
        if self.needs_server and not topology.is_server:
            raise CoterieError(f"{self.title()} needs a server; it cannot run over a graph")

    # at the aggregator

    def begin(self, state: State) -> State:
        """What the aggregator knows at first, besides centers."""
        return state

    def ask(self, state: State) -> Messages | None:
        return None

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        return state, state.offer(centers=state.centers)

    def combine(self, state: State, received: Received) -> State:
        raise NotImplementedError

    def spread(self, context: RoundContext) -> Spread:
        """How far messages go over a graph in this round: to neighbours, or by a flood or a tree to all."""
        return "neighbours"

    def passed(self, state: State) -> Messages:
        """What peers pass on along a tree, hop by hop, after each has combined what it sent itself."""
        raise NotImplementedError

    def join(self, state: State, received: Received) -> State:
        """What peers make of what neighbours passed on: what was added up below them, or for all above them."""
        raise NotImplementedError

    def needed(self, received: Received) -> Tensor:
        """(edge,) must the sender's row go to this aggregator? Counts bytes sent from point to point."""
        return torch.ones_like(received.edges[0], dtype=torch.bool)

    def final_offer(self, state: State) -> Messages:
        """What clients are sent when they are to make their personal models."""
        return state.offer(centers=state.centers)

    def trained_for(self, state: State, sent: Messages) -> Tensor:
        """(message,) the cluster that each row was trained for, or belongs to most."""
        for name, field in self.sends.items():
            if field.role == "choice":
                return sent.fields[name]
            if field.role == "importance":
                return sent.fields[name].argmax(1)
        return torch.zeros_like(sent.clients)

    # under privacy

    def n_reports(self, rounds: int) -> int:
        """How often a client reports in so many rounds."""
        return rounds if self.reports else 0

    def times_sent(self, rounds: int) -> dict[str, int]:
        """How often a client sends each field in so many rounds; what it only sends back does not count."""
        times = {name: rounds for name, field in self.sends.items() if not field.echo}
        for name in self.reports:
            times[name] = times.get(name, 0) + self.n_reports(rounds)
        return times

    def role(self, name: str) -> Role:
        """What a field means."""
        return {**self.reports, **self.sends}[name].role

    def trained_from(self, offer: Messages, sent: Fields) -> Tensor:
        """Where the model sent began, as the aggregator knows it: shaped as the model, (client, ..., width)."""
        name, field = next((n, f) for n, f in self.sends.items() if f.role in ROWS)
        if field.role == "update":
            return torch.zeros_like(sent[name])
        return offer.centers[:, 0] if field.shape == MODEL.shape else offer.centers

    # at the client

    def report(self, cohort: Cohort, offer: Messages) -> Fields:
        raise NotImplementedError

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        raise NotImplementedError

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        """(client, cluster) the share of a client's points that each center fits best."""
        return cohort.fractions(cohort.nearest(offer.centers), self.clusters())

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        """The model that a client would use now."""
        return Personal.single(offer.centers[:, 0])

    def finish(self, cohort: Cohort, offer: Messages) -> Personal:
        """The model that a client takes away at the end."""
        return self.personal(cohort, offer)

    def has_final_phase(self) -> bool:
        """Is the model at the end another than the one in use before?"""
        return type(self).finish is not Algorithm.finish

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        """Importance and model of clients that come after the end; they are offered the centers and no more."""
        return self.importance(cohort, offer), self.finish(cohort, offer)
