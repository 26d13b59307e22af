"""Whom a server invites to a round: all alike, by size, by loss, or by loss from different clusters.

What it has to know for that is sent like everything else. Before the first round of a stage every client sends its
size, and for k-FED the means of its inputs; in a round the candidates are sent what they need to make their
personal models, and send the mean loss of these on their training data.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError, require
from coterie.prng import gumbel, mix
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.clients import Clients
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.participation import Participation
from coterie.protocol.state import State
from coterie.protocol.traffic import Traffic

log = logging.getLogger("coterie")

SIZE, CLUSTERS = "selection.size", "selection.clusters"  # fields of the state


def invite(
    how: Participation, algorithm: Algorithm, state: State, clients: Clients, traffic: Traffic
) -> tuple[State, Messages | None]:
    """The state with those that are invited to this round, and what they have been sent to find that out."""
    seed, round = state.context.seed, state.context.of_run
    if how.select == "uniform":
        return replace(state, invited=how.invited(state.keys, seed, round)), None
    if SIZE not in state.fields:
        state = enrol(how, state, clients, traffic)
    number = how.n_invited(state.n_clients)
    if how.select == "size":
        return replace(state, invited=by_size(state, number)), None
    asked = by_size(state, how.n_candidates(state.n_clients)) & how.came(state.keys, seed, round)
    offer = algorithm.final_offer(replace(state, invited=asked))
    sent = clients.ask("loss", offer, state.context)
    traffic.to_clients(offer)
    traffic.to_server(sent)
    ranked = by_loss(state, sent)
    if how.select == "loss-per-cluster":
        ranked = diverse(ranked, state.fields[CLUSTERS])
    invited = torch.zeros_like(state.invited)
    invited[ranked[:number]] = True
    return replace(state, invited=invited), offer


def by_size(state: State, number: int) -> Tensor:
    """(client,) bool: so many, drawn without replacement with chances proportional to size; a race of Gumbels."""
    m = state.context
    race = state.fields[SIZE].double().log() + gumbel(mix(m.seed, m.of_run, "by size", state.keys))
    drawn = torch.zeros_like(state.invited)
    drawn[race.topk(number).indices] = True
    return drawn


def by_loss(state: State, sent: Messages) -> list[int]:
    """The candidates that answered, highest loss first (Cho et al.); one whose model diverged is left out."""
    if not len(sent):
        return []
    sent = sent.take(sent.finite().nonzero()[:, 0])
    ties = mix(state.context.seed, state.context.of_run, "tie", state.keys[sent.clients]).argsort()
    order = ties[sent.loss[ties].argsort(descending=True, stable=True)]
    ranked: list[int] = sent.clients[order].tolist()
    return ranked


def diverse(ranked: Iterable[int], clusters: Tensor) -> list[int]:
    """Candidates in another order: first those that k-FED's filter leaves, then those of the rest that it leaves, ...

    Section 4.2.2: "further filtering out the devices coming from the same clusters". Choice: one is filtered out
    if those before it have all its clusters (client, cluster) bool; where it leaves too few, it begins again.
    """
    chosen: list[int] = []
    left = list(ranked)
    while left:
        covered = torch.zeros_like(clusters[0])
        filtered = []
        for client in left:
            if covered.any() and not (clusters[client] & ~covered).any():
                filtered.append(client)
            else:
                chosen.append(client)
                covered = covered | clusters[client]
        left = filtered
    return chosen


def enrol(how: Participation, state: State, clients: Clients, traffic: Traffic) -> State:
    """Before the first round, when nobody is absent: sizes, and for k-FED the clusters that each client has.

    Who does not answer has size 0, and is not drawn while others are left.
    """
    sent = clients.ask("enrol", state.for_everyone().offer(), state.context)
    traffic.to_server(sent)
    if not len(sent):
        raise CoterieError(
            "no client answered to say how many points it has, so nobody can be selected by that"
        )
    state = state.update(**{SIZE: sent.scattered("size", state.n_clients)})
    if how.select != "loss-per-cluster":
        return state
    from coterie.clustering.kfed import combine  # here, since scikit-learn comes with it

    every = sent.scattered("means", state.n_clients).double().cpu().numpy()
    means = [each[np.isfinite(each).all(1)] for each in every]
    most = sum(map(len, means))
    allowed = f"at most {most}, the means that clients sent"
    require(how.clusters is None or how.clusters <= most, "clusters", how.clusters, allowed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = combine(means, how.clusters, random_state=_seed(state.context))
    for one in said:
        log.warning("%s", one.message)
    clusters = torch.zeros(state.n_clients, len(found.centers), dtype=torch.bool)
    for client, own in enumerate(found.clusters):
        clusters[client, torch.as_tensor(own)] = True
    return state.update(**{CLUSTERS: clusters.to(state.keys.device)})


# at the client


def introduce(how: Participation, cohort: Cohort) -> Fields:
    """My size, and for k-FED the means of my inputs, flattened (k', feature); nan where I have fewer."""
    if how.select != "loss-per-cluster":
        return {"size": cohort.sizes}
    from coterie.clustering.kfed import local_clusters  # here, since scikit-learn comes with it

    points, seed = cohort.points, _seed(cohort.context)
    x = points.x.flatten(1)
    means = torch.full((len(cohort), how.local_clusters, x.shape[1]), torch.nan, dtype=cohort.model.dtype)
    for i in range(len(cohort)):
        own = points.at[points.offset[i] : points.offset[i + 1]]
        given = x[own].cpu().numpy()
        found = local_clusters(
            given, how.local_clusters, n_init=1, random_state=seed
        ).means  # 1 as in the paper
        means[i, : len(found)] = torch.as_tensor(found)
    return {"size": cohort.sizes, "means": means.to(cohort.model.device)}


def losses(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Fields:
    """The mean loss of my present model on my training data."""
    return {"loss": cohort.score(algorithm.personal(cohort, offer)).loss}


def _seed(context: RoundContext) -> int:
    return int(mix(context.seed, context.stage, "k-FED") % 2**31)
