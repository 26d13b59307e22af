"""One round: who is asked what, and what the aggregators make of the answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.engine import storage
from coterie.engine.model import FunctionalModel
from coterie.engine.rows import Rows
from coterie.prng import gaussian, mix
from coterie.protocol import spread
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.clients import Clients
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.received import Received
from coterie.protocol.selection import invite
from coterie.protocol.stages import Stage
from coterie.protocol.state import State
from coterie.protocol.topology import Server
from coterie.protocol.traffic import Traffic

log = logging.getLogger("coterie")

PERTURB = 0.1  # how far centers are pushed from the one model that they all begin at, relative to its size


class Played(NamedTuple):
    """A round."""

    state: State  # after it
    sent: Messages  # those that arrived
    left_out: Tensor  # (client,) whose messages were not finite


def play_round(stage: Stage, state: State, clients: Clients, ids: Sequence[str], traffic: Traffic) -> Played:
    if stage.topology.is_server:
        return _at_server(stage, state, clients, traffic)
    if clients.peers:
        return _among_peers(stage, state, clients, ids, traffic)
    return _over_graph(stage, state, clients, ids, traffic)


@dataclass(frozen=True)
class _Trained:
    """What was sent before anybody combines."""

    state: State
    present: Tensor  # (client,) bool: who was invited and came
    already: Messages | None  # what clients were sent so that the server could select them
    asked: Messages | None
    reports: Messages | None
    offer: Messages
    sent: Messages
    left_out: Tensor  # (client,) whose messages were not finite


def _train(stage: Stage, state: State, clients: Clients, traffic: Traffic) -> _Trained:
    """Invite, ask for reports, plan, train."""
    algorithm, context = stage.algorithm, state.context
    state, already = invite(stage.participation, algorithm, state, clients, traffic)
    came = stage.participation.came(state.keys, context.seed, context.of_run)
    present = everyone.both(state.invited, came)
    asked, reports = algorithm.ask(state), None
    if asked is not None:
        asked = asked.only(present)
        reports = clients.ask("report", asked, context) if len(asked) else None
    state, offer = algorithm.plan(state, reports)
    offer = offer.only(present)
    sent, left_out = finite_only(clients.ask("train", offer, context))
    return _Trained(state, present, already, asked, reports, offer, sent, left_out)


def _at_server(stage: Stage, state: State, clients: Clients, traffic: Traffic) -> Played:
    done = _train(stage, state, clients, traffic)
    sent = done.sent.only(_in_time(stage, state))  # a straggler's message is lost on the way
    for offer in (done.asked, done.offer):
        traffic.to_clients(offer, done.already)
    for arrived in (done.reports, sent):
        traffic.to_server(arrived)
    if not len(sent):
        return Played(done.state, sent, done.left_out)
    return Played(stage.algorithm.combine(done.state, Received.by_server(sent)), sent, done.left_out)


def _over_graph(stage: Stage, state: State, clients: Clients, ids: Sequence[str], traffic: Traffic) -> Played:
    """Every client is an aggregator; all of them are computed here."""
    assert not isinstance(stage.topology, Server)
    done = _train(stage, state, clients, traffic)
    if not len(done.sent):
        return Played(done.state, done.sent, done.left_out)
    n, in_time = state.n_clients, _in_time(stage, state)
    first, *later = _hops(stage, state, done.sent, done.present, ids, traffic)
    received = Received.by_peers(done.sent, n, first, hop_weights(stage, first, n, state.context))
    state = stage.algorithm.combine(done.state, received)
    for hop in later:
        passed = stage.algorithm.passed(state.for_everyone()).only(_speakers(hop, n))
        received = Received.by_peers(finite_only(passed)[0], n, hop)
        _count_between_peers(received, traffic)
        state = stage.algorithm.join(state, received)
    return Played(state, done.sent.only(in_time), done.left_out)


def _among_peers(
    stage: Stage, state: State, clients: Clients, ids: Sequence[str], traffic: Traffic
) -> Played:
    """Every peer makes its own offer and combines for itself; `state` is a copy of what they know, for metrics."""
    how, context = stage.participation, state.context
    present = how.present(state.keys, context.seed, context.of_run)
    everybody = state.for_everyone()
    sent, left_out = finite_only(clients.ask("train", everybody.offer().only(present), context))
    if not len(sent):
        return Played(state, sent, left_out)
    first, *later = _hops(stage, state, sent, present, ids, traffic)
    clients.deliver(sent, first, context)
    for hop in later:
        passed = clients.ask("pass", everybody.offer().only(_speakers(hop, state.n_clients)), context)
        passed = finite_only(passed)[0]
        _count_between_peers(Received.by_peers(passed, state.n_clients, hop), traffic)
        clients.deliver(passed, hop, context)
    return Played(known_to_peers(everybody, clients), sent.only(_in_time(stage, state)), left_out)


def known_to_peers(state: State, clients: Clients) -> State:
    """A copy of what peers know; of those who do not answer, as it was."""
    found = clients.ask("state", state.for_everyone().offer(), state.context)
    at, known = found.clients, {**state.fields, "centers": state.centers}
    for name, value in found.fields.items():
        whole = known[name].clone() if name in known else value.new_zeros(state.n_clients, *value.shape[1:])
        whole[at] = value
        known[name] = whole
    return replace(state, centers=known.pop("centers"), fields=known)


def _in_time(stage: Stage, state: State) -> Tensor:
    """(client,) bool: whose messages arrive in this round."""
    return stage.participation.in_time(state.keys, state.context.seed, state.context.of_run)


def _edges(stage: Stage, state: State, present: Tensor, ids: Sequence[str]) -> Tensor:
    """(2, edge) aggregator and sender: who is present receives from neighbours in time, and from itself."""
    assert not isinstance(stage.topology, Server)
    edges = stage.topology.edges(ids, state.context.seed, state.context.of_run).to(state.keys.device)
    aggregator, sender = edges
    in_time = _in_time(stage, state)
    return edges[:, present[aggregator] & (in_time[sender] | (aggregator == sender))]


def finite_only(sent: Messages) -> tuple[Messages, Tensor]:
    """A message with a number that is not finite is left out: its client diverged, and others need not. And whose."""
    good = sent.finite()
    if bool(good.all()):
        return sent, sent.clients[:0]
    log.warning("what diverged clients sent is left out")
    return sent.take(good.nonzero()[:, 0]), sent.clients[~good]


def _hops(
    stage: Stage, state: State, sent: Messages, present: Tensor, ids: Sequence[str], traffic: Traffic
) -> list[Tensor]:
    """Who receives from whom what was trained, and then what is passed on; the former is counted."""
    edges, algorithm = _edges(stage, state, present, ids), stage.algorithm
    how = algorithm.spread(state.context)
    if how == "flood":
        found = spread.reached(edges, sent, state.keys, state.context.seed)
        spread.count_flood(edges, sent, found, traffic)
        return [found]
    if how == "tree":
        return [edges[:, edges[0] == edges[1]], *spread.tree(edges, state.keys)]
    _count_between_peers(Received.by_peers(sent, state.n_clients, edges), traffic, algorithm)
    return [edges]


def hop_weights(stage: Stage, edges: Tensor, n_clients: int, context: RoundContext) -> Tensor | None:
    """(edge,) what a message counts at its aggregator; a graph has weights of its own for neighbours only."""
    assert not isinstance(stage.topology, Server)
    near = stage.algorithm.spread(context) == "neighbours"
    return stage.topology.edge_weights(edges, n_clients) if near else None


def _speakers(hop: Tensor, n_clients: int) -> Tensor:
    """(client,) bool: who sends something in this hop."""
    speaks = torch.zeros(n_clients, dtype=torch.bool, device=hop.device)
    speaks[hop[1]] = True
    return speaks


def _count_between_peers(received: Received, traffic: Traffic, algorithm: Algorithm | None = None) -> None:
    aggregator, message = received.edges
    others = received.messages.clients[message] != aggregator
    needed = algorithm.needed(received) & others if algorithm and received.messages.fields else others

    def per_message(edges: Tensor) -> Tensor:
        return torch.bincount(message[edges], minlength=len(received.messages))

    traffic.between(received.messages, per_message(others), per_message(needed))


# between rounds


def begin(stage: Stage, centers: Tensor, keys: Tensor, rows: Rows, context: RoundContext) -> State:
    """The aggregators' state as a stage begins, from centers (1, cluster, width) or (aggregator, cluster, width)."""
    at_server = stage.topology.is_server
    invited = everyone.mask(len(keys), keys.device)
    if not at_server:
        common, shape = centers, (len(keys), *centers.shape[1:])
        centers = storage.table(shape, centers.dtype, centers.device)
        for some in storage.row_blocks(centers):
            centers[some] = common if len(common) == 1 else common[some]
    return stage.algorithm.begin(State(centers, keys, rows, at_server, context, invited))


