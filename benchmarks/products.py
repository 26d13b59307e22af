"""Products of clients' own matrices, ours against cuBLAS: `python benchmarks/products.py --out FILE` (needs a GPU)

The shapes are those of an MLP (784-200-10) and of a small CNN, at a batch of 10: microseconds, and how far from the
exact product, relative to its largest number.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.engine.compile.cuda_graph import record
from coterie.engine.compile.kernels import products

# rows, columns, inner; does the left one, the right one lie along the inner axis?
SHAPES = {
    "MLP, forward": (10, 200, 784, True, True),
    "MLP, gradient of the weights": (200, 784, 10, False, False),
    "convolution 1, forward": (32, 5760, 25, True, False),
    "convolution 1, gradient of the weights": (32, 25, 5760, True, True),
    "convolution 2, forward": (64, 640, 800, True, False),
    "convolution 2, backward": (800, 640, 64, False, False),
    "convolution 2, gradient of the weights": (64, 800, 640, True, True),
    "dense layer of the CNN, forward": (10, 512, 1024, True, True),
    "dense layer of the CNN, backward": (10, 1024, 512, True, False),
}


def microseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    def often() -> None:
        for _ in range(repeats):
            work()

    again, _ = record(often, torch.device("cuda"))
    again()
    torch.cuda.synchronize()
    began = time.perf_counter()
    again()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats * 1e6


def matrices(clients: int, rows: int, columns: int, along: bool) -> Tensor:
    shape = (clients, rows, columns) if along else (clients, columns, rows)
    values = torch.randn(shape, device="cuda")
    return values if along else values.mT


def measured(clients: int, shape: tuple[int, int, int, bool, bool]) -> dict[str, float]:
    rows, columns, inner, left_along, right_along = shape
    left = matrices(clients, rows, inner, left_along)
    right = matrices(clients, inner, columns, not right_along)
    exact = left.double() @ right.double()
    found = {}
    for name, multiply in (("cublas", torch.bmm), ("ours", products)):
        error = (multiply(left, right) - exact).abs().max() / exact.abs().max()
        found[f"error_{name}"] = float(error)
        found[f"microseconds_{name}"] = round(microseconds(lambda: multiply(left, right)), 1)  # noqa: B023
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for clients in (100, 1000):
            found[f"{name}, {clients} clients"] = row = measured(clients, shape)
            print(name, clients, row, flush=True)
    assert all(row["error_ours"] < 1e-6 for row in found.values()), "that is not fp32"
    if out:
        write(out, {"provenance": provenance(), "products": found})


if __name__ == "__main__":
    main()
