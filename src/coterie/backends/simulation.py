"""A run with all clients on this machine, computed together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.backends import evaluation
from coterie.backends.evaluation import Result, Snapshot
from coterie.backends.processes import ProcessGroup, here
from coterie.backends.sharded import Clients, Sharded, Together
from coterie.data import everyone
from coterie.data.federation import Federation, Points
from coterie.engine import storage
from coterie.engine.compile.policy import Compile, Compiler
from coterie.engine.model import LOSSES, FunctionalModel, Loss
from coterie.engine.rows import Build, Rows
from coterie.errors import CoterieError
from coterie.prng import gaussian, id_keys, mix
from coterie.protocol import privacy_accountant
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort, RoundContext
from coterie.protocol.message import Messages, Traffic
from coterie.protocol.privacy import private, warn_of_buffers
from coterie.protocol.received import Received, State
from coterie.protocol.selection import invite
from coterie.protocol.separation import look, separated
from coterie.protocol.stages import Progress, Stage, Stages
from coterie.protocol.topology import Server

log = logging.getLogger("coterie")

PERTURB = 0.1  # how far centers are pushed from one model that starts them all, relative to its size


def play_round(
    stage: Stage, state: State, clients: Clients, ids: Sequence[str], traffic: Traffic
) -> tuple[State, Messages]:
    """One round: the state after it, and the letters that arrived."""
    algorithm, context = stage.algorithm, state.context
    seed, round = context.seed, context.of_run
    state, already = invite(stage.participation, algorithm, state, clients.tell, traffic)
    present = everyone.both(state.invited, stage.participation.came(state.keys, seed, round))
    in_time = stage.participation.in_time(state.keys, seed, round)
    reports = None
    asked = algorithm.ask(state)
    if asked is not None:
        asked = asked.only(present)
        reports = clients.tell(private(algorithm, algorithm.report), asked, context) if len(asked) else None
    state, offer = algorithm.plan(state, reports)
    offer = offer.only(present)
    sent = finite_only(clients.tell(private(algorithm, algorithm.train), offer, context))
    if stage.topology.is_server:
        sent = sent.only(in_time)
        for down in (asked, offer):
            traffic.to_clients(down, already)
        for up in (reports, sent):
            traffic.to_server(up)
        return (algorithm.combine(state, Received.by_server(sent)) if len(sent) else state), sent
    if not len(sent):
        return state, sent
    received = _hear(stage, state, sent, present, in_time, ids)
    _count_between_peers(algorithm, received, traffic)
    return algorithm.combine(state, received), sent.only(in_time)


def finite_only(sent: Messages) -> Messages:
    """A letter with a number that is not finite is not heard: its client diverged, and others need not."""
    good = sent.finite()
    if bool(good.all()):
        return sent
    log.warning("what diverged clients told is not heard; a smaller training rate may help")
    return sent.take(good.nonzero()[:, 0])


def _hear(
    stage: Stage, state: State, sent: Messages, present: Tensor, in_time: Tensor, ids: Sequence[str]
) -> Received:
    """Peers hear those neighbours that told something in time, and themselves; who is away hears nothing."""
    assert not isinstance(stage.topology, Server)
    edges = stage.topology.edges(ids, state.context.seed, state.context.of_run).to(state.keys.device)
    aggregator, speaker = edges
    arrives = present[aggregator] & (in_time[speaker] | (aggregator == speaker))
    return Received.by_peers(sent, state.n_clients, edges[:, arrives])


def _count_between_peers(algorithm: Algorithm, received: Received, traffic: Traffic) -> None:
    aggregator, letter = received.edges
    others = received.messages.clients[letter] != aggregator
    needed = algorithm.needed(received) & others if received.messages.fields else others

    def per_letter(edges: Tensor) -> Tensor:
        return torch.bincount(letter[edges], minlength=len(received.messages))

    traffic.between(received.messages, per_letter(others), per_letter(needed))


def begin(stage: Stage, centers: Tensor, keys: Tensor, rows: Rows, context: RoundContext) -> State:
    """The listeners' state at the start of a stage."""
    at_server = stage.topology.is_server
    invited = everyone.mask(len(keys), keys.device)
    if not at_server:
        common, centers = (
            centers,
            storage.table((len(keys), *centers.shape[1:]), centers.dtype, centers.device),
        )
        for some in storage.row_blocks(centers):
            centers[some] = common if len(common) == 1 else common[some]
    return stage.algorithm.begin(State(centers, keys, rows, at_server, context, invited))


