"""Run by every process that torchrun starts for test_processes.py; the first one leaves what came out in a folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from coterie import Graph, Participation, Server, Stage, Stages, Training
from coterie.backends.processes import ProcessGroup, here, wait_for_all
from coterie.protocol.message import Messages
from coterie.protocol.privacy import Privacy
from coterie.runs.monitor import Monitor
from coterie.runs.recorder import mean_loss
from tests.builders import CASES, MOMENTUM, algorithm, clients, simulation

LOSSY = {"fraction": 0.7, "absent": 0.3, "stragglers": 0.3}


def stage(name: str, rounds: int = 3, **how: Any) -> Stage:
    return Stage(algorithm(name), rounds, **{"training": MOMENTUM, **how})


def plays() -> dict[str, Stages]:
    """One for each way of combining, and for each way of beginning, selecting and ending."""
    graph, fast = (
        Graph("erdos-renyi", degree=4.0, rewire=0.1),
        Training(learning_rate=0.05, batch_size=10, epochs=2),
    )
    splitting = replace(algorithm("CFL"), first_split=1, stationary=1e3, restless=1e-3)  # type: ignore[call-arg]
    aligned = replace(algorithm("FedSPD"), align=True)  # type: ignore[call-arg]
    by_loss = Participation(0.4, absent=0.2, select="loss-per-cluster", candidates=8, clusters=3)
    one = Participation(0.1)  # of 13 clients, so that a process has none
    some = {
        "FedAvg of one client": stage("FedAvg", participation=one),
        "FedAvg private": stage("FedAvg", privacy=Privacy(clip=0.1, noise=0.5)),
        "IFCA": stage("IFCA"),
        "FedEM": stage("FedEM"),
        "FedSoft": stage("FedSoft", participation=Participation(**LOSSY)),
        "FedSoft selected": stage("FedSoft", participation=by_loss),
        "pFedMe": stage("pFedMe"),
        "Local": stage("Local", participation=one),
        "WeCFL": stage("WeCFL"),
        "OneShot": stage("OneShot", participation=Participation(**LOSSY)),
        "CFL": Stage(splitting, 3, fast),
        "FedSPD": stage("FedSPD", topology=graph, participation=Participation(**LOSSY)),
        "FedSPD aligned": Stage(aligned, 3, fast, graph),
        "FedSoft chosen": stage("FedSoft", 4, personal="auto", participation=Participation(**LOSSY)),
        "WeCFL chosen": stage("WeCFL", 4, personal="auto"),
    }
    last = stage("FedSPD", 2, topology=graph)
    return {
        **{name: Stages((one,)) for name, one in some.items()},
        "IFCA in three attempts": stage("IFCA", 2, n_init=3).then(stage("IFCA", 2)),
        "WeCFL until separated": stage("WeCFL", 8, training=fast, until="separated").then(last),
    }


def all_plays() -> dict[str, Stages]:
    """Every algorithm everywhere; all, some or hardly any are received."""
    found: dict[str, Stages] = {}
    places = {"server": Server(), "graph": Graph("erdos-renyi", degree=4.0)}
    for name, place in CASES:
        for how, part in {"all": {}, "lossy": LOSSY, "few": {"fraction": 0.1}}.items():
            one = stage(name, topology=places[place], participation=Participation(**part))
            found[f"{name} {place} {how}"] = Stages((one,))
    return found


@dataclass
class Counted:
    """How often rows were fetched, and how often parts were added up."""

    fetched: int = 0
    added: int = 0


def play(plan: Stages, counted: Counted | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that a play leaves: results, checkpoints, scores, metrics, traffic."""
    run = simulation(plan, clients(n=13))
    monitor = Monitor(run, clients(n=13).description)
    tensors: dict[str, Tensor] = {}
    while not run.done:
        before = Counted() if counted is None else replace(counted)
        sent = run.step()
        if counted is not None and run.progress.played == 1:
            numbers = {"fetched": counted.fetched - before.fetched, "added": counted.added - before.added}
        if len(sent):
            tensors |= {f"metric.{n}": t for n, t in monitor.each_round(sent)[1].items()}
    found, columns = monitor.each_round(sent)
    now = run.evaluate()
    scores = now.scores
    assert scores is not None
    tensors |= {f"test.{n}": t for n, t in scores.named().items()}
    more, _ = monitor.evaluated(sent, now)
    tensors |= {f"metric.{n}": t for n, t in columns.items()}
    tensors |= {f"saved.{n}": t.clone() for n, t in run.save()[0].items()}
    result = run.finish()
    tensors |= {"centers": result.centers, "importance": result.importance}
    tensors |= {"rows": result.personal.rows, "weights": result.personal.weights}
    said = {
        **found,
        **more,
        "loss": mean_loss(monitor.ask("training_loss", Messages(sent.clients, {}))),
        **run.traffic.named(),
    }
    said["rounds"] = run.progress.played
    return tensors, said | (numbers if counted is not None else {})


def count() -> Counted:
    """From now on."""
    counted, gather, reduce = Counted(), ProcessGroup.gather, ProcessGroup._reduced

    def gathering(self: ProcessGroup, rows: Tensor, owner: Tensor, only_first: bool = False) -> Tensor:
        counted.fetched += 1
        return gather(self, rows, owner, only_first)

    def reducing(self: ProcessGroup, part: Tensor, how: Any) -> Tensor:
        counted.added += 1
        return reduce(self, part, how)

    ProcessGroup.gather, ProcessGroup._reduced = gathering, reducing  # type: ignore[method-assign]
    return counted


if __name__ == "__main__":
    folder, counted = Path(sys.argv[1]), count()
    for name, plan in (plays() if sys.argv[2] == "some" else all_plays()).items():
        tensors, said = play(plan, counted)
        if here().first:
            save_file({n: t.contiguous() for n, t in tensors.items()}, folder / f"{name}.safetensors")
            (folder / f"{name}.json").write_text(json.dumps(said))
    wait_for_all()
    sys.stdout.flush()
    os._exit(0)  # all is written; the threads of torch.distributed may abort a process that tidies up
