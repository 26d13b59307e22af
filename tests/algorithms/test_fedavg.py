"""FedAvg and FedProx: reductions, tiny cases by hand, traffic."""

from __future__ import annotations

import torch

from coterie import FedAvg, FedProx, Graph
from coterie.protocol.received import Received
from tests.builders import messages, state, trained


def test_fedprox_without_pull_is_fedavg() -> None:
    assert torch.equal(trained(FedProx(pull=0.0)).state.centers, trained(FedAvg()).state.centers)
    assert not torch.allclose(
        trained(FedProx(pull=5.0)).state.centers, trained(FedAvg()).state.centers, atol=1e-3
    )


def test_fedavg_over_the_complete_graph_is_fedavg_at_a_server() -> None:
    graph, server = trained(FedAvg(), topology=Graph("complete")), trained(FedAvg())
    torch.testing.assert_close(
        graph.state.centers, server.state.centers.expand(10, -1, -1), rtol=0, atol=1e-12
    )


def test_fedavg_weighs_by_size() -> None:
    received = Received.by_server(messages([0, 1], row=[[0.0], [10.0]], size=[30, 10]))
    assert FedAvg().combine(state([[[5.0]]], 2), received).centers.tolist() == [[[2.5]]]
    assert FedAvg("equal").combine(state([[[5.0]]], 2), received).centers.tolist() == [[[5.0]]]


def test_traffic_of_fedavg_at_a_server() -> None:
    """4 rounds, 10 clients: down a row of 10 float64, up the same and a size."""
    run = trained(FedAvg())
    assert run.traffic.down == 4 * 10 * 80
    assert run.traffic.up == 4 * 10 * 88
    assert run.traffic.messages == 80
