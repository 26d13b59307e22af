"""Is the verdict on a run right? Runs whose outcome is known. One line per run, then a table.

    python experiments/verdicts.py --seeds 5000-5009 --jobs 16 --out experiments/results/verdicts.json

The truth, which no verdict sees: a client is right if its center of largest importance is good on the client's own
distribution (an accuracy of 0.7 or more, or a squared error of at most a quarter of what the worst center has there),
and most clients of that center have that distribution. Clients whose two largest true shares are within 0.2 do not
count. A run found the clusters if 97 % of its clients are right. It failed if fewer than 90 % are, or if there is
nothing to find.

Each situation says beforehand what must be found, what must not, and what `good` must be. Where a seed came out
otherwise than planned, the truth of that run counts: `good` must be True if and only if the clusters were found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from coterie import IFCA, FedEM, Federation, FedSoft, FedSPD, Graph, Server, Training, WeCFL
from coterie.algorithms.initialisation import as_stages
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.data import digits, regressions
from coterie.data.federation import Points
from coterie.models import build
from coterie.protocol.algorithm import Algorithm
from coterie.runs.play import play as play_run
from coterie.runs.result import Run
from coterie.runs.summary import center_scores
from coterie.runs.verdict import Verdict

ROUNDS = 20
REGRESSION = Training(learning_rate=0.04, batch_size=20, epochs=2)
DIGITS = Training(learning_rate=0.2, batch_size=20, epochs=5)


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def mlp() -> nn.Module:
    return build("mlp", (64,), 10, hidden=(32,))()


# data


def labelings(seed: int, clusters: int = 2, mixture: str = "pure", clients: int = 60) -> Federation:
    shift = 4 if clusters == 2 else 3
    return digits(
        seed, clients=clients, distributions="relabel", clusters=clusters, mixture=mixture, shift=shift
    )


def rotations(seed: int, clusters: int = 2, angle: float = 90.0) -> Federation:
    return digits(seed, clients=60, distributions="rotate", clusters=clusters, mixture="pure", angle=angle)


def one_distribution(seed: int) -> Federation:
    return digits(seed, clients=60, distributions="none", mixture="pure")


def lines(seed: int, clusters: int = 2, mixture: str = "pure") -> Federation:
    separation = 166.0 if clusters == 2 else None
    return regressions(clients=40, clusters=clusters, mixture=mixture, separation=separation, seed=seed)


def one_line(seed: int) -> Federation:
    return regressions(clients=40, clusters=1, mixture="pure", seed=seed)


def of_sizes(seed: int) -> Federation:
    """From 5 to 2000 points, evenly in their logarithm."""
    data = regressions(
        clients=40, clusters=2, mixture="pure", sizes=(2000, 2000), separation=166.0, seed=seed
    )
    rng = np.random.default_rng(seed)
    sizes = torch.from_numpy(np.exp(rng.uniform(np.log(5), np.log(2000), len(data))).round()).long()
    place = torch.arange(len(data.train.at)) - data.train.offset[data.train.owner]
    return replace(data, train=data.train.only(place < sizes[data.train.owner]))


def minority(seed: int) -> Federation:
    """3 of 60 clients have the second labeling."""
    data = digits(seed, clients=60, distributions="relabel", clusters=2, mixture="pure", shift=4)
    return _chosen(data, seed, rare=3)


def _chosen(data: Federation, seed: int, rare: int) -> Federation:
    """Clients of the second distribution but a few say y like those of the first."""
    assert data.test is not None
    second = [i for i in range(len(data)) if i % 2 == 1]
    keep = set(np.random.default_rng(seed).choice(second, rare, replace=False).tolist())
    back = torch.tensor([i in second and i not in keep for i in range(len(data))])

    def relabelled(points: Points) -> Points:
        assert points.component is not None
        here = back[points.owner]
        y = torch.where(here, (points.y - 4) % 10, points.y)
        return replace(points, y=y, component=torch.where(here, 0, points.component))

    return replace(data, train=relabelled(data.train), test=relabelled(data.test))


def spoilt_clients(seed: int, clients: int = 60) -> torch.Tensor:
    """(client,) bool: whose labels are shuffled."""
    bad = torch.zeros(clients, dtype=torch.bool)
    bad[torch.randperm(clients, generator=torch.Generator().manual_seed(seed + 1))[: clients // 5]] = True
    return bad


def shuffled(seed: int) -> Federation:
    """A fifth of the clients has labels in a random order."""
    data, bad = labelings(seed), spoilt_clients(seed)
    generator = torch.Generator().manual_seed(seed)

    def spoilt(points: Points) -> Points:
        y = points.y.clone()
        for i in bad.nonzero()[:, 0].tolist():
            own = slice(int(points.offset[i]), int(points.offset[i + 1]))
            y[own] = y[own][torch.randperm(len(y[own]), generator=generator)]
        return replace(points, y=y)

    assert data.test is not None
    return replace(data, train=spoilt(data.train), test=spoilt(data.test))


# graphs


def ring(data: Federation) -> Graph:
    n = len(data)
    return _written([(i, (i + 1) % n) for i in range(n)])


def cliques(data: Federation) -> Graph:
    """Each distribution a clique of its own, and one edge between the two."""
    n = len(data)
    return _written([(0, 1), *((i, j) for i in range(n) for j in range(i) if i % 2 == j % 2)])


def _written(edges: list[tuple[int, int]]) -> Graph:
    path = Path(tempfile.mkdtemp()) / "edges.txt"
    path.write_text("\n".join(f"{i} {j}" for i, j in edges))
    return Graph("file", path=str(path))


def random_graph(data: Federation) -> Graph:
    return Graph("erdos-renyi", degree=8)


# situations


@dataclass(frozen=True)
class Method:
    """One way to run: an algorithm, and what is not the usual of it."""

    algorithm: Algorithm
    init: str | None = None
    over: Callable[[Federation], Graph] | None = None
    learning_rate: float | None = None
    rounds: int = ROUNDS
    note: str = ""

    @property
    def name(self) -> str:
        over = "" if self.over is None else f" over {self.over.__name__.replace('_', ' ')}"
        init = "" if self.init is None else f" from {self.init}"
        return f"{self.algorithm.title()}({self.algorithm.clusters()}){self.note}{init}{over}"


FAILED = ("diverged", "unseparated", "divided", "one-model", "no-consensus")
Good = tuple[bool | None, ...]


@dataclass(frozen=True)
class Situation:
    """What is run, and what the verdict must be."""

    data: Callable[[int], Federation]
    methods: tuple[Method, ...]
    must: tuple[str, ...] = ()  # one of these
    must_not: tuple[str, ...] = ()
    good: Good = (True,)  # allowed, if the run came out as planned
    plan: Literal["found", "not found", "either"] = "found"
    nothing_to_find: bool = False

    def right(self, verdict: Verdict, found: bool) -> bool:
        allowed: Good = (True,) if found else (None, False)
        if self.plan != "either" and found != (self.plan == "found"):
            return verdict.good in allowed
        findings = set(verdict.findings)
        said = not self.must or bool(findings & set(self.must))
        allowed = allowed if self.plan == "either" else self.good
        return said and not findings & set(self.must_not) and verdict.good in allowed


ALL = (IFCA, WeCFL, FedEM, FedSPD, FedSoft)
SOFT = (FedEM, FedSPD, FedSoft)


def each(kinds: tuple[Callable[[int], Algorithm], ...], clusters: int, **more: Any) -> tuple[Method, ...]:
    return tuple(Method(kind(clusters), **more) for kind in kinds)


SITUATIONS: dict[str, Situation] = {
    "separated": Situation(
        labelings, each(ALL, 2), must_not=(*FAILED, "merged", "unused", "coarse", "misfits", "ambiguous")
    ),
    "separated, mixed clients": Situation(
        lambda seed: labelings(seed, mixture="random"),
        each(SOFT, 2),
        must_not=(*FAILED, "merged", "unused", "misfits"),
    ),
    "separated, regressions": Situation(
        lines, each(ALL, 2), must_not=(*FAILED, "merged", "unused", "misfits")
    ),
    "separated, over a graph": Situation(
        labelings,
        (
            *each((IFCA, FedEM, FedSPD), 2, init="clients", over=random_graph),
            *each(SOFT, 2, over=random_graph),
        ),
        must_not=(*FAILED, "merged", "unused", "sparse-graph"),
    ),
    "one distribution": Situation(
        one_distribution,
        each(ALL, 2),
        must=("one-model",),
        must_not=("misfits",),
        good=(False,),
        plan="not found",
        nothing_to_find=True,
    ),
    "one distribution, regressions": Situation(
        one_line,
        each(ALL, 2),
        must=("one-model",),
        must_not=("misfits",),
        good=(False,),
        plan="not found",
        nothing_to_find=True,
    ),
    "classes divided": Situation(
        lambda seed: labelings(seed, mixture="random"),
        each((FedEM, FedSPD), 2, init="random"),
        must=("divided",),
        good=(False,),
        plan="not found",
    ),
    "classes divided, rotations": Situation(
        rotations,
        (*each((FedEM, FedSPD), 2, init="random"), *each((FedSPD,), 2, init="random", over=random_graph)),
        must=("divided",),
        good=(False,),
        plan="not found",
    ),
    "centers merged": Situation(
        labelings,
        (
            Method(FedSoft(2, pull=3.0), init="random", note=" with pull 3"),
            Method(FedSoft(2, pull=1.0), init="random", rounds=6, note=" for 6 rounds"),
        ),
        must=("merged",),
        must_not=("divided",),
        good=(False,),
        plan="not found",
    ),
    "one center too many": Situation(
        labelings,
        each(ALL, 3),
        must=("merged", "unused", "divided"),
        must_not=("unseparated", "one-model"),
        plan="either",
    ),
    "three centers too many": Situation(
        labelings,
        each(ALL, 5),
        must=("merged", "unused", "divided"),
        must_not=("unseparated", "one-model"),
        plan="either",
    ),
    "two centers too few": Situation(
        lambda seed: labelings(seed, 4),
        each(ALL, 2),
        must=("coarse", "misfits"),
        good=(None, False),
        plan="not found",
    ),
    "one center too few": Situation(
        lambda seed: labelings(seed, 4),
        each(ALL, 3),
        must=("coarse", "misfits"),
        good=(None, False),
        plan="not found",
    ),
    "two centers too few, regressions": Situation(
        lambda seed: lines(seed, 4),
        each(ALL, 2),
        must=("coarse", "misfits"),
        good=(None, False),
        plan="not found",
    ),
    "a minority of 5 %": Situation(minority, each(ALL, 2), must_not=FAILED),
    "sizes from 5 to 2000": Situation(of_sizes, each(ALL, 2), must_not=FAILED),
    "a ring": Situation(
        labelings,
        (*each((IFCA, FedEM, FedSPD), 2, init="clients", over=ring), *each(SOFT, 2, over=ring)),
        must=("sparse-graph",),
        plan="either",
    ),
    "two cliques": Situation(
        labelings,
        (*each((IFCA, FedEM, FedSPD), 2, init="clients", over=cliques), *each(SOFT, 2, over=cliques)),
        must=("sparse-graph",),
        plan="either",
    ),
    "diverged": Situation(
        labelings, each(ALL, 2, learning_rate=100.0), must=("diverged",), good=(False,), plan="not found"
    ),
    "a fifth with shuffled labels": Situation(
        shuffled,
        each(ALL, 2),
        must=("misfits",),
        must_not=("unseparated", "divided", "one-model"),
        good=(None,),
    ),
}


# one run


def play(task: tuple[str, int, int]) -> dict[str, Any]:
    torch.set_num_threads(1)
    name, number, seed = task
    situation = SITUATIONS[name]
    method, data = situation.methods[number], situation.data(seed)
    lines_ = data.task == "regression"
    training = REGRESSION if lines_ else DIGITS
    if method.learning_rate is not None:
        training = replace(training, learning_rate=method.learning_rate)
    topology = Server() if method.over is None else method.over(data)
    stages = as_stages(method.algorithm, method.rounds, training, topology, init=method.init)
    began = time.perf_counter()
    coordinator = simulate(linear if lines_ else mlp, data, stages, seed=seed)
    run = play_run(coordinator, data.description, experiment="")
    scores = center_scores(coordinator, data.description, run._result.centers)
    measure = torch.stack([one.loss if one.accuracy is None else one.accuracy for one in scores])
    right = _right(run, data, measure, lines_, spoilt_clients(seed) if name.startswith("a fifth") else None)
    found = right >= 0.97 and not situation.nothing_to_find
    failed = right < 0.9 or situation.nothing_to_find
    verdict = run.verdict
    assert verdict is not None
    return {
        "situation": name,
        "method": method.name,
        "seed": seed,
        "clients_right": round(right, 3),
        "ari": _rounded(run.summary.get("ari")),
        "found": found,
        "failed": failed,
        "good": verdict.good,
        "findings": " ".join(verdict.findings),
        "right": situation.right(verdict, found),
        "praised": failed and verdict.good is True,
        "gain": _rounded(verdict.numbers.get("gain")),
        "by_class": _rounded(verdict.numbers.get("by_class")),
        "still_differ": verdict.numbers.get("still_differ"),
        "peers_apart": _rounded(verdict.numbers.get("peers_apart")),
        "seconds": round(time.perf_counter() - began, 2),
    }


def _right(
    run: Run, data: Federation, measure: torch.Tensor, is_loss: bool, left_out: torch.Tensor | None
) -> float:
    """The share of the clients that count that are right; see above."""
    assert data.mixture is not None
    measure, true = measure.cpu().double(), data.mixture.argmax(1)
    good = measure <= measure.nan_to_num(torch.inf).amax(0) / 4 if is_loss else measure >= 0.7
    top = data.mixture.topk(min(2, data.mixture.shape[1]), 1).values
    counts = top[:, 0] - top[:, -1] >= 0.2 if top.shape[1] > 1 else torch.ones(len(data), dtype=torch.bool)
    counts = counts if left_out is None else counts & ~left_out
    largest = run._result.importance.cpu().nan_to_num(0).argmax(1)
    members = torch.zeros_like(measure).index_put_(
        (largest[counts], true[counts]), torch.ones((), dtype=torch.float64), accumulate=True
    )
    right = good[largest, true] & (members.argmax(1)[largest] == true)
    return float(right[counts].double().mean())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


# all of them


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: of each situation, how often the verdict was right, and how often it praised a failure."""
    yield "| situation | runs | clusters found | failed | verdict right | failure praised | most frequent findings |"
    yield "|---|---|---|---|---|---|---|"
    for name in [*SITUATIONS, "all"]:
        mine = [run for run in runs if name in (run["situation"], "all")]
        if mine:
            count = {
                key: sum(bool(run[key]) for run in mine) for key in ("found", "failed", "right", "praised")
            }
            numbers = " | ".join(str(count[key]) for key in count)
            words = [word for run in mine for word in run["findings"].split()]
            often = sorted(set(words), key=lambda word: -words.count(word))[:3] if name != "all" else []
            yield f"| {name} | {len(mine)} | {numbers} | {', '.join(often)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="5000-5009", help="first and last")
    parser.add_argument("--situation", action="append", choices=SITUATIONS, help="only this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="runs that it holds already are not played again")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    tasks = [
        (name, number, seed)
        for seed in range(int(first), int(last or first) + 1)
        for name in options.situation or SITUATIONS
        for number in range(len(SITUATIONS[name].methods))
    ]
    runs = _read(options.out)
    done = {(run["situation"], run["method"], run["seed"]) for run in runs}
    tasks = [t for t in tasks if (t[0], SITUATIONS[t[0]].methods[t[1]].name, t[2]) not in done]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as workers:
        for finished in as_completed([workers.submit(play, task) for task in tasks]):
            runs.append(finished.result())
            print(json.dumps(runs[-1]), flush=True)
            if options.out and len(runs) % 50 == 0:
                _write(options.out, runs)
    print("\n".join(table(runs)))
    if options.out:
        _write(options.out, runs)


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    kept = json.loads(path.read_text())
    return [dict(zip(kept["columns"], run, strict=True)) for run in kept["runs"]]


def _write(path: Path, runs: list[dict[str, Any]]) -> None:
    order = list(SITUATIONS)
    runs = sorted(runs, key=lambda run: (order.index(run["situation"]), run["method"], run["seed"]))
    rows = ",\n".join(json.dumps(list(run.values())) for run in runs)
    head = f'"provenance": {json.dumps(provenance())},\n"columns": {json.dumps(list(runs[0]))}'
    path.write_text(f'{{{head},\n"runs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
