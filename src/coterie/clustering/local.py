"""k-FED at a device: its own k-means (Algorithm 1), and how many clusters it has (B.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_array, check_random_state
from sklearn.utils.extmath import randomized_svd

from coterie.errors import CoterieError, require
from coterie.prng import numpy_generator

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
RandomState = int | np.random.RandomState | None

SETTLED = 300  # Lloyd steps after which we stop waiting
CAREFUL = 4  # initialisations at least, where clusterings are compared to choose their number
EXACT = 1000  # points or features up to which the singular vectors are computed exactly
BLOCK = 2**22  # distances held at a time


class LocalClusters(NamedTuple):
    """What a device has found. `means` are sent, `sizes` only to weigh by them; `labels` stay."""

    means: Floats  # Θ, (k', feature)
    sizes: Whole  # (k',)
    labels: Whole  # U, (point,)


def local_clusters(
    X: npt.ArrayLike,
    n_clusters: int | Literal["auto"] = "auto",
    *,
    n_init: int = 10,
    separation: float = 0.5,
    most: int = 16,
    random_state: RandomState = None,
) -> LocalClusters:
    """Algorithm 1 on one device's points (point, feature).

    Of `n_init` initialisations the one of least cost is kept. Clusters that nobody is nearest to are left out, so there
    may be fewer than asked for. "auto" chooses from 1 to `most` (and √n) by separation, and takes 4 initialisations at
    least.
    Draws are a function of the random state and the points, not of who else takes part.
    """
    x: Floats = check_array(X, dtype=np.float64, ensure_min_samples=0)
    auto = isinstance(n_clusters, str)
    good = n_clusters == "auto" if auto else whole(n_clusters)
    require(good, "n_clusters", n_clusters, "a whole number from 1, or 'auto'")
    require(whole(n_init), "n_init", n_init, "a whole number from 1")
    require(whole(most), "most", most, "a whole number from 1")
    if not len(x):
        return LocalClusters(x, np.empty(0, np.int64), np.empty(0, np.int64))
    # Choice: √n at most, for with a cluster for every few points any points are separated
    highest = min(most, int(len(x) ** 0.5)) if auto else min(int(n_clusters), len(x))
    device = _Device(x, highest, seed_of(random_state))
    if not auto:
        return device.best(highest, n_init)
    found = {k: device.best(k, max(n_init, CAREFUL)) for k in range(1, highest + 1)}
    shares = {k: separated(x, f.labels, separation) for k, f in found.items() if len(f.means) == k > 1}
    return found[choose(shares, least=1)]


class _Device:
    """A device's points, projected once for all initialisations and numbers of clusters."""

    def __init__(self, x: Floats, most: int, seed: int):
        self.x, self.seed = x, seed
        self.digest = digest(x)
        self.projected = _project(x, most, seed)

    def best(self, k: int, n_init: int) -> LocalClusters:
        chance = numpy_generator(self.seed, "k-FED", self.digest, str(k))
        best, least = self.once(k, chance)
        for _ in range(n_init - 1):
            other, cost = self.once(k, chance)
            if cost < least:
                best, least = other, cost
        return best

    def once(self, k: int, chance: np.random.Generator) -> tuple[LocalClusters, float]:
        """Lines 2 to 5, with the cost."""
        projected = self.projected[:, :k]  # Â in the basis of its singular vectors
        seeds = projected  # ν, line 2
        if k < len(projected):
            seeds, _ = kmeans_plusplus(projected, k, random_state=int(chance.integers(2**32)))
        labels, means = lloyd(self.x, filtered_means(self.x, projected, seeds))
        kept, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        cost = float(((self.x - means[kept][labels]) ** 2).sum())
        return LocalClusters(means[kept], sizes.astype(np.int64), labels.astype(np.int64)), cost


def _project(x: Floats, k: int, seed: int) -> Floats:
    """Coordinates along the top k singular vectors, uncentred; along all where there are no more than k."""
    if min(x.shape) <= EXACT:
        _, _, v = np.linalg.svd(x, full_matrices=False)
    else:
        _, _, v = randomized_svd(x, k, n_iter=7, random_state=seed % 2**32)
    return np.asarray(x @ v[:k].T)


def filtered_means(x: Floats, projected: Floats, seeds: Floats) -> Floats:
    """Line 3: the mean of the points at least three times nearer to a seed than to any other."""
    near = np.sqrt(_squared(projected, seeds))  # (point, cluster)
    means = np.empty((len(seeds), x.shape[1]))
    for r in range(len(seeds)):
        others = np.delete(near, r, axis=1).min(axis=1, initial=np.inf)
        members = near[:, r] <= others / 3  # S_r
        if not members.any():  # Choice: then all that are nearest, or the one that is
            members = near[:, r] <= np.maximum(others, near[:, r].min())
        means[r] = x[members].mean(axis=0)
    return means


