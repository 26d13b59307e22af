"""A run with all clients on this machine, computed together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from coterie.algorithms.algorithm import Algorithm
from coterie.chance import id_keys
from coterie.checked import Checked
from coterie.cohort import Cohort, Memory, Moment, Personal
from coterie.errors import CoterieError, require
from coterie.federation import Federation, Points
from coterie.listener import Heard, State
from coterie.network import LOSSES, Loss, Network
from coterie.participation import Participation
from coterie.rows import Build, Rows
from coterie.scores import Scores
from coterie.topology import Server, Topology
from coterie.training import Training
from coterie.wire import Mail, Traffic

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Stage(Checked):
    """Some rounds of one algorithm. Its centers start the next stage."""

    algorithm: Algorithm
    rounds: int
    training: Training = field(default_factory=Training)
    topology: Topology = field(default_factory=Server)
    participation: Participation = field(default_factory=Participation)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 0, "rounds", self.rounds, "0 or more")

    def then(self, following: Stage) -> Stages:
        return Stages((self, following))


class Stages(tuple[Stage, ...]):
    """Stages one after another."""

    def then(self, following: Stage) -> Stages:
        return Stages((*self, following))

    def check(self, n_clients: int) -> None:
        if not self:
            raise CoterieError("there is no stage; at least one algorithm with its rounds is needed")
        for stage in self:
            if not isinstance(stage, Stage):
                raise CoterieError(f"a stage is {stage!r}; allowed is a Stage, an algorithm with its rounds")
            stage.topology.check(n_clients)
            stage.algorithm.check(n_clients, stage.topology)
        if len(self) > 1 and not all(stage.rounds for stage in self):
            raise CoterieError("a stage has 0 rounds; each of several stages needs 1 or more")
        for before, after in pairwise(self):
            if before.algorithm.last_only:
                raise CoterieError(
                    f"{before.algorithm.title()} finds the number of clusters; no stage can follow it"
                )
            if after.algorithm.first_only:
                raise CoterieError(
                    f"{after.algorithm.title()} begins at one common model; it must be the first stage"
                )
            left, wanted = before.algorithm.clusters(), after.algorithm.clusters()
            if left != wanted:
                raise CoterieError(
                    f"{before.algorithm.title()} leaves {left} centers but {after.algorithm.title()}, which is to "
                    f"start from them, has n_clusters = {wanted}; the two must agree"
                )


class Clients(Protocol):
    """The other side of the wire: offers go in, what the clients tell comes out."""

    def report(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail: ...

    def train(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail: ...


@dataclass
class Together:
    """Clients computed as one cohort."""

    cohort: Cohort

    def report(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail:
        return Mail(offer.clients, algorithm.report(self.cohort.take(offer.clients).when(moment), offer))

    def train(self, algorithm: Algorithm, offer: Mail, moment: Moment) -> Mail:
        if not len(offer):
            return Mail(offer.clients, {})
        return Mail(offer.clients, algorithm.train(self.cohort.take(offer.clients).when(moment), offer))


def play_round(
    stage: Stage, state: State, clients: Clients, ids: Sequence[str], traffic: Traffic
) -> tuple[State, Mail]:
    """One round: the state after it, and the letters that arrived."""
    algorithm, moment = stage.algorithm, state.moment
    seed, round = moment.seed, moment.of_run
    state = replace(state, invited=stage.participation.invited(state.keys, seed, round))
    present = stage.participation.present(state.keys, seed, round)
    late = stage.participation.dropped(state.keys, seed, round)
    reports = None
    asked = algorithm.ask(state)
    if asked is not None:
        asked = asked.only(present)
        reports = clients.report(algorithm, asked, moment) if len(asked) else None
    state, offer = algorithm.plan(state, reports)
    offer = offer.only(present)
    told = finite_only(clients.train(algorithm, offer, moment))
    if stage.topology.is_server:
        told = told.only(~late)
        for down in (asked, offer):
            traffic.to_clients(down)
        for up in (reports, told):
            traffic.to_server(up)
        return (algorithm.combine(state, Heard.by_server(told)) if len(told) else state), told
    if not len(told):
        return state, told
    heard = _hear(stage, state, told, present, late, ids)
    _count_between_peers(algorithm, heard, traffic)
    return algorithm.combine(state, heard), told.only(~late)


def finite_only(told: Mail) -> Mail:
    """A letter with a number that is not finite is not heard: its client diverged, and others need not."""
    good = told.finite()
    if bool(good.all()):
        return told
    log.warning("what diverged clients told is not heard; a smaller training rate may help")
    return told.take(good.nonzero()[:, 0])


def _hear(stage: Stage, state: State, told: Mail, present: Tensor, late: Tensor, ids: Sequence[str]) -> Heard:
    """Peers hear those neighbours that told something in time, and themselves; who is away hears nothing."""
    assert not isinstance(stage.topology, Server)
    edges = stage.topology.edges(ids, state.moment.seed, state.moment.of_run).to(state.keys.device)
    listener, speaker = edges
    arrives = present[listener] & (~late[speaker] | (listener == speaker))
    return Heard.by_peers(told, state.n_clients, edges[:, arrives])


def _count_between_peers(algorithm: Algorithm, heard: Heard, traffic: Traffic) -> None:
    listener, letter = heard.edges
    others = heard.mail.clients[letter] != listener
    needed = algorithm.needed(heard) & others if heard.mail.fields else others

    def per_letter(edges: Tensor) -> Tensor:
        return torch.bincount(letter[edges], minlength=len(heard.mail))

    traffic.between(heard.mail, per_letter(others), per_letter(needed))


@dataclass(frozen=True)
class Result:
    """What clients and listeners have in the end, or now."""

    centers: Tensor  # (cluster, width); over a graph the mean over its listeners
    importance: Tensor  # (client, cluster)
    personal: Personal
    fit: Tensor | None = None  # (client,) how well the centers fit each; see onboarding.py


def begin(stage: Stage, centers: Tensor, keys: Tensor, rows: Rows, moment: Moment) -> State:
    """The listeners' state at the start of a stage."""
    at_server = stage.topology.is_server
    everyone = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    if not at_server:
        centers = centers.expand(len(keys), -1, -1).clone()
    return stage.algorithm.begin(State(centers, keys, rows, at_server, moment, everyone))


