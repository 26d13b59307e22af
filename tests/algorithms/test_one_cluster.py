"""With one cluster, clustered algorithms are FedAvg."""

from __future__ import annotations

import pytest
import torch

from coterie import CFL, IFCA, Algorithm, FedAvg, FedAvgPlus, FedEM, FeSEM, HypCluster, WeCFL
from tests.builders import trained


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        (IFCA(1), "equal"),
        (HypCluster(1), "size"),
        (FeSEM(1), "equal"),
        (WeCFL(1), "size"),
        (FedEM(1), "size"),
        (FedAvgPlus(1), "size"),
        (CFL(first_split=99), "size"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.title(),
)
def test_with_one_cluster_it_is_fedavg(algorithm: Algorithm, weights: str) -> None:
    expected = trained(FedAvg(weights=weights)).state.centers
    torch.testing.assert_close(trained(algorithm).state.centers, expected, rtol=0, atol=1e-12)
