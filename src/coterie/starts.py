"""Good starts: what is played before an algorithm, so that its centers begin apart.

Every clustered method depends on its start. From random centers, those that label single points find classes
rather than clusters, and those that let clients choose leave some centers unchosen. A start takes a stage and
gives the stages to play in its place. It spends some of the stage's rounds, so that the whole stays as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from coterie.algorithms import FedAvg, FedSoft, OneShot, WeCFL
from coterie.errors import require
from coterie.stages import Stage, Stages
from coterie.topology import Server

Start = Callable[[Stage], Stages]

SHARE = 3  # a start takes at most one in so many rounds


def random(stage: Stage) -> Stages:
    """Random centers, the same for all: what the papers do."""
    return Stages((stage,))


def several(stage: Stage, tries: int = 5) -> Stages:
    """A few rounds from each of several random starts; the one with the least training loss goes on."""
    rounds = max(1, spent(stage) // tries)
    return replace(stage, rounds=rounds, tries=tries).then(rest(stage, rounds * tries))


def warm_up(stage: Stage) -> Stages:
    """FedAvg first; then every center is its model, pushed a little its own way."""
    return replace(stage, algorithm=FedAvg(), rounds=spent(stage)).then(rest(stage, spent(stage)))


def clients(stage: Stage) -> Stages:
    """Clients are clustered first, by WeCFL, until its centers have come apart. A graph needs a server for that."""
    first = WeCFL(stage.algorithm.clusters(), represent="all")
    return replace(stage, algorithm=first, rounds=spent(stage), topology=Server(), until=_end(stage)).then(
        rest(stage, spent(stage))
    )


def one_shot(stage: Stage) -> Stages:
    """Clients are clustered first, by k-FED on their first updates. A graph needs a server for that."""
    first = OneShot(stage.algorithm.clusters())
    return replace(stage, algorithm=first, rounds=spent(stage), topology=Server(), until=_end(stage)).then(
        rest(stage, spent(stage))
    )


def soft(stage: Stage) -> Stages:
    """FedSoft first, until its centers have come apart; over a graph too, so with no server at all."""
    first = FedSoft(stage.algorithm.clusters())
    return replace(stage, algorithm=first, rounds=spent(stage), until=_end(stage)).then(
        rest(stage, spent(stage))
    )


def spent(stage: Stage) -> int:
    """The most rounds that a start takes."""
    return max(1, stage.rounds // SHARE)


def _end(stage: Stage) -> Literal["rounds", "separated"]:
    """Private clients do not tell what they see in the centers."""
    return "separated" if stage.privacy is None else "rounds"


def rest(stage: Stage, rounds: int) -> Stage:
    return replace(stage, rounds=max(1, stage.rounds - rounds))


def started(stage: Stage, start: str | Start | None = None) -> Stages:
    """The stages to play for this one, with the start named or, if it is None, the algorithm's own choice."""
    at_server = stage.topology.is_server
    if start is None:
        start = stage.algorithm.start_at_server if at_server else stage.algorithm.start_over_graph
    if isinstance(start, str):
        allowed = f"one of {', '.join(STARTS)}"
        require(start in STARTS, "start", start, allowed)
        start = STARTS[start]
    if start is random or stage.rounds < 2 or stage.algorithm.clusters() == 1:
        return random(stage)
    return start(stage)


STARTS: dict[str, Start] = {
    "random": random,
    "several": several,
    "warm-up": warm_up,
    "clients": clients,
    "one-shot": one_shot,
    "soft": soft,
}
