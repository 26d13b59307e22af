"""Is `personal = "auto"` as good as the best fixed way to personal models, and never worse than FedAvg?

    COTERIE_DATA=... python experiments/personal_auto.py --seeds 5000-5004 --jobs 16 --out FILE

For every data set and seed: FedAvg; and for every algorithm a run that is ended in each fixed way (what comes before
does not depend on it), and one with `personal = "auto"`, whose clients hold points out and train a common model too.
All have at most as many rounds; an initialisation may end early, and FedAvg is compared after the same rounds. The
score is the mean over clients of the accuracy on images, or characters, that they never trained on. With --out, runs
that the file has already are not played again. The data folder needs mnist.npz, fashion_mnist.npz,
emnist_balanced_test14k.npz and shakespeare_roles.jsonl.gz.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import torch
from torch import nn

from coterie import ALGORITHMS, Federation, Stage, Training
from coterie.algorithms.initialisation import initialised
from coterie.backends.simulation import Together, simulate
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data import named
from coterie.models import build
from coterie.protocol import personalise
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages

ROUNDS = 20
IMAGES = Training(learning_rate=0.1, batch_size=10, epochs=5)
TEXT = Training(learning_rate=1.0, batch_size=10, epochs=2)
POINTS = {"clients": 60, "train_points": 80, "test_points": 40}
PROBLEMS: dict[str, dict[str, Any]] = {
    "digits, two labelings": {"source": "digits", "distributions": "relabel", "mixture": "linear", **POINTS},
    "letters, by case": {
        "source": "emnist-balanced-14k",
        "distributions": "case",
        "mixture": "10:90",
        "clients": 60,
    },
    "MNIST, four rotations": {
        "source": "mnist",
        "distributions": "rotate",
        "clusters": 4,
        "mixture": "pure",
        **POINTS,
    },
    "Fashion-MNIST, by class": {
        "source": "fashion-mnist",
        "alpha": [0.1, 10],
        "clusters": 4,
        "draw": "shared",  # some seeds ask for more test images of a class than there are
        **POINTS,
    },
    "Shakespeare, by role": {"source": "shakespeare", **POINTS},
}
METHODS = ("FedSPD", "FedSoft", "FedEM", "IFCA", "WeCFL")
FIXED: tuple[Any, ...] = tuple(way for way in get_args(personalise.Way) if way != "auto")
Task = tuple[str, str, str, int]  # problem, algorithm, "fixed" or "auto", seed


def setting(problem: str, seed: int) -> tuple[Federation, Callable[[], nn.Module], Training, int]:
    how = dict(PROBLEMS[problem])
    data = named(how.pop("source"), seed, **how)
    if data.task == "next-character":
        return data, build("char_cnn", tuple(data.train.x.shape[1:]), data.n_outputs), TEXT, 2
    model = build("mlp", tuple(data.train.x.shape[1:]), data.n_outputs, hidden=(32,))
    return data, model, IMAGES, how.get("clusters", 2)


def play(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    logging.getLogger("coterie").setLevel(logging.ERROR)
    problem, name, kind, seed = task
    data, model, training, clusters = setting(problem, seed)
    kind_of_algorithm: Any = ALGORITHMS[name]
    algorithm = kind_of_algorithm() if name == "FedAvg" else kind_of_algorithm(n_clusters=clusters)
    stage = Stage(algorithm, ROUNDS, training, personal="auto" if kind == "auto" else "own")
    began, cpu = time.perf_counter(), torch.device("cpu")
    run = simulate(model, data, initialised(stage), seed=seed, device=cpu)
    by_round = {}
    while not run.done:
        run.step()
        if name == "FedAvg" and run.progress.played >= ROUNDS // 2:
            by_round[str(run.progress.played)] = _fixed(run)["accuracy"]["own"]
    accuracy = _auto(run) if kind == "auto" else _fixed(run)
    accuracy = {"accuracy": by_round} if by_round else accuracy
    return {
        "problem": problem,
        "algorithm": name,
        "kind": kind,
        "seed": seed,
        **accuracy,
        "rounds": run.progress.played,
        "megabytes": round(run.traffic.total() / 1e6, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _auto(run: Coordinator) -> dict[str, Any]:
    """The accuracy, and how many clients chose each way."""
    cohort, offer = _there(run)
    algorithm, scores = run.stage.algorithm, run.finish().scores
    assert scores is not None
    assert scores.accuracy is not None
    ways = personalise.ways_to_choose(algorithm, offer)
    choice = personalise._choice(algorithm, cohort, offer).tolist()
    counts = {way: choice.count(i) for i, way in enumerate(ways) if i in choice}
    return {"accuracy": {"auto": round(float(scores.accuracy.nanmean()), 4)}, "chosen": counts}


def _fixed(run: Coordinator) -> dict[str, Any]:
    """The accuracy of the models that are made in each way."""
    cohort, offer = _there(run)
    found = {}
    for way in FIXED if run.stage.algorithm.title() != "FedAvg" else ("own",):
        scores = cohort.score(personalise.finish(way, run.stage.algorithm, cohort, offer), cohort.held_out())
        assert scores.accuracy is not None
        found[way] = round(float(scores.accuracy.nanmean()), 4)
    return {"accuracy": found}


def _there(run: Coordinator) -> tuple[Cohort, Messages]:
    """The clients, and what they are offered in the end with all centers."""
    assert isinstance(run.clients, Together)
    state, offer = run.state.for_everyone(), run.last_offer()
    every = state.offer(centers=state.centers)
    return run.clients.cohort.when(state.context), Messages(offer.clients, {**every.fields, **offer.fields})


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: accuracies of each way, the mean over seeds."""
    columns = ["auto", "best fixed", "own", *(way for way in FIXED if way != "own"), "FedAvg"]
    lines = [f"| data | | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    shortfall, behind = [], []
    for problem, name in itertools.product(PROBLEMS, METHODS):
        means = _means([r for r in runs if r["problem"] == problem], name)
        if not {"auto", "own", "FedAvg"} <= means.keys():  # not all are played yet
            continue
        means["best fixed"] = max(means[way] for way in FIXED)
        shortfall.append(means["auto"] - means["best fixed"])
        behind.append(means["auto"] - means["FedAvg"])
        lines.append(f"| {problem} | {name} | " + " | ".join(f"{means[c]:.3f}" for c in columns) + " |")
    if shortfall:
        lines += [
            "",
            f"auto minus the best fixed way: {fmean(shortfall):+.4f} on average, {min(shortfall):+.4f} at worst; "
            f"auto minus FedAvg of the same rounds: {min(behind):+.4f} at worst",
        ]
    return lines


def _means(runs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """By way, over seeds; FedAvg after as many rounds as the run with "auto" of the same seed had."""
    common = {run["seed"]: run["accuracy"] for run in runs if run["algorithm"] == "FedAvg"}
    found: dict[str, list[float]] = {}
    for run in (run for run in runs if run["algorithm"] == name):
        if run["kind"] == "auto" and run["seed"] in common:
            found.setdefault("FedAvg", []).append(common[run["seed"]][str(run["rounds"])])
        for way, accuracy in run["accuracy"].items():
            found.setdefault(way, []).append(accuracy)
    return {way: fmean(each) for way, each in found.items()}


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=_seeds("5000-5004"), help="such as 5000-5004")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--problem", action="append", choices=list(PROBLEMS), help="only this one")
    parser.add_argument("--algorithm", action="append", choices=list(METHODS), help="only this one")
    parser.add_argument("--minutes", type=float, help="stop after so many, with the runs played by then")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    old = json.loads(options.out.read_text())["runs"] if options.out and options.out.exists() else []
    known = {(r["problem"], r["algorithm"], r["kind"], r["seed"]) for r in old}
    methods = [
        ("FedAvg", "fixed"),
        *((name, kind) for name in options.algorithm or METHODS for kind in ("auto", "fixed")),
    ]
    tasks = [
        task
        for seed in options.seeds
        for problem in options.problem or PROBLEMS
        for name, kind in methods
        if (task := (problem, name, kind, seed)) not in known
    ]
    runs, began = list(old), time.perf_counter()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as workers:
        for done in as_completed([workers.submit(play, task) for task in tasks]):
            if done.cancelled():
                continue
            runs.append(done.result())
            print(json.dumps(runs[-1]), flush=True)
            if options.out:
                write(options.out, {"provenance": provenance(), "runs": runs, "says": table(runs)})
            if options.minutes and time.perf_counter() - began > 60 * options.minutes:
                workers.shutdown(wait=False, cancel_futures=True)
                break
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
