"""How should WeCFL and FeSEM cluster, round after round? One line per run, then a table.

    python experiments/wecfl_defaults.py --seeds 5000-5019 --jobs 16 --out experiments/results/wecfl_defaults.json

Found: the adjusted Rand index of the clients' clusters is at least 0.95; of mixed clients, every distribution has a
center whose loss is at most 1.5 times that of the mean of its 90 % clients. It is asked after 5, 20 and 50 rounds, for
clusters may be found and lost again. With --out, what is there already is not played again.

Of the ways to cluster, two are settings: `restart=False`, one expectation step a round (Algorithm 1), and
`restart=True`, k-means anew each round (the published program). Two are here to be compared with them. `plain first` is
restart=False with a first clustering by k-means++ on the rows as they are. `guarded` is restart=False that takes, from
the second round on, k-means anew instead of the expectation step wherever its F, the objective of eq. (3b), is lower.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from coterie import Federation, FeSEM, Stage, Stages, Training, WeCFL
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, regressions
from coterie.engine.rows import Part
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.received import Received
from coterie.protocol.state import State
from coterie.runs.metrics import ari
from coterie.runs.summary import center_scores, match

AFTER = (5, 20, 50)  # rounds
SEPARATION = 166.0  # squared distance of two regressions
MIXED_LOSS = 1 + 0.1**2 * SEPARATION  # noise, and a tenth of the way to the other regression


@dataclass(frozen=True)
class PlainFirst(WeCFL):
    """One expectation step a round, from k-means++ on the first rows as they are."""

    def _first_clusters(
        self, state: State, received: Received, g: Tensor, begun: Tensor, weight: Tensor
    ) -> Tensor:
        return self._k_means(state, received, g, weight)


@dataclass(frozen=True)
class Guarded(WeCFL):
    """From the second round on k-means anew, unless an expectation step has a lower F."""

    def _expectation(self, state: State, received: Received, weight: Tensor) -> Tensor:
        if not bool(state.clustered.any()):
            return super()._expectation(state, received, weight)
        step, anew = (replace(self, restart=how) for how in (False, True))
        ways = [super(Guarded, each)._expectation(state, received, weight) for each in (step, anew)]
        g = received.row[:, state.rows.columns(self.represent)].double()
        costs = [_objective(g, member, weight.double(), self.n_clusters) for member in ways]
        return ways[costs[1] < costs[0]]


def _objective(g: Tensor, member: Tensor, weight: Tensor, clusters: int) -> float:
    """F of eq. (3b), but for its denominator."""
    share = one_hot(member, clusters) * weight[:, None]
    means = (share / share.sum(0).clamp(min=1)).T @ g
    return float((weight * (g - means[member]).square().sum(1)).sum())


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def labelings(seed: int) -> Federation:
    ragged = {"clients": 12, "train_points": (50, 200)}
    return digits(seed, distributions="relabel", clusters=3, shift=3, mixture="pure", **ragged)


def rotations(seed: int) -> Federation:
    return digits(seed, distributions="rotate", clusters=4, mixture="pure", clients=100, train_points=50)


def linear_data(mixture: str) -> Callable[[int], Federation]:
    return lambda seed: regressions(
        clients=40, clusters=2, mixture=mixture, separation=SEPARATION, sizes=(20, 200), seed=seed
    )


PARTS: tuple[Part, ...] = ("dense", "all", "last")
WAYS: dict[str, WeCFL] = {  # the number of clusters is that of the problem
    **{f"WeCFL, restart=True, {part}": WeCFL(1, restart=True, represent=part) for part in PARTS},
    **{f"WeCFL, restart=False, {part}": WeCFL(1, restart=False, represent=part) for part in PARTS},
    "WeCFL, plain first, dense": PlainFirst(1),
    "WeCFL, guarded, dense": Guarded(1),
    "FeSEM, restart=True": FeSEM(1, restart=True),
    "FeSEM, restart=False": FeSEM(1, restart=False),
}
DENSE = tuple(way for way in WAYS if not way.endswith(("all", "last")))  # all there is of a linear model


@dataclass(frozen=True)
class Problem:
    """Clients, their model, how they train, and what is tried on them."""

    build: Callable[[], nn.Module]
    data: Callable[[int], Federation]
    clusters: int
    training: Training
    ways: tuple[str, ...] = tuple(WAYS)


LONG = Training(learning_rate=0.1, batch_size=10, epochs=5)
REGRESSION = Training(learning_rate=0.04, batch_size=20, epochs=2)
PROBLEMS = {
    "labelings, batch norm": Problem(with_batch_norm, labelings, 3, LONG),
    "labelings, batch norm, min_batch 4": Problem(
        with_batch_norm, labelings, 3, replace(LONG, min_batch=4), DENSE
    ),
    "labelings": Problem(with_dropout, labelings, 3, LONG),
    "rotations": Problem(mlp, rotations, 4, replace(LONG, epochs=1)),
    "regressions, pure": Problem(linear, linear_data("pure"), 2, REGRESSION, DENSE),
    "regressions, 10:90": Problem(linear, linear_data("10:90"), 2, REGRESSION, DENSE),
}
Task = tuple[str, str, int]  # problem, way, seed


def play(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    problem, way, seed = task
    about = PROBLEMS[problem]
    data = about.data(seed)
    stages = Stages((Stage(replace(WAYS[way], n_clusters=about.clusters), AFTER[-1], about.training),))
    began, run = time.process_time(), simulate(about.build, data, stages, seed=seed, compile=False)
    found: dict[str, Any] = {}
    for number in range(1, AFTER[-1] + 1):
        run.step()
        if number in AFTER:
            found |= {f"{name} after {number}": value for name, value in measured(run, data).items()}
    seconds = round(time.process_time() - began, 1)
    return {"problem": problem, "way": way, "seed": seed, **found, "seconds": seconds}


def measured(run: Coordinator, data: Federation) -> dict[str, Any]:
    result = run.evaluate()
    assert data.mixture is not None
    index = ari(result.importance, data.mixture)
    found = index >= 0.95
    if not bool((data.mixture.max(1).values == 1).all()):
        loss = torch.stack([one.loss for one in center_scores(run, data.description, result.centers)])
        found = all(
            float(loss[own, theirs]) <= 1.5 * MIXED_LOSS for own, theirs in zip(*match(loss), strict=True)
        )
    scores = result.scores
    assert scores is not None
    measure = scores.loss if scores.accuracy is None else scores.accuracy
    return {"found": found, "ari": round(index, 3), "personal": round(float(measure.nanmean()), 3)}


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: in how many seeds the clusters were found, after 5, 20 and 50 rounds."""
    problems = [problem for problem in PROBLEMS if any(run["problem"] == problem for run in runs)]
    number = len({run["seed"] for run in runs})
    lines = [f"| of {number} seeds | {' | '.join(problems)} |", "|---" * (len(problems) + 1) + "|"]
    for way in (way for way in WAYS if any(run["way"] == way for run in runs)):
        cells = []
        for problem in problems:
            mine = [run for run in runs if (run["problem"], run["way"]) == (problem, way)]
            counts = [str(sum(run[f"found after {after}"] for run in mine)) for after in AFTER]
            cells.append(", ".join(counts) if mine else "")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="5000-5019", help="the first and the last one")
    parser.add_argument("--problem", action="append", choices=PROBLEMS, help="only this one")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    first, last = (int(seed) for seed in options.seeds.split("-"))
    runs, source = read(options.out), provenance()
    known = {(run["problem"], run["way"], run["seed"]) for run in runs}
    tasks = [
        (problem, way, seed)
        for seed in range(first, last + 1)
        for problem in options.problem or PROBLEMS
        for way in PROBLEMS[problem].ways
        if way in (options.way or WAYS)
    ]
    left = [task for task in tasks if task not in known]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as workers:
        for run in workers.map(play, left):
            runs.append(run)
            print(json.dumps(run), flush=True)
            if options.out:
                write(options.out, source, runs)
    print("\n".join(table(runs)))


def read(out: Path | None) -> list[dict[str, Any]]:
    if out is None or not out.exists():
        return []
    found = json.loads(out.read_text())
    return [dict(zip(found["columns"], run, strict=True)) for run in found["runs"]]


def write(out: Path, source: dict[str, str], runs: list[dict[str, Any]]) -> None:
    rows = ",\n".join(json.dumps(list(run.values())) for run in runs)
    head = f'"provenance": {json.dumps(source)},\n"columns": {json.dumps(list(runs[0]))}'
    out.write_text(f'{{{head},\n"runs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
