"""What k-FED's theorem asks of a clustering, measured: m0, active pairs, separations, and the k-means cost.

They need all points in one place, so they are for simulations; no device or server of k-FED computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform

from coterie.clustering.local import Floats, Whole, clusters_of, separations
from coterie.errors import CoterieError

Flags = npt.NDArray[np.bool_]


OVERLAP = 4.0  # standard deviations between the nearest two clusters below which KFed warns; see docs/how-to/k-fed.md


class Separation(NamedTuple):
    """How far apart the clusters are, in multiples of what Theorem 3.1 asks; (cluster, cluster), nan to itself."""

    m0: float  # the least with n_r^(z) ≥ n_r / m0 wherever a device has points of a cluster
    active: Flags  # Definition 3.4: does any device have points of both?
    separations: Floats  # c_rs = ‖µ_r − µ_s‖ / 2√m0(Δ_r + Δ_s), asked of active pairs (Definition 3.5)
    inactive_separations: Floats  # ‖µ_r − µ_s‖ / 10√m0·λ, asked of the others: 1 is enough


def separation(points: Floats, labels: Whole, counts: Whole) -> Separation:
    """Of a clustering of the points of all devices; `counts` (device, cluster) says who has how many of which.

    k' of eq. (4) is the largest number of clusters on a device. A cluster without points has nan throughout.
    Choice: n_min in λ of eq. (4) is the size of the smallest cluster, as the proof of Lemma 7 needs it; the paper's
    notation has it as the least number of points on a device.
    """
    many = (counts > 0).sum(axis=1).max(initial=1)
    there = counts.sum(axis=0) > 0
    m0 = points_short(counts)
    c = _square(separations(points, labels, m0, factor=float(many)), there)
    means, sizes, norm = clusters_of(points, labels)
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = pdist(means) / (
            10 * np.sqrt(m0) * np.sqrt(many) * norm / np.sqrt(sizes.min())
        )  # λ of eq. (4)
    return Separation(m0, active_pairs(counts), c, _square(enough, there))


def points_short(counts: Whole) -> float:
    """m0: the largest n_r / n_r^(z) over the clusters r that a device z has points of."""
    with np.errstate(divide="ignore", invalid="ignore"):
        short = counts.sum(axis=0) / counts
    return float(short[counts > 0].max(initial=1))


def active_pairs(counts: Whole) -> Flags:
    """(cluster, cluster) does any device have points of both? Nothing pairs with itself."""
    has = counts > 0
    return np.asarray((has.T.astype(np.int64) @ has) > 0) & ~np.eye(counts.shape[1], dtype=bool)


def counted(device_labels: Sequence[Whole], clusters: int) -> Whole:
    """(device, cluster) how many points."""
    return np.array([np.bincount(labels, minlength=clusters) for labels in device_labels])


def gaps(points: npt.ArrayLike, labels: npt.ArrayLike) -> Floats:
    """(cluster,) the distance to the nearest other cluster, in standard deviations of their points along that line.

    Of the clusters that have points; none where there is only one.
    """
    a, (_, own) = np.asarray(points, np.float64), np.unique(np.asarray(labels), return_inverse=True)
    members = [a[own == r] for r in range(own.max(initial=-1) + 1)]
    means = np.array([x.mean(axis=0) for x in members])
    apart = squareform(pdist(means)) if len(means) > 1 else np.empty((0, 0))
    np.fill_diagonal(apart, np.inf)
    found = np.full(len(apart), np.inf)
    for r, s in enumerate(apart.argmin(axis=1) if len(apart) else ()):
        line = (means[s] - means[r]) / apart[r, s]
        along = np.concatenate([(members[r] - means[r]) @ line, (members[s] - means[s]) @ line])
        if along.any():
            found[r] = apart[r, s] / np.sqrt((along**2).mean())
    return found


def cost(points: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """φ of eq. (1): squared distances of the points to the means of their clusters."""
    a, given = np.asarray(points, np.float64), np.asarray(labels)
    if a.ndim != 2 or given.shape != (len(a),):
        raise CoterieError(
            f"labels have the shape {given.shape} and points the shape {a.shape}; allowed is one label for each point "
            "(point, feature)"
        )
    total = 0.0
    for label in np.unique(given):
        own = a[given == label]
        total += float(((own - own.mean(axis=0)) ** 2).sum())
    return total


def _square(pairs: Floats, there: Flags) -> Floats:
    """Pairs of the clusters that have points, as a matrix over all clusters."""
    whole = np.full((len(there), len(there)), np.nan)
    if len(pairs):
        found = squareform(pairs)
        np.fill_diagonal(found, np.nan)
        whole[np.ix_(there, there)] = found
    return whole
