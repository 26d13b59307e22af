"""Naive distributed k-means, round by round: what k-FED, with its one round, is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.clustering.local import (
    SETTLED,
    Floats,
    RandomState,
    Whole,
    digest,
    finite_devices,
    nearest,
    seed_of,
    whole,
)
from coterie.errors import require
from coterie.prng import numpy_generator

NUMBER = 8  # bytes of a number


class Rounds(NamedTuple):
    """What came of it, and what each round cost."""

    centers: Floats  # (cluster, feature)
    labels: list[Whole]  # of each device's points: the nearest center
    costs: list[float]  # φ, eq. (1), of the centers that a round began with
    bytes: list[int]  # sent in a round, both ways


def distributed_kmeans(
    X: Sequence[npt.ArrayLike],
    n_clusters: int,
    *,
    rounds: int | None = None,
    init: npt.ArrayLike | None = None,
    random_state: RandomState = None,
) -> Rounds:
    """Lloyd's algorithm with the points (point, feature) left at their devices. Figure 3 of Dennis, Li & Smith.

    In a round every device is sent the centers and sends, of the points nearest to each, their sum and number, and its
    share of the cost; the server divides. So `rounds` times, or until no center moves. A center that nobody is
    nearest to stays. Choice: without an `init` (cluster, feature) it is k points drawn from all, each as likely;
    every device sends the least of the numbers drawn for its points, and those of the k least send their points.
    """
    require(whole(n_clusters), "n_clusters", n_clusters, "a whole number from 1")
    require(rounds is None or whole(rounds), "rounds", rounds, "a whole number from 1, or None")
    points = _checked(X, n_clusters)
    seed, d = seed_of(random_state), points[0].shape[1]
    by_content = sorted(
        points, key=digest
    )  # so that the order of devices does not matter, not even in rounding
    sent = 0
    if init is None:
        centers = _drawn(by_content, n_clusters, seed)
        sent = NUMBER * (sum(min(n_clusters, len(x)) for x in points) + n_clusters * d)
    else:
        centers = np.asarray(init, np.float64)
        shape = f"an array of shape {(n_clusters, d)}"
        require(centers.shape == (n_clusters, d), "init", f"of shape {centers.shape}", shape)
    costs, each = [], NUMBER * len(points) * (2 * n_clusters * d + n_clusters + 1)
    for _ in range(rounds or SETTLED):
        answers = [local_sums(x, centers) for x in by_content]
        sums, counts, cost = (sum(parts[1:], parts[0]) for parts in zip(*answers, strict=True))
        costs.append(float(cost))
        old, centers = centers, np.where(counts[:, None], sums / np.maximum(counts, 1)[:, None], centers)
        if np.array_equal(old, centers):
            break
    bytes = [each] * len(costs)
    bytes[0] += sent
    return Rounds(centers, [nearest(x, centers) for x in points], costs, bytes)


def local_sums(x: Floats, centers: Floats) -> tuple[Floats, Floats, float]:
    """At a device: of its points nearest to each center the sum (cluster, feature) and number; and their cost."""
    labels = nearest(x, centers)
    one_hot = np.eye(len(centers))[labels]
    return one_hot.T @ x, one_hot.sum(axis=0), float(((x - centers[labels]) ** 2).sum())


def _drawn(points: Sequence[Floats], k: int, seed: int) -> Floats:
    numbers = [numpy_generator(seed, "distributed k-means", digest(x)).random(len(x)) for x in points]
    return np.concatenate(points)[np.concatenate(numbers).argsort(kind="stable")[:k]]


def _checked(X: Sequence[npt.ArrayLike], n_clusters: int) -> list[Floats]:
    points = finite_devices(X, "point")
    n = sum(map(len, points))
    require(n >= n_clusters, "n_clusters", n_clusters, f"at most {n}, the number of points")
    return points
