"""k-FED's tables and figures that cluster points, or cluster once before they learn: `play` runs one of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.api import run
from coterie.clustering.diagnostics import cost
from coterie.clustering.distributed_kmeans import distributed_kmeans
from coterie.clustering.kfed import KFed
from coterie.clustering.local import separations
from coterie.data import load, named, partition
from coterie.data.federation import Federation, Points
from coterie.data.partitions.transforms import features
from coterie.data.sources import digits
from coterie.data.sources.catalogue import data_folder
from coterie.data.sources.source import Source
from coterie.engine.training import Training
from coterie.errors import require
from coterie.models import build
from coterie.recipes import NUMBER, Personalised, kfed_megabytes, kfed_personalise

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Found = dict[str, dict[str, float]]  # by method, by column


def play(clustering: Mapping[str, Any], seed: int) -> Found:
    """The numbers of every method, by the name of their column; `task` says which of these functions makes them."""
    task = clustering["task"]
    require(task in TASKS, "clustering.task", task, ", ".join(TASKS))
    settings = {key: value for key, value in clustering.items() if key != "task"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # clusters overlap in some of the papers' cases
        return TASKS[task](seed=seed, **settings)


# Table 1 and Figure 1: a mixture of Gaussians


def gaussians(
    *,
    d: int,
    k: int,
    m0: int,
    points: int,
    seed: int,
    nearest: float | None = None,
    c: float | None = None,
) -> Found:
    """Section 4.1: k components in √k groups, each group on m0 devices that have `points` of each of its components.

    The means are normal, scaled so that the nearest two are `nearest` σ apart, or as far as Theorem 4.1 asks for c.
    """
    apart = nearest if nearest is not None else _asked(k, m0, math.nan if c is None else c)
    devices, truth = mixture(d, k, m0, points, apart, seed)
    x, found = np.concatenate(devices), {}
    for name, n_init in (("k-FED one start", 1), ("k-FED", 10)):
        model = KFed(k, round(k**0.5), n_init=n_init, random_state=seed).fit(devices)
        found[name] = {"accuracy": matched(truth, model.labels_), "megabytes": kfed_megabytes(model)}
    pooled = KMeans(k, n_init=10, random_state=seed).fit(x)
    everything = NUMBER * x.size / 1e6
    found["pooled k-means"] = {"accuracy": matched(truth, pooled.labels_), "megabytes": everything}
    return found


def _asked(k: int, m0: int, c: float) -> float:
    """c·√(k·m0)·σ / √w_min of Theorem 4.1, with w = 1/k and σ = 1; the polylogarithm is left out."""
    return c * k * math.sqrt(m0)


def mixture(d: int, k: int, m0: int, points: int, apart: float, seed: int) -> tuple[list[Floats], Whole]:
    """The points of each device, and the component of each point."""
    chance = np.random.default_rng([seed, d, k])
    means = chance.normal(size=(k, d))
    means *= apart / pdist(means).min()
    groups = np.arange(k).reshape(round(k**0.5), -1)  # G_i
    components = [np.repeat(group, points) for group in groups for _ in range(m0)]
    return [means[own] + chance.normal(size=(len(own), d)) for own in components], np.concatenate(components)


def matched(truth: Whole, labels: Whole) -> float:
    """The share of the points that the best one-to-one matching of clusters and components gets right."""
    both = contingency_matrix(truth, labels)
    return float(both[linear_sum_assignment(both, maximize=True)].sum() / len(truth))


# Figures 2, 3 and 5: an oracle's clusters, partitioned


def partitions(
    *, source: str, k: int, local: int, devices: int, seed: int, points: int | None = None
) -> Found:
    """Section 4.2.1: an oracle's k clusters on devices that have `local` of them each, and at random (IID).

    Costs are multiples of the oracle's. `relative` is (φ(k') − φ*) / (φ(k) − φ*) of Figure 2.
    """
    own, truth = _partitioned(source, k, devices, seed, points, mixture="structured", per_client=local)
    best = cost(np.concatenate(own), truth)
    structured = KFed(k, local, random_state=seed).fit(own)
    anyhow, everywhere = _partitioned(source, k, devices, seed, points, mixture="iid")
    at_random = KFed(k, k, random_state=seed).fit(anyhow)
    naive = distributed_kmeans(own, k, random_state=seed)
    reached, iid = structured.cost_ / best, at_random.cost_ / cost(np.concatenate(anyhow), everywhere)
    return {
        "k-FED": {
            "cost": reached,
            "relative": (reached - 1) / (iid - 1),
            "rounds": 1.0,
            "megabytes": kfed_megabytes(structured),
        },
        "k-FED IID": {"cost": iid, "rounds": 1.0, "megabytes": kfed_megabytes(at_random)},
        "distributed k-means": {
            "cost": naive.costs[-1] / best,
            "after one round": naive.costs[min(1, len(naive.costs) - 1)] / best,
            "after five rounds": naive.costs[min(5, len(naive.costs) - 1)] / best,
            "rounds": float(len(naive.costs)),
            "megabytes": sum(naive.bytes) / 1e6,
        },
    }


def separation(*, source: str, k: int, seed: int, points: int | None = None) -> Found:
    """Appendix B.2: how far apart the clusters of k-means on the pooled points are, c_rs with m0 = 1 and k' = √k."""
    (x,), _ = _partitioned(source, 1, 1, seed, points, mixture="iid")
    labels = KMeans(k, n_init=3, random_state=seed).fit_predict(x).astype(np.int64)
    c = separations(x, labels)
    return {
        "pooled k-means": {
            "median separation": float(np.median(c)),
            "share below 1": float((c < 1).mean()),
            "share above 0.5": float((c > 0.5).mean()),
        }
    }


