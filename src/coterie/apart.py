"""Clients one at a time, each a cohort of one with its own memory; all that passes between them is bytes.

Slow and honest: what comes out equal here and in `simulate` leans on nothing that a real client would not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algorithms.algorithm import Algorithm
from coterie.chance import id_keys
from coterie.cohort import Cohort, Memory, Moment, Personal
from coterie.federation import Federation
from coterie.listener import Heard, State
from coterie.network import LOSSES, Network
from coterie.rows import Build
from coterie.simulate import Result, Stage, Stages, play_round
from coterie.topology import Server
from coterie.wire import Fields, Mail, Traffic

SELF = torch.zeros(1, dtype=torch.long)  # a cohort of one has one client


@dataclass
class Apart:
    """The other side of the wire: for each client a cohort of its own."""

    cohorts: list[Cohort]

    def report(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail:
        return self._each(algorithm.report, offer, moment)

    def train(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail:
        return self._each(algorithm.train, offer, moment)

    def _each(self, answer: Callable[[Cohort, Mail], Fields], offer: Mail, moment: Moment) -> Mail:
        letters = []
        for i, client in enumerate(offer.clients.tolist()):
            received = Mail.from_bytes(SELF, [offer.to_bytes(i)])
            told = Mail(SELF, answer(self.cohorts[client].when(moment), received))
            letters.append(told.to_bytes(0))
        return Mail.from_bytes(offer.clients, letters)


def run_apart(
    build: Build, data: Federation, stages: Stages, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Result, Traffic]:
    """All rounds of all stages on the CPU."""
    stages.check(len(data))
    network = Network(build, LOSSES[data.task], device=torch.device("cpu"), dtype=dtype, seed=seed)
    traffic = Traffic()
    centers = torch.stack([network.initial(f"center {s}") for s in range(stages[0].algorithm.clusters())])[
        None
    ]
    for number, stage in enumerate(stages):
        cohorts = [_cohort(network, stage, data, i, seed) for i in range(len(data))]
        play = _play_at_server if stage.topology.is_server else _play_among_peers
        states = play(stage, number, centers, cohorts, data, seed, traffic)
        centers = torch.cat([state.centers for state in states])
    return _result(stages[-1], states, cohorts), traffic


def _cohort(network: Network, stage: Stage, data: Federation, i: int, seed: int) -> Cohort:
    cohort = Cohort.whole(network, stage.training, data.train, id_keys(data.ids), data.task, seed)
    return replace(cohort.take(torch.tensor([i])), at=SELF, memory=Memory(1))


def _begin(stage: Stage, centers: Tensor, keys: Tensor, cohort: Cohort, moment: Moment) -> State:
    rows, at_server = cohort.network.rows, stage.topology.is_server
    return stage.algorithm.begin(State(centers, keys, rows, at_server, moment))


def _play_at_server(
    stage: Stage,
    number: int,
    centers: Tensor,
    cohorts: list[Cohort],
    data: Federation,
    seed: int,
    traffic: Traffic,
) -> list[State]:
    moment = Moment(seed, number, 0, stage.rounds)
    state = _begin(stage, centers.mean(0, keepdim=True), id_keys(data.ids), cohorts[0], moment)
    for t in range(stage.rounds):
        state = replace(state, moment=replace(moment, round=t))
        state, _ = play_round(stage, state, Apart(cohorts), data.ids, traffic)
    return [state]


def _play_among_peers(
    stage: Stage,
    number: int,
    centers: Tensor,
    cohorts: list[Cohort],
    data: Federation,
    seed: int,
    traffic: Traffic,
) -> list[State]:
    moment, keys = Moment(seed, number, 0, stage.rounds), id_keys(data.ids)
    centers = centers.expand(len(data), -1, -1)
    states = [_begin(stage, centers[i : i + 1], keys[i : i + 1], c, moment) for i, c in enumerate(cohorts)]
    for t in range(stage.rounds):
        states = [replace(state, moment=replace(moment, round=t)) for state in states]
        present = stage.participation.present(keys, seed, t)
        late = stage.participation.dropped(keys, seed, t)
        letters: dict[int, bytes] = {}
        for i in present.nonzero()[:, 0].tolist():
            states[i], letters[i] = _speak(stage.algorithm, states[i], cohorts[i])
        neighbours = _neighbours(stage, data, seed, t)
        needed = dict.fromkeys(letters, 0)
        for i in letters:
            heard = _listen([i, *(j for j in neighbours[i] if j in letters and not late[j])], letters)
            states[i] = stage.algorithm.combine(states[i], heard)
            wanted = stage.algorithm.needed(heard)
            for at, j in enumerate(j for j in neighbours[i] if j in letters and not late[j]):
                needed[j] += bool(wanted[at + 1])
        _count(letters, neighbours, late, needed, traffic)
    return states


def _speak(algorithm: Algorithm, state: State, cohort: Cohort) -> tuple[State, bytes]:
    """A peer asks, plans and offers to itself, then trains: its letter to the neighbours."""
    itself = Apart([cohort])
    asked = algorithm.ask(state)
    reports = None if asked is None else itself.report(algorithm, asked, state.moment)
    state, offer = algorithm.plan(state, reports)
    return state, itself.train(algorithm, offer, state.moment).to_bytes(0)


def _listen(speakers: list[int], letters: dict[int, bytes]) -> Heard:
    """One listener, number 0, whose own letter is the first."""
    number = torch.arange(len(speakers))
    mail = Mail.from_bytes(number, [letters[j] for j in speakers])
    return Heard(mail, 1, torch.stack([torch.zeros_like(number), number]), False)


def _neighbours(stage: Stage, data: Federation, seed: int, t: int) -> list[list[int]]:
    assert not isinstance(stage.topology, Server)
    neighbours: list[list[int]] = [[] for _ in data.ids]
    for listener, speaker in stage.topology.edges(data.ids, seed, t).T.tolist():
        if listener != speaker:
            neighbours[listener].append(speaker)
    return neighbours


def _count(
    letters: dict[int, bytes],
    neighbours: list[list[int]],
    late: Tensor,
    needed: dict[int, int],
    traffic: Traffic,
) -> None:
    """The same count as in a simulation, from the letters themselves."""
    if not letters:
        return
    mail = Mail.from_bytes(torch.tensor(list(letters)), list(letters.values()))
    hearers = [0 if late[i] else sum(j in letters for j in neighbours[i]) for i in letters]
    traffic.between(mail, torch.tensor(hearers), torch.tensor([needed[i] for i in letters]))


def _result(stage: Stage, states: list[State], cohorts: list[Cohort]) -> Result:
    """What the clients made of the listener's farewell, looked at from outside."""
    algorithm, importance, rows, weights = stage.algorithm, [], [], []
    for i, cohort in enumerate(cohorts):
        state = states[0] if stage.topology.is_server else states[i]
        letter = i if stage.topology.is_server else 0
        offer = Mail.from_bytes(SELF, [algorithm.farewell(state).to_bytes(letter)])
        importance.append(algorithm.importance(cohort.when(state.moment), offer))
        personal = algorithm.finish(cohort.when(state.moment), offer)
        rows.append(personal.rows)
        weights.append(personal.weights)
    centers = torch.cat([state.centers for state in states]).mean(0)
    return Result(centers, torch.cat(importance), Personal(torch.cat(rows), torch.cat(weights)))
