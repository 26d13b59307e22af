"""How often does each algorithm find the clusters, from each initialisation? One line per run, then a table.

    python experiments/initialisations.py --seeds 5000 --number 20 --workers 16 --minutes 9 --out FILE

Found: of the clients whose largest true share leads by 0.2 or more, at least 90 % have their largest importance at
the center that is matched to that distribution. Over a graph, centers of single peers are scored too: their accuracy
(of regressions, their loss) on the distributions that they are matched to, on average over all peers and over the worst
tenth of them. What FILE has already is not played again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie import ALGORITHMS, Federation, Graph, Server, Stage, Training
from coterie.algorithms.initialisation import initialised
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, regressions
from coterie.models import build
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.personal import Personal
from coterie.protocol.topology import Kind
from coterie.runs.metrics import ari
from coterie.runs.summary import center_scores, match

ROUNDS = 20  # in all; an initialisation takes up to 6, 7 or 10 of them
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
    "three labelings, 12 clients": ("relabel", 3, "pure"),
}
FEW = "three labelings, 12 clients"  # of which a peer has 4 neighbours
PROBLEMS_OF_PEERS = [problem for problem in PROBLEMS if problem.startswith("four")]
INITIALISATIONS = ("random", "several", "warm-up", "clients", "corners", "one-shot", "soft")
OVER_A_GRAPH = ("random", "clients", "corners", "soft", "sketch")
WITH_NO_SERVER = ("clients", "soft", "sketch")  # the first has one, to be compared with
METHODS: dict[tuple[str, str], tuple[str, ...]] = {
    ("IFCA", "server"): INITIALISATIONS,
    ("HypCluster", "server"): ("random", "clients", "corners"),  # IFCA with other weights
    ("FeSEM", "server"): ("random",),
    ("WeCFL", "server"): ("random", "warm-up"),
    ("OneShot", "server"): ("random",),
    ("Corners", "server"): ("random",),
    ("FedEM", "server"): INITIALISATIONS,
    ("FedSoft", "server"): INITIALISATIONS[:-1],
    ("FedSPD", "server"): INITIALISATIONS,
    ("IFCA", "graph"): OVER_A_GRAPH,
    ("FedEM", "graph"): OVER_A_GRAPH,
    ("FedSoft", "graph"): ("random", "clients", "sketch"),
    ("FedSPD", "graph"): OVER_A_GRAPH,
    ("FedEM", "ring"): WITH_NO_SERVER,
    ("FedSPD", "ring"): WITH_NO_SERVER,
    ("FedEM", "geometric"): WITH_NO_SERVER,
    ("FedSPD", "geometric"): WITH_NO_SERVER,
    ("FedEM", "small graph"): WITH_NO_SERVER,
    ("FedSPD", "small graph"): WITH_NO_SERVER,
}
PLACES = {
    "graph": "over a graph",
    "ring": "over a ring",
    "geometric": "over a geometric graph",
    "small graph": "over a small graph",
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
    n = 12 if clusters == 3 else 60
    return digits(seed, clients=n, distributions=kind, clusters=clusters, mixture=mixture, **more)


def is_played(problem: str, place: str) -> bool:
    """Rings and the like have the problems of four clusters, and a small graph its own."""
    if place == "small graph" or problem == FEW:
        return place == "small graph" and problem == FEW
    return place in ("server", "graph") or problem in PROBLEMS_OF_PEERS


def topology(place: str, ids: tuple[str, ...], seed: int, folder: str) -> Server | Graph:
    if place == "server":
        return Server()
    if place != "ring":
        kind: Kind = "random-geometric" if place == "geometric" else "erdos-renyi"
        return Graph(kind, degree=4 if place == "small graph" else 8)
    around = np.random.default_rng(seed).permutation(len(ids))
    pairs = (f"{ids[i]} {ids[j]}" for i, j in zip(around, np.roll(around, 1), strict=True))
    path = Path(folder) / "ring.txt"
    path.write_text("\n".join(pairs), encoding="utf-8")
    return Graph("file", path=str(path))


def play(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    problem, name, place, init, seed = task
    kind, clusters, mixture = PROBLEMS[problem]
    data = federation(kind, clusters, mixture, seed)
    model, training = (linear, REGRESSION) if kind == "regressions" else (mlp, DIGITS)
    with TemporaryDirectory() as folder:
        place_to_run = topology(place, data.ids, seed, folder)
        kind_of_algorithm: Any = ALGORITHMS[name]
        stage = Stage(kind_of_algorithm(n_clusters=clusters), ROUNDS, training, place_to_run)
        began, run = time.perf_counter(), simulate(model, data, initialised(stage, init), seed=seed)
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
        "ari": round(ari(result.importance, data.mixture), 4),
        "peers": peers(run, data, own, theirs),
        "megabytes": round(run.traffic.total() / 1e6, 3),
        "rounds": run.progress.played,
        "seconds": round(time.perf_counter() - began, 2),
    }


def peers(run: Coordinator, data: Federation, own: list[int], theirs: list[int]) -> list[float] | None:
    """What the centers of single peers score on their distributions: the mean over all, and over the worst tenth."""
    if run.stage.topology.is_server:
        return None
    assert data.distributions is not None
    keys = torch.arange(len(theirs))
    judges = Cohort.whole(run.model, Training(), data.distributions, keys, data.task, run.seed)
    order = torch.empty(len(own), dtype=torch.long)
    order[theirs] = torch.tensor(own)
    found = []
    for centers in run.state.centers:
        scores = judges.score(Personal.single(centers[order]))
        found.append(float((scores.loss if scores.accuracy is None else -scores.accuracy).mean()))
    worst = torch.tensor(found).topk(max(1, len(found) // 10)).values
    return [round(abs(float(each.mean())), 4) for each in (torch.tensor(found), worst)]


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: in how many seeds each method found the clusters, from each initialisation."""
    problems = list(dict.fromkeys(run["problem"] for run in runs))
    lines = [f"| | init | {' | '.join(problems)} |", "|---" * (len(problems) + 2) + "|"]
    for name, place, init in dict.fromkeys((r["algorithm"], r["place"], r["init"]) for r in runs):
        mine = [r for r in runs if (r["algorithm"], r["place"], r["init"]) == (name, place, init)]
        each = [[r["found"] for r in mine if r["problem"] == problem] for problem in problems]
        found = [str(sum(one)) if one else "" for one in each]
        method = name if place == "server" else f"{name}, {PLACES[place]}"
        lines.append(f"| {method} | `{init}` | {' | '.join(found)} |")
    return lines