def _partitioned(
    source: str, k: int, devices: int, seed: int, points: int | None, **how: Any
) -> tuple[list[Floats], Whole]:
    """The points of each device, as they are clustered, and the oracle's cluster of each point."""
    some = _drawn(source, points, seed)
    data = partition(some, seed, clients=devices, distributions="oracle", clusters=k, **how)
    assert data.train.component is not None
    x = features(data.train.x).double()
    own = [x[at].numpy() for at in torch.split(data.train.at, data.train.sizes.tolist())]
    return own, data.train.component.numpy()


def _drawn(source: str, points: int | None, seed: int) -> Source:
    """So many training points of a data set, or all, without owners."""
    whole = digits.read(seed) if source == "digits" else load(source, data_folder())
    drawn = torch.from_numpy(np.random.default_rng(seed).permutation(len(whole.x_train))[:points])
    return replace(
        whole,
        x_train=whole.x_train[drawn],
        y_train=whole.y_train[drawn],
        owner_train=None,
        owner_test=None,
        owners=(),
    )


# Table 2: k-FED, then FedAvg for each cluster


def personalise(
    *,
    source: str,
    devices: int,
    local: int,
    rounds: int,
    training: Mapping[str, Any],
    hidden: list[int],
    seed: int,
    points: int | None = None,
) -> Found:
    """Section 4.2.2: images turned by 0, 90, 180 and 270 degrees; a device has `local` of the four.

    Accuracy is the mean over devices on their own held-out images.
    """
    data = rotated(source, devices, local, points, seed)
    model = build("mlp", tuple(data.train.x.shape[1:]), data.n_outputs, hidden=tuple(hidden))
    length = {"epochs": None} if "steps" in training else {}
    how: dict[str, Any] = {
        "rounds": rounds,
        "training": Training(**{**length, **training}),
        "seed": seed,
        "evaluate_every": 0,
    }
    found: Found = {}
    for name, algorithm, init in (
        ("Local", Local(), "random"),
        ("Global", FedAvg(), "random"),
        ("IFCA random init", IFCA(4), "random"),
        ("IFCA", IFCA(4), "clients"),
    ):
        summary = run(model, data, algorithm, init=init, **how).summary
        found[name] = {"accuracy": summary["personal"]["accuracy"], "megabytes": summary["megabytes"]}
    for name, n_init in (("k-FED one start", 1), ("k-FED", 10)):
        each = kfed_personalise(model, data, 4, local, n_init=n_init, **how)
        found[name] = {
            "accuracy": own_accuracy(each, data),
            "megabytes": each.megabytes,
            "ari": _agreement(each, data.train),
        }
    return found


def rotated(source: str, devices: int, local: int, points: int | None, seed: int) -> Federation:
    """Every device has as many images of each of its rotations."""
    return named(
        source,
        seed,
        clients=devices,
        distributions="rotate",
        clusters=4,
        mixture="structured",
        per_client=local,
        train_points=points,
        test_points=None,
        draw="once",
    )


def own_accuracy(found: Personalised, data: Federation) -> float:
    """The mean over devices, on their own held-out images."""
    test = data.test
    assert test is not None
    each = []
    for i, name in enumerate(data.ids):
        own = slice(int(test.offset[i]), int(test.offset[i + 1]))
        each.append(float((found.predict(name, test.inputs(own)) == test.y[own]).float().mean()))
    return float(np.mean(each))


def _agreement(found: Personalised, train: Points) -> float:
    """The adjusted Rand index of the images' clusters and rotations."""
    assert train.component is not None
    return float(adjusted_rand_score(train.component.numpy(), found.clustering.labels_))


TASKS: dict[str, Callable[..., Found]] = {
    "gaussians": gaussians,
    "partitions": partitions,
    "separation": separation,
    "personalise": personalise,
}
