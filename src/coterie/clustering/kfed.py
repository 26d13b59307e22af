"""k-FED, one-shot federated clustering, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.clustering.diagnostics import OVERLAP, cost, counted, gaps, separation
from coterie.clustering.local import (
    Floats,
    LocalClusters,
    RandomState,
    Whole,
    choose,
    digest,
    finite_devices,
    lloyd,
    local_clusters,
    nearest,
    seed_of,
    separated,
    whole,
)
from coterie.clustering.paper import BIBTEX
from coterie.errors import CoterieError, require
from coterie.prng import numpy_generator

__all__ = ["Combined", "Joined", "KFed", "LocalClusters", "combine", "local_clusters"]

MOST = 200  # clusters tried, where their number is chosen


class Combined(NamedTuple):
    """What the server has made of the devices' means."""

    centers: Floats  # µ(τ), (cluster, feature)
    clusters: list[Whole]  # τ: the cluster of each mean of each device, in the order they were given


class Joined(NamedTuple):
    """What a device that came later is sent, and what follows for its points."""

    labels: Whole  # (point,)
    means: Floats  # Θ, (k', feature)
    clusters: Whole  # (k',): the cluster that each of its means was assigned to


class KFed(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """One-shot federated clustering. Dennis, Li & Smith, ICML 2021, Algorithms 1 and 2.

    Sent: a device's k' means, once (and how many points each stands for, with weights="size").
    Kept: the points and which local cluster each is in.

    n_clusters: k; None chooses it by separation (B.2) among the devices' means.
    n_local_clusters: k' of every device, one number for each, or "auto": by separation on its own points.
    n_init: initialisations of the local step, of which the one of least local cost is kept; 1 in the paper.
    lloyd_rounds: at the server; 1 in the paper, None until nothing changes.
    weights: "equal", as in the paper, or "size": a mean counts as many times as it has points.
    separation: c0 of B.2, used where a number of clusters is chosen.
    max_local_clusters: the largest k' that "auto" tries.

    Learned: labels_ (of the points, by Definition 3.3), cluster_centers_; and for each device, in the order of
    devices_: device_labels_, device_centers_, device_sizes_, device_clusters_ (the cluster of each local mean).
    Measured on all points, of the clusters found: cost_ (φ of eq. 1), m0_, active_pairs_ (Definition 3.4),
    separations_ (c_rs of B.2) and inactive_separations_, each (cluster, cluster), and gap_, how many standard
    deviations the nearest two are apart; below 4 fit warns. See diagnostics.py.

    Choice: line 2 says "pick any": one of the devices with most means, drawn after ordering them by content.
    Choice: draws depend on random_state and a device's points, so neither the order nor the names of devices
    matter, and a device computes alone what it computes here.
    Choice: the local initialisation is scikit-learn's greedy k-means++, the best of ten; empty clusters are left out.
    Choice: B.2 is computed with m0 = 1 and √k for k' (the paper's regime); at the server on the means, which is
    all it has, from the largest k' up to half as many clusters as there are means.
    Choice: one device holds all clusters, so there "auto" is n_clusters.
    Differs: the published program runs Lloyd to convergence at the server; that is lloyd_rounds=None.
    """

    bibtex = BIBTEX

    def __init__(
        self,
        n_clusters: int | None = None,
        n_local_clusters: int | Literal["auto"] | Sequence[int] = "auto",
        *,
        n_init: int = 10,
        lloyd_rounds: int | None = 1,
        weights: Literal["equal", "size"] = "equal",
        separation: float = 0.5,
        max_local_clusters: int = 16,
        random_state: RandomState = None,
    ):
        self.n_clusters = n_clusters
        self.n_local_clusters = n_local_clusters
        self.n_init = n_init
        self.lloyd_rounds = lloyd_rounds
        self.weights = weights
        self.separation = separation
        self.max_local_clusters = max_local_clusters
        self.random_state = random_state

    def fit(self, X: Any, y: object = None, *, devices: npt.ArrayLike | None = None) -> Self:
        """Cluster the points of all devices.

        X is a list of one array (point, feature) per device, or one array with `devices`, the id of each point's
        device; one array alone is one device. y is not used.
        """
        self._check_settings()
        points, rows = self._points_of(X, devices)
        self._seed = seed_of(self.random_state)
        local = [self._local(x, k) for x, k in zip(points, self._numbers(len(points)), strict=True)]
        sizes = [found.sizes for found in local]
        combined = combine(
            [found.means for found in local],
            self.n_clusters,
            sizes=sizes if self.weights == "size" else None,
            lloyd_rounds=self.lloyd_rounds,
            separation=self.separation,
            random_state=self._seed,
        )
        self.cluster_centers_ = combined.centers
        self.device_clusters_ = combined.clusters
        self.device_centers_ = [found.means for found in local]
        self.device_sizes_ = sizes
        self.device_labels_ = [  # Definition 3.3
            clusters[found.labels] for clusters, found in zip(combined.clusters, local, strict=True)
        ]
        self.labels_ = np.empty(sum(map(len, points)), np.int64)
        for own, labels in zip(rows, self.device_labels_, strict=True):
            self.labels_[own] = labels
        self._measure(points)
        if self.gap_ < OVERLAP:
            warnings.warn(
                f"the nearest two of the {len(self.cluster_centers_)} clusters found are {self.gap_:.1f} standard "
                f"deviations apart; below {OVERLAP:g} clusters overlap, and k-FED may merge or split them",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _measure(self, points: list[Floats]) -> None:
        """What Theorem 3.1 is about; a simulation has all points in one place."""
        every, labels = np.concatenate(points), np.concatenate(self.device_labels_)
        found = separation(every, labels, counted(self.device_labels_, len(self.cluster_centers_)))
        self.cost_, self.gap_ = cost(every, labels), float(gaps(every, labels).min(initial=np.inf))
        self.m0_, self.active_pairs_ = found.m0, found.active
        self.separations_, self.inactive_separations_ = found.separations, found.inactive_separations

    def cost_ratio(self, X: Any, labels: npt.ArrayLike) -> float:
        """cost_ over that of another clustering of the same points: known labels, or k-means on pooled points.

        X and labels are in the order of labels_.
        """
        check_is_fitted(self)
        other = cost(np.concatenate(X) if _is_list_of_devices(X) else X, labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.float64(self.cost_) / other)

    def predict(self, X: npt.ArrayLike) -> Whole:
        """The nearest cluster center of each point by itself; `join` is for the points of a device together."""
        check_is_fitted(self)
        return nearest(validate_data(self, X, reset=False, dtype=np.float64), self.cluster_centers_)

    def join(self, X: npt.ArrayLike, n_local_clusters: int | Literal["auto"] | None = None) -> Joined:
        """A device that comes later (Theorem 3.2): its k' means against the k centers; nothing else changes."""
        check_is_fitted(self)
        k = self.n_local_clusters if n_local_clusters is None else n_local_clusters
        scalar = k == "auto" if isinstance(k, str) else np.ndim(k) == 0
        require(scalar, "n_local_clusters", k, "one number, or 'auto', for the one device that joins")
        found = self._local(validate_data(self, X, reset=False, dtype=np.float64), k)
        clusters = nearest(found.means, self.cluster_centers_)
        return Joined(clusters[found.labels], found.means, clusters)

    def _local(self, x: Floats, k: Any) -> LocalClusters:
        most = (
            self.max_local_clusters
            if self.n_clusters is None
            else min(self.max_local_clusters, self.n_clusters)
        )
        return local_clusters(
            x, k, n_init=self.n_init, separation=self.separation, most=most, random_state=self._seed
        )

    def _check_settings(self) -> None:
        k, rounds = self.n_clusters, self.lloyd_rounds
        require(k is None or whole(k), "n_clusters", k, "a whole number from 1, or None")
        require(whole(self.n_init), "n_init", self.n_init, "a whole number from 1")
        require(rounds is None or whole(rounds), "lloyd_rounds", rounds, "a whole number from 1, or None")
        require(self.weights in ("equal", "size"), "weights", self.weights, "'equal' or 'size'")
        require(self.separation > 0, "separation", self.separation, "above 0")
        most = self.max_local_clusters
        require(whole(most), "max_local_clusters", most, "a whole number from 1")

    def _numbers(self, n_devices: int) -> Sequence[Any]:
        """k' of each device."""
        k = self.n_local_clusters
        allowed = f"'auto', a whole number from 1, or one for each of the {n_devices} devices"
        if isinstance(k, str):
            require(k == "auto", "n_local_clusters", k, allowed)
            return [self.n_clusters or "auto"] if n_devices == 1 else ["auto"] * n_devices
        each = [k] * n_devices if np.ndim(k) == 0 else list(k)  # type: ignore[arg-type]
        require(len(each) == n_devices and all(map(whole, each)), "n_local_clusters", k, allowed)
        return each

    def _points_of(self, X: Any, devices: npt.ArrayLike | None) -> tuple[list[Floats], list[Whole]]:
        """The points of each device, and which rows of labels_ they are."""
        if _is_list_of_devices(X):
            require(
                devices is None, "devices", "given", "nothing, when X is a list with one array per device"
            )
            points = [self._checked(x, z) for z, x in enumerate(X)]
            if not any(map(len, points)):
                raise CoterieError("no device has a point; at least one point is needed")
            self.devices_ = np.arange(len(points))
            ends = np.cumsum([len(x) for x in points])
            return points, [np.arange(end - len(x), end) for x, end in zip(points, ends, strict=True)]
        x = validate_data(self, X, dtype=np.float64)
        if devices is None:
            self.devices_ = np.arange(1)
            return [x], [np.arange(len(x))]
        ids = np.asarray(devices)
        if ids.shape != (len(x),):
            raise CoterieError(
                f"devices has the shape {ids.shape}; allowed is one id for each of the {len(x)} points"
            )
        if (ids != ids).any() or (ids.dtype.kind == "O" and len({type(i) for i in ids}) > 1):
            raise CoterieError(
                "devices has missing ids or ids of several kinds; allowed are all numbers or all words"
            )
        self.devices_, of = np.unique(ids, return_inverse=True)
        rows = [np.flatnonzero(of == z) for z in range(len(self.devices_))]
        return [x[own] for own in rows], rows

    def _checked(self, x: Any, z: int) -> Floats:
        try:
            checked: Floats = validate_data(self, x, reset=z == 0, dtype=np.float64, ensure_min_samples=0)
        except ValueError as problem:
            raise CoterieError(f"device {z} cannot be used: {problem}") from problem
        return checked


def combine(
    means: Sequence[npt.ArrayLike],
    n_clusters: int | None = None,
    *,
    sizes: Sequence[npt.ArrayLike] | None = None,
    lloyd_rounds: int | None = 1,
    separation: float = 0.5,
    random_state: RandomState = None,
) -> Combined:
    """Algorithm 2 from line 2: what the server does with the means (k', feature) that it has received.

    Devices may be given in any order, and any of them may be missing. With `sizes`, a mean counts that many times.
    """
    require(
        n_clusters is None or whole(n_clusters), "n_clusters", n_clusters, "a whole number from 1, or None"
    )
    sent = finite_devices(means, "mean")
    every = np.concatenate(sent or [np.empty((0, 1))])
    if len(every) < (n_clusters or 1):
        raise CoterieError(
            f"n_clusters is {n_clusters or 'to be chosen'} and the devices have {len(every)} local means in all; "
            "allowed is at most as many, or a larger n_local_clusters"
        )
    weights = None if sizes is None else np.concatenate([np.asarray(s, np.float64) for s in sizes])
    # sorted by content, so that neither the choices below nor rounding depend on who came first
    order = np.lexsort((*(() if weights is None else (weights,)), *every.T[::-1]))
    points, weights = every[order], None if weights is None else weights[order]
    most = n_clusters or min(MOST, len(points) // 2)
    chosen = farthest_first(points, _first_means(sent, n_clusters, seed_of(random_state)), most)
    if n_clusters is None:
        chosen = chosen[: _choose_number(points, chosen, sent, separation)]
    elif len(chosen) < n_clusters:
        warnings.warn(
            f"only {len(chosen)} of the {n_clusters} clusters were found: the devices' means are no more than that",
            ConvergenceWarning,
            stacklevel=2,
        )
    labels, centers = lloyd(points, chosen, lloyd_rounds, weights)  # line 7
    clusters = np.empty(len(every), np.int64)
    clusters[order] = labels
    return Combined(centers, np.split(clusters, np.cumsum([len(m) for m in sent])[:-1]))


def _first_means(sent: Sequence[Floats], n_clusters: int | None, seed: int) -> Floats:
    """Line 2: the means of one of the devices with most, among those with no more than k; else a single mean."""
    distinct = [np.unique(m, axis=0) for m in sent if len(m)]
    chance = numpy_generator(seed, "k-FED", "start")
    fitting = [m for m in distinct if n_clusters is None or len(m) <= n_clusters]
    most = max(map(len, fitting or distinct))
    candidates = sorted((m for m in fitting or distinct if len(m) == most), key=digest)
    first = candidates[chance.integers(len(candidates))]
    return first if fitting else first[[chance.integers(len(first))]]


def farthest_first(points: Floats, first: Floats, k: int) -> Floats:
    """Lines 3 to 6: add the mean farthest from those chosen, until there are k or all are chosen."""
    chosen = list(first)
    away = np.min([((points - m) ** 2).sum(axis=1) for m in chosen], axis=0)  # d_M², (point,)
    while len(chosen) < k and away.max() > 0:
        chosen.append(points[away.argmax()])
        away = np.minimum(away, ((points - chosen[-1]) ** 2).sum(axis=1))
    return np.array(chosen)


def _choose_number(points: Floats, chosen: Floats, sent: Sequence[Floats], separation: float) -> int:
    """k by separation (B.2), of the means."""
    least = min(len(chosen), max(map(len, sent)))  # a device's means are of different clusters
    shares = {
        k: separated(points, lloyd(points, chosen[:k], 1)[0], separation)
        for k in range(max(2, least), len(chosen) + 1)
    }
    number = choose(shares, least)
    if shares.get(number, 0) < 0.5 and len(chosen) > least:
        warnings.warn(
            f"no number of clusters separates the {len(points)} means, so n_clusters is taken to be {least}, the most "
            "on one device; give it if you know it, for a cluster must be on two devices to be recognised",
            ConvergenceWarning,
            stacklevel=3,
        )
    return number


def _is_list_of_devices(X: Any) -> bool:
    """Arrays of two dimensions in a list; a list of rows is one array."""
    return isinstance(X, list | tuple) and any(getattr(x, "ndim", 1) == 2 for x in X)