def first_centers(model: FunctionalModel, clusters: int, attempt: int = 0) -> Tensor:
    """Common random centers, (1, cluster, width), other ones for every try."""
    names = [f"center {s}" + (f" of try {attempt}" if attempt else "") for s in range(clusters)]
    return torch.stack([model.initial(name) for name in names])[None]


def hand_over(
    before: Stage, after: Stage, centers: Tensor, rows: Rows, clients: int, seed: int, traffic: Traffic
) -> Tensor:
    """Centers from one stage to the next, over the wire where the next is held by somebody else."""
    held = centers[:1].numel() * centers.element_size()
    if before.topology.is_server and not after.topology.is_server:
        traffic.down += clients * held
        traffic.messages += clients
    elif after.topology.is_server and not before.topology.is_server:
        traffic.up += clients * held
        traffic.messages += clients
        centers = storage.mean(centers)[None]
    wanted = after.algorithm.clusters()
    if centers.shape[1] == wanted:
        return centers
    return (
        centers.expand(-1, wanted, -1)
        if after.algorithm.first_only
        else perturbed(centers, wanted, rows, seed)
    )


def perturbed(model: Tensor, clusters: int, rows: Rows, seed: int) -> Tensor:
    """Centers (listener, cluster, width) around one model (listener, 1, width), each pushed a little its own way.

    The push goes the same way for every listener, so that cluster s means the same to all.
    """
    parameters, tail = rows.split(model.expand(-1, clusters, -1))
    column = torch.arange(rows.n_parameters, device=model.device)
    cluster = torch.arange(clusters, device=model.device)[:, None]
    push = gaussian(mix(mix(seed, "perturb").to(model.device), cluster, column))
    push = (push - push.mean(0)).to(model.dtype)  # no center is nearer to the model than another
    size = parameters.square().mean((1, 2), keepdim=True).sqrt()
    return torch.cat([parameters + PERTURB * size * push, tail], -1)


def look_around(state: State, clients: Clients, who: Tensor, traffic: Traffic) -> Messages:
    """What these clients see in the centers. Peers have them; a server sends them all, for not all were offered.

    Over a graph these few numbers are to be averaged by gossip; what that costs beside rows is left out.
    """
    offer = state.for_everyone().offer(centers=state.centers).take(who)
    sent = clients.tell(look, offer, state.context)
    if state.at_server:
        traffic.to_clients(offer)
        traffic.to_server(sent)
    return sent


def loss_of_try(looked: Messages) -> float:
    """What tries are compared by; a try in which a client sees nothing but nonsense is the worst."""
    return float(looked.loss.nan_to_num(torch.inf).mean())


