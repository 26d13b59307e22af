"""One node of a graph: a client that is also its own aggregator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.protocol.client import Client
from coterie.protocol.clients import Question
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.received import Received
from coterie.protocol.round import begin
from coterie.protocol.state import State

OWN_OFFER = ("choose", "evaluate", "finish", "likelihood", "loss")  # about models, which a peer offers itself


class Peer(Client):
    """In stages at a server it is a client like any other; over a graph it offers, trains and combines by itself."""

    state: State  # of a stage over a graph

    def answer(self, question: Question, offer: Messages, context: RoundContext) -> Fields:
        if self.stages[context.stage].topology.is_server:
            return super().answer(question, offer, context)
        if question == "begin":
            self._aggregate_from(offer, context)
        elif self.begun != (context.stage, context.before):
            raise CoterieError("it was not told the centers that this stage begins with")
        self.state = replace(self.state, context=context)
        if question == "state":
            return {"centers": self.state.centers, **self.state.fields}
        if question == "train":
            return self._train(context)
        algorithm, everyone = self.stages[context.stage].algorithm, self.state.for_everyone()
        if question == "pass":
            return algorithm.passed(everyone).fields
        if question == "separation":
            offer = everyone.offer(centers=self.state.centers)
        elif question == "judge":  # its own copies of the centers
            offer = Messages(offer.clients, {**offer.fields, "centers": self.state.centers})
        elif question in OWN_OFFER:
            offer = Messages(offer.clients, {**offer.fields, **algorithm.final_offer(everyone).fields})
        return super().answer(question, offer, context)

    def _aggregate_from(self, offer: Messages, context: RoundContext) -> None:
        """At the centers that it is given, with what else its aggregator knew if the run goes on from a checkpoint."""
        keys, rows = self.cohort.keys, self.cohort.model.rows
        known = {name: value for name, value in offer.fields.items() if name != "centers"}
        state = begin(self.stages[context.stage], offer.centers, keys, rows, context)
        self.state = replace(state, fields=known) if known else state

    def _train(self, context: RoundContext) -> Fields:
        """What a server's round does before it combines, with itself as the only client."""
        algorithm, reports = self.stages[context.stage].algorithm, None
        asked = algorithm.ask(self.state)
        if asked is not None:
            reports = Messages(asked.clients, super().answer("report", asked, context))
        self.state, offer = algorithm.plan(self.state, reports)
        return super().answer("train", offer, context)

    def combine(
        self,
        own: Fields | None,
        others: Sequence[Fields],
        context: RoundContext,
        weights: Tensor | None = None,
        passed: bool = False,
    ) -> None:
        """With what neighbours sent or `passed` on, and what it sent itself, if that was fit to be sent.

        `weights` are of its own message first, if there is one, then of the others; see `Graph.edge_weights`.
        """
        every = ([] if own is None else [own]) + list(others)
        if not every:
            return
        # to itself it is client 0; the neighbours have other numbers
        device = self.state.centers.device
        sender = torch.arange(0 if own is not None else 1, len(others) + 1, device=device)
        messages = Messages(sender, {n: torch.stack([one[n] for one in every]).to(device) for n in every[0]})
        number = torch.arange(len(messages), device=device)
        edges = torch.stack([torch.zeros_like(number), number])
        received = Received(messages, 1, edges, False, None if weights is None else weights.to(device))
        state = replace(self.state, context=context)
        algorithm = self.stages[context.stage].algorithm
        self.state = (algorithm.join if passed else algorithm.combine)(state, received)
