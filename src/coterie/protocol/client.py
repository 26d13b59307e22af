"""Clients that answer questions: their data, what they keep between rounds, and the stages that they know of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from coterie.data.federation import Points
from coterie.protocol import blocks
from coterie.protocol.client_state import ClientState
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.personalise import held_out
from coterie.protocol.questions import answer
from coterie.protocol.stages import Stages

ALL_POINTS = ("choose", "finish", "size")  # questions about all of a client's points
AT_HOME = {"finish": ("rows",)}  # fields of an answer that need not lie on the device that computes


class Client:
    """One client, or many computed together as a cohort."""

    def __init__(self, cohort: Cohort, stages: Stages):
        self.cohort, self.stages = cohort, stages
        self.best: ClientState | None = None  # what was kept at the end of the best attempt so far
        self._known: Points | None = None
        self.begun: tuple[int, int] | None = None  # the stage, and the rounds before this attempt of it

    def answer(self, question: Question, offer: Messages, context: RoundContext) -> Fields:
        """Of those that the offer names by their positions in the cohort."""
        if question == "begin" or self.begun != (context.stage, context.before):
            self._begin(context)  # who missed the question begins with the first one that comes
        cohort = self.cohort
        if question == "keep":
            self.best = cohort.client_state
        elif question == "restore":
            best = ClientState(len(cohort)) if self.best is None else self.best
            self.cohort, self.best = replace(cohort, client_state=best), None
        elif question != "begin" and len(offer):
            if question not in ALL_POINTS and self.stages.hold_out(context):
                cohort = replace(cohort, points=self._known_points(context))
            asked = cohort.take(offer.clients).when(context)
            return blocks.answered(
                partial(answer, question, self.stages), asked, offer, AT_HOME.get(question, ())
            )
        return {}

    def _known_points(self, context: RoundContext) -> Points:
        """Without those that clients hold out."""
        if self._known is None:
            self._known = self.cohort.points.only(~held_out(self.cohort.when(context)))
        return self._known

    def _begin(self, context: RoundContext) -> None:
        """A stage or an attempt: train as it says, and forget what was kept."""
        training, nothing = self.stages[context.stage].training, ClientState(len(self.cohort))
        self.cohort = replace(self.cohort, training=training, client_state=nothing)
        self.begun = context.stage, context.before

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
