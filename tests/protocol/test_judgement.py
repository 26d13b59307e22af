"""What a client says of the centers, for the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import coterie
from coterie.data import regressions
from coterie.data.federation import Federation, Points
from coterie.engine.model import cross_entropy
from coterie.protocol.build import cohort_of, functional_model
from coterie.protocol.cohort import Cohort
from coterie.protocol.judgement import judge
from coterie.protocol.message import Fields, Messages
from tests.builders import CPU, F64, linear


def cohort(data: Federation) -> Cohort:
    return cohort_of(functional_model(linear, data, seed=0, dtype=F64, device=CPU), data, 0)


def asked(clients: Cohort, centers: torch.Tensor, common: tuple[float, ...]) -> Fields:
    n = len(clients)
    fields = {
        "centers": centers.expand(n, *centers.shape),
        "importance": torch.tensor(common, dtype=F64).expand(n, -1),
    }
    return judge(clients, Messages(torch.arange(n), fields))


def test_by_hand_on_two_lines() -> None:
    """Clients of y = θ·x, half of them with −θ; the centers are θ and −θ themselves."""
    data = regressions(4, 2, "pure", separation=160.0, noise=0.5, sizes=(50, 50), test_points=40, seed=3)
    clients = cohort(data)
    true = [torch.linalg.lstsq(*_of(data, i)).solution.flatten() for i in (0, 1)]
    found = asked(clients, torch.stack(true).to(F64), (0.5, 0.5))
    # half a point in all is added to each cluster: 50.5 of 51
    assert found["importance"].max(1).values == pytest.approx(torch.full((4,), 50.5 / 51), abs=0.02)
    test = data.test
    assert test is not None
    for i in range(4):
        x, y = _of(data, i, test)
        own, other = ((x @ true[s][:, None] - y).square().mean() for s in (i % 2, 1 - i % 2))
        assert found["losses"][i, i % 2] == pytest.approx(float(own), rel=1e-5)
        assert found["losses"][i, 1 - i % 2] == pytest.approx(float(other), rel=1e-5)
        middle = (x @ ((true[0] + true[1]) / 2)[:, None] - y).square().mean()
        assert found["mean"][i] == pytest.approx(float(middle), rel=1e-5)
        guess = (_of(data, i)[1].mean() - y).square().mean()
        assert found["guess"][i] == pytest.approx(float(guess), rel=1e-5)
    # a client of one cluster loses nearly log 2 if it cannot tell the two apart, and they differ in all they predict
    assert (found["pooled"][:, 0, 1] > 0.6 * math.log(2)).all()
    assert (found["pooled"][:, 0, 1] < math.log(2)).all()
    assert (found["differ"][:, 0, 1] > 0.95).all()
    assert found["differ"][:, 0, 0].eq(0).all()
    assert "lean" not in found  # there are no classes
    assert "apart" not in found  # there is a server


def test_the_answer_does_not_depend_on_units_of_y() -> None:
    data = regressions(4, 2, "pure", separation=160.0, sizes=(30, 30), seed=3)
    assert data.test is not None
    scaled = replace(
        data, train=replace(data.train, y=1000 * data.train.y), test=replace(data.test, y=1000 * data.test.y)
    )
    centers = torch.randn(2, 10, dtype=F64, generator=torch.Generator().manual_seed(0))
    small, large = asked(cohort(data), centers, (0.5, 0.5)), asked(cohort(scaled), 1000 * centers, (0.5, 0.5))
    for name in ("importance", "pooled", "differ"):
        torch.testing.assert_close(small[name], large[name], rtol=1e-6, atol=1e-9)


def test_a_client_keeps_nothing_of_it() -> None:
    data = regressions(4, 2, "pure", seed=3)
    clients = cohort(data)
    clients.keep("loss", torch.arange(4.0, dtype=F64))
    centers = torch.zeros(2, 10, dtype=F64)
    asked(clients, centers, (0.5, 0.5))
    assert set(clients.client_state.values) == {"loss"}
    assert clients.recall("loss", torch.zeros(4, dtype=F64)).tolist() == [0, 1, 2, 3]


def test_a_center_for_each_class_leans_to_classes() -> None:
    """Center s says class s whatever the input; every client has as many points of each class."""
    x, y = torch.zeros(8, 2), torch.tensor([0, 1] * 4)
    data = Federation(("a", "b"), Points.of([(x, y), (x, y)]), None, "classification", 2)
    model = functional_model(lambda: torch.nn.Linear(2, 2), data, loss=cross_entropy, dtype=F64, device=CPU)
    says = torch.zeros(2, 6, dtype=F64)
    says[0, 4:], says[1, 4:] = torch.tensor([9.0, 0.0]), torch.tensor([0.0, 9.0])  # weights, then biases
    found = asked(cohort_of(model, data, 0), says, (0.5, 0.5))
    assert found["importance"] == pytest.approx(torch.full((2, 2), 0.5), abs=1e-6)
    # half of the points are of each class; all of them are of its center, where importance says half of them
    lean = torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=F64).expand(2, -1, -1)
    torch.testing.assert_close(found["lean"], lean, rtol=0, atol=1e-3)
    assert found["pooled"][:, 0, 1].abs().max() < 1e-6  # so clients need not tell them apart
    assert (found["differ"][:, 0, 1] > 0.99).all()  # though they differ


def _of(data: Federation, client: int, points: Points | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    points = data.train if points is None else points
    own = slice(int(points.offset[client]), int(points.offset[client + 1]))
    return points.x[points.at[own]].double(), points.y[own].double()


def test_one_output_for_two_labels_is_judged() -> None:
    """A logit, with a loss of one's own: clients of two opposite rules find the centers separated."""
    chance = torch.Generator().manual_seed(0)
    x = [torch.randn(60, 4, generator=chance) for _ in range(8)]
    data = [(one, ((one[:, 0] > 0) ^ (i % 2 == 1)).long()) for i, one in enumerate(x)]

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = outputs.reshape(len(outputs))
        return torch.nn.functional.binary_cross_entropy_with_logits(
            logits, y.to(logits.dtype), reduction="none"
        )

    training = coterie.Training(learning_rate=0.5, epochs=5)
    run = coterie.run(
        torch.nn.Linear(4, 1),
        data,
        coterie.IFCA(2),
        rounds=10,
        training=training,
        loss=loss,
        dtype=torch.float64,
    )
    assert run.verdict is not None
    assert run.verdict.good is True
    assert 0.6 < run.verdict.numbers["loss_of_a_guess"] < 0.8


def test_one_point_that_chose_its_center_does_not_judge_it() -> None:
    """Without held-out points: a client of one point has no guess, so that it does not count; others do."""
    x, y = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([[1.0], [2.0], [3.0]])
    data = Federation(("a", "b"), Points.of([(x[:1], y[:1]), (x, y)]), None, "regression", 1)
    found = asked(cohort(data), torch.zeros(2, 10, dtype=F64), (0.5, 0.5))
    assert found["guess"].isnan().tolist() == [True, False]
    assert float(found["guess"][1]) == pytest.approx(2 / 3)