def lloyd(
    points: Floats, centers: Floats, rounds: int | None = None, weights: Floats | None = None
) -> tuple[Whole, Floats]:
    """Assign and average, `rounds` times or until nothing changes: the last assignment, and its means.

    A center that nobody is nearest to stays where it is.
    """
    labels = nearest(points, centers)
    for done in range(1, (rounds or SETTLED) + 1):
        centers = _means(points, labels, centers, weights)
        if done == (rounds or SETTLED):
            break
        old, labels = labels, nearest(points, centers)
        if np.array_equal(old, labels):
            break
    return labels, centers


def nearest(points: Floats, centers: Floats) -> Whole:
    """The number of the nearest center, the first of them where several are."""
    step = max(1, BLOCK // max(1, len(centers)))
    parts = [_squared(points[i : i + step], centers).argmin(axis=1) for i in range(0, len(points), step)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _squared(points: Floats, centers: Floats) -> Floats:
    """Squared distances (point, center), around a common origin so that far-off data keeps its digits."""
    origin = centers.mean(axis=0)
    p, c = points - origin, centers - origin
    distances = (p**2).sum(axis=1)[:, None] - 2 * p @ c.T + (c**2).sum(axis=1)
    return np.asarray(np.maximum(distances, 0))


def _means(points: Floats, labels: Whole, old: Floats, weights: Floats | None = None) -> Floats:
    order = np.argsort(labels, kind="stable")
    kept, first = np.unique(labels[order], return_index=True)
    w = np.ones(len(points)) if weights is None else weights
    centers = old.copy()
    total = np.add.reduceat(w[order], first)
    centers[kept] = np.add.reduceat(points[order] * w[order, None], first) / total[:, None]
    return centers


# how many clusters


def separations(
    points: npt.ArrayLike, labels: npt.ArrayLike, m0: float = 1.0, factor: float | None = None
) -> Floats:
    """c_rs of every pair of clusters (B.2): the distance of their means over 2√m0(Δ_r + Δ_s).

    Δ_r = factor·‖A − C‖/√n_r, where factor is √k as in eq. (2), unless given (k' in eq. (4)).
    """
    means, sizes, norm = clusters_of(points, labels)
    delta = (np.sqrt(len(sizes)) if factor is None else factor) * norm / np.sqrt(sizes)
    r, s = np.triu_indices(len(sizes), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(pdist(means) / (2 * np.sqrt(m0) * (delta[r] + delta[s])))


def clusters_of(points: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Whole, float]:
    """The means µ_r and sizes n_r of clusters, and ‖A − C‖, the spectral norm of the points around their means."""
    a = np.asarray(points, np.float64)
    _, inverse, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    means = _means(a, inverse, np.zeros((len(sizes), a.shape[1])))
    rest = a - means[inverse]  # A − C
    if min(rest.shape) > EXACT:
        return means, sizes, float(randomized_svd(rest, 1, n_iter=7, random_state=0)[1][0])
    gram = rest.T @ rest if len(a) > a.shape[1] else rest @ rest.T
    return means, sizes, float(np.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))))


def separated(points: Floats, labels: Whole, separation: float) -> float:
    """The share of pairs with c_rs above c0."""
    return float((separations(points, labels) > separation).mean())


def choose(shares: Mapping[int, float], least: int) -> int:
    """B.2: the number with the largest share of separated pairs, the larger of two that tie.

    Choice: `least`, where no number separates half of its pairs; the paper does not say when there is only one.
    """
    best = max(shares, key=lambda k: (shares[k], k), default=least)
    return best if shares.get(best, 0) >= 0.5 else least


def whole(number: object) -> bool:
    """Is it a number of things?"""
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and bool(number >= 1)


# randomness


def seed_of(random_state: RandomState) -> int:
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        require(random_state >= 0, "random_state", random_state, "a whole number from 0")
        return int(random_state)
    drawn: Any = check_random_state(random_state).randint(2**31 - 1)
    return int(drawn)


def digest(x: Floats) -> str:
    """A name for an array that depends on its numbers alone."""
    return hashlib.blake2b(np.ascontiguousarray(x + 0.0).tobytes(), digest_size=16).hexdigest()  # −0 is 0


def finite_devices(given: Sequence[npt.ArrayLike], what: str) -> list[Floats]:
    """What devices have or sent, which may be anything: arrays (point or mean, feature) of finite numbers."""
    devices = [np.asarray(one, np.float64) for one in given]
    for z, one in enumerate(devices):
        if one.ndim != 2 or one.shape[1] != devices[0].shape[1] or not np.isfinite(one).all():
            raise CoterieError(
                f"the {what}s of device {z}, of shape {one.shape}, cannot be used; allowed are finite numbers "
                f"({what}, feature), with as many features as the other devices have"
            )
    return devices