@dataclass(frozen=True)
class Attempt:
    """How a try ended."""

    loss: float
    state: State
    client_state: ClientState


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
        compile: Compile = "auto",
        tf32: bool = False,
        group: ProcessGroup | None = None,
    ):
        stages.check(len(data))
        privacy_accountant.check(stages)
        self.data, self.stages, self.seed = data, stages, seed
        self.group = here() if group is None else group
        self.model = FunctionalModel(
            build,
            loss or LOSSES[data.task],
            device=self.group.device(device),
            dtype=dtype,
            seed=seed,
            chunk=chunk,
            normalise=data.normalise,
            augment=data.augment,
            tf32=tf32,
        )
        warn_of_buffers((stage.privacy for stage in stages), self.model.rows)
        train = data.train.to(self.model.device, dtype)
        self.model.probe(train.x[train.at[:4]], train.y[:4])
        self._check_outputs(train)
        self.keys = id_keys(data.ids).to(self.model.device)
        self.sizes = train.sizes
        each = -(-len(data) // self.group.size)  # clients that a process has
        compiler = Compiler(self.model, compile, train.x, each, int(train.sizes.max()))
        cohort = Cohort.whole(self.model, stages[0].training, train, self.keys, data.task, seed)
        cohort = replace(cohort, compiler=compiler)
        self.clients = Together(cohort) if self.group.size == 1 else Sharded(cohort, self.group)
        self.test = None if data.test is None else self._own(data.test).to(self.model.device, dtype)
        self.traffic = Traffic()
        self.progress = Progress(stages)
        self.best: Attempt | None = None  # of the tries of this stage that are over
        self.state = self._enter(first_centers(self.model, stages[0].algorithm.clusters()))

    def _own(self, points: Points) -> Points:
        """Those of the clients that this process computes."""
        return points.take(self.clients.own.cpu()) if isinstance(self.clients, Sharded) else points

    def _check_outputs(self, train: Points) -> None:
        """Has the model an output for every label?"""
        if self.data.task == "regression" or self.model.loss is not LOSSES[self.data.task]:
            return
        row = self.model.initial("client")
        width = self.model.outputs(row, train.x[train.at[:1]]).shape[-1]
        if width < self.data.n_outputs:
            raise CoterieError(
                f"the model puts out {width} numbers for a point, but labels go up to {self.data.n_outputs - 1}; it "
                f"needs {self.data.n_outputs} outputs (labels count from 0; task='regression' predicts numbers)"
            )

    def _enter(self, centers: Tensor) -> State:
        """Begin a try at centers (listener, cluster, width), with an empty memory."""
        cohort = self.clients.cohort
        self.clients.cohort = replace(
            cohort,
            training=self.stage.training,
            privacy=self.stage.privacy,
            client_state=ClientState(len(cohort)),
        )
        return begin(self.stage, centers, self.keys, self.model.rows, self.progress.context(self.seed))

    @property
    def stage(self) -> Stage:
        return self.progress.now

    @property
    def done(self) -> bool:
        return self.progress.done

    def step(self) -> Messages:
        """Play one round; what was told in it."""
        if self.progress.over:
            self._go_on()
        self.progress.round += 1
        state = replace(self.state, context=self.progress.context(self.seed))
        self.state, sent = play_round(self.stage, state, self.clients, self.data.ids, self.traffic)
        if self.stage.until == "separated":
            looked = look_around(self.state, self.clients, sent.clients, self.traffic)
            self.progress.ended = self.group.once(lambda: separated(looked))
            if self.progress.ended and self.progress.round < self.stage.rounds:
                said = "the centers have come apart: the stage ends after %d of at most %d rounds"
                log.info(said, self.progress.round, self.stage.rounds)
        if self.progress.over and self.stage.n_init > 1:
            self._compare_tries()
            return Messages(sent.clients, {})  # what was told need not be of the try that goes on
        return sent

    def _go_on(self) -> None:
        """To the next try from other random centers, or to the next stage from the present ones."""
        before, state = self.stage, self.state
        self.progress.go_on()
        attempt = self.progress.attempt
        if attempt:
            centers = first_centers(self.model, self.stage.algorithm.clusters(), attempt)
        else:
            rows, n = self.model.rows, len(self.data)
            centers = hand_over(before, self.stage, state.centers, rows, n, self.seed, self.traffic)
        self.state = self._enter(centers)

    def _compare_tries(self) -> None:
        """Keep the best try so far; at the end of the last one, go on as if it had been the only one."""
        who = everyone.positions(len(self.data), self.keys.device)
        looked = look_around(self.state, self.clients, who, self.traffic)
        loss = self.group.once(lambda: loss_of_try(looked))
        if self.best is None or loss < self.best.loss:
            self.best = Attempt(loss, self.state, self.clients.cohort.client_state)
        if self.progress.last_attempt:
            self.state = replace(self.best.state, context=self.state.context)
            self.clients.cohort = replace(self.clients.cohort, client_state=self.best.client_state)
            self.best = None

    # looking at it

    def training_loss(self, sent: Messages) -> float:
        """The mean loss that those heard saw while training, infinite if one of them diverged.

        Looked up in the clients' memory, as only a simulation can: it is no part of what is told.
        """
        if not len(sent):
            return float("nan")
        cohort = self.clients.cohort
        unknown = torch.full((len(cohort),), torch.nan, dtype=self.model.dtype, device=self.model.device)
        loss = self.clients.of_all(cohort.recall("loss", unknown))
        return float(loss[sent.clients].nanmean())

    def look(self) -> Snapshot:
        """How things stand."""
        return evaluation.look(self)

    def result(self, final: bool = False) -> Result:
        """The same, with the models of the clients that this process computes; `final`: after the last phase."""
        if final:
            self.count_final_offer()
        return evaluation.result(self, final)

    def count_final_offer(self) -> None:
        """Count what a server sends when clients are to make their last models."""
        if self.stage.topology.is_server:
            self.traffic.to_clients(self.stage.algorithm.final_offer(self.state.for_everyone()))

    def whole(self, result: Result) -> Result:
        """With the personal models of all clients."""
        if isinstance(self.clients, Sharded):
            return replace(result, personal=self.clients.models_of_all(result.personal))
        return result

    # saving it

    def save(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """All that the rounds to come depend on."""
        everyones = self.clients.client_state_of_all
        tensors = {"clients": self.keys, **_packed(self.state, everyones(self.clients.cohort.client_state))}
        if self.best is not None:
            packed = _packed(self.best.state, everyones(self.best.client_state))
            tensors.update({f"best.{name}": t for name, t in packed.items()})
            tensors["best.loss"] = torch.tensor(self.best.loss, dtype=torch.float64)
        return tensors, {**self.progress.numbers(), **self.traffic.named()}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, int]) -> None:
        """Go on from what was saved, by clients that may be listed in another order now."""
        saved = {key: i for i, key in enumerate(tensors["clients"].tolist())}
        if saved.keys() != set(self.keys.tolist()):
            raise CoterieError("the run that was saved had other clients; it can be resumed with those alone")
        order = torch.tensor([saved[key] for key in self.keys.tolist()])
        self.progress.set(numbers)
        if "best.centers" in tensors:
            best = {n.removeprefix("best."): t for n, t in tensors.items() if n.startswith("best.")}
            state = self._unpack(best, order)
            self.best = Attempt(float(best["loss"]), state, self.clients.cohort.client_state)
        self.state = self._unpack(tensors, order)
        self.traffic = Traffic(**{n: numbers[n] for n in self.traffic.named()})

    def _unpack(self, tensors: dict[str, Tensor], order: Tensor) -> State:
        """The state that was packed; the memory becomes the cohort's."""
        device = self.model.device

        def part(prefix: str, of: Tensor = order) -> dict[str, Tensor]:
            mine = {n: t for n, t in tensors.items() if n.startswith(prefix)}
            return {n.removeprefix(prefix): storage.take(t, of) for n, t in mine.items()}

        centers = tensors["centers"]
        centers = centers if self.stage.topology.is_server else storage.take(centers, order)
        fields = {n: t.to(device) for n, t in part("state.").items()}
        state = replace(self._enter(centers.to(device)), fields=fields)
        own = order[self.clients.own.cpu()] if isinstance(self.clients, Sharded) else order
        client_state, known = self.clients.cohort.client_state, part("known.", own)
        for name, value in part("memory.", own).items():
            client_state.set(name, value, known[name], device)
        return state


def _packed(state: State, client_state: ClientState) -> dict[str, Tensor]:
    return {
        "centers": state.centers,
        **{f"state.{n}": t for n, t in state.fields.items()},
        **{f"memory.{n}": t for n, t in client_state.values.items()},
        **{f"known.{n}": t for n, t in client_state.known.items()},
    }
