"""How many clusters? Clients hold out some of their own training points, and every number is tried on them.

The held-out loss falls until there is a cluster for every distribution, and is flat from there on: `choice.py` finds
where. Test points play no part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from coterie.algorithms.initialisation import Initialisation
from coterie.api import as_device, as_stages, described
from coterie.backends.processes import here
from coterie.backends.simulation import Simulation
from coterie.data import from_arrays
from coterie.data.federation import Federation, Points
from coterie.engine.model import Loss
from coterie.engine.rows import Build, factory
from coterie.engine.training import Training
from coterie.errors import CoterieError, require
from coterie.model_selection.choice import Choice, Choosing
from coterie.model_selection.tried import Tried, file_of
from coterie.prng import id_keys, mix, uniform
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.message import Messages
from coterie.protocol.participation import Participation
from coterie.protocol.stages import Stage, Stages
from coterie.protocol.topology import Topology
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
            "privacy is given, but it does not cover the losses that clients tell to choose a number"
        )
    federation = data if isinstance(data, Federation) else from_arrays(data)
    numbers = choosing.numbers(len(federation))
    apart = hold_out(federation, choosing.held_out, seed)
    build, where = factory(model), as_device(device)

    def begin(clusters: int, number: int) -> Simulation:
        own = seed if number == 0 else int(mix(seed, "start", number) & (2**63 - 1))
        staged = with_clusters(stages, clusters)
        return Simulation(build, apart, staged, seed=own, loss=loss, device=where, dtype=dtype)

    tried = []
    for clusters in numbers:
        kept = None if out is None else file_of(Path(out), clusters)
        tried.append(_best_start(partial(begin, clusters), choosing.n_init, kept, experiment, watch))
    choice = Choice.among(tried, choosing.gain)
    if out is not None:
        folder = Path(out)
        here().once(lambda: choice.save(folder))
    return choice


def with_clusters(stages: Stages, clusters: int) -> Stages:
    """The same method with so many clusters, in every stage that has any."""
    return Stages(
        replace(stage, algorithm=replace(stage.algorithm, n_clusters=clusters))  # type: ignore[call-arg]
        if is_clustered(type(stage.algorithm))
        else stage
        for stage in stages
    )


def check_clustered(kind: type[Algorithm]) -> None:
    """Refuse an algorithm that has no number of clusters."""
    if kind.last_only:
        raise CoterieError(f"{kind.title()} finds the number of clusters itself; run it without one")
    if not is_clustered(kind):
        raise CoterieError(
            f"{kind.title()} has no number of clusters; allowed is an algorithm with n_clusters"
        )


def is_clustered(kind: type[Algorithm]) -> bool:
    return "n_clusters" in {field.name for field in fields(kind)}


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


def client_losses(simulation: Simulation, points: Points | None = None) -> Tensor:
    """(client,) how well the clusters, as each client has them, predict its own or given points; nan without any.

    Where a client has one cluster: the loss of its model. Where each point has one: −log Σ_s u_s·exp(−loss_s), the
    likelihood of FedEM, the importance u having been found on the points trained on.
    """
    algorithm = simulation.stage.algorithm
    cohort = simulation.clients.cohort.when(simulation.state.context)
    offer = simulation.clients.mine(algorithm.final_offer(simulation.state.for_everyone()))
    if not algorithm.soft:
        return simulation.clients.of_all(cohort.score(algorithm.personal(cohort, offer), points).loss)
    share = smoothed(algorithm.importance(cohort, offer), cohort.sizes)
    there = cohort if points is None else replace(cohort, points=points)
    each = torch.logsumexp(share.log()[there.points.owner] - there.losses(offer.centers), 1)
    return simulation.clients.of_all(there.means(-each))


def smoothed(share: Tensor, sizes: Tensor) -> Tensor:
    """Shares (client, cluster) with one point more, divided evenly: what was not seen may still come."""
    seen = share * sizes[:, None]
    return (seen + 1 / share.shape[1]) / (seen.sum(1, keepdim=True) + 1)


# one number of clusters


def _best_start(
    start: Callable[[int], Simulation], starts: int, kept: Path | None, experiment: str, watch: Watch | None
) -> Tried:
    """Of several starts that of least held-out loss, computed or read from the file that keeps it."""
    simulation = start(0)
    text = f"{starts}\n{described(simulation)}\n{experiment}"
    asked = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    known = None if kept is None else here().once(lambda: _known(kept, asked))
    if known is not None:
        return known
    scored = []
    for number in range(starts):
        simulation = simulation if number == 0 else start(number)
        _play(simulation, number, starts, watch)
        scored.append(_scored(simulation))
    best = min(scored, key=lambda one: fmean(one.losses))
    best = replace(best, megabytes=sum(one.megabytes for one in scored))
    if kept is not None:
        here().once(lambda: best.save(kept, asked))
    return best


def _known(kept: Path, asked: str) -> Tried | None:
    return Tried.load(kept, asked) if kept.exists() else None


def _play(simulation: Simulation, number: int, starts: int, watch: Watch | None) -> None:
    clusters, rounds = simulation.stages[-1].algorithm.clusters(), simulation.progress.planned
    while not simulation.done:
        sent = simulation.step()
        if watch is not None:
            left = (
                simulation.progress.planned - simulation.progress.played
            )  # a stage may end ahead of its rounds
            loss = simulation.training_loss(sent)
            round = (number + 1) * rounds - left - 1
            record: Record = {"round": round, "loss": None if math.isnan(loss) else loss}
            watch(clusters, record, starts * rounds)


def _scored(simulation: Simulation) -> Tried:
    """What clients tell: a loss on the points held out, and one on those trained on."""
    assert simulation.data.test is not None
    if simulation.stage.topology.is_server:
        simulation.traffic.to_clients(simulation.stage.algorithm.final_offer(simulation.state.for_everyone()))
    held_out, training = client_losses(simulation, simulation.test), client_losses(simulation)
    everyone = torch.arange(len(simulation.data))
    simulation.traffic.to_server(Messages(everyone, {"held_out": held_out, "training": training}))
    held_out = torch.where(held_out.isnan(), torch.inf, held_out)
    losses = [float(held_out[i]) for i in _by_id(simulation.data) if simulation.data.test.sizes[i]]
    clusters = simulation.stage.algorithm.clusters()
    parameters = clusters * simulation.model.rows.n_parameters
    return Tried(
        clusters, tuple(losses), float(training.mean()), parameters, simulation.traffic.total() / 1e6
    )


def _by_id(data: Federation) -> list[int]:
    return sorted(range(len(data)), key=lambda i: data.ids[i])
