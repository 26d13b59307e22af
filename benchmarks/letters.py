"""A whole FedSoft run with the paper's settings for letters, timed: `python benchmarks/letters.py --out FILE`

100 clients of 100 to 200 pictures, 1.67 million parameters, Adam, batch 5, 5 epochs, 60 draws a cluster, 200 rounds,
with evaluation and metrics. The pictures are drawn (26 noisy shapes, upside down in the second distribution), for the
letters themselves are not at hand: what is timed does not depend on them, and the accuracy shows that it has learned.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import coterie
from coterie import Federation, FedSoft, Training
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data.federation import Points
from coterie.models import build


def letters(seed: int = 0) -> Federation:
    g = torch.Generator().manual_seed(seed)
    shapes = torch.nn.functional.interpolate(torch.rand(26, 1, 7, 7, generator=g), size=28)

    def drawn(n: int, upside_down: float) -> tuple[Tensor, Tensor, Tensor]:
        y, component = (
            torch.randint(0, 26, (n,), generator=g),
            (torch.rand(n, generator=g) < upside_down).long(),
        )
        x = torch.where(component.view(-1, 1, 1, 1) == 1, shapes[y].flip(2), shapes[y])
        x = (x + 0.3 * torch.randn(x.shape, generator=g)).clamp(0, 1)
        return (255 * x).to(torch.uint8), y, component

    sizes = torch.randint(100, 201, (100,), generator=g).tolist()
    mixture = [0.1 if i < 50 else 0.9 for i in range(100)]  # 10:90
    train = [drawn(n, first) for n, first in zip(sizes, mixture, strict=True)]
    test = [drawn(50, first) for first in mixture]
    points, held = (
        Points.of([(x, y) for x, y, _ in part], [c for _, _, c in part]) for part in (train, test)
    )
    return Federation(tuple(map(str, range(100))), points, held, n_outputs=26)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    data, training = letters(), Training(optimizer="adam", learning_rate=1e-4, batch_size=5, epochs=5)
    algorithm = FedSoft(2, pull=0.1, draws=60, refresh=2)
    began = time.perf_counter()
    run = coterie.run(
        build("fedsoft_letters", (1, 28, 28), 26), data, algorithm, rounds=asked.rounds, training=training
    )
    seconds = time.perf_counter() - began
    evaluating = sum(record["seconds_evaluating"] for record in run.records)
    found: dict[str, Any] = {
        "rounds": asked.rounds,
        "seconds": round(seconds, 1),
        "seconds_evaluating": round(evaluating, 1),
        "seconds_of_the_first_round": run.records[0]["seconds"],
        "personal": run.summary["personal"],
        "importance_error": run.records[-1].get("importance_error"),
    }
    print(found)
    if asked.out:
        write(asked.out, {"provenance": provenance(), **found})


if __name__ == "__main__":
    main()
