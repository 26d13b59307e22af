"""Clusters are recovered on small problems, with two seeds each; many seeds are in benchmarks/."""

from __future__ import annotations

import pytest

from coterie import IFCA, Algorithm, FedEM, FeSEM, Graph, WeCFL
from coterie.data import regressions
from coterie.runs.summary import summarise
from tests.builders import trained


def own_mse(
    algorithm: Algorithm, mixture: str, seed: int, clusters: int = 2, rounds: int = 25
) -> list[float]:
    data = regressions(clients=40, clusters=clusters, mixture=mixture, separation=166.0, seed=seed)
    run = trained(algorithm, data, rounds=rounds, seed=seed)
    centers = summarise(run, data.description, run.finish())["centers"]
    return [centers["loss"][s][d] for d, s in enumerate(centers["center_of_distribution"])]


@pytest.mark.parametrize("seed", [0, 1])
def test_fedem_finds_both_regressions_in_a_mixture(seed: int) -> None:
    assert max(own_mse(FedEM(2), "10:90", seed)) < 1.2


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("algorithm", [IFCA(2), WeCFL(2), FeSEM(2)], ids=lambda a: a.title())
def test_hard_methods_find_pure_regressions(algorithm: Algorithm, seed: int) -> None:
    assert max(own_mse(algorithm, "pure", seed)) < 1.2


def test_ifca_over_a_graph_finds_pure_regressions() -> None:
    data = regressions(clients=30, mixture="pure", separation=166.0, seed=0)
    run = trained(IFCA(2), data, rounds=40, topology=Graph("erdos-renyi", degree=6))
    centers = summarise(run, data.description, run.finish())["centers"]
    assert max(centers["loss"][s][d] for d, s in enumerate(centers["center_of_distribution"])) < 1.5


@pytest.mark.parametrize("seed", [0, 1])
def test_fedem_weighed_by_size_finds_pure_regressions(seed: int) -> None:
    assert max(own_mse(FedEM(2, weights="size"), "pure", seed)) < 1.2
