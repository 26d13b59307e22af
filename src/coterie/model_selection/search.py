"""How many clusters? Clients hold out some of their own training points, and every number is tried on them.

The held-out loss falls until there is a cluster for every distribution, and is flat from there on: `choice.py` finds
where. Test points play no part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from coterie.algorithms.initialisation import Initialisation, as_stages
from coterie.backends.processes import here
from coterie.backends.simulation import Simulation
from coterie.data import from_arrays
from coterie.data.federation import Federation
from coterie.engine.model import Loss, as_device
from coterie.engine.rows import Build, factory
from coterie.engine.training import Training
from coterie.errors import CoterieError, require
from coterie.model_selection.choice import Choice, Choosing, Tried, file_of
from coterie.prng import id_keys, mix, uniform
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.coordinator import Coordinator, check
from coterie.protocol.message import Messages
from coterie.protocol.participation import Participation
from coterie.protocol.stages import Stage, Stages, check_clustered, with_clusters
from coterie.protocol.topology import Topology
from coterie.runs.play import described
from coterie.runs.result import Record
from coterie.validation import fits

Watch = Callable[[int, Record, int], None]  # the number of clusters, a round's record, rounds in all


def choose_clusters(
    model: nn.Module | Build,
    data: Federation | Sequence[Any] | Mapping[str, Any],
    algorithm: Algorithm | Stage | Sequence[Stage],
    *,
    choosing: Choosing | None = None,
    rounds: int = 50,
    training: Training | None = None,
    topology: Topology | None = None,
    participation: Participation | None = None,
    init: str | Initialisation | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    loss: Loss | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    watch: Watch | None = None,
    experiment: str = "",
) -> Choice:
    """How many clusters `algorithm` should have; as in `coterie.run`, whatever n_clusters it is given.

    With `out`, every number that was tried is kept in that folder, with a hash of the settings and of `experiment`,
    whatever else describes them; the same call goes on from there.
    """
    choosing = choosing or Choosing()
    require(fits(seed, int) and 0 <= seed < 2**63, "seed", seed, "a whole number from 0")
    if isinstance(algorithm, Algorithm):
        check_clustered(type(algorithm))
        algorithm = replace(algorithm, n_clusters=2)  # type: ignore[call-arg]  # so that it is initialised
    stages = as_stages(algorithm, rounds, training, topology, participation, init=init)
    check_clustered(type(stages[-1].algorithm))
    if any(stage.privacy is not None for stage in stages):
        raise CoterieError(
            "privacy is given, but it does not cover the losses that clients send to choose a number"
        )
    federation = data if isinstance(data, Federation) else from_arrays(data)
    numbers = choosing.numbers(len(federation))
    split = hold_out(federation, choosing.held_out, seed)
    build, where = factory(model), as_device(device)

    @cache
    def simulation(attempt: int) -> Simulation:
        """The model and the data, tried together once for all numbers; every attempt has a seed of its own."""
        own = seed if attempt == 0 else int(mix(seed, "start", attempt) & (2**63 - 1))
        return Simulation(build, split, seed=own, loss=loss, device=where, dtype=dtype)

    def begin(clusters: int, attempt: int) -> Coordinator:
        # their models are not wanted here, so clients need not choose any
        staged = Stages(replace(stage, personal="own") for stage in with_clusters(stages, clusters))
        check(staged, len(split))
        return simulation(attempt).coordinator(staged)

    tried = []
    for clusters in numbers:
        kept = None if out is None else file_of(Path(out), clusters)
        tried.append(_best_attempt(partial(begin, clusters), split, choosing.n_init, kept, experiment, watch))
    choice = Choice.among(tried, choosing.gain)
    if out is not None:
        here().once(partial(choice.save, Path(out)))
    return choice


# the clients' side


def hold_out(data: Federation, share: float, seed: int) -> Federation:
    """The same clients with a share of each one's training points held out; their test points are left out.

    Which points depends on the seed, the client's id and the points' places, not on who else takes part.
    """
    points = data.train
    owner = points.owner
    place = torch.arange(len(owner)) - points.offset[owner]
    key = mix(seed, "held out to choose the number of clusters", id_keys(data.ids)[owner], place)
    size = torch.minimum((share * points.sizes + 0.5).long(), points.sizes - 1)
    if not bool(size.any()):
        raise CoterieError(
            f"held_out is {share}, which holds out no point of any client; allowed is a larger share"
        )
    order = torch.argsort(uniform(key))
    order = order[torch.argsort(owner[order], stable=True)]  # by client, and within it by key
    held = torch.zeros_like(owner, dtype=torch.bool)
    held[order[place < size[owner]]] = True
    return replace(data, train=points.only(~held), test=points.only(held), distributions=None)


# one number of clusters


def _best_attempt(
    begin: Callable[[int], Coordinator],
    data: Federation,
    attempts: int,
    kept: Path | None,
    experiment: str,
    watch: Watch | None,
) -> Tried:
    """Of several attempts that of least held-out loss, computed or read from the file that keeps it."""
    coordinator = begin(0)
    about = described(coordinator, len(data.train.at), data.fingerprint())
    text = f"{attempts}\n{about}\n{experiment}"
    asked = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    known = None if kept is None else here().once(lambda: _known(kept, asked))
    if known is not None:
        return known
    scored = []
    for number in range(attempts):
        coordinator = coordinator if number == 0 else begin(number)
        _play(coordinator, number, attempts, watch)
        scored.append(_scored(coordinator, data))
    best = min(scored, key=lambda one: fmean(one.losses))
    best = replace(best, megabytes=sum(one.megabytes for one in scored))
    if kept is not None:
        here().once(lambda: best.save(kept, asked))
    return best


def _known(kept: Path, asked: str) -> Tried | None:
    return Tried.load(kept, asked) if kept.exists() else None


def _play(coordinator: Coordinator, number: int, attempts: int, watch: Watch | None) -> None:
    progress = coordinator.progress
    clusters, rounds = coordinator.stages[-1].algorithm.clusters(), progress.planned
    while not coordinator.done:
        sent = coordinator.step()
        if watch is not None:
            left = progress.planned - progress.played  # a stage may end ahead of its rounds
            round = (number + 1) * rounds - left - 1
            record: Record = {"round": round, "loss": _training_loss(coordinator, sent)}
            watch(clusters, record, attempts * rounds)


def _training_loss(coordinator: Coordinator, sent: Messages) -> float | None:
    """For those who watch: the mean over those received."""
    if not len(sent):
        return None
    found = coordinator.clients.ask("training_loss", Messages(sent.clients, {}), coordinator.state.context)
    loss = float(found.loss.nanmean()) if len(found) else math.nan
    return None if math.isnan(loss) else loss


def _scored(coordinator: Coordinator, data: Federation) -> Tried:
    """What clients send: a loss on the points held out, and one on those trained on."""
    assert data.test is not None
    coordinator.count_final_offer()
    found = coordinator.ask_everyone("likelihood")
    coordinator.traffic.to_server(found)
    held_out = torch.where(found.held_out.isnan(), torch.inf, found.held_out)
    losses = [float(held_out[i]) for i in _by_id(data) if data.test.sizes[i]]
    clusters = coordinator.stage.algorithm.clusters()
    return Tried(
        clusters,
        tuple(losses),
        float(found.training.mean()),
        clusters * coordinator.model.rows.n_parameters,
        coordinator.traffic.total() / 1e6,
    )


def _by_id(data: Federation) -> list[int]:
    return sorted(range(len(data)), key=lambda i: data.ids[i])
