"""Initialisation: what is played before an algorithm, so that its centers differ from the beginning.

Every clustered method depends on where its centers begin. From random centers, those that label single points find
classes rather than clusters, and those that let clients choose leave some centers unchosen. An initialisation takes a
stage and gives the stages to play in its place. It spends some of the stage's rounds, so the whole is at most as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from coterie.algorithms.corners import Corners
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedsoft import FedSoft
from coterie.algorithms.oneshot import OneShot
from coterie.algorithms.wecfl import WeCFL
from coterie.engine.training import Training
from coterie.errors import SettingError, require
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.participation import Participation
from coterie.protocol.personalise import Way
from coterie.protocol.privacy import Privacy
from coterie.protocol.stages import Stage, Stages
from coterie.protocol.topology import Server, Topology

Initialisation = Callable[[Stage], Stages]

N_INIT = 5  # random initialisations of `several`
CORNERS = 7  # rounds of `corners` and `sketch` at most: four alone, three to average

# what is played first, and how many of the rounds it takes at most


def random(stage: Stage) -> Stages:
    """Random centers, the same for all: what the papers do."""
    return Stages((stage,))


def several(stage: Stage) -> Stages:
    """A few rounds from each of several random initialisations; the one with the least training loss goes on."""
    most = max(1, stage.rounds // 2)
    n_init = min(N_INIT, max(1, most // 2))
    return replace(stage, rounds=most // n_init, n_init=n_init).then(_rest(stage, most // n_init * n_init))


def warm_up(stage: Stage) -> Stages:
    """FedAvg first; then every center is its model, pushed a little its own way."""
    rounds = max(1, stage.rounds // 3)
    return replace(stage, algorithm=FedAvg(), rounds=rounds).then(_rest(stage, rounds))


def clients(stage: Stage) -> Stages:
    """Clients are clustered first, by WeCFL, until its centers are separated. A graph needs a server for that."""
    return _clustered(WeCFL(stage.algorithm.clusters(), represent="all"), stage)


def one_shot(stage: Stage) -> Stages:
    """Clients are clustered first, by k-FED on their first updates. A graph needs a server for that."""
    return _clustered(OneShot(stage.algorithm.clusters()), stage)


def soft(stage: Stage) -> Stages:
    """FedSoft first, until its centers are separated; over a graph too, so with no server at all."""
    first = FedSoft(stage.algorithm.clusters(), pull=0.01)
    return _until_separated(replace(stage, algorithm=first), stage, stage.rounds // 2)


def corners(stage: Stage) -> Stages:
    """Clients are clustered first, by the corners between which their models lie. A graph needs a server for that."""
    return _by_corners(replace(stage, topology=Server()), stage)


def sketch(stage: Stage) -> Stages:
    """The same over a graph, with no server at any time; at a server, what `corners` is."""
    return _by_corners(stage, stage)


def _by_corners(first: Stage, stage: Stage) -> Stages:
    """One round at least to train alone, and one to average."""
    rounds = min(CORNERS, stage.rounds // 2)
    if rounds < 2:
        return random(stage)
    first = replace(first, algorithm=Corners(stage.algorithm.clusters()), participation=_everyone(stage))
    return replace(first, rounds=rounds).then(_rest(stage, rounds))


def _clustered(algorithm: Algorithm, stage: Stage) -> Stages:
    first = replace(stage, algorithm=algorithm, topology=Server(), participation=_everyone(stage))
    return _until_separated(first, stage, stage.rounds // 3)


def _everyone(stage: Stage) -> Participation:
    """To be clustered, clients have to send a row: all are invited, even where later rounds invite some."""
    return replace(stage.participation, fraction=1.0, select="uniform", candidates=None, clusters=None)


def _until_separated(first: Stage, stage: Stage, rounds: int) -> Stages:
    """Private clients do not say whether the centers are separated, so with privacy all rounds are played."""
    until: Literal["rounds", "separated"] = "separated" if stage.privacy is None else "rounds"
    return replace(first, rounds=max(1, rounds), until=until).then(_rest(stage, max(1, rounds)))


def _rest(stage: Stage, rounds: int) -> Stage:
    return replace(stage, rounds=stage.rounds - rounds)


# which

_PRIVATE = {"corners": "clients", "sketch": "soft"}


def own_init(stage: Stage) -> str:
    """What the algorithm chooses, and under privacy, which covers no sketch, what is the next best."""
    at_server = stage.topology.is_server
    init = stage.algorithm.init_at_server if at_server else stage.algorithm.init_over_graph
    if stage.privacy is None:
        return init
    return "random" if init == "sketch" and isinstance(stage.algorithm, FedSoft) else _PRIVATE.get(init, init)


def initialised(stage: Stage, init: str | Initialisation | None = None) -> Stages:
    """The stages to play for this one, with the initialisation named or, if it is None, the algorithm's own choice."""
    init = own_init(stage) if init is None else init
    if isinstance(init, str):
        require(init in INITIALISATIONS, "init", init, f"one of {', '.join(INITIALISATIONS)}")
        init = INITIALISATIONS[init]
    algorithm, at_server = stage.algorithm, stage.topology.is_server
    homeless = algorithm.needs_server and not at_server  # which the algorithm itself will say
    if init is random or homeless or stage.rounds < 2 or algorithm.clusters() == 1:
        return random(stage)
    require(
        stage.n_init == 1,
        "n_init",
        stage.n_init,
        "1 where an initialisation finds the centers, or init = 'random' beside it",
    )
    if algorithm.first_only and init in INITIALISATIONS.values() and init is not warm_up:
        raise SettingError(
            "init", f"needs centers, but {algorithm.title()} begins at one model; allowed is random, warm-up"
        )
    if init is several and not (at_server and stage.privacy is None):
        why = (
            "over a graph nobody can compare them" if not at_server else "privacy does not cover their losses"
        )
        raise SettingError("init", f"is 'several', but {why}; allowed is another one")
    *before, last = init(stage)
    return Stages((*(replace(one, personal="own") for one in before), last))


INITIALISATIONS: dict[str, Initialisation] = {
    "random": random,
    "several": several,
    "warm-up": warm_up,
    "clients": clients,
    "corners": corners,
    "one-shot": one_shot,
    "soft": soft,
    "sketch": sketch,
}


def as_stages(
    algorithm: Algorithm | Stage | Sequence[Stage],
    rounds: int,
    training: Training | None = None,
    topology: Topology | None = None,
    participation: Participation | None = None,
    privacy: Privacy | None = None,
    init: str | Initialisation | None = None,
    personal: Way | None = None,
) -> Stages:
    """What is to be played: stages as they are given, or a lone algorithm with its initialisation."""
    how = {
        "training": training,
        "topology": topology,
        "participation": participation,
        "privacy": privacy,
        "personal": personal,
    }
    if isinstance(algorithm, str | type):
        says = f"is {algorithm!r}; allowed is an algorithm with its settings, such as coterie.FedAvg(), or stages"
        raise SettingError("algorithm", says)
    if isinstance(algorithm, Stage | Sequence):
        for name, value in {**how, "init": init}.items():
            if value is not None:
                raise SettingError(
                    name, "is given beside stages, which have their own; give it to each Stage"
                )
        return Stages((algorithm,) if isinstance(algorithm, Stage) else algorithm)
    given: dict[str, Any] = {name: value for name, value in how.items() if value is not None}
    return initialised(Stage(algorithm, rounds, **given), init)
