"""Convolutions of clients' own models, timed: `python benchmarks/convolutions.py --out FILE`. It is meant for a GPU.

The gradients of one batch of every client, uncompiled, in four ways that give the same numbers: all convolutions as
products with stacked pictures, grouped convolutions, what coterie does in a step that is not compiled, and one client
after another. On a GPU the host's part is left out: each is recorded as a CUDA graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.engine import layers
from coterie.engine.compile.cuda_graph import record
from coterie.engine.layers import Prepared, StackedConv2d
from coterie.engine.model import LOSSES, FunctionalModel
from coterie.models import build

CASES = {  # picture, clients, points of a batch
    "fedspd_mnist": ((1, 28, 28), 50, 50),
    "fedsoft_letters": ((1, 28, 28), 100, 20),
    "wecfl_fashion": ((1, 28, 28), 200, 32),
    "lenet": ((3, 32, 32), 200, 32),
    "fedsoft_cifar": ((3, 32, 32), 20, 64),
    "fedspd_cifar": ((3, 32, 32), 25, 10),
    "mobilenet_v2": ((3, 32, 32), 20, 10),
}
WAYS = ("grouped", "stacked", "as coterie does", "one after another")


def stack(model: FunctionalModel, longest: int | None) -> None:
    """Convolutions of such long kernels, or as coterie does, as products."""
    for layer in model.module.modules():
        if isinstance(layer, StackedConv2d):
            layer.stacks = layer.always_stacks if longest is None else layer.weight[0].numel() <= longest


def ways(name: str, device: torch.device, tf32: bool, clients: int | None) -> dict[str, Callable[[], Tensor]]:
    """The gradients (client, parameter), in each of the ways."""
    image, many, batch = CASES[name]
    many = clients or many
    layers.LONGEST_KERNEL = 2**31  # so that all can be products
    model = FunctionalModel(build(name, image, 10), LOSSES["classification"], device=device, tf32=tf32)
    model.prepared = Prepared(model.rows.template, on_gpu=True)  # on whatever device
    model.module = model.prepared.module
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(many, batch, *image, generator=generator).to(device)
    y = torch.randint(10, (many, batch), generator=generator).to(device)
    rows = model.initial("benchmark").expand(many, -1).contiguous()
    ones, key = torch.ones(many, batch, device=device), torch.arange(many, device=device)

    def gradients(longest: int | None) -> Callable[[], Tensor]:
        def computed() -> Tensor:
            stack(model, longest)
            return model.gradients(rows, x, y, ones / batch, ones, key)[0]

        return computed

    def apart() -> Tensor:
        every = range(many)
        parts = [[t[i : i + 1] for t in (rows, x, y, ones / batch, ones, key)] for i in every]
        stack(model, 0)
        return torch.cat([model.gradients(*part)[0] for part in parts])

    return dict(zip(WAYS, (gradients(0), gradients(2**31), gradients(None), apart), strict=True))


def timed(work: Callable[[], Tensor], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each."""
    work()
    again = record(work, device)[0] if device.type == "cuda" else work
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        again()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--tf32", action="store_true", help="round the factors of products")
    parser.add_argument("--clients", type=int, help="in place of as many as the papers have")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = []
    for name in asked.only or CASES:
        usual = None
        for way, work in ways(name, device, asked.tf32, asked.clients).items():
            seconds = median(timed(work, device, asked.repeats))
            usual = usual or seconds
            ratio = round(usual / seconds, 2)
            found.append(
                {"model": name, "way": way, "ms": round(1e3 * seconds, 3), "times as fast as grouped": ratio}
            )
            print(found[-1], flush=True)
    if asked.out is not None:
        write(asked.out, {"provenance": provenance(), "tf32": asked.tf32, "runs": found})


if __name__ == "__main__":
    main()
