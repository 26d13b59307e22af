"""Clients that answer questions: their data, what they keep between rounds, and the stages that they know of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from coterie.protocol import blocks
from coterie.protocol.client_state import ClientState
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.questions import answer
from coterie.protocol.stages import Stages

MODELS = {"finish": ("rows",)}  # fields of an answer that need not lie on the device that computes


class Client:
    """One client, or many computed together as a cohort."""

    def __init__(self, cohort: Cohort, stages: Stages):
        self.cohort, self.stages = cohort, stages
        self.best: ClientState | None = None  # what was kept at the end of the best attempt so far

    def answer(self, question: Question, offer: Messages, context: RoundContext) -> Fields:
        """Of those that the offer names by their positions in the cohort."""
        stage, cohort = self.stages[context.stage], self.cohort
        if question == "begin":
            self.cohort = replace(cohort, training=stage.training, client_state=ClientState(len(cohort)))
        elif question == "keep":
            self.best = cohort.client_state
        elif question == "restore":
            best = ClientState(len(cohort)) if self.best is None else self.best
            self.cohort, self.best = replace(cohort, client_state=best), None
        elif len(offer):
            asked = cohort.take(offer.clients).when(context)
            return blocks.answered(partial(answer, question, stage), asked, offer, MODELS.get(question, ()))
        return {}

    def save(self) -> dict[str, Tensor]:
        """All that the rounds to come depend on."""
        tensors = self.cohort.client_state.tensors()
        if self.best is not None:
            tensors.update({f"best.{name}": t for name, t in self.best.tensors().items()})
        return tensors

    def load(self, tensors: dict[str, Tensor], order: Tensor) -> None:
        """Go back to it; order (client,) is where each client lies among those saved."""
        device = self.cohort.at.device
        best = {n.removeprefix("best."): t for n, t in tensors.items() if n.startswith("best.")}
        self.best = ClientState.of(best, order, device)
        self.cohort = replace(self.cohort, client_state=ClientState.of(tensors, order, device))


ITSELF = torch.zeros(1, dtype=torch.long)  # the position of a client that is alone in its cohort
