"""What a finished run leaves: centers, importance, and a model for every client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.data.federation import Task
from coterie.data.own.arrays import Client
from coterie.engine.rows import Rows
from coterie.errors import CoterieError
from coterie.protocol.result import Result
from coterie.runs import onboarding
from coterie.runs.client_table import client_lines, frame
from coterie.runs.inputs import Inputs
from coterie.runs.models import PersonalModels, TrainedModel, outputs_of
from coterie.runs.onboarding import Onboarded, Recipe
from coterie.runs.verdict import Verdict

if TYPE_CHECKING:
    import pandas

log = logging.getLogger("coterie")

Record = dict[str, Any]


class Run:
    """A finished run."""

    def __init__(
        self,
        rows: Rows,
        ids: tuple[str, ...],
        task: Task,
        result: Result,
        records: list[Record],
        summary: dict[str, Any],
        folder: Path | None = None,
        recipe: Callable[[], Recipe] | None = None,
    ):
        self.ids, self.task, self.records, self.summary, self.folder = ids, task, records, summary, folder
        self._rows, self._result, self._recipe = rows, result, recipe
        self._inputs, self._outputs = Inputs.of(summary), outputs_of(summary)  # of its models
        self.personal = PersonalModels(rows, ids, result.personal, self._inputs, self._outputs)
        self.classes: list[str] = summary["classes"]  # the words behind the labels, where they were words

    def __repr__(self) -> str:
        where = f", in {self.folder}" if self.folder else ""
        rounds = self.summary["rounds"]
        return f"<a run of {self.summary['algorithm']}: {len(self.ids)} clients, {rounds} rounds{where}>"

    @property
    def verdict(self) -> Verdict | None:
        """Whether its clusters are any good, in a few sentences; None where it has none."""
        return Verdict.of(self.summary.get("verdict"))

    @property
    def centers(self) -> list[TrainedModel]:
        """One model per cluster."""
        modules = [self._rows.module_of(row) for row in self._result.centers]
        return [TrainedModel(module, self._inputs, self._outputs) for module in modules]

    @property
    def importance(self) -> pandas.DataFrame:
        """How much of each cluster every client has."""
        import pandas

        return pandas.DataFrame(self._result.importance.cpu().numpy(), index=list(self.ids))

    @property
    def clients(self) -> pandas.DataFrame:
        """One line per client: its cluster, how sure that is, how many points it has, and its scores."""
        clusters = self.summary.get("clusters", len(self._result.centers))
        return frame(client_lines(self.ids, self._result, clusters))

    def onboard(self, x: Any, y: Any, id: str = "newcomer") -> Onboarded:
        """Take in a client that was not there: its importance, its own model, and how sure that is.

        It is offered the run's centers and does with them, once, what the algorithm has a client do. Nothing of
        the run changes. `id` decides what is drawn, as for every client.
        """
        return self.take_in(onboarding.client(self.summary, x, y, str(id)))

    def take_in(self, client: Client) -> Onboarded:
        """The same for a client that was read from a file."""
        if self._recipe is None:
            raise CoterieError(
                f"the run in {self.folder} was made in Python; to take in a client, give its algorithm and training "
                "too: coterie.load(folder, model, algorithm=..., training=...)"
            )
        if self.verdict is not None and self.verdict.good is False:
            log.warning("the run that this client joins is %s", self.verdict)
        return onboarding.onboard(self.summary, self._recipe(), self._result, client)

    @property
    def history(self) -> pandas.DataFrame:
        """One line per round."""
        import pandas

        return pandas.DataFrame(self.records)
