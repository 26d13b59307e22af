"""Do the clustered methods find what they should, each from its own initialisation?

    python experiments/recovery.py --seeds 1000 --out experiments/results/recovery.json

Two regressions (D = 166, 100 clients, 25 rounds of SGD 0.02, batch 10, 2 epochs): MSE of the matched centers, whose
least value is 1; a hard choice on 10:90 cannot do better than 0.01·D + 1 = 2.66. Four rotations of digits (every client
pure, MLP 64-32-10, 100 clients of 50 points, 30 rounds): the adjusted Rand index of the clients' clusters.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from right import D
from torch import nn

from coterie import IFCA, Algorithm, FedEM, FeSEM, Stage, Training, WeCFL
from coterie.algorithms.initialisation import initialised
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, regressions
from coterie.models import build
from coterie.runs.summary import centers_on_distributions, found_ari

REGRESSION = Training(learning_rate=0.02, batch_size=10, epochs=2)
DIGITS = Training(learning_rate=0.1, batch_size=10, epochs=5)
HARD = 0.01 * D + 1

Good = Callable[[float], bool]
CASES: dict[str, tuple[Algorithm, str, Good, str]] = {
    "FedEM, 10:90": (FedEM(2), "10:90", lambda worst: worst < 1.2, "MSE of both centers under 1.2"),
    "FedEM, linear": (FedEM(2), "linear", lambda worst: worst < 1.2, "MSE of both centers under 1.2"),
    "IFCA, pure": (IFCA(2), "pure", lambda worst: worst < 1.2, "MSE of both centers under 1.2"),
    **{
        f"{one.title()}, 10:90": (
            one,
            "10:90",
            lambda mean: abs(mean - HARD) <= 0.5,
            f"mean MSE of the two centers in {HARD:.2f} ± 0.5",
        )
        for one in (IFCA(2), WeCFL(2), FeSEM(2))
    },
    **{
        f"{one.title()}, four rotations": (one, "rotate", lambda ari: ari > 0.95, "ARI above 0.95")
        for one in (IFCA(4), WeCFL(4), FeSEM(4))
    },
}
ENOUGH = 0.95  # of the seeds


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def mlp() -> nn.Module:
    return build("mlp", (64,), 10, hidden=(32,))()


def play(case: str, seed: int) -> dict[str, Any]:
    algorithm, mixture, good, _ = CASES[case]
    if mixture == "rotate":
        data = digits(
            clients=100, distributions="rotate", clusters=4, mixture="pure", train_points=50, seed=seed
        )
        run = simulate(mlp, data, initialised(Stage(algorithm, 30, DIGITS)), seed=seed)
    else:
        data = regressions(100, mixture=mixture, separation=D, seed=seed)
        run = simulate(linear, data, initialised(Stage(algorithm, 25, REGRESSION)), seed=seed)
    while not run.done:
        run.step()
    result = run.evaluate()
    centers = centers_on_distributions(run, data.description, result)
    measure = "accuracy" if "accuracy" in centers else "loss"
    own = [centers[measure][c][d] for d, c in enumerate(centers["center_of_distribution"])]
    if mixture == "rotate":
        number = found_ari(data.description, result)
        assert number is not None
    else:
        number = max(own) if "under" in CASES[case][3] else sum(own) / len(own)
    found = {"number": number, "good": good(number), "own_centers": own, "rounds": run.progress.played}
    return {"case": case, "seed": seed, **found}


def verdict(case: str, runs: list[dict[str, Any]]) -> str:
    good, numbers = sum(run["good"] for run in runs), sorted(run["number"] for run in runs)
    return (
        f"{'ok ' if good >= ENOUGH * len(runs) else 'NOT'} {case}: {CASES[case][3]} in {good} of {len(runs)} seeds "
        f"(from {numbers[0]:.3f} to {numbers[-1]:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--number", type=int, default=20, help="how many seeds")
    parser.add_argument("--only", choices=CASES, action="append", help="only this case")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds, options.seeds + options.number)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.jobs, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        playing = {case: [pool.submit(play, case, seed) for seed in seeds] for case in options.only or CASES}
        runs = {case: [run.result() for run in mine] for case, mine in playing.items()}
    verdicts = [verdict(case, mine) for case, mine in runs.items()]
    print("\n".join(verdicts))
    if options.out:
        lines = ",\n".join(json.dumps(run) for mine in runs.values() for run in mine)
        head = json.dumps({"provenance": provenance(), "verdicts": verdicts}, indent=1)[:-2]
        options.out.write_text(f'{head},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
