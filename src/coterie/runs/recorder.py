"""Plays a simulation round by round and writes down what happens."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from coterie.backends.evaluation import Result, Snapshot
from coterie.backends.simulation import Simulation
from coterie.errors import CoterieError
from coterie.protocol.cohort import is_shared
from coterie.protocol.message import Messages
from coterie.runs.folder import RunFolder
from coterie.runs.monitor import Monitor, last
from coterie.runs.onboarding import Recipe, own_fit
from coterie.runs.pace import EvaluationInterval, Every
from coterie.runs.result import Record, Run
from coterie.runs.signals import WholeRounds
from coterie.runs.summary import summarise

log = logging.getLogger("coterie")

Watch = Callable[[Record, int], None]  # called after each round: its record, and the number of rounds in all


class Recorder:
    """Plays a simulation and writes down what happens."""

    def __init__(
        self, simulation: Simulation, store: RunFolder | None, evaluate_every: Every, checkpoint_every: int
    ):
        self.simulation, self.store = simulation, store
        self.pace, self.checkpoint_every = (
            EvaluationInterval(evaluate_every, len(simulation.data)),
            checkpoint_every,
        )
        self.records: list[Record] = []
        self.monitor = Monitor(simulation)
        self._last: Result | None = None  # how things stand after the last round

    def open(self, experiment: str, resume: bool) -> None:
        """Begin in an empty folder, or go on from the last checkpoint."""
        store, group = self.store, self.simulation.group
        if store is None:
            return
        group.once(lambda: store.open(experiment, resume))
        saved = group.agree(store.checkpoint)
        seen: list[dict[str, int] | None] = group.all(lambda: None if saved is None else saved[1])
        if any(one != seen[0] for one in seen):
            raise CoterieError(
                f"not every process sees the checkpoint in {store.folder}; its disk must be shared by all hosts"
            )
        if saved is not None:
            self.simulation.load(*saved)
        played = self.simulation.progress.played
        self.records = group.once(lambda: store.keep_records(played))
        for record in self.records:
            self.pace.played(record["sent"])

    def play_all(self, watch: Watch | None = None) -> None:
        """The rounds to come; Ctrl-C ends them after a whole round, with a checkpoint."""
        simulation = self.simulation
        with WholeRounds(simulation.group) as whole:
            while not simulation.done:
                record = self.play()
                try:
                    if watch is not None and simulation.group.first:
                        watch(record, simulation.progress.planned)
                except KeyboardInterrupt:
                    whole.asked = True
                if whole.asked_anywhere():
                    self.checkpoint()
                    raise KeyboardInterrupt

    def play(self) -> Record:
        """One round, and its record."""
        simulation, began = self.simulation, time.perf_counter()
        sent = simulation.step()
        done, algorithm = simulation.progress.played, simulation.stage.algorithm.title()
        record: Record = {
            "round": done - 1,
            "stage": simulation.progress.stage,
            "algorithm": algorithm,
            "sent": len(sent),
        }
        if simulation.stage.n_init > 1:
            record["attempt"] = simulation.progress.attempt
        record["loss"] = _number(simulation.training_loss(sent))  # waits for a GPU to be done
        trained = time.perf_counter()
        columns: dict[str, Tensor] = {}
        _note(record, columns, self.monitor.each_round(sent))
        if self.pace.played(len(sent)) or (self.pace.every and simulation.done):
            columns.update(self._evaluate(record, sent))
        self._warn_if_diverged(record)
        record.update(simulation.traffic.named())
        ended = time.perf_counter()
        record.update(seconds=round(ended - began, 4), seconds_evaluating=round(ended - trained, 4))
        self.records.append(record)
        self._write(lambda store: store.write_round(done - 1, record, columns))
        if done % self.checkpoint_every == 0 or simulation.done:
            self.checkpoint()
        return record

    def _warn_if_diverged(self, record: Record) -> None:
        for name in ("loss", "test_loss"):
            if record.get(name) is not None and math.isinf(record[name]):
                record[name] = None  # JSON has no word for infinity
                log.warning(
                    "some clients have diverged: their %s is not finite; a smaller training rate may help",
                    name,
                )

    def checkpoint(self) -> None:
        """Between rounds: the records on disk reach at least as far as any checkpoint."""
        if self.store is not None:
            saved = self.simulation.save()
            self._write(lambda store: store.write_checkpoint(*saved))

    def _write(self, what: Callable[[RunFolder], object]) -> None:
        """By the first process; where it cannot, all stop."""
        store = self.store
        if store is not None:
            self.simulation.group.once(lambda: what(store))

    def _evaluate(self, record: Record, sent: Messages) -> dict[str, Tensor]:
        """The clients' present models on their held-out points: means to the record, the rest as columns."""
        look: Snapshot
        if self.simulation.done and not self.simulation.stage.algorithm.has_final_phase():
            look = self._last = self.simulation.result()  # which it will end with
        else:
            look = self.simulation.look()
        columns = {"importance": look.importance}
        for name, each in (look.scores.named() if look.scores else {}).items():
            record[f"test_{name}"] = _number(float(each.nanmean()))
            columns[f"test_{name}"] = each
        _note(record, columns, self.monitor.evaluated(sent, look))
        return columns

    def finish(self) -> Run:
        """The final phase, the table's numbers, the results."""
        simulation, store = self.simulation, self.store
        if self._last is None:
            result = simulation.result(final=True)
        else:
            result = self._last
            simulation.count_final_offer()
        result = replace(result, fit=own_fit(simulation, result.centers))
        summary = summarise(simulation, result)
        summary["meters"] = last(self.records, simulation.progress.stage)
        result = simulation.whole(result)
        if store is not None:
            rows = result.personal.rows
            tensors = {
                "centers": result.centers,
                "importance": result.importance,
                "personal.rows": rows[:1] if is_shared(rows) else rows,
                "personal.weights": result.personal.weights,
            }
            if result.fit is not None:
                tensors["fit"] = result.fit
            self._write(lambda store: store.write_result(tensors, simulation.data.ids, summary))
        folder = None if store is None else store.folder
        recipe = Recipe.of(simulation)
        return Run(
            simulation.model.rows,
            simulation.data.ids,
            simulation.data.task,
            result,
            self.records,
            summary,
            folder,
            lambda: recipe,
        )


def _note(record: Record, columns: dict[str, Tensor], read: tuple[Record, dict[str, Tensor]]) -> None:
    """Put down what the meters read."""
    record.update(read[0])
    columns.update(read[1])


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return None if value != value else value
