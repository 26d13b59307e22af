"""Which baselines there are, and the Python of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.bench.workloads import Workload
from coterie.errors import CoterieError, require

VARIABLE = "COTERIE_BENCH_"  # and a simulator's name: the Python that has it
CLUSTERED = ("ifca", "fedsoft", "fedspd")


@dataclass(frozen=True)
class Baseline:
    """A program that is measured. coterie is one too: its rows are made like all others."""

    name: str
    module: str  # in adapters
    variant: str = ""
    algorithms: tuple[str, ...] = ("fedavg",)  # that it can run
    simulator: str = (
        ""  # its name in --python, if it is another simulator, which may need a Python of its own
    )
    cpu_only: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # {folder}: that of the task


_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": "{folder}/flwr",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PFL = {"PFL_PYTORCH_DEVICE": "cpu"}
_ALL = ("fedavg", *CLUSTERED, "kfed")

BASELINES = (
    Baseline("usual loop", "loops", "usual"),
    Baseline("usual loop", "clustered", algorithms=CLUSTERED),
    Baseline("pooled k-means", "pooled", algorithms=("kfed",)),
    Baseline("lean loop", "loops", "lean"),
    Baseline("lean loop, processes", "loops", "processes", cpu_only=True),
    Baseline("Flower", "flower", simulator="flower", cpu_only=True, environment=_FLOWER),
    Baseline("pfl-research", "pfl_research", simulator="pfl", cpu_only=True, environment=_PFL),
    Baseline(
        "pfl-research, processes",
        "pfl_research",
        "processes",
        simulator="pfl",
        cpu_only=True,
        environment=_PFL,
    ),
    Baseline("FedJAX", "fed_jax", simulator="fedjax", cpu_only=True),
    Baseline("coterie", "ours", algorithms=_ALL),
    Baseline("coterie, eager", "ours", "eager", algorithms=("fedavg", *CLUSTERED)),
)
SIMULATORS = tuple(sorted({b.simulator for b in BASELINES if b.simulator}))


def check_names(names: Sequence[str]) -> None:
    """Refuse a baseline that there is not."""
    allowed = list(dict.fromkeys(baseline.name for baseline in BASELINES))
    for name in names:
        require(name in allowed, "--baseline", name, f"one of {', '.join(map(repr, allowed))}")


def baselines_for(work: Workload, device: str, threads: int, only: Sequence[str] = ()) -> list[Baseline]:
    """Those that can run it, or those of them that are named. Others are compared with the first."""
    return [
        b
        for b in BASELINES
        if work.algorithm in b.algorithms
        and (not only or b.name in only)
        and not (b.cpu_only and device != "cpu")
        and not (work.roofline and b.module != "ours")  # loops would take minutes
        and (threads > 1 or b.variant != "processes")
    ]


def pythons(given: list[str]) -> dict[str, str]:
    """The Python of each simulator: given as NAME=PATH, or by a variable, or this one."""
    found = {name: os.environ.get(VARIABLE + name.upper(), sys.executable) for name in SIMULATORS}
    for one in given:
        name, _, path = one.partition("=")
        if name not in SIMULATORS or not path:
            raise CoterieError(
                f"--python is {one!r}; allowed is NAME=PATH with NAME one of {', '.join(SIMULATORS)}"
            )
        if not Path(path).is_file():
            raise CoterieError(
                f"--python is {one!r}, but there is no file {path}; allowed is a Python interpreter"
            )
        found[name] = path
    return found