def first_centers(model: FunctionalModel, clusters: int, attempt: int = 0) -> Tensor:
    """Common random centers, (1, cluster, width), other ones for every attempt."""
    names = [f"center {s}" + (f" of try {attempt}" if attempt else "") for s in range(clusters)]
    return torch.stack([model.initial(name) for name in names])[None]


def hand_over(
    before: Stage, after: Stage, centers: Tensor, rows: Rows, clients: int, seed: int, traffic: Traffic
) -> Tensor:
    """Centers from one stage to the next, sent where the next is held by somebody else."""
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
    if after.algorithm.first_only:
        return centers.expand(-1, wanted, -1)
    return perturbed(centers, wanted, rows, seed)


def perturbed(model: Tensor, clusters: int, rows: Rows, seed: int) -> Tensor:
    """Centers (aggregator, cluster, width) around one model (aggregator, 1, width), each pushed its own way.

    The push goes the same way for every aggregator, so that cluster s means the same to all.
    """
    parameters, tail = rows.split(model.expand(-1, clusters, -1))
    column = torch.arange(rows.n_parameters, device=model.device)
    cluster = torch.arange(clusters, device=model.device)[:, None]
    push = gaussian(mix(mix(seed, "perturb").to(model.device), cluster, column))
    push = (push - push.mean(0)).to(model.dtype)  # no center is nearer to the model than another
    size = parameters.square().mean((1, 2), keepdim=True).sqrt()
    return torch.cat([parameters + PERTURB * size * push, tail], -1)


def measure_separation(state: State, clients: Clients, who: Tensor, traffic: Traffic) -> Messages:
    """What these clients say of the centers. Peers have them; a server sends them all, for not all were offered.

    Over a graph these few numbers are to be averaged by gossip; what that costs beside rows is left out.
    """
    own = not state.at_server and clients.peers
    everybody = state.for_everyone()
    offer = (everybody.offer() if own else everybody.offer(centers=state.centers)).take(who)
    sent = clients.ask("separation", offer, state.context)
    if state.at_server:
        traffic.to_clients(offer)
        traffic.to_server(sent)
    return sent
