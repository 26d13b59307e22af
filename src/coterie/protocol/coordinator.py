"""Plays the stages of a run, round by round, over clients that may be anywhere."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.engine import storage
from coterie.engine.model import FunctionalModel
from coterie.errors import CoterieError
from coterie.prng import id_keys
from coterie.protocol import common_model, personalise, privacy_accountant
from coterie.protocol.clients import Clients, Question
from coterie.protocol.message import Messages
from coterie.protocol.result import Result, Snapshot
from coterie.protocol.round import begin, first_centers, hand_over, measure_separation, play_round
from coterie.protocol.separation import separated
from coterie.protocol.stages import Progress, Stage, Stages
from coterie.protocol.state import State
from coterie.protocol.traffic import Traffic

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Attempt:
    """How an attempt ended; what its clients kept, they have."""

    loss: float
    state: State
    prior: Tensor | None = None


class Coordinator:
    """Can be saved between any two rounds and go on later."""

    def __init__(
        self, model: FunctionalModel, stages: Stages, clients: Clients, ids: tuple[str, ...], seed: int = 0
    ):
        check(stages, len(ids))
        self.model, self.stages, self.clients, self.ids, self.seed = model, stages, clients, ids, seed
        self.keys = id_keys(ids).to(model.device)
        self.traffic = Traffic()
        self.progress = Progress(stages)
        self.left_out = self.keys[:0]  # (client,) whose messages of the last round were not finite
        self.best: Attempt | None = None  # of the attempts of this stage that are over
        # (1, 1, width) the model that all clients have in common, where one is trained beside the centers
        self.common = first_centers(model, 1) if common_model.is_trained(stages) else None
        self.prior: Tensor | None = None  # (1, way) what clients found of the ways to personal models
        self.state = self._enter(first_centers(model, stages[0].algorithm.clusters()))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def stage(self) -> Stage:
        return self.progress.now

    @property
    def done(self) -> bool:
        return self.progress.done

    @property
    def among_peers(self) -> bool:
        """Does every client hold what its own aggregator knows?"""
        return self.clients.peers and not self.stage.topology.is_server

    # rounds

    def step(self) -> Messages:
        """Play one round; the messages that arrived in it."""
        if self.progress.over:
            self._go_on()
        self.progress.round += 1
        state = replace(self.state, context=self.progress.context(self.seed))
        self.state, sent, self.left_out = play_round(self.stage, state, self.clients, self.ids, self.traffic)
        if self.common is not None and len(sent):
            self.common = common_model.play_round(
                self.common, self.state, self.clients, sent.clients, self.traffic
            )
        if self.stages[-1].personal == "auto":
            self._choose_if_due()
        if self.stage.until == "separated":
            self._end_if_separated(sent.clients)
        if self.progress.over and self.stage.n_init > 1:
            self._compare_attempts()
            return Messages(sent.clients, {})  # what was sent need not be of the attempt that goes on
        return sent

    def _choose_if_due(self) -> None:
        progress = self.progress
        if progress.stage + 1 == len(self.stages) and progress.round == personalise.chosen_after(
            self.stage.rounds
        ):
            self.count_final_offer()
            tried = self.ask_everyone("choose")
            self.prior = personalise.prior(tried)
            if self.stage.topology.is_server:
                self.traffic.to_server(tried)

    def _end_if_separated(self, who: Tensor) -> None:
        found = measure_separation(self.state, self.clients, who, self.traffic)
        self.progress.ended = self.clients.group.once(lambda: separated(found))
        if self.progress.ended and self.progress.round < self.stage.rounds:
            log.info(
                "the centers are separated: the stage ends after %d of at most %d rounds",
                self.progress.round,
                self.stage.rounds,
            )

    def _go_on(self) -> None:
        """To the next attempt from other random centers, or to the next stage from the present ones."""
        before, state = self.stage, self.state
        self.progress.go_on()
        if self.progress.attempt:
            clusters = self.stage.algorithm.clusters()
            centers = first_centers(self.model, clusters, self.progress.attempt)
        else:
            rows, n = self.model.rows, len(self)
            centers = hand_over(before, self.stage, state.centers, rows, n, self.seed, self.traffic)
        self.state = self._enter(centers)

    def _enter(self, centers: Tensor) -> State:
        """Begin a stage or an attempt at centers (aggregator, cluster, width); clients forget what they kept."""
        context = self.progress.context(self.seed)
        state = begin(self.stage, centers, self.keys, self.model.rows, context)
        self._begin_at_clients(state)
        return state

    def _begin_at_clients(self, state: State, **known: Tensor) -> None:
        """Peers are sent the centers, and what else their aggregators know."""
        everybody = state.for_everyone()
        offer = everybody.offer(centers=state.centers, **known) if self.among_peers else everybody.offer()
        self.clients.ask("begin", offer, state.context)

    def _compare_attempts(self) -> None:
        """Keep the best attempt so far; at the end of the last one, go on as if it had been the only one."""
        who = everyone.positions(len(self), self.keys.device)
        found = measure_separation(self.state, self.clients, who, self.traffic)
        loss = self.clients.group.once(lambda: _mean_loss(found))
        everybody = self.state.for_everyone().offer()
        if self.best is None or loss < self.best.loss:
            self.best = Attempt(loss, self.state, self.prior)
            self.clients.ask("keep", everybody, self.state.context)
        if self.progress.last_attempt:
            self.state = replace(self.best.state, context=self.state.context)
            self.prior, self.best = self.best.prior, None
            self.clients.ask("restore", everybody, self.state.context)

    def go_back(self, centers: Tensor) -> None:
        """To earlier centers of this stage; what clients keep stays as it is."""
        self.state = replace(self.state, centers=centers)

    # models

    @property
    def has_centers(self) -> bool:
        """Does the algorithm have any to offer?"""
        return bool(self.stage.algorithm.final_offer(self.state.for_everyone()).fields)

    def ask_everyone(self, question: Question) -> Messages:
        """With the final offer, which peers make themselves."""
        state = self.state.for_everyone()
        if self.among_peers:
            more = {} if self.prior is None else {"prior": self.prior}
            return self.clients.ask(question, state.offer(**more), state.context)
        offer = (
            self.last_offer() if question in ("choose", "finish") else self.stage.algorithm.final_offer(state)
        )
        return self.clients.ask(question, offer, state.context)

    def last_offer(self) -> Messages:
        """The final offer; who makes a model in another way than the algorithm's needs all centers for it."""
        state = self.state.for_everyone()
        offer = self.stage.algorithm.final_offer(state)
        if self.stage.personal == "own":
            return offer
        more = {"common": None if self.common is None else self.common[:, 0], "prior": self.prior}
        every = state.offer(centers=state.centers, **{n: t for n, t in more.items() if t is not None})
        return Messages(offer.clients, {**offer.fields, **every.fields})

    def evaluate(self) -> Snapshot:
        """How things stand; the clients' models stay with them."""
        return Snapshot.of(storage.mean(self.state.centers), self.ask_everyone("evaluate"), len(self))

    def finish(self) -> Result:
        """The clients' models after the algorithm's final phase."""
        result = Result.of(storage.mean(self.state.centers), self.ask_everyone("finish"), len(self))
        common = None if self.common is None else self.common[0, 0]
        return replace(result, common=common, prior=None if self.prior is None else self.prior[0])

    def count_final_offer(self) -> None:
        """Count what a server sends when clients are to make their last models."""
        if self.stage.topology.is_server:
            self.traffic.to_clients(self.last_offer())

    # saving

    def save(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """All that the rounds to come depend on."""
        tensors = {"clients": self.keys, **_packed(self.state), **self.clients.save(self.state.context)}
        if self.common is not None:
            tensors["common"] = self.common
        if self.prior is not None:
            tensors["prior"] = self.prior
        if self.best is not None:
            tensors.update({f"best.{name}": t for name, t in _packed(self.best.state).items()})
            tensors["best.loss"] = torch.tensor(self.best.loss, dtype=torch.float64)
            tensors.update({} if self.best.prior is None else {"best.prior": self.best.prior})
        return tensors, {**self.progress.numbers(), **self.traffic.named()}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, int]) -> None:
        """Go on from what was saved, with clients that may be listed in another order now."""
        saved = {key: i for i, key in enumerate(tensors["clients"].tolist())}
        if saved.keys() != set(self.keys.tolist()):
            raise CoterieError("the run that was saved had other clients; it can be resumed with those alone")
        order = torch.tensor([saved[key] for key in self.keys.tolist()])
        self.progress.set(numbers)
        if "best.centers" in tensors:
            best = {n.removeprefix("best."): t for n, t in tensors.items() if n.startswith("best.")}
            self.best = Attempt(float(best["loss"]), self._unpacked(best, order), best.get("prior"))
        if self.common is not None:
            self.common = tensors["common"].to(self.model.device)
        if "prior" in tensors:
            self.prior = tensors["prior"].to(self.model.device)
        self.state = self._unpacked(tensors, order)
        self._begin_at_clients(self.state, **self.state.fields)
        self.clients.load(tensors, order, self.state.context)
        self.traffic = Traffic(**{n: numbers[n] for n in self.traffic.named()})

    def _unpacked(self, tensors: dict[str, Tensor], order: Tensor) -> State:
        device, centers = self.model.device, tensors["centers"]
        centers = centers if self.stage.topology.is_server else storage.take(centers, order)
        fields = {
            n.removeprefix("state."): storage.take(t, order).to(device)
            for n, t in tensors.items()
            if n.startswith("state.")
        }
        context = self.progress.context(self.seed)
        state = begin(self.stage, centers.to(device), self.keys, self.model.rows, context)
        return replace(state, fields=fields)


def _mean_loss(found: Messages) -> float:
    """One that is not a number is the worst, and so is none."""
    return float(found.loss.nan_to_num(torch.inf).mean()) if len(found) else math.inf


def check(stages: Stages, n_clients: int) -> None:
    """Refuse before the start what could not run."""
    stages.check(n_clients)
    privacy_accountant.check(stages)


def _packed(state: State) -> dict[str, Tensor]:
    return {"centers": state.centers, **{f"state.{n}": t for n, t in state.fields.items()}}
