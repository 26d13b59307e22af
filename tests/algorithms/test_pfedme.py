"""pFedMe, on quadratics by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie import Training, pFedMe
from coterie.engine.solver import solve as engine_solve
from coterie.protocol import cohort as cohort_module
from coterie.protocol.message import RoundContext
from coterie.protocol.received import Received
from tests.builders import F64, messages, one_number_cohort, state


def test_pfedme_on_a_quadratic() -> None:
    """Loss (w − 3)²; the inner problem solved exactly is θ = (2·3 + λw)/(2 + λ), and w goes ηλ of the way to it."""
    cohort = one_number_cohort(([1], [3]), training=Training(learning_rate=0.05, batch_size=None))
    algorithm = pFedMe(pull=2.0, local_rounds=3, inner_steps=400, local_rate=0.1)
    w = 1.0
    for _ in range(3):
        theta = (2 * 3 + 2 * w) / (2 + 2)
        w = w - 0.1 * 2 * (w - theta)
    offer = messages([0], centers=[[[1.0]]])
    assert float(algorithm.train(cohort, offer)["row"]) == pytest.approx(w, abs=1e-10)
    assert float(algorithm.personal(cohort, offer).rows) == pytest.approx(theta, abs=1e-10)


def test_pfedme_s_local_rounds_come_again_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its steps would never be worth compiling."""
    rounds: list[int | None] = []

    def solve(*given: Any) -> Any:
        rounds.append(given[-1])
        return engine_solve(*given)

    monkeypatch.setattr(cohort_module, "solve", solve)
    cohort = one_number_cohort(([1], [3]), training=Training(learning_rate=0.05, batch_size=None))
    cohort = cohort.when(RoundContext(0, rounds=7))
    pFedMe(local_rounds=2).train(cohort, messages([0], centers=[[[1.0]]]))
    cohort.solve(cohort.initial, purpose="final")
    assert rounds == [7, 7, None]


def test_pfedme_server_step() -> None:
    received = Received.by_server(messages([0, 1], row=[[2.0], [4.0]]))
    assert pFedMe(server_step=0.5).combine(state([[[1.0]]], 2), received).centers.tolist() == [[[2.0]]]


def test_pfedme_takes_another_batch_each_local_round() -> None:
    training = Training(learning_rate=0.05, batch_size=2)
    cohort = one_number_cohort(([1.0] * 8, [0, 1, 2, 3, 4, 5, 6, 7]), training=training)
    w, offer = torch.tensor([[0.0]], dtype=F64), messages([0], centers=[[[0.0]]])
    algorithm = pFedMe(pull=2.0, local_rounds=3, inner_steps=400, local_rate=0.1)
    batches = [cohort.points.y[cohort.batch(f"batch {r}")] for r in range(3)]
    assert len({tuple(b.flatten().tolist()) for b in batches}) > 1
    for batch in batches:
        theta = (2 * batch.mean() + 2 * w) / (2 + 2)
        w = w - 0.1 * 2 * (w - theta)
    torch.testing.assert_close(algorithm.train(cohort, offer)["row"], w)


@pytest.mark.parametrize("inner_start", ["theta", "w"])
def test_pfedme_continues_from_the_last_theta(inner_start: Any) -> None:
    """Loss (θ − 3)², two inner steps of rate 0.1 a local round: too few to forget where they began."""
    cohort = one_number_cohort(([1], [3]), training=Training(learning_rate=0.1, batch_size=None))
    algorithm = pFedMe(pull=2.0, local_rounds=3, inner_steps=2, local_rate=0.1, inner_start=inner_start)
    w = theta = 1.0
    for _ in range(3):
        theta = theta if inner_start == "theta" else w
        for _ in range(2):
            theta -= 0.1 * (2 * (theta - 3) + 2 * (theta - w))
        w -= 0.1 * 2 * (w - theta)
    offer = messages([0], centers=[[[1.0]]])
    assert float(algorithm.train(cohort, offer)["row"]) == pytest.approx(w, abs=1e-12)
    assert float(algorithm.personal(cohort, offer).rows) == pytest.approx(theta, abs=1e-12)


def test_pfedme_continues_by_default() -> None:
    assert pFedMe().inner_start == "theta"
