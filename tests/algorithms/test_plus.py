"""FedAvg+ and FedProx+: several runs, predictions averaged."""

from __future__ import annotations

import torch

from coterie import FedAvg, FedAvgPlus, FedProx, FedProxPlus, Training
from tests.builders import messages, one_number_cohort, trained


def test_one_run_of_fedprox_plus_is_fedprox() -> None:
    expected = trained(FedProx(pull=0.3)).state.centers
    torch.testing.assert_close(trained(FedProxPlus(1, pull=0.3)).state.centers, expected, rtol=0, atol=1e-12)


def test_the_runs_of_fedavg_plus_do_not_touch() -> None:
    """The first of two runs is FedAvg alone; its prediction is the mean of both."""
    two = trained(FedAvgPlus(2))
    torch.testing.assert_close(two.state.centers[:, :1], trained(FedAvg()).state.centers, rtol=0, atol=1e-12)
    assert two.finish().personal.weights.tolist() == [[0.5, 0.5]] * 10


def test_the_runs_of_fedavg_plus_shuffle_by_themselves() -> None:
    """From the same initialisation two runs come out different, for their batches do."""
    cohort = one_number_cohort(
        ([1.0] * 30, list(range(30))), training=Training(learning_rate=0.05, batch_size=4)
    )
    rows = FedAvgPlus(2).train(cohort, messages([0], centers=[[[1.0], [1.0]]]))["row"][0, :, 0]
    assert float(rows[0]) != float(rows[1])
