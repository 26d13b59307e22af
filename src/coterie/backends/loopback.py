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
from coterie.engine.model import LOSSES, Network
from coterie.engine.rows import Build
from coterie.prng import id_keys
from coterie.protocol import privacy_accountant
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.client_state import Memory
from coterie.protocol.cohort import Cohort, Moment, Personal
from coterie.protocol.message import Mail, Traffic
from coterie.protocol.privacy import private
from coterie.protocol.received import Heard, State
from coterie.protocol.selection import Answer
from coterie.protocol.separation import look, separated
from coterie.protocol.stages import Course, Stage, Stages
from coterie.protocol.topology import Server

SELF = torch.zeros(1, dtype=torch.long)  # a cohort of one has one client


@dataclass
class Apart:
    """The other side of the wire: for each client a cohort of its own."""

    cohorts: list[Cohort]

    def tell(self, answer: Answer, offer: Mail, moment: Moment) -> Mail:
        letters = []
        for i, client in enumerate(offer.clients.tolist()):
            received = Mail.from_bytes(SELF, [offer.to_bytes(i)])
            told = answer(self.cohorts[client].when(moment), received)
            letters.append(Mail(SELF, told).to_bytes(0))
        return Mail.from_bytes(offer.clients, letters)


def run_apart(
    build: Build, data: Federation, stages: Stages, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Result, Traffic]:
    """All rounds of all stages on the CPU."""
    stages.check(len(data))
    privacy_accountant.check(stages)
    network = Network(
        build,
        LOSSES[data.task],
        device=torch.device("cpu"),
        dtype=dtype,
        seed=seed,
        normalise=data.normalise,
        augment=data.augment,
    )
    train = data.train.to(network.device, dtype)
    network.probe(train.x[train.at[:4]], train.y[:4])
    traffic, course = Traffic(), Course(stages)
    centers, best = first_centers(network, stages[0].algorithm.clusters()), None
    while True:
        stage = course.now
        whole = Cohort.whole(network, stage.training, train, id_keys(data.ids), data.task, seed)
        whole = replace(whole, privacy=stage.privacy)
        cohorts = [
            replace(whole.take(torch.tensor([i])), at=SELF, memory=Memory(1)) for i in range(len(data))
        ]
        play = _play_at_server if stage.topology.is_server else _play_among_peers
        states = play(course, centers, cohorts, data, seed, traffic)
        if stage.n_init > 1:
            looked = look_around(states[0], Apart(cohorts), torch.arange(len(data)), traffic)
            loss = loss_of_try(looked)
            best = (loss, states, cohorts) if best is None or loss < best[0] else best
            if course.last_attempt:
                (_, states, cohorts), best = best, None
        if course.done:
            return _result(stage, states, cohorts), traffic
        centers = torch.cat([state.centers for state in states])
        course.go_on()
        if course.attempt:
            centers = first_centers(network, stage.algorithm.clusters(), course.attempt)
        else:
            centers = hand_over(stage, course.now, centers, network.rows, len(data), seed, traffic)


def _play_at_server(
    course: Course, centers: Tensor, cohorts: list[Cohort], data: Federation, seed: int, traffic: Traffic
) -> list[State]:
    state = begin(course.now, centers, id_keys(data.ids), cohorts[0].network.rows, course.moment(seed))
    while not course.over:
        course.round += 1
        state = replace(state, moment=course.moment(seed))
        state, told = play_round(course.now, state, Apart(cohorts), data.ids, traffic)
        if course.now.until == "separated":
            course.ended = separated(look_around(state, Apart(cohorts), told.clients, traffic))
    return [state]


