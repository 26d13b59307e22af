from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import Declared
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal
from coterie.protocol.received import Received
from coterie.protocol.state import State


@dataclass(frozen=True)
class Local(Algorithm):
    """Every client trains alone, from the common random initialisation.

    Sent: nothing. Kept: my row, which is my personal model.
    """

    bibtex: ClassVar[str] = ""
    sends: ClassVar[Declared] = {}

    def plan(self, state: State, reports: Messages | None) -> tuple[State, Messages]:
        return state, state.offer()

    def combine(self, state: State, received: Received) -> State:
        return state

    def final_offer(self, state: State) -> Messages:
        return state.offer()

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        cohort.keep("row", cohort.solve(cohort.recall("row", cohort.initial)))
        return {}

    def importance(self, cohort: Cohort, offer: Messages) -> Tensor:
        return cohort.initial.new_ones(len(cohort), 1)

    def personal(self, cohort: Cohort, offer: Messages) -> Personal:
        return Personal.single(cohort.recall("row", cohort.initial))

    def onboard(self, cohort: Cohort, offer: Messages) -> tuple[Tensor, Personal]:
        for t in range(cohort.context.rounds):  # as long as the others trained
            self.train(cohort.when(replace(cohort.context, round=t)), offer)
        return super().onboard(cohort, offer)
