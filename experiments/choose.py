"""Is the number of clusters found? Ten problems, S from 2 to 6: `python experiments/choose.py --seeds 1000 --out FILE`.

One method for all, 4 rounds of WeCFL and then 12 of FedEM, with the default settings of `Choosing`: S from 1 to 8, two
initialisations each. Problem i is drawn and run with seed SEEDS + i. Tune on seeds 0 to 99. `--methods` has other
algorithms choose on the four pure regressions instead.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import coterie
from coterie import FedEM, Federation, FedSoft, FedSPD, FeSEM, HypCluster, Stage, Stages, Training, WeCFL
from coterie.bench.provenance import provenance
from coterie.data import digits, gaussians, regressions

NEEDED = 8
LINEAR = partial(nn.Linear, 10, 1)
SOFTMAX = partial(nn.Linear, 10, 5)
REGRESS = Training(learning_rate=0.02, batch_size=10, epochs=3)
CLASSIFY = Training(learning_rate=0.1, batch_size=10, epochs=2)
DIGITS = Training(learning_rate=0.1, batch_size=10, epochs=5)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class Problem:
    """Data whose number of distributions is known."""

    name: str
    clusters: int
    model: Callable[[], nn.Module]
    training: Training
    draw: Callable[..., Federation]  # with a seed


lines = partial(regressions, 40, sizes=(60, 80))
groups = partial(gaussians, 40, sizes=(60, 80))
PROBLEMS = (
    Problem("regressions, 10:90", 2, LINEAR, REGRESS, partial(lines, 2, "10:90")),
    Problem(
        "digits, labelings, linear mixtures",
        2,
        mlp,
        DIGITS,
        partial(digits, clients=40, distributions="relabel", clusters=2),
    ),
    Problem("regressions, random mixtures", 3, LINEAR, REGRESS, partial(lines, 3, "random")),
    Problem(
        "digits, labelings, pure",
        3,
        mlp,
        DIGITS,
        partial(digits, clients=40, distributions="relabel", clusters=3, shift=3, mixture="pure"),
    ),
    Problem(
        "digits, rotations, pure",
        4,
        mlp,
        DIGITS,
        partial(digits, clients=40, distributions="rotate", clusters=4, mixture="pure"),
    ),
    Problem("regressions, pure", 4, LINEAR, REGRESS, partial(lines, 4, "pure")),
    Problem("regressions, pure", 5, LINEAR, REGRESS, partial(lines, 5, "pure")),
    Problem("Gaussian classes, pure", 5, SOFTMAX, CLASSIFY, partial(groups, 5, "pure")),
    Problem("Gaussian classes, pure", 6, SOFTMAX, CLASSIFY, partial(groups, 6, "pure")),
    Problem("regressions, pure", 6, LINEAR, REGRESS, partial(lines, 6, "pure")),
)
BY_METHOD = 5


def default(training: Training) -> Stages:
    return Stage(WeCFL(1), 4, training).then(Stage(FedEM(1), 12, training))


METHODS: dict[str, Callable[[Training], Stages]] = {
    "WeCFL": lambda training: Stages((Stage(WeCFL(1), 16, training),)),
    "FeSEM": lambda training: Stages((Stage(FeSEM(1), 16, training),)),
    "WeCFL then IFCA": lambda t: Stage(WeCFL(1), 4, t).then(Stage(coterie.IFCA(1), 12, t)),
    "WeCFL then HypCluster": lambda t: Stage(WeCFL(1), 4, t).then(Stage(HypCluster(1), 12, t)),
    "WeCFL then FedEM": default,
    "WeCFL then FedSoft": lambda t: Stage(WeCFL(1), 4, t).then(Stage(FedSoft(1, pull=0.01), 12, t)),
    "WeCFL then FedSPD": lambda t: Stage(WeCFL(1), 4, t).then(Stage(FedSPD(1), 12, t)),
    "IFCA": lambda training: Stages((Stage(coterie.IFCA(1), 16, training),)),
    "FedEM": lambda training: Stages((Stage(FedEM(1), 16, training),)),
    "FedSoft": lambda training: Stages((Stage(FedSoft(1, pull=0.01), 16, training),)),
    "FedSPD": lambda training: Stages((Stage(FedSPD(1), 16, training),)),
}


def played(number: int, name: str, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    problem = PROBLEMS[number]
    began = time.perf_counter()
    stages = METHODS[name](problem.training)
    choice = coterie.choose_clusters(problem.model, problem.draw(seed=seed), stages, seed=seed)
    return {
        "method": name,
        "seed": seed,
        "problem": problem.name,
        "true": problem.clusters,
        "chosen": choice.n_clusters,
        "seconds": round(time.perf_counter() - began, 1),
        "lines": [asdict(line) for line in choice.lines],
    }


def verdict(runs: list[dict[str, Any]], needed: int | None) -> str:
    found = sum(run["chosen"] == run["true"] for run in runs)
    said = f"the true number is found in {found} of {len(runs)}"
    return said if needed is None else f"{'ok ' if found >= needed else 'NOT'} {said}, {needed} are needed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--methods", action="store_true", help="other algorithms, on one of the problems")
    parser.add_argument("--jobs", type=int, default=2, help="searches at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = provenance()
    plans = [(i, "WeCFL then FedEM", options.seeds + i) for i in range(len(PROBLEMS))]
    if options.methods:
        plans = [(BY_METHOD, name, options.seeds) for name in METHODS]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        searches = [pool.submit(played, *plan) for plan in plans]
        for search in as_completed(searches):
            print({key: value for key, value in search.result().items() if key != "lines"}, flush=True)
    runs = [search.result() for search in searches]
    said = verdict(runs, None if options.methods else NEEDED)
    print(said)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        report = {"provenance": source, "verdict": said, "runs": runs}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
