"""Evaluation of clients' own convolutional models on a CPU, timed: `python benchmarks/evaluation.py --out FILE`

50 clients with models of their own score 100 pictures each, in four ways that give the same numbers: PyTorch's max
pooling or coterie's, all clients in grouped convolutions or one client after another. All take turns, on one thread;
what counts are the ratios.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.engine.layers import Prepared
from coterie.engine.rows import Rows
from coterie.models import build

CLIENTS, POINTS, AT_ONCE = 50, 100, 4  # so many clients are as many as stay near a core
MODELS = {
    "fedspd_mnist": (1, 28, 28),
    "wecfl_fashion": (1, 28, 28),
    "lenet": (3, 32, 32),
    "fedsoft_letters": (1, 28, 28),
}


def ways(name: str, image: tuple[int, int, int]) -> dict[str, Any]:
    """By name: a function that scores all."""
    torch.manual_seed(0)
    plain = build(name, image, 10)().eval()
    rows = Rows(plain)
    row = rows.row_of(plain)
    mine = (row + 0.01 * torch.randn(CLIENTS, len(row))).contiguous()
    x = torch.rand(CLIENTS, POINTS, *image)

    def outputs(module: nn.Module, row: Tensor, x: Tensor) -> Tensor:
        found: Tensor = functional_call(module, rows.views(*rows.split(row)), (x,))
        return found

    def together(module: nn.Module) -> Tensor:
        parts = zip(torch.split(mine, AT_ONCE), torch.split(x, AT_ONCE), strict=True)
        return torch.cat([vmap(lambda row, x: outputs(module, row, x))(*part) for part in parts])

    def apart(module: nn.Module) -> Tensor:
        return torch.stack([outputs(module, *part) for part in zip(mine, x, strict=True)])

    ours = Prepared(plain).module.eval()
    return {
        "PyTorch's pooling, grouped": lambda: together(plain),
        "PyTorch's pooling, one by one": lambda: apart(plain),
        "coterie's pooling, grouped": lambda: together(ours),
        "coterie's pooling, one by one": lambda: apart(ours),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with torch.no_grad():
        for name, image in MODELS.items():
            each = ways(name, image)
            first, *others = [score() for score in each.values()]
            for other in others:
                torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4)
            seconds: dict[str, list[float]] = {way: [] for way in each}
            for _ in range(asked.repeats):
                for way, score in each.items():
                    began = time.perf_counter()
                    score()
                    seconds[way].append(time.perf_counter() - began)
            middle = {way: median(values) for way, values in seconds.items()}
            slowest = next(iter(middle.values()))
            for way, value in middle.items():
                found.append(
                    {
                        "model": name,
                        "way": way,
                        "seconds": round(value, 4),
                        "times": round(slowest / value, 2),
                    }
                )
                print(found[-1], flush=True)
    if asked.out is not None:
        write(asked.out, {"provenance": provenance(), "runs": found})


if __name__ == "__main__":
    main()