def _play_among_peers(
    course: Course, centers: Tensor, cohorts: list[Cohort], data: Federation, seed: int, traffic: Traffic
) -> list[State]:
    stage, keys, rows = course.now, id_keys(data.ids), cohorts[0].network.rows
    centers, moment = centers.expand(len(data), -1, -1), course.moment(seed)
    states = [begin(stage, centers[i : i + 1], keys[i : i + 1], rows, moment) for i in range(len(data))]
    while not course.over:
        course.round += 1
        now = course.moment(seed)
        states = [replace(state, moment=now) for state in states]
        present = stage.participation.present(keys, seed, now.of_run)
        in_time = stage.participation.in_time(keys, seed, now.of_run)
        letters: dict[int, bytes] = {}
        for i in present.nonzero()[:, 0].tolist():
            states[i], told = _speak(stage.algorithm, states[i], cohorts[i])
            if len(told):
                letters[i] = told.to_bytes(0)
        _exchange(stage, states, letters, present, in_time, data, traffic)
        if stage.until == "separated":
            spoke = [i for i in letters if in_time[i]]
            course.ended = separated(_look_at_own(states, cohorts, spoke))
    return states


def _look_at_own(states: list[State], cohorts: list[Cohort], who: list[int]) -> Mail:
    """What peers see in their own centers."""
    looks = [look(cohorts[i], Mail(SELF, {"centers": states[i].centers})) for i in who]
    names = looks[0] if looks else ()
    return Mail(torch.tensor(who), {name: torch.cat([one[name] for one in looks]) for name in names})


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
    neighbours = _neighbours(stage, data, states[0].moment)
    for i in present.nonzero()[:, 0].tolist():
        others = [j for j in neighbours[i] if j in letters and in_time[j]]
        heard = _listen(([i] if i in letters else []), others, letters)
        states[i] = stage.algorithm.combine(states[i], heard)
        wanted = stage.algorithm.needed(heard).tolist()[-len(others) :] if others else []
        for j, want in zip(others, wanted, strict=True):
            hearers[j] += 1
            needed[j] += want
    mail = Mail.from_bytes(torch.tensor(list(letters)), list(letters.values()))
    traffic.between(mail, torch.tensor(list(hearers.values())), torch.tensor(list(needed.values())))


def _speak(algorithm: Algorithm, state: State, cohort: Cohort) -> tuple[State, Mail]:
    """A peer asks, plans and offers to itself, then trains: its letter to the neighbours, if it is fit to be heard."""
    itself = Apart([cohort])
    asked = algorithm.ask(state)
    reports = (
        None if asked is None else itself.tell(private(algorithm, algorithm.report), asked, state.moment)
    )
    state, offer = algorithm.plan(state, reports)
    return state, finite_only(itself.tell(private(algorithm, algorithm.train), offer, state.moment))


def _listen(own: list[int], others: list[int], letters: dict[int, bytes]) -> Heard:
    """One listener, number 0, which is also the sender of its own letter."""
    sender = torch.arange(0 if own else 1, len(others) + 1)
    mail = Mail.from_bytes(sender, [letters[j] for j in (*own, *others)])
    letter = torch.arange(len(mail))
    return Heard(mail, 1, torch.stack([torch.zeros_like(letter), letter]), False)


def _neighbours(stage: Stage, data: Federation, moment: Moment) -> list[list[int]]:
    assert not isinstance(stage.topology, Server)
    neighbours: list[list[int]] = [[] for _ in data.ids]
    for listener, speaker in stage.topology.edges(data.ids, moment.seed, moment.of_run).T.tolist():
        if listener != speaker:
            neighbours[listener].append(speaker)
    return neighbours


def _result(stage: Stage, states: list[State], cohorts: list[Cohort]) -> Result:
    """What the clients made of the listener's farewell, looked at from outside."""
    algorithm, importance, rows, weights = stage.algorithm, [], [], []
    for i, cohort in enumerate(cohorts):
        state = states[0] if stage.topology.is_server else states[i]
        letter = i if stage.topology.is_server else 0
        offer = Mail.from_bytes(SELF, [algorithm.farewell(state.for_everyone()).to_bytes(letter)])
        importance.append(algorithm.importance(cohort.when(state.moment), offer))
        personal = algorithm.finish(cohort.when(state.moment), offer)
        rows.append(personal.rows)
        weights.append(personal.weights)
    centers = torch.cat([state.centers for state in states]).mean(0)
    return Result(centers, torch.cat(importance), Personal(torch.cat(rows), torch.cat(weights)))