def hand_over(before: Stage, after: Stage, centers: Tensor, clients: int, traffic: Traffic) -> Tensor:
    """Centers from one stage to the next, over the wire where the next is held by somebody else."""
    held = centers[:1].numel() * centers.element_size()
    if before.topology.is_server and not after.topology.is_server:
        traffic.down += clients * held
    elif after.topology.is_server and not before.topology.is_server:
        traffic.up += clients * held
        return centers.mean(0, keepdim=True)
    return centers


class Simulation:
    """Steps through the rounds of all stages; can be saved between any two rounds and go on later."""

    def __init__(
        self,
        build: Build,
        data: Federation,
        stages: Stages,
        *,
        seed: int = 0,
        loss: Loss | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        chunk: int | None = None,
    ):
        stages.check(len(data))
        self.data, self.stages, self.seed = data, stages, seed
        self.network = Network(
            build,
            loss or LOSSES[data.task],
            device=device,
            dtype=dtype,
            seed=seed,
            chunk=chunk,
            normalise=data.normalise,
            augment=data.augment,
        )
        train = data.train.to(self.network.device, dtype)
        self.network.probe(train.x[train.at[:4]], train.y[:4])
        self._check_outputs(train)
        self.keys = id_keys(data.ids).to(self.network.device)
        self.clients = Together(
            Cohort.whole(self.network, stages[0].training, train, self.keys, data.task, seed)
        )
        self.test = None if data.test is None else data.test.to(self.network.device, dtype)
        self.traffic = Traffic()
        self.at = (0, 0)  # stage, round within it
        self.state = self._enter(0, self._first_centers())

    def _check_outputs(self, train: Points) -> None:
        """Has the model an output for every label?"""
        if self.data.task == "regression" or self.network.loss is not LOSSES[self.data.task]:
            return
        row = self.network.initial("client")
        width = self.network.outputs(row, train.x[train.at[:1]]).shape[-1]
        if width < self.data.n_outputs:
            raise CoterieError(
                f"the model puts out {width} numbers for a point, but labels go up to {self.data.n_outputs - 1}; it "
                f"needs {self.data.n_outputs} outputs (labels count from 0; task='regression' predicts numbers)"
            )

    def _first_centers(self) -> Tensor:
        """Common random centers, (1, cluster, width)."""
        clusters = self.stages[0].algorithm.clusters()
        return torch.stack([self.network.initial(f"center {s}") for s in range(clusters)])[None]

    def _enter(self, number: int, centers: Tensor) -> State:
        """Begin a stage at centers (listener, cluster, width) left by the one before, with an empty memory."""
        stage = self.stages[number]
        cohort = self.clients.cohort
        self.clients.cohort = replace(cohort, training=stage.training, memory=Memory(len(self.data)))
        before = sum(earlier.rounds for earlier in self.stages[:number])
        moment = Moment(self.seed, number, 0, stage.rounds, before)
        return begin(stage, centers, self.keys, self.network.rows, moment)

    @property
    def stage(self) -> Stage:
        return self.stages[self.at[0]]

    @property
    def done(self) -> bool:
        return self.rounds_done >= self.rounds

    @property
    def rounds(self) -> int:
        return sum(stage.rounds for stage in self.stages)

    @property
    def rounds_done(self) -> int:
        return sum(stage.rounds for stage in self.stages[: self.at[0]]) + self.at[1]

    def step(self) -> Mail:
        """Play one round; what was told in it."""
        number, round = self.at
        if round == self.stage.rounds:
            before, after = self.stages[number], self.stages[number + 1]
            centers = hand_over(before, after, self.state.centers, len(self.data), self.traffic)
            number, round = self.at = (number + 1, 0)
            self.state = self._enter(number, centers)
        moment = replace(self.state.moment, round=round)
        self.state, told = play_round(
            self.stage, replace(self.state, moment=moment), self.clients, self.data.ids, self.traffic
        )
        self.at = (number, round + 1)
        return told

    # looking at it

    def training_loss(self, told: Mail) -> float:
        """The mean loss that those heard saw while training, infinite if one of them diverged.

        Looked up in the clients' memory, as only a simulation can: it is no part of what is told.
        """
        loss = self.clients.cohort.memory.values.get("loss")
        return float("nan") if loss is None or not len(told) else float(loss[told.clients].nanmean())

    def result(self, final: bool = False) -> Result:
        """Centers, importance and personal models; `final`: with the algorithm's last phase."""
        algorithm = self.stage.algorithm
        offer = algorithm.farewell(self.state.for_everyone())
        if final and self.stage.topology.is_server:
            self.traffic.to_clients(offer)
        cohort = self.clients.cohort.when(self.state.moment)
        importance = algorithm.importance(cohort, offer)
        personal = (algorithm.finish if final else algorithm.personal)(cohort, offer)
        return Result(self.state.centers.mean(0), importance, personal)

    def test_scores(self, personal: Personal) -> Scores | None:
        """Each client's model on its own held-out points."""
        return None if self.test is None else self.clients.cohort.score(personal, self.test)

    # saving it

    def save(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """All that the rounds to come depend on."""
        memory = self.clients.cohort.memory
        tensors = {"centers": self.state.centers, "clients": self.keys}
        tensors.update({f"state.{n}": t for n, t in self.state.fields.items()})
        tensors.update({f"memory.{n}": t for n, t in memory.values.items()})
        tensors.update({f"known.{n}": t for n, t in memory.known.items()})
        return tensors, {"stage": self.at[0], "round": self.at[1], **self.traffic.named()}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, int]) -> None:
        """Go on from what was saved, by clients that may be listed in another order now."""
        saved = {key: i for i, key in enumerate(tensors["clients"].tolist())}
        if saved.keys() != set(self.keys.tolist()):
            raise CoterieError("the run that was saved had other clients; it can be resumed with those alone")
        order = torch.tensor([saved[key] for key in self.keys.tolist()])

        def part(prefix: str) -> dict[str, Tensor]:
            device = self.network.device
            return {
                n.removeprefix(prefix): t[order].to(device)
                for n, t in tensors.items()
                if n.startswith(prefix)
            }

        self.at = (numbers["stage"], numbers["round"])
        centers = tensors["centers"] if self.stage.topology.is_server else tensors["centers"][order]
        state = self._enter(self.at[0], centers.to(self.network.device))
        moment = replace(state.moment, round=max(0, self.at[1] - 1))
        self.state = replace(state, fields=part("state."), moment=moment)
        memory = self.clients.cohort.memory
        memory.values, memory.known = part("memory."), part("known.")
        self.traffic = Traffic(**{n: numbers[n] for n in self.traffic.named()})
