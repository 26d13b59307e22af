"""Clients one at a time, each a cohort of one with its own memory; all that passes between them is bytes.

Slow and honest: what comes out equal here and in `simulate` leans on nothing that a real client would not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.backends.evaluation import Result
from coterie.backends.simulation import (
    begin,
    finite_only,
    first_centers,
    hand_over,
    look_around,
    loss_of_try,
    play_round,
)
from coterie.data.federation import Federation
from coterie.engine.model import LOSSES, FunctionalModel
from coterie.engine.rows import Build
from coterie.prng import id_keys
from coterie.protocol import privacy_accountant
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort, Personal, RoundContext
from coterie.protocol.message import Messages, Traffic
from coterie.protocol.privacy import private
from coterie.protocol.received import Received, State
from coterie.protocol.selection import Answer
from coterie.protocol.separation import look, separated
from coterie.protocol.stages import Progress, Stage, Stages
from coterie.protocol.topology import Server

SELF = torch.zeros(1, dtype=torch.long)  # a cohort of one has one client


@dataclass
class Apart:
    """The other side of the wire: for each client a cohort of its own."""

    cohorts: list[Cohort]

    def tell(self, answer: Answer, offer: Messages, context: RoundContext) -> Messages:
        letters = []
        for i, client in enumerate(offer.clients.tolist()):
            trained_from = Messages.from_bytes(SELF, [offer.to_bytes(i)])
            sent = answer(self.cohorts[client].when(context), trained_from)
            letters.append(Messages(SELF, sent).to_bytes(0))
        return Messages.from_bytes(offer.clients, letters)


def run_apart(
    build: Build, data: Federation, stages: Stages, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Result, Traffic]:
    """All rounds of all stages on the CPU."""
    stages.check(len(data))
    privacy_accountant.check(stages)
    model = FunctionalModel(
        build,
        LOSSES[data.task],
        device=torch.device("cpu"),
        dtype=dtype,
        seed=seed,
        normalise=data.normalise,
        augment=data.augment,
    )
    train = data.train.to(model.device, dtype)
    model.probe(train.x[train.at[:4]], train.y[:4])
    traffic, progress = Traffic(), Progress(stages)
    centers, best = first_centers(model, stages[0].algorithm.clusters()), None
    while True:
        stage = progress.now
        whole = Cohort.whole(model, stage.training, train, id_keys(data.ids), data.task, seed)
        whole = replace(whole, privacy=stage.privacy)
        cohorts = [
            replace(whole.take(torch.tensor([i])), at=SELF, client_state=ClientState(1))
            for i in range(len(data))
        ]
        play = _play_at_server if stage.topology.is_server else _play_among_peers
        states = play(progress, centers, cohorts, data, seed, traffic)
        if stage.n_init > 1:
            looked = look_around(states[0], Apart(cohorts), torch.arange(len(data)), traffic)
            loss = loss_of_try(looked)
            best = (loss, states, cohorts) if best is None or loss < best[0] else best
            if progress.last_attempt:
                (_, states, cohorts), best = best, None
        if progress.done:
            return _result(stage, states, cohorts), traffic
        centers = torch.cat([state.centers for state in states])
        progress.go_on()
        if progress.attempt:
            centers = first_centers(model, stage.algorithm.clusters(), progress.attempt)
        else:
            centers = hand_over(stage, progress.now, centers, model.rows, len(data), seed, traffic)


def _play_at_server(
    progress: Progress, centers: Tensor, cohorts: list[Cohort], data: Federation, seed: int, traffic: Traffic
) -> list[State]:
    state = begin(progress.now, centers, id_keys(data.ids), cohorts[0].model.rows, progress.context(seed))
    while not progress.over:
        progress.round += 1
        state = replace(state, context=progress.context(seed))
        state, sent = play_round(progress.now, state, Apart(cohorts), data.ids, traffic)
        if progress.now.until == "separated":
            progress.ended = separated(look_around(state, Apart(cohorts), sent.clients, traffic))
    return [state]


def _play_among_peers(
    progress: Progress, centers: Tensor, cohorts: list[Cohort], data: Federation, seed: int, traffic: Traffic
) -> list[State]:
    stage, keys, rows = progress.now, id_keys(data.ids), cohorts[0].model.rows
    centers, context = centers.expand(len(data), -1, -1), progress.context(seed)
    states = [begin(stage, centers[i : i + 1], keys[i : i + 1], rows, context) for i in range(len(data))]
    while not progress.over:
        progress.round += 1
        now = progress.context(seed)
        states = [replace(state, context=now) for state in states]
        present = stage.participation.present(keys, seed, now.of_run)
        in_time = stage.participation.in_time(keys, seed, now.of_run)
        letters: dict[int, bytes] = {}
        for i in present.nonzero()[:, 0].tolist():
            states[i], sent = _speak(stage.algorithm, states[i], cohorts[i])
            if len(sent):
                letters[i] = sent.to_bytes(0)
        _exchange(stage, states, letters, present, in_time, data, traffic)
        if stage.until == "separated":
            spoke = [i for i in letters if in_time[i]]
            progress.ended = separated(_look_at_own(states, cohorts, spoke))
    return states


def _look_at_own(states: list[State], cohorts: list[Cohort], who: list[int]) -> Messages:
    """What peers see in their own centers."""
    looks = [look(cohorts[i], Messages(SELF, {"centers": states[i].centers})) for i in who]
    names = looks[0] if looks else ()
    return Messages(torch.tensor(who), {name: torch.cat([one[name] for one in looks]) for name in names})


def _exchange(
    stage: Stage,
    states: list[State],
    letters: dict[int, bytes],
    present: Tensor,
    in_time: Tensor,
    data: Federation,
    traffic: Traffic,
) -> None:
    """Every peer that is there hears its neighbours and itself, and combines; letters are counted as they pass."""
    if not letters:
        return
    hearers, needed = dict.fromkeys(letters, 0), dict.fromkeys(letters, 0)
    neighbours = _neighbours(stage, data, states[0].context)
    for i in present.nonzero()[:, 0].tolist():
        others = [j for j in neighbours[i] if j in letters and in_time[j]]
        received = _listen(([i] if i in letters else []), others, letters)
        states[i] = stage.algorithm.combine(states[i], received)
        wanted = stage.algorithm.needed(received).tolist()[-len(others) :] if others else []
        for j, want in zip(others, wanted, strict=True):
            hearers[j] += 1
            needed[j] += want
    messages = Messages.from_bytes(torch.tensor(list(letters)), list(letters.values()))
    traffic.between(messages, torch.tensor(list(hearers.values())), torch.tensor(list(needed.values())))


def _speak(algorithm: Algorithm, state: State, cohort: Cohort) -> tuple[State, Messages]:
    """A peer asks, plans and offers to itself, then trains: its letter to the neighbours, if it is fit to be heard."""
    itself = Apart([cohort])
    asked = algorithm.ask(state)
    reports = (
        None if asked is None else itself.tell(private(algorithm, algorithm.report), asked, state.context)
    )
    state, offer = algorithm.plan(state, reports)
    return state, finite_only(itself.tell(private(algorithm, algorithm.train), offer, state.context))


def _listen(own: list[int], others: list[int], letters: dict[int, bytes]) -> Received:
    """One listener, number 0, which is also the sender of its own letter."""
    sender = torch.arange(0 if own else 1, len(others) + 1)
    messages = Messages.from_bytes(sender, [letters[j] for j in (*own, *others)])
    letter = torch.arange(len(messages))
    return Received(messages, 1, torch.stack([torch.zeros_like(letter), letter]), False)


def _neighbours(stage: Stage, data: Federation, context: RoundContext) -> list[list[int]]:
    assert not isinstance(stage.topology, Server)
    neighbours: list[list[int]] = [[] for _ in data.ids]
    for aggregator, speaker in stage.topology.edges(data.ids, context.seed, context.of_run).T.tolist():
        if aggregator != speaker:
            neighbours[aggregator].append(speaker)
    return neighbours


def _result(stage: Stage, states: list[State], cohorts: list[Cohort]) -> Result:
    """What the clients made of the listener's farewell, looked at from outside."""
    algorithm, importance, rows, weights = stage.algorithm, [], [], []
    for i, cohort in enumerate(cohorts):
        state = states[0] if stage.topology.is_server else states[i]
        letter = i if stage.topology.is_server else 0
        offer = Messages.from_bytes(SELF, [algorithm.final_offer(state.for_everyone()).to_bytes(letter)])
        importance.append(algorithm.importance(cohort.when(state.context), offer))
        personal = algorithm.finish(cohort.when(state.context), offer)
        rows.append(personal.rows)
        weights.append(personal.weights)
    centers = torch.cat([state.centers for state in states]).mean(0)
    return Result(centers, torch.cat(importance), Personal(torch.cat(rows), torch.cat(weights)))
