"""Who plays, and with which Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.bench.workloads import Workload
from coterie.errors import CoterieError, require

VARIABLE = "COTERIE_BENCH_"  # and a rival's name: the Python that has it
CLUSTERED = ("ifca", "fedsoft", "fedspd")


@dataclass(frozen=True)
class Entrant:
    """A player of some workloads."""

    name: str
    module: str  # in players
    variant: str = ""
    plays: tuple[str, ...] = ("fedavg",)  # algorithms
    rival: str = ""  # another simulator, which may need a Python of its own
    cpu_only: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # {folder}: that of the job


_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": "{folder}/flwr",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PFL = {"PFL_PYTORCH_DEVICE": "cpu"}
_ALL = ("fedavg", *CLUSTERED, "kfed")

ENTRANTS = (
    Entrant("usual loop", "loops", "usual"),
    Entrant("usual loop", "clustered", plays=CLUSTERED),
    Entrant("pooled k-means", "pooled", plays=("kfed",)),
    Entrant("lean loop", "loops", "lean"),
    Entrant("lean loop, processes", "loops", "processes", cpu_only=True),
    Entrant("Flower", "flower", rival="flower", cpu_only=True, environment=_FLOWER),
    Entrant("pfl-research", "pfl_research", rival="pfl", cpu_only=True, environment=_PFL),
    Entrant(
        "pfl-research, processes", "pfl_research", "processes", rival="pfl", cpu_only=True, environment=_PFL
    ),
    Entrant("FedJAX", "fed_jax", rival="fedjax", cpu_only=True),
    Entrant("coterie", "ours", plays=_ALL),
    Entrant("coterie, eager", "ours", "eager", plays=("fedavg", *CLUSTERED)),
)
RIVALS = tuple(sorted({e.rival for e in ENTRANTS if e.rival}))


def known(names: Sequence[str]) -> None:
    """Refuse a player that there is not."""
    names_of_all = list(dict.fromkeys(entrant.name for entrant in ENTRANTS))
    for name in names:
        require(name in names_of_all, "--player", name, f"one of {', '.join(map(repr, names_of_all))}")


def entrants(work: Workload, device: str, threads: int, only: Sequence[str] = ()) -> list[Entrant]:
    """Those who play it, or those of them that are named. The first is what others are compared with."""
    return [
        e
        for e in ENTRANTS
        if work.algorithm in e.plays
        and (not only or e.name in only)
        and not (e.cpu_only and device != "cpu")
        and not (work.floor and e.module != "ours")  # loops would take minutes
        and (threads > 1 or e.variant != "processes")
    ]


def pythons(given: list[str]) -> dict[str, str]:
    """The Python of each rival: given as NAME=PATH, or by a variable, or this one."""
    found = {name: os.environ.get(VARIABLE + name.upper(), sys.executable) for name in RIVALS}
    for one in given:
        name, _, path = one.partition("=")
        if name not in RIVALS or not path:
            raise CoterieError(
                f"--python is {one!r}; allowed is NAME=PATH with NAME one of {', '.join(RIVALS)}"
            )
        if not Path(path).is_file():
            raise CoterieError(
                f"--python is {one!r}, but there is no file {path}; allowed is a Python interpreter"
            )
        found[name] = path
    return found
