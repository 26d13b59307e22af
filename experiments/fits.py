"""Who fits? Newcomers of a run's own distributions, and others, over algorithms, clusters and seeds; then a table.

    python experiments/fits.py --seeds 5000-5019 --jobs 16 --out experiments/results/fits.json

A table's number is the percentage of newcomers for which `Run.onboard(x, y).fits` is true. Those that should fit are of
one distribution of the run (pure) or, where each point has a cluster, of several (mixed). Those that should not have
random labels, or are of a distribution that no client has (unknown): another permutation of the labels, a rotation
halfway between two that are known, another regression. Clients of a run are pure, or with `--clients mixed` mixed. With
the file of `--out` a run that is in it already is not played again. Tune on seeds below 1000.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import coterie
from coterie import ALGORITHMS, Run, Training
from coterie.bench.provenance import provenance
from coterie.data import from_arrays
from coterie.data.partitions.transforms import turn
from coterie.data.sources.digits import read
from coterie.data.synthetic import coefficients
from coterie.models import build

PROBLEMS = ("labelings", "rotations", "regressions")
METHODS = ("FedSoft", "FedSPD", "FedEM", "IFCA", "WeCFL")
CLUSTERS = (2, 3, 4, 5)
SIZES = (30, 60, 120)  # points of a newcomer
NEWCOMERS = 10  # of each kind and size, per run
SHOULD_FIT = {"pure": True, "mixed": True, "random": False, "unknown": False}
CLIENTS, TRAIN, TEST, ROUNDS = 60, 80, 20, 50
DIGITS = Training(learning_rate=0.2, batch_size=20, epochs=5)
REGRESSION = Training(learning_rate=0.04, batch_size=20, epochs=2)
ABOUT = ("problem", "clients", "algorithm", "clusters", "seed")  # of a run
OF_A_ROW = ("problem", "clients", "algorithm", "clusters", "kind", "points")  # of the table

Task = tuple[str, str, str, int, int]  # as ABOUT
Drawn = tuple[Tensor, Tensor]


class World(Protocol):
    """Distributions to draw points from: those of the run's clients, and after them one that nobody has."""

    clusters: int
    chance: np.random.Generator

    def draw(self, distribution: int, points: int, train: bool = False) -> Drawn: ...

    def random_labels(self, y: Tensor) -> Tensor: ...


class Digits:
    """Images under several labelings or rotations; nobody trains on an image that is drawn for anything else."""

    def __init__(self, problem: str, clusters: int, seed: int):
        self.clusters, self.chance = clusters, np.random.default_rng(seed)
        self.source = read(seed)
        self.turns, self.orders = [0.0] * (clusters + 1), [torch.arange(10)] * (clusters + 1)
        if problem == "rotations":
            step = 90.0 if clusters <= 4 else 360 / clusters
            between = self.chance.integers(clusters - 1) + 0.5
            self.turns = [step * float(s) for s in (*range(clusters), between)]
        else:
            self.orders = [torch.tensor(order) for order in self._labelings(clusters + 1)]

    def _labelings(self, number: int) -> list[list[int]]:
        """Different permutations of the labels, the first of which changes nothing."""
        found = [list(range(10))]
        while len(found) < number:
            order = self.chance.permutation(10).tolist()
            found += [] if order in found else [order]
        return found

    def draw(self, distribution: int, points: int, train: bool = False) -> Drawn:
        of = self.source
        x, y = (of.x_train, of.y_train) if train else (of.x_test, of.y_test)
        which = torch.from_numpy(self.chance.choice(len(x), points, replace=False))
        images = turn(x[which], self.turns[distribution]).flatten(1)
        return images, self.orders[distribution][y[which]]

    def random_labels(self, y: Tensor) -> Tensor:
        return torch.from_numpy(self.chance.integers(10, size=len(y)))


class Regressions:
    """y = <x, θ_s> + noise."""

    def __init__(self, problem: str, clusters: int, seed: int):
        self.clusters, self.chance = clusters, np.random.default_rng(seed)
        self.theta = coefficients(clusters + 1, 10, 10.0, 166.0, seed)

    def draw(self, distribution: int, points: int, train: bool = False) -> Drawn:
        x = self.chance.standard_normal((points, 10))
        y = x @ self.theta[distribution] + self.chance.standard_normal(points)
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    def random_labels(self, y: Tensor) -> Tensor:
        return y[torch.from_numpy(self.chance.permutation(len(y)))]


def mixed(world: World, points: int, shares: list[float], train: bool = False) -> Drawn:
    """Points of several distributions; at least one of some."""
    counts = world.chance.multinomial(points, shares)
    drawn = [world.draw(s, int(n), train) for s, n in enumerate(counts) if n]
    order = torch.from_numpy(world.chance.permutation(points))
    return torch.cat([x for x, _ in drawn])[order], torch.cat([y for _, y in drawn])[order]


def shares_of(world: World, kind: str, number: int) -> list[float]:
    if kind == "mixed":
        return [float(share) for share in world.chance.dirichlet(np.ones(world.clusters))]
    return [float(s == number % world.clusters) for s in range(world.clusters)]


def newcomer(world: World, kind: str, points: int, number: int) -> Drawn:
    if kind == "unknown":
        return world.draw(world.clusters, points)
    x, y = mixed(world, points, shares_of(world, kind, number))
    return x, world.random_labels(y) if kind == "random" else y


