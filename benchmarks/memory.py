"""Memory and time of data: `python benchmarks/memory.py --out FILE`.

Each part runs in a process of its own, whose peak of resident memory the system counts. Where CIFAR-10 is not in the
data folder, a file of random bytes in its shape is read instead, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie import FedAvg, Federation, Stage, Stages, Training
from coterie.backends.simulation import Together, simulate
from coterie.bench.provenance import provenance
from coterie.cli.malloc import give_back
from coterie.data import Source, named, partition
from coterie.data.sources.catalogue import KNOWN, data_folder
from coterie.models import build

MIB = 2**20
LIMITS = {"cifar10": (30.0, None), "many": (None, 2048)}  # of a part: seconds to load, MiB at the peak


def peak() -> float:
    """MiB of resident memory of this process, at its highest so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / MIB


def played(data: Federation, training: Training, model: str = "linear") -> dict[str, float]:
    """One round of FedAvg, and what every client's model reaches on its test points."""
    begun = time.perf_counter()
    made = build(model, tuple(data.train.x.shape[1:]), data.n_outputs)
    simulation = simulate(made, data, Stages((Stage(FedAvg(), 1, training),)), device=torch.device("cpu"))
    simulation.step()
    assert isinstance(simulation.clients, Together)
    assert simulation.clients.cohort.points.x.data_ptr() == data.train.x.data_ptr(), "the images were copied"
    simulation.finish()
    return {"round_seconds": round(time.perf_counter() - begun, 2), "peak_mib_after_a_round": round(peak())}


def cifar10() -> dict[str, Any]:
    """200 clients, cluster-wise Dirichlet as in WeCFL."""
    before, begun = peak(), time.perf_counter()
    data = named("cifar10", clients=200, clusters=10, alpha=(0.1, 10.0))
    seconds = time.perf_counter() - begun
    stores = {
        part.x.data_ptr(): part.x.nbytes for part in (data.train, data.test, data.distributions) if part
    }
    return {
        "clients": len(data),
        "images": len(data.train.at) + len(data.test.at) if data.test else 0,
        "kept_as": str(data.train.x.dtype),
        "kept_mib": round(sum(stores.values()) / MIB),
        "load_seconds": round(seconds, 2),
        "peak_mib_before": round(before),
        "peak_mib": round(peak()),
        **played(data, Training(learning_rate=0.01, batch_size=32, epochs=None, steps=1)),
    }


def many() -> dict[str, Any]:
    """10,000 clients of 100 points, turned by multiples of 90 degrees."""
    before, begun = peak(), time.perf_counter()
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (70000, 1, 28, 28), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, 70000))
    source = Source("random bytes in the shape of MNIST", x[:60000], y[:60000], x[60000:], y[60000:], 10)
    how: dict[str, Any] = {"distributions": "rotate", "clusters": 4, "draw": "shared"}
    data = partition(source, clients=10_000, train_points=100, test_points=20, **how)
    return {
        "clients": len(data),
        "points": len(data.train.at),
        "load_seconds": round(time.perf_counter() - begun, 2),
        "peak_mib_before": round(before),
        "peak_mib": round(peak()),
        **played(data, Training(learning_rate=0.01, batch_size=10, epochs=1)),
    }


PARTS = {"cifar10": cifar10, "many": many}


def in_own_process(part: str, folder: Path) -> dict[str, Any]:
    """A part in a process of its own."""
    command = [sys.executable, __file__, "--part", part]
    done = subprocess.run(
        command,
        env={**os.environ, "COTERIE_DATA": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def stand_in(folder: Path) -> None:
    """Random bytes in the shape of CIFAR-10."""
    rng = np.random.default_rng(0)
    sides = {"train": 50000, "test": 10000}
    arrays: dict[str, Any] = {}
    for side, n in sides.items():
        arrays[f"x_{side}"] = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{side}"] = rng.integers(0, 10, n, dtype=np.uint8)
    np.savez(folder / "cifar10.npz", **arrays)


def verdicts(report: dict[str, Any]) -> list[str]:
    """Of the worst of the times that each part ran."""
    said = []
    for name, (seconds, mib) in LIMITS.items():
        slowest = max(run["load_seconds"] for run in report[name])
        most = max(run["peak_mib_after_a_round"] for run in report[name])
        holds = (seconds is None or slowest <= seconds) and (mib is None or most <= mib)
        limit = f"loads in at most {seconds} s" if seconds else f"fits in {mib} MiB"
        got = f"at most {slowest} s, {most} MiB at the peak"
        said.append(f"{name}: {limit}: {got}: {'holds' if holds else 'DOES NOT HOLD'}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=3, help="how often each part is run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.part:
        give_back()  # as the command line does
        print(json.dumps(PARTS[options.part]()))
        return
    report: dict[str, Any] = {"provenance": provenance()}
    with tempfile.TemporaryDirectory() as made:
        real = KNOWN["cifar10"].at(data_folder()) is not None
        folder = data_folder() if real else Path(made)
        if not real:
            stand_in(folder)
        report["data of cifar10"] = "CIFAR-10" if real else "random bytes in its shape"
        for part in PARTS:
            report[part] = [in_own_process(part, folder) for _ in range(options.times)]
    report["verdicts"] = verdicts(report)
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
