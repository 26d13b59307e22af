"""The corners of a simplex that noisy points lie in: pure clients are its corners, and mixed ones lie between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

NEAREST = (
    4  # points, itself included, by whose mean a point is replaced at most, so that no single one is a corner
)


def corners(points: NDArray[Any], clusters: int) -> Points:
    """(cluster, d) corners of points (n, d), in the order of the points at which they were found.

    Successive projection (Araújo et al., 2001) in the space of the first clusters - 1 principal components: the first
    corner is the point farthest from the mean, each next one the farthest from the affine hull of those found.
    """
    points = np.asarray(points, dtype=np.float64)
    middle = points.mean(0)
    components = np.linalg.svd(points - middle, full_matrices=False)[2][: clusters - 1]
    smooth = _smoothed((points - middle) @ components.T, clusters)
    found = [int(np.argmax(np.square(smooth).sum(1)))]
    rest = smooth - smooth[found[0]]
    for _ in range(clusters - 1):
        length = np.square(rest).sum(1)
        found.append(int(np.argmax(length)))
        direction = rest[found[-1]] / max(np.sqrt(length[found[-1]]), np.finfo(np.float64).tiny)
        rest = rest - np.outer(rest @ direction, direction)
    return np.asarray(middle + smooth[sorted(found)] @ components)


def _smoothed(points: Points, clusters: int) -> Points:
    """Each point as the mean of its nearest; of few points, none would be left at a corner."""
    count = max(1, min(NEAREST, len(points) // (3 * clusters)))
    if count == 1:
        return points
    squares = np.square(points).sum(1)
    distance = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(distance, -1)  # itself comes first
    return np.asarray(points[np.argsort(distance, axis=1, kind="stable")[:, :count]].mean(1))


def coordinates(points: NDArray[Any], corners: NDArray[Any]) -> Points:
    """(n, cluster) the shares of the corners in points (n, d), from 0, with the sum 1.

    Barycentric coordinates of the nearest point in the corners' affine hull, projected to the simplex. Corners are
    (cluster, d), or (n, cluster, d) where each point has its own.
    """
    points, corners = (np.asarray(values, dtype=np.float64) for values in (points, corners))
    base = corners[..., 0, :]
    edges = corners[..., 1:, :] - base[..., None, :]
    rest = np.einsum(
        "nd,...de->ne" if edges.ndim == 2 else "nd,nde->ne", points - base, np.linalg.pinv(edges)
    )
    return on_simplex(np.concatenate([1 - rest.sum(1, keepdims=True), rest], axis=1))


def on_simplex(values: Points) -> Points:
    """(n, cluster) the nearest shares (Duchi et al., 2008, Figure 1)."""
    falling = -np.sort(-values, axis=1)
    number = np.arange(1, values.shape[1] + 1)
    over = (falling.cumsum(1) - 1) / number
    last = (falling > over).sum(1) - 1
    return np.maximum(values - np.take_along_axis(over, last[:, None], 1), 0)
