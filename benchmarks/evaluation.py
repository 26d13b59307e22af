"""Evaluation of clients' own convolutional models on a CPU, timed: `python benchmarks/evaluation.py --out FILE`

Clients with models of their own score their pictures, in four ways that give the same numbers: with PyTorch's max
pooling or coterie's, several clients in a grouped convolution (as many as fit in memory's budget) or one client after
another. All take turns, on one thread; what counts are the ratios.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from coterie import FedAvg, Federation, Stage, Stages
from coterie.backends.simulation import Together, simulate
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data.federation import Points
from coterie.engine import model as engine_model
from coterie.engine.layers import SlicedMaxPool2d
from coterie.models import build

MODELS = {
    "fedspd_mnist": (1, 28, 28),
    "wecfl_fashion": (1, 28, 28),
    "lenet": (3, 32, 32),
    "fedsoft_letters": (1, 28, 28),
}
SIZES = {"50 clients, 100 points": (50, 100), "200 clients, 8 points": (200, 8)}
WAYS = {  # coterie's pooling? one after another?
    "PyTorch's pooling, grouped": (False, False),
    "PyTorch's pooling, one by one": (False, True),
    "coterie's pooling, grouped": (True, False),
    "coterie's pooling, one by one": (True, True),
}


def scoring(name: str, clients: int, points: int) -> Callable[[bool, bool], Tensor]:
    """The outputs of all clients' own models, in one of the ways."""
    generator = torch.Generator().manual_seed(0)
    image = MODELS[name]
    pictures = torch.rand(clients, points, *image, generator=generator)
    data = Points.of([(x, torch.arange(points) % 10) for x in pictures])
    federation = Federation(tuple(map(str, range(clients))), data, data, n_outputs=10)
    run = simulate(
        build(name, image, 10), federation, Stages((Stage(FedAvg(), 1),)), device=torch.device("cpu")
    )
    assert isinstance(run.clients, Together)
    cohort, row = run.clients.cohort, run.model.initial("benchmark")
    rows = row + 0.01 * torch.randn(clients, len(row), generator=generator)
    kinds: tuple[Any, Any] = nn.MaxPool2d, SlicedMaxPool2d
    pools = [layer for layer in run.model.module.modules() if isinstance(layer, SlicedMaxPool2d)]

    def outputs(sliced: bool, apart: bool) -> Tensor:
        for pool in pools:
            pool.__class__ = kinds[sliced]
        engine_model.APART = 0 if apart else math.inf
        return cohort.outputs(rows)

    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name in MODELS:
        for size, (clients, points) in SIZES.items():
            outputs = scoring(name, clients, points)
            first = outputs(False, False)
            for how in WAYS.values():
                torch.testing.assert_close(outputs(*how), first, rtol=1e-3, atol=1e-3)
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(asked.repeats):
                for way, how in WAYS.items():
                    began = time.perf_counter()
                    outputs(*how)
                    seconds[way].append(time.perf_counter() - began)
            usual = median(seconds["PyTorch's pooling, grouped"])
            for way, values in seconds.items():
                faster = round(usual / median(values), 2)
                run = {"model": name, "clients": size, "way": way, "seconds": round(median(values), 4)}
                found.append({**run, "times as fast as the first": faster})
                print(found[-1], flush=True)
    if asked.out is not None:
        write(asked.out, {"provenance": provenance(), "runs": found})


if __name__ == "__main__":
    main()
