"""How often does each algorithm find the clusters, from each initialisation? One line per run, then a table.

    python experiments/initialisations.py --seeds 1000 --number 20 --out experiments/results/initialisations.json

Found: of the clients whose largest true share leads by 0.2 or more, at least 90 % have their largest importance at
the center that is matched to that distribution.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import ALGORITHMS, Federation, Graph, Server, Stage, Training
from coterie.algorithms.initialisation import initialised
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, regressions
from coterie.models import build
from coterie.runs.summary import center_scores, match

ROUNDS = 20  # in all; an initialisation takes up to 6 or 10 of them
REGRESSION = Training(learning_rate=0.04, batch_size=20, epochs=2)
DIGITS = Training(learning_rate=0.2, batch_size=20, epochs=5)
PROBLEMS = {
    "two regressions, pure": ("regressions", 2, "pure"),
    "two regressions, mixed": ("regressions", 2, "random"),
    "four regressions, pure": ("regressions", 4, "pure"),
    "four regressions, mixed": ("regressions", 4, "random"),
    "two labelings, pure": ("relabel", 2, "pure"),
    "two labelings, mixed": ("relabel", 2, "random"),
    "four labelings, pure": ("relabel", 4, "pure"),
    "four labelings, mixed": ("relabel", 4, "random"),
    "four rotations, pure": ("rotate", 4, "pure"),
}
INITIALISATIONS = ("random", "several", "warm-up", "clients", "one-shot", "soft")
METHODS: dict[tuple[str, str], tuple[str, ...]] = {
    ("IFCA", "server"): INITIALISATIONS,
    ("HypCluster", "server"): ("random", "clients"),  # IFCA with other weights
    ("FeSEM", "server"): ("random",),
    ("WeCFL", "server"): ("random", "warm-up"),
    ("OneShot", "server"): ("random",),
    ("FedEM", "server"): INITIALISATIONS,
    ("FedSoft", "server"): INITIALISATIONS[:-1],
    ("FedSPD", "server"): INITIALISATIONS,
    ("IFCA", "graph"): ("random", "clients", "soft"),
    ("FedEM", "graph"): ("random", "clients", "soft"),
    ("FedSoft", "graph"): ("random",),
    ("FedSPD", "graph"): ("random", "clients", "soft"),
}
Task = tuple[str, str, str, str, int]  # problem, algorithm, place, init, seed


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def mlp() -> nn.Module:
    return build("mlp", (64,), 10, hidden=(32,))()


def federation(kind: str, clusters: int, mixture: str, seed: int) -> Federation:
    if kind == "regressions":
        separation = 166.0 if clusters == 2 else None
        return regressions(clients=40, clusters=clusters, mixture=mixture, separation=separation, seed=seed)
    shift = 4 if clusters == 2 else 3
    more = {"shift": shift} if kind == "relabel" else {}
    return digits(seed, clients=60, distributions=kind, clusters=clusters, mixture=mixture, **more)


def play(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    problem, name, place, init, seed = task
    kind, clusters, mixture = PROBLEMS[problem]
    data = federation(kind, clusters, mixture, seed)
    model, training = (linear, REGRESSION) if kind == "regressions" else (mlp, DIGITS)
    topology = Server() if place == "server" else Graph("erdos-renyi", degree=8)
    stages = initialised(Stage(ALGORITHMS[name](n_clusters=clusters), ROUNDS, training, topology), init)
    began, run = time.perf_counter(), simulate(model, data, stages, seed=seed)
    while not run.done:
        run.step()
    result = run.evaluate()
    scores = center_scores(run, data.description, result.centers)
    loss = torch.stack([one.loss for one in scores])
    own, theirs = match(loss)
    assert data.mixture is not None
    true, importance = data.mixture[:, theirs], result.importance[:, own].cpu().double()
    top = true.topk(2, dim=1).values
    clear = top[:, 0] - top[:, 1] >= 0.2
    right = (importance.argmax(1) == true.argmax(1))[clear].double().mean()
    measure = loss if scores[0].accuracy is None else torch.stack([s.accuracy for s in scores])  # type: ignore[misc]
    return {
        "problem": problem,
        "algorithm": name,
        "place": place,
        "init": init,
        "seed": seed,
        "found": bool(right >= 0.9),
        "right": round(float(right), 4),
        "own_centers": [round(float(measure[o, t]), 4) for o, t in zip(own, theirs, strict=True)],
        "importance_error": round(float((importance - true).abs().mean()), 4),
        "rounds": run.progress.played,
        "seconds": round(time.perf_counter() - began, 2),
    }


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: in how many seeds each method found the clusters, from each initialisation."""
    problems = list(dict.fromkeys(run["problem"] for run in runs))
    lines = [f"| | init | {' | '.join(problems)} |", "|---" * (len(problems) + 2) + "|"]
    for name, place, init in dict.fromkeys((r["algorithm"], r["place"], r["init"]) for r in runs):
        mine = [r for r in runs if (r["algorithm"], r["place"], r["init"]) == (name, place, init)]
        found = [str(sum(r["found"] for r in mine if r["problem"] == problem)) for problem in problems]
        method = f"{name} over a graph" if place == "graph" else name
        lines.append(f"| {method} | `{init}` | {' | '.join(found)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--number", type=int, default=20, help="how many seeds")
    parser.add_argument("--problem", action="append", help="only this one")
    parser.add_argument("--algorithm", action="append", help="only this one")
    parser.add_argument("--init", action="append", help="only this one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="stop after so many, with the seeds played by then")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = [
        (problem, name, place, init, seed)
        for seed in range(options.seeds, options.seeds + options.number)
        for problem in options.problem or PROBLEMS
        for (name, place), inits in METHODS.items()
        if not options.algorithm or name in options.algorithm
        for init in inits
        if not options.init or init in options.init
    ]
    runs, began = [], time.perf_counter()
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as workers:
        for run in workers.map(play, tasks):
            runs.append(run)
            print(json.dumps(run), flush=True)
            if options.minutes and time.perf_counter() - began > 60 * options.minutes:
                workers.shutdown(wait=False, cancel_futures=True)
                break
    print("\n".join(table(runs)))
    if options.out:
        rows = ",\n".join(json.dumps(list(run.values())) for run in runs)
        head = f'"provenance": {json.dumps(provenance())},\n"columns": {json.dumps(list(runs[0]))}'
        options.out.write_text(f'{{{head},\n"runs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
