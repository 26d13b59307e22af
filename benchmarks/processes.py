"""What do two processes gain over one? `torchrun --standalone --nproc-per-node 2 benchmarks/processes.py --out FILE`

The same run in one process and split among all of them, with one thread in each; with `--threads` also in one
process that has as many threads. They run interleaved, round by round, while the other processes wait, so that a busy
machine is busy for all. What counts is the ratio. On a machine that others use too, the ratio of wall times says
little: two processes get less of each core than one of its core. So processor time is given beside it, that of the
process that has most: the ratio that cores of one's own would give, but for the time that messages take. All must come
to the same centers.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from coterie import IFCA, FedAvg, Federation, FedSPD, Graph, Server, Stage, Stages, Training, WeCFL
from coterie.backends.processes import ALONE, here, wait_for_all
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data.federation import Points, Task
from coterie.models import build
from coterie.protocol.algorithm import Algorithm

ALGORITHMS: dict[str, tuple[Algorithm, Server | Graph]] = {
    "FedAvg": (FedAvg(), Server()),
    "IFCA, 4 clusters": (IFCA(4), Server()),
    "WeCFL, 4 clusters": (WeCFL(4), Server()),
    "FedSPD, 2 clusters, a graph of degree 6": (FedSPD(2), Graph("erdos-renyi", degree=6.0)),
}
WORKLOADS = {
    "FedAvg, linear, 1000 clients": ("FedAvg", "linear", 10, 1, 1000, 0.01),
    **{f"{name}, MLP 784-200-10, 100 clients": (name, "mlp", 784, 10, 100, 0.05) for name in ALGORITHMS},
}


def federation(inputs: int, classes: int, clients: int) -> Federation:
    """100 to 200 points a client, with something to learn in them."""
    g = torch.Generator().manual_seed(0)
    way = torch.randn(inputs, classes, generator=g)
    each = []
    for size in torch.randint(100, 201, (clients,), generator=g).tolist():
        x = torch.randn(size, inputs, generator=g)
        each.append((x, x @ way if classes == 1 else (x @ way).argmax(1)))
    task: Task = "regression" if classes == 1 else "classification"
    return Federation(tuple(map(str, range(clients))), Points.of(each), task=task, n_outputs=classes)


def compared(name: str, repeats: int, with_threads: bool, device: torch.device) -> dict[str, Any]:
    which, model, inputs, classes, clients, rate = WORKLOADS[name]
    algorithm, topology = ALGORITHMS[which]
    stages = Stages(
        (Stage(algorithm, 1000, Training(learning_rate=rate, batch_size=10, epochs=5), topology),)
    )
    settings: dict[str, Any] = {"hidden": (200,)} if model == "mlp" else {}
    data, maker = federation(inputs, classes, clients), build(model, (inputs,), classes, **settings)
    group = here()
    ways = {"one process": (ALONE, 1), f"{group.size} processes": (group, 1)}
    if with_threads:
        ways[f"one process, {group.size} threads"] = (ALONE, group.size)
    runs = {way: simulate(maker, data, stages, device=device, group=of) for way, (of, _) in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    busy: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, (of, threads) in ways.items():
            torch.set_num_threads(threads)
            group.all(lambda: None)  # all are here, and nobody works
            began, worked = time.perf_counter(), time.process_time()
            if of is group or group.first:
                runs[way].step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            own = time.process_time() - worked
            most = max(group.all(lambda: own))  # noqa: B023
            if repeat:  # the first is to warm up
                seconds[way].append(time.perf_counter() - began)
                busy[way].append(most)
    centers = runs["one process"].state.centers
    return {
        way: {
            "seconds_a_round": [round(s, 4) for s in seconds[way]],
            "processor_seconds_a_round": [round(s, 4) for s in busy[way]],
            "speed_up": _ratio(seconds["one process"], seconds[way]),
            "processor_speed_up": _ratio(busy["one process"], busy[way]),
            "centers_differ_by": float((runs[way].state.centers - centers).abs().max()),
        }
        for way in ways
    }


def _ratio(alone: list[float], other: list[float]) -> float:
    """The median over rounds."""
    return round(median(a / b for a, b in zip(alone, other, strict=True)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", action="store_true", help="also one process with as many threads")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for name in options.only or WORKLOADS:
        found[name] = compared(name, options.repeats, options.threads, torch.device(options.device))
        if here().first:
            print(
                name,
                {w: (one["speed_up"], one["processor_speed_up"]) for w, one in found[name].items()},
                flush=True,
            )
    if options.out and here().first:
        source = provenance()
        launch = f"torchrun --standalone --nproc-per-node {here().size}"
        source["command"] = source["command"].replace("python", launch, 1)
        source["machine"] += f", {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} (of others too)"
        write(options.out, {"provenance": source, "workloads": found})
    wait_for_all()


if __name__ == "__main__":
    main()
