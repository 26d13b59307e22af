"""The corners of a simplex, where they are known."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering.corners import coordinates, corners, on_simplex

TRIANGLE = np.array([[0.0, 0, 5], [8, 0, 5], [0, 6, 5]])


def mixtures(clusters: int, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(clusters, 0.4), n)


def test_corners_of_few_exact_points_are_found_in_the_order_of_the_points() -> None:
    shares = np.array([[0.5, 0.5, 0], [0, 0, 1], [1, 0, 0], [0.2, 0.4, 0.4], [0, 1, 0]])
    found = corners(shares @ TRIANGLE, 3)
    np.testing.assert_allclose(found, TRIANGLE[[2, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(coordinates(shares @ TRIANGLE, found), shares[:, [2, 0, 1]], atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5])
def test_noise_in_many_dimensions_hardly_moves_corners(clusters: int) -> None:
    chance = np.random.default_rng(clusters)
    true, shares = 10 * chance.normal(size=(clusters, 64)), mixtures(clusters, 80)
    shares[: 5 * clusters] = np.repeat(np.eye(clusters), 5, 0)
    points = shares @ true + 0.3 * chance.normal(size=(80, 64))
    found = corners(points, clusters)
    if clusters == 1:
        np.testing.assert_allclose(found, points.mean(0)[None])
        return
    placed = coordinates(points, found)
    name = placed[: 5 * clusters].argmax(1).reshape(clusters, 5)
    assert (name == name[:, :1]).all()
    assert len(set(name[:, 0])) == clusters
    assert np.abs(placed[:, name[:, 0]] - shares).max() < 0.05


def test_a_single_point_far_from_the_simplex_is_no_corner_by_itself() -> None:
    """It is averaged with its three nearest, who are not all as far."""
    points = np.repeat(TRIANGLE, 12, 0) + 0.01 * np.random.default_rng(0).normal(size=(36, 3))
    points[0] += [0, 0, 12]
    found = corners(points, 3)
    assert np.linalg.norm(found - points[0], axis=1).min() > 8
    labels = coordinates(points, found).argmax(1)
    assert [len(set(labels[12 * s + 1 : 12 * s + 12])) for s in range(3)] == [1, 1, 1]
    assert len(set(labels[1:])) == 3


def test_every_point_may_have_corners_of_its_own() -> None:
    shares = mixtures(3, 4)
    own = np.stack([TRIANGLE * (i + 1) for i in range(4)])
    points = np.einsum("ns,nsd->nd", shares, own)
    np.testing.assert_allclose(coordinates(points, own), shares, atol=1e-12)


def test_points_outside_are_placed_on_the_nearest_side() -> None:
    found = coordinates(np.array([[-2.0, 3, 9], [20, -1, 5]]), TRIANGLE)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1)
    assert found[1].argmax() == 1


def test_projection_to_the_simplex_by_hand() -> None:
    found = on_simplex(np.array([[0.5, 0.5], [2.0, 0.0], [0.9, 0.5], [-3.0, -3.0]]))
    np.testing.assert_allclose(found, [[0.5, 0.5], [1, 0], [0.7, 0.3], [0.5, 0.5]])


def test_points_that_are_all_alike_have_corners_that_are_alike() -> None:
    found = corners(np.ones((6, 4)), 3)
    np.testing.assert_allclose(found, 1)
    assert np.isfinite(coordinates(np.ones((6, 4)), found)).all()
