"""An algorithm and a place to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Literal

from coterie.errors import CoterieError
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.participation import Participation
from coterie.protocol.stages import Stage, Stages, is_clustered
from coterie.protocol.topology import Graph, Server, Topology
from coterie.testing.small import MOMENTUM

Make = Callable[[int], Algorithm]  # from a number of clusters
Place = Literal["server", "graph"]

PLACES: dict[str, Topology] = {"server": Server(), "graph": Graph("erdos-renyi", degree=3.0)}
EVERYBODY = Participation()


@dataclass(frozen=True)
class Case:
    """An algorithm, at a server or over a graph."""

    make: Make
    place: Place

    @property
    def kind(self) -> type[Algorithm]:
        return type(self.make(2))

    @property
    def complete(self) -> Topology:
        """For few clients: a server, or a graph in which all are neighbours."""
        return Graph("complete") if self.place == "graph" else Server()

    def stages(self, rounds: int = 3, clusters: int = 2, who: Participation = EVERYBODY) -> Stages:
        return Stages((Stage(self.make(clusters), rounds, MOMENTUM, PLACES[self.place], who),))


def maker(kind: type[Algorithm]) -> Make:
    """With its default settings and any number of clusters."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    more = [name for name in needed if name != "n_clusters"]
    if more:
        raise CoterieError(
            f"{kind.title()} needs {', '.join(more)}; give contracts a function that makes it from a number of "
            "clusters"
        )
    made: Callable[..., Algorithm] = kind
    return (lambda clusters: made(n_clusters=clusters)) if is_clustered(kind) else (lambda clusters: made())