def played(task: Task, world: World) -> Run:
    problem, clients, name, clusters, seed = task
    given = {}
    for number in range(CLIENTS):
        shares = shares_of(world, clients, number)
        given[str(number)] = (*mixed(world, TRAIN, shares, True), *mixed(world, TEST, shares))
    regression = problem == "regressions"
    settings = {"pull": 0.01} if regression and name == "FedSoft" else {}
    algorithm: Any = ALGORITHMS[name]
    return coterie.run(
        nn.Linear(10, 1, bias=False) if regression else build("mlp", (64,), 10, hidden=(32,)),
        from_arrays(given),
        algorithm(n_clusters=clusters, **settings),
        rounds=ROUNDS,
        training=REGRESSION if regression else DIGITS,
        seed=seed,
        evaluate_every=0,
    )


def measured(task: Task) -> dict[str, Any]:
    """One run, and how many of its newcomers of each kind and size fit."""
    torch.set_num_threads(1)
    began, (problem, _, name, clusters, seed) = time.perf_counter(), task
    world: World = (Regressions if problem == "regressions" else Digits)(problem, clusters, seed)
    run = played(task, world)
    world.chance = np.random.default_rng(
        (seed, clusters, METHODS.index(name))
    )  # other newcomers for every method
    kinds = [kind for kind in SHOULD_FIT if kind != "mixed" or ALGORITHMS[name].soft]
    fit = {
        f"{kind} {points}": sum(
            run.onboard(*newcomer(world, kind, points, number)).fits is True for number in range(NEWCOMERS)
        )
        for kind in kinds
        for points in SIZES
    }
    seconds = round(time.perf_counter() - began, 1)
    return {**dict(zip(ABOUT, task, strict=True)), "fit": fit, "seconds": seconds}


def in_order(run: dict[str, Any]) -> tuple[Any, ...]:
    return PROBLEMS.index(run["problem"]), METHODS.index(run["algorithm"]), run["clusters"], run["seed"]


def percentages(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """A row per problem, clients, algorithm, clusters, kind and points: how many newcomers, and how many fit in %."""
    counts: dict[tuple[Any, ...], list[int]] = {}
    for run in sorted(runs, key=in_order):
        for of, fit in run["fit"].items():
            kind, points = of.split()
            row = (*(run[name] for name in ABOUT[:-1]), kind, int(points))
            counts.setdefault(row, []).append(fit)
    return [
        [*row, NEWCOMERS * len(fit), round(100 * sum(fit) / len(fit) / NEWCOMERS, 1)]
        for row, fit in counts.items()
    ]


def table(rows: list[list[Any]]) -> list[str]:
    """Markdown: percentages that fit, for newcomers of 30 / 60 / 120 points."""
    lines = []
    for about in dict.fromkeys((row[0], row[1]) for row in rows):
        lines += [f"\n{about[0]}, {about[1]} clients", "| | clusters | " + " | ".join(SHOULD_FIT) + " |"]
        lines.append("|---" * (2 + len(SHOULD_FIT)) + "|")
        mine = [row for row in rows if (row[0], row[1]) == about]
        for name, clusters in dict.fromkeys((row[2], row[3]) for row in mine):
            cells = [
                " / ".join(f"{row[7]:g}" for row in mine if row[2:5] == [name, clusters, kind]) or "–"
                for kind in SHOULD_FIT
            ]
            lines.append(f"| {name} | {clusters} | {' | '.join(cells)} |")
    return lines


def verdict(rows: list[list[Any]]) -> str:
    """Is it 95 % of those that should and 5 % of those that should not, in every row?"""
    wrong = [row for row in rows if (row[7] < 95 if SHOULD_FIT[row[4]] else row[7] > 5)]
    said = (
        f"{len(rows) - len(wrong)} of {len(rows)} rows have at least 95 % of members, at most 5 % of others"
    )
    return said + "".join(f"\n  not {dict(zip(OF_A_ROW, row, strict=False))}: {row[7]:g} %" for row in wrong)


def write(path: Path, source: Any, runs: list[dict[str, Any]]) -> None:
    runs = sorted(runs, key=in_order)
    head = {"provenance": source, "columns": [*OF_A_ROW, "newcomers", "percent_that_fit"]}
    parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    for name, lines in (("table", percentages(runs)), ("runs", runs)):
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(line) for line in lines) + "\n]")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(parts) + "}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="5000-5019", help="from the first to the last")
    parser.add_argument("--problem", action="append", choices=PROBLEMS, help="only this one")
    parser.add_argument("--algorithm", action="append", choices=METHODS, help="only this one")
    parser.add_argument("--clusters", action="append", type=int, help="only so many")
    parser.add_argument("--clients", choices=("pure", "mixed"), default="pure", help="those of the run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="stop after so many; the same call goes on"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    names = [n for n in options.algorithm or METHODS if options.clients == "pure" or ALGORITHMS[n].soft]
    tasks = [
        (problem, options.clients, name, clusters, seed)
        for seed in range(first, last + 1)
        for problem in options.problem or PROBLEMS
        for name in names
        for clusters in options.clusters or CLUSTERS
    ]
    known = options.out is not None and options.out.exists()
    runs = json.loads(options.out.read_text())["runs"] if known else []
    done, began, source = (
        {tuple(run[name] for name in ABOUT) for run in runs},
        time.perf_counter(),
        provenance(),
    )
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as workers:
        for ended in as_completed([workers.submit(measured, task) for task in tasks if task not in done]):
            runs.append(ended.result())
            print(json.dumps(runs[-1]), flush=True)
            if options.out is not None:
                write(options.out, source, runs)
            if time.perf_counter() - began > 60 * options.minutes:
                workers.shutdown(wait=True, cancel_futures=True)
                break
    rows = percentages(runs)
    print("\n".join(table(rows)), verdict(rows), sep="\n")


if __name__ == "__main__":
    main()