def table_of_peers(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: what the centers of single peers score, on average over seeds: all peers / the worst tenth of them."""
    runs = [run for run in runs if run["peers"]]
    problems = list(dict.fromkeys(run["problem"] for run in runs))
    lines = [f"| | init | {' | '.join(problems)} |", "|---" * (len(problems) + 2) + "|"]
    for name, place, init in dict.fromkeys((r["algorithm"], r["place"], r["init"]) for r in runs):
        cells = []
        for problem in problems:
            which = (problem, name, place, init)
            mine = [
                r["peers"] for r in runs if (r["problem"], r["algorithm"], r["place"], r["init"]) == which
            ]
            means = torch.tensor(mine, dtype=torch.float64).mean(0).tolist() if mine else []
            cells.append(" / ".join(f"{mean:.3g}" for mean in means))
        lines.append(f"| {name}, {PLACES[place]} | `{init}` | {' | '.join(cells)} |")
    return lines


def read(path: Path | None) -> list[dict[str, Any]]:
    """The runs that are there already."""
    if path is None or not path.exists():
        return []
    known = json.loads(path.read_text())
    return [dict(zip(known["columns"], run, strict=True)) for run in known["runs"]]


def write(path: Path | None, runs: list[dict[str, Any]]) -> None:
    if path is None or not runs:
        return
    rows = ",\n".join(json.dumps(list(run.values())) for run in runs)
    head = f'"provenance": {json.dumps(provenance())},\n"columns": {json.dumps(list(runs[0]))}'
    path.write_text(f'{{{head},\n"runs": [\n{rows}\n]}}\n')


def name_of(run: dict[str, Any]) -> Task:
    return run["problem"], run["algorithm"], run["place"], run["init"], run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--number", type=int, default=20, help="how many seeds")
    for which in ("problem", "algorithm", "place", "init"):
        parser.add_argument(f"--{which}", action="append", help="only this one; may be given several times")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="stop after so many, with the seeds played by then")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs, began = read(options.out), time.perf_counter()
    if runs and "peers" not in runs[0]:
        parser.error(f"{options.out} has runs of an older script; give another file")
    played = {name_of(run) for run in runs}
    tasks = [
        (problem, name, place, init, seed)
        for seed in range(options.seeds, options.seeds + options.number)
        for problem in options.problem or PROBLEMS
        for (name, place), inits in METHODS.items()
        if not options.algorithm or name in options.algorithm
        if (not options.place or place in options.place) and is_played(problem, place)
        for init in inits
        if not options.init or init in options.init
    ]
    tasks = [task for task in tasks if task not in played]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as workers:
        for run in workers.map(play, tasks):
            runs.append(run)
            print(json.dumps(run), flush=True)
            if options.minutes and time.perf_counter() - began > 60 * options.minutes:
                workers.shutdown(wait=False, cancel_futures=True)
                break
    write(options.out, runs)
    print("\n".join([*table(runs), "", *table_of_peers(runs)]))


if __name__ == "__main__":
    main()
