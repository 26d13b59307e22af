"""Plays a run round by round and writes down what happens."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from torch import Tensor

from coterie.backends.processes import here
from coterie.data.federation import Description
from coterie.engine import storage
from coterie.errors import CoterieError
from coterie.files import finite
from coterie.protocol.clients import Refused
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.fit import Fit
from coterie.protocol.message import Messages
from coterie.protocol.personal import is_shared
from coterie.protocol.result import Result, Snapshot
from coterie.protocol.state import State
from coterie.runs import client_table
from coterie.runs.alarms import Alarms
from coterie.runs.divergence import Divergence, Stop
from coterie.runs.folder import RunFolder
from coterie.runs.judging import verdict_of
from coterie.runs.monitor import Monitor, last
from coterie.runs.onboarding import Recipe, ask_fit, placed_elsewhere
from coterie.runs.result import Record, Run
from coterie.runs.signals import WholeRounds
from coterie.runs.summary import summarise
from coterie.runs.verdict import Verdict

log = logging.getLogger("coterie")

Watch = Callable[[Record, int], None]  # called after each round: its record, and the number of rounds in all
Every = int | Literal["auto"]  # rounds from one evaluation to the next; 0: never

GOOD = "good.centers"  # in a checkpoint: those to go back to

SELDOM = 60.0  # seconds between checkpoints of a run that keeps no models

LEAST = 10  # rounds at "auto" ...
PART = 2  # ... and until as many messages were sent as one in so many of the clients, ...
MOST = 100  # ... but no more


class EvaluationInterval:
    """Counts rounds from one evaluation to the next.

    An evaluation asks every client, whoever trained: with thousands of them and a few in a round it would take longer
    than the training.
    """

    def __init__(self, every: Every, clients: int):
        self.every, self.clients = every, clients
        self._rounds, self._messages = 0, 0

    def played(self, messages: int) -> bool:
        """One more round was played, in which so many messages were sent: are models to be evaluated now?"""
        self._rounds += 1
        self._messages += messages
        if self.every == "auto":
            due = (self._rounds >= LEAST and PART * self._messages >= self.clients) or self._rounds >= MOST
        else:
            due = self._rounds == self.every
        if due:
            self._rounds, self._messages = 0, 0
        return due


class Recorder:
    """Plays a run and writes down what happens, in its folder if it has one."""

    def __init__(
        self,
        coordinator: Coordinator,
        about: Description,
        store: RunFolder | None,
        evaluate_every: Every,
        checkpoint_every: int,
    ):
        self.coordinator, self.about, self.store = coordinator, about, store
        self.interval = EvaluationInterval(evaluate_every, len(coordinator))
        self.checkpoint_every = checkpoint_every
        self._checkpointed = time.perf_counter()  # when
        self.records: list[Record] = []
        self.monitor = Monitor(coordinator, about)
        self.alarms = Alarms()
        self.divergence = Divergence(coordinator.ids, self._ask_scale)
        self._good: Tensor | None = None  # the last centers that clients could train from
        self._last: Result | None = None  # how things stand after the last round

    def open(self, experiment: str, resume: bool) -> None:
        """Begin in an empty folder, or go on from the last checkpoint."""
        store, group = self.store, self.coordinator.clients.group
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
            tensors, numbers = saved
            self.coordinator.load(tensors, numbers)
            self.divergence.load(tensors, numbers, self.coordinator.keys)
            self._good = self._good_of(tensors) if GOOD in tensors else None
        played = self.coordinator.progress.played
        self.records = group.once(lambda: store.keep_records(played))
        for record in self.records:
            self.interval.played(record["sent"])

    def play_all(self, watch: Watch | None = None) -> None:
        """The rounds to come; Ctrl-C ends them after a whole round, with a checkpoint."""
        coordinator = self.coordinator
        with WholeRounds(here()) as whole:
            while not coordinator.done and self.divergence.stop is None:
                record = self.play()
                try:
                    if watch is not None and coordinator.clients.group.first:
                        watch(record, coordinator.progress.planned)
                except KeyboardInterrupt:
                    whole.asked = True
                if whole.asked_anywhere():
                    self.checkpoint()
                    raise KeyboardInterrupt

    def play(self) -> Record:
        """One round, and its record."""
        coordinator, began = self.coordinator, time.perf_counter()
        before = coordinator.state
        sent = coordinator.step()
        progress = coordinator.progress
        record: Record = {
            "round": progress.played - 1,
            "stage": progress.stage,
            "algorithm": coordinator.stage.algorithm.title(),
            "sent": len(sent),
        }
        if coordinator.stage.n_init > 1:
            record["attempt"] = progress.attempt
        # in its first round nobody knows yet whether centers have stopped to separate
        until = coordinator.stage.until == "separated" and coordinator.stage.rounds > 1
        if until and progress.over and progress.last_attempt:
            record["separated"] = progress.ended
            following = coordinator.stages[progress.stage + 1 : progress.stage + 2]
            self.alarms.stage_ended(coordinator.stage, following, progress.ended)
        found = self.monitor.ask("training_loss", Messages(sent.clients, {})) if len(sent) else None
        record["loss"] = mean_loss(found)  # waits for a GPU to be done
        self._watch(before, sent, found)
        self.alarms.received(len(sent), coordinator.state)
        trained = time.perf_counter()
        columns: dict[str, Tensor] = {}
        _note(record, columns, self.monitor.each_round(sent))
        if self.interval.played(len(sent)) or (self.interval.every and coordinator.done):
            columns.update(self._evaluate(record, sent))
        self._warn_if_diverged(record)
        record.update(coordinator.traffic.named())
        ended = time.perf_counter()
        record.update(seconds=round(ended - began, 4), seconds_evaluating=round(ended - trained, 4))
        self.records.append(record)
        self._write(lambda store: store.write_round(record["round"], record, columns))
        if self._checkpoint_is_due():
            self.checkpoint()
        return record

    def _checkpoint_is_due(self) -> bool:
        """Where models are not kept a checkpoint may be most of what is ever written: then not often."""
        due = self.coordinator.progress.played % self.checkpoint_every == 0 or self.coordinator.done
        if not due or self.store is None or self.store.models:
            return due
        waited = time.perf_counter() - self._checkpointed
        return self.coordinator.clients.group.once(lambda: waited > SELDOM)

    def _watch(self, before: State, sent: Messages, found: Messages | None) -> None:
        """Does the run diverge, and is anybody heard? `before` is how things stood as the round began."""
        coordinator, rounds = self.coordinator, self.coordinator.progress.played
        counts = coordinator.stage.n_init == 1
        self.divergence.played(rounds, sent, found, coordinator.left_out, counts)
        anybody = bool(len(sent)) or bool(len(coordinator.left_out))
        self.divergence.heard(anybody, rounds, coordinator.stage.participation)
        if self.divergence.good:
            now = coordinator.state  # perhaps of another stage, or attempt
            same = (before.context.stage, before.context.before) == (now.context.stage, now.context.before)
            self._keep(before if same else now)

    def _keep(self, state: State) -> None:
        """Its centers, to go back to; unless peers have them themselves, or they are a large table."""
        small = state.at_server or state.centers.nbytes <= storage.budget(state.centers.device)
        self._good = state.centers if small and not self.coordinator.among_peers else None

    def _good_of(self, tensors: dict[str, Tensor]) -> Tensor:
        """Those of a checkpoint: of a server, or of clients that may be listed in another order now."""
        state = self.coordinator.state
        kept = tensors[GOOD].to(state.centers.device)
        saved = {key: i for i, key in enumerate(tensors["clients"].tolist())}
        return kept if len(kept) == 1 else kept[[saved[key] for key in state.keys.tolist()]]

    def _ask_scale(self) -> Messages | None:
        """Not under privacy, which covers what the algorithm has clients send and no more."""
        private = any(stage.privacy is not None for stage in self.coordinator.stages)
        return None if private else self.monitor.ask("scale", self.coordinator.state.for_everyone().offer())

    def _warn_if_diverged(self, record: Record) -> None:
        for name in ("loss", "test_loss"):
            if record.get(name) is not None and math.isinf(record[name]):
                record[name] = None  # JSON has no word for infinity
                if name == "test_loss":
                    log.warning(
                        "the model of some client has a loss on its held-out points that is not finite"
                    )

    def _warn_if_elsewhere(self, clients: int, first: list[str]) -> None:
        if clients:
            log.warning(
                "%d of %d clients %s in another cluster than onboarding would find for %s data: %s",
                clients,
                len(self.coordinator),
                *(("is", "its") if clients == 1 else ("are", "their")),
                ", ".join(map(repr, first)) + (", ..." if clients > len(first) else ""),
            )

    def checkpoint(self) -> None:
        """Between rounds: the records on disk reach at least as far as any checkpoint. None while a run diverges."""
        self._checkpointed = time.perf_counter()
        if self.store is not None and not self.divergence.in_a_row:
            tensors, numbers = self.coordinator.save()
            more, counts = self.divergence.save()
            if self._good is not None:
                more[GOOD] = self._good
            self._write(lambda store: store.write_checkpoint({**tensors, **more}, {**numbers, **counts}))

    def _write(self, what: Callable[[RunFolder], object]) -> None:
        """By the first process; where it cannot, all stop."""
        store = self.store
        if store is not None:
            self.coordinator.clients.group.once(lambda: what(store))

    def _evaluate(self, record: Record, sent: Messages) -> dict[str, Tensor]:
        """The clients' present models on their held-out points: means to the record, the rest as columns."""
        coordinator = self.coordinator
        snapshot: Snapshot
        try:
            if coordinator.done and not coordinator.stage.has_final_phase():
                snapshot = self._last = coordinator.finish()  # which it will end with
            else:
                snapshot = coordinator.evaluate()
        except Refused as why:
            self.monitor.refused["evaluate"] = str(why)
            return {}
        return self._columns(record, sent, snapshot)

    def _columns(self, record: Record, sent: Messages, snapshot: Snapshot) -> dict[str, Tensor]:
        columns = {"importance": snapshot.importance}
        if not self.coordinator.stage.algorithm.votes:
            self.alarms.evaluated((record["stage"], record.get("attempt", 0)), snapshot)
        for name, each in (snapshot.scores.named() if snapshot.scores else {}).items():
            record[f"test_{name}"] = _number(float(each.nanmean()))
            columns[f"test_{name}"] = each
        _note(record, columns, self.monitor.evaluated(sent, snapshot))
        return columns

    def _finished(self) -> Result:
        """Clients that may not be asked for their models keep them, and the run has its centers all the same."""
        try:
            return self.coordinator.finish()
        except Refused as why:
            self.monitor.refused["finish"] = str(why)
            state = self.coordinator.state
            importance = state.centers.new_full((len(self.coordinator), state.centers.shape[1]), math.nan)
            return Result.unknown(storage.mean(state.centers), importance)

    def _ended(self) -> tuple[Result, Stop | None]:
        """What the run ends with, and why, if not well."""
        rounds = self.coordinator.progress.played
        self.divergence.at_the_end(rounds)
        stop = self._stop()
        result = self._finished() if self._last is None else self._last
        if stop is None and rounds and result.scores is not None:
            self.divergence.scored(rounds, result.scores.loss)
            stop = self._stop()
            result = result if stop is None else self._finished()
        return result, stop

    def _stop(self) -> Stop | None:
        """Has the run diverged, or was nobody heard? It has the last good centers then."""
        stop = self.divergence.stop
        good, now = self._good, self.coordinator.state.centers
        if stop is not None and stop.diverged and good is not None and good.shape == now.shape:
            self.coordinator.go_back(good)
            self._last = None
            stop = replace(stop, says=f"{stop.says} The last good centers were kept.")
        return stop

    def finish(self) -> Run:
        """The final phase, the table's numbers, the results."""
        coordinator, store = self.coordinator, self.store
        result, stop = self._ended()
        coordinator.count_final_offer()
        answered = ask_fit(coordinator, self.monitor.ask, result.centers)
        if answered is not None:
            margin = answered.scattered("margin", len(coordinator)) if "margin" in answered.fields else None
            result = replace(result, fit=Fit.of(answered), margin=margin)
        result = replace(result, sizes=self.monitor.sizes())
        summary = summarise(coordinator, self.about, result)
        if answered is not None and len(result.centers) > 1:
            summary["placed_elsewhere"] = placed_elsewhere(coordinator.ids, result.importance, answered)
            self._warn_if_elsewhere(**summary["placed_elsewhere"])
        summary["metrics"] = last(self.records, coordinator.progress.stage)
        verdict = verdict_of(coordinator, self.monitor.ask, result, self.records)
        if stop is not None:
            summary["stopped"] = {"rounds": stop.rounds, "says": stop.says}
            log.warning(stop.says)
            verdict = Verdict(False, ("diverged",), (stop.says,)) if verdict and stop.diverged else verdict
            if verdict and self.divergence.silent == stop.rounds:  # nobody was ever heard
                verdict = replace(verdict, good=False, sentences=(stop.says,))
        if verdict is not None:
            summary["verdict"] = finite(verdict.as_dict())
        if self.monitor.refused:
            summary["not_asked"] = self.monitor.refused
        tables = partial(client_table.files, coordinator.ids, result, summary["clusters"])
        self._write(lambda store: store.write_result(_tensors(result), coordinator.ids, tables(), summary))
        recipe = Recipe.of(coordinator)
        return Run(
            coordinator.model.rows,
            coordinator.ids,
            self.about.task,
            result,
            self.records,
            summary,
            None if store is None else store.folder,
            lambda: recipe,
        )


def mean_loss(found: Messages | None) -> float | None:
    """The mean loss that those received saw while training, infinite if one of them diverged."""
    return _number(float(found.loss.nanmean())) if found is not None and len(found) else None


def _tensors(result: Result) -> dict[str, Tensor]:
    """As result.safetensors keeps them; one model for all is kept once."""
    rows = result.personal.rows
    tensors = {
        "centers": result.centers,
        "importance": result.importance,
        "personal.rows": rows[:1] if is_shared(rows) else rows,
        "personal.weights": result.personal.weights,
    }
    known = {"margin": result.margin, "size": result.sizes, "common": result.common, "prior": result.prior}
    known["personal.way"] = result.personal.way
    if result.fit is not None:
        known.update({"fit.losses": result.fit.losses, "fit.points": result.fit.points})
    known.update(
        {f"personal.{n}": each for n, each in (result.scores.named() if result.scores else {}).items()}
    )
    return {**tensors, **{name: each for name, each in known.items() if each is not None}}


def _note(record: Record, columns: dict[str, Tensor], read: tuple[Record, dict[str, Tensor]]) -> None:
    """Put down what was measured."""
    record.update(read[0])
    columns.update(read[1])


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return None if value != value else value
