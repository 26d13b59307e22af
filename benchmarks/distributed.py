"""k-FED in one round, and naive distributed k-means: k-FED's Figures 2 and 3.

`python benchmarks/distributed.py --seeds 1000 --out FILE`. scikit-learn's digits in place of FEMNIST. As in section
4.2.1, an oracle, k-means on the pooled points, is partitioned: a device has points of k' of its clusters, or of any
(IID, for which k-FED's k' is k). The k-means cost of what each way finds is given as a multiple of the oracle's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from coterie import KFed
from coterie.bench.results import run_seeds
from coterie.clustering.distributed_kmeans import distributed_kmeans

K, DEVICES, INITIALISATIONS = (
    16,
    40,
    10,
)  # no pair of digits' clusters reaches B.2's c0 = 0.5, so it chooses no k
NUMBER = 8  # bytes of a number

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def cost(x: Floats, labels: Whole) -> float:
    """φ, eq. (1)."""
    return sum(float(((x[labels == r] - x[labels == r].mean(axis=0)) ** 2).sum()) for r in np.unique(labels))


def structured(labels: Whole, each: int, seed: int) -> list[Whole]:
    """The points of every device, of at most `each` clusters; each cluster is shared out among its devices."""
    chance = np.random.default_rng([seed, each])
    has = np.array([np.isin(np.arange(K), chance.choice(K, each, replace=False)) for _ in range(DEVICES)])
    # a cluster that fell to nobody takes the place of one that did not
    for nobodys in np.flatnonzero(~has.any(axis=0)):
        z = chance.integers(DEVICES)
        has[z, chance.choice(np.flatnonzero(has[z] & (has.sum(axis=0) > 1)))] = False
        has[z, nobodys] = True
    owner = np.empty(len(labels), np.int64)
    for r in range(K):
        own = np.flatnonzero(labels == r)
        owner[own] = chance.permutation(np.resize(np.flatnonzero(has[:, r]), len(own)))
    return [np.flatnonzero(owner == z) for z in range(DEVICES)]


def iid(n: int, seed: int) -> list[Whole]:
    return np.array_split(np.random.default_rng([seed, 0]).permutation(n), DEVICES)


def compared(x: Floats, parts: list[Whole], local: int, best: float, seed: int) -> dict[str, Any]:
    points = [x[own] for own in parts]
    model = KFed(K, local, n_init=INITIALISATIONS, random_state=seed).fit(points)
    naive = distributed_kmeans(points, K, random_state=seed)
    again = distributed_kmeans(points, K, init=model.cluster_centers_, rounds=1)
    means = sum(map(len, model.device_centers_))
    pooled = np.concatenate(points)
    return {
        "k-FED": {"cost": cost(pooled, model.labels_) / best, "bytes": NUMBER * means * (x.shape[1] + 1)},
        "nearest center of k-FED": {"cost": again.costs[0] / best},
        "naive": {
            "cost": naive.costs[-1] / best,
            "after each round": [round(c / best, 4) for c in naive.costs],
            "rounds": len(naive.costs),
            "bytes": sum(naive.bytes),
        },
    }


def table(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| devices have | k-FED, one round | by nearest center | k-FED sends | naive, after one round | after five | "
        "at the end | rounds | it sends |",
        "|---" * 9 + "|",
    ]
    for name in dict.fromkeys(r["partition"] for r in runs):
        mine = [r for r in runs if r["partition"] == name]

        def show(values: list[float]) -> str:
            return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"

        steps = [r["naive"]["after each round"] for r in mine]
        cells = [
            show([r["k-FED"]["cost"] for r in mine]),
            show([r["nearest center of k-FED"]["cost"] for r in mine]),
            f"{np.mean([r['k-FED']['bytes'] for r in mine]) / 1e6:.2f} MB",
            *(show([s[min(t, len(s) - 1)] for s in steps]) for t in (1, 5)),
            show([r["naive"]["cost"] for r in mine]),
            f"{np.mean([r['naive']['rounds'] for r in mine]):.0f}",
            f"{np.mean([r['naive']['bytes'] for r in mine]) / 1e6:.1f} MB",
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def played(seed: int) -> Iterator[dict[str, Any]]:
    x = load_digits().data / 16
    target = KMeans(K, n_init=INITIALISATIONS, random_state=seed).fit(x)
    cases = {f"{each} clusters": (structured(target.labels_, each, seed), each) for each in (1, 2, 4, 8)}
    cases["any (IID)"] = (iid(len(x), seed), K)
    for name, (parts, local) in cases.items():
        yield {"partition": name, **compared(x, parts, local, float(target.inertia_), seed)}


if __name__ == "__main__":
    run_seeds(__doc__, 10, played, table)
