"""FedSPD's final phase: each client trains its personal model, for a while that it chooses itself if asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie import FedSPD, Stage, Stages, Training
from coterie.data import regressions
from coterie.errors import SettingError
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import RoundContext
from coterie.protocol.personal import Personal
from tests.builders import F64, messages, one_number_cohort, simulation

STEP = Training(learning_rate=0.1, batch_size=None, epochs=1)


def offered(cohort: Cohort, *centers: float) -> Any:
    return messages(list(range(len(cohort))), centers=[[[c] for c in centers]] * len(cohort))


def test_the_mixture_of_predictions_is_not_that_of_parameters() -> None:
    """Centers 0 and 4 with importance 1/4 and 3/4: both centers are kept, and weighted so."""
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 4, 4, 4]), training=STEP)
    found = FedSPD(2, predict="mixture").personal(cohort, offered(cohort, 0, 4))
    assert found.rows.tolist() == [[[0.0], [4.0]]]
    assert found.weights.tolist() == [[0.25, 0.75]]
    assert float(cohort.score(found).loss) == pytest.approx(
        (9 + 1 + 1 + 1) / 4
    )  # 3 is predicted: linear, so as mixed


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_final_phase_begins_anew_at_half_the_first_rate(schedule: Any) -> None:
    """By one step of rate 0.1/2 from 1 toward 3, in the last of 100 rounds: a schedule that went on would be near 0."""
    training = replace(STEP, schedule=schedule)
    cohort = one_number_cohort(([1], [3]), training=training).when(RoundContext(0, round=99, rounds=100))
    assert training.rate_at(99, 100) < 0.01 or schedule == "constant"
    found = FedSPD(1, final_epochs=1).finish(cohort, offered(cohort, 1))
    assert float(found.rows) == pytest.approx(1 + 0.05 * 2 * 2, abs=1e-12)


def test_the_final_phase_of_a_mixture_trains_each_center_on_its_own_points() -> None:
    """By one step of rate 0.1/2: center 1 sees 0 and 2, center 6 sees 8 alone; nobody is near to 100."""
    cohort = one_number_cohort(([1, 1, 1], [0, 2, 8]), training=STEP)
    found = FedSPD(3, predict="mixture", final_epochs=1).finish(cohort, offered(cohort, 1, 6, 100))
    assert found.rows.flatten().tolist() == pytest.approx(
        [1 - 0.05 * 2 * (1 - 1), 6 - 0.05 * 2 * (6 - 8), 100]
    )
    assert found.weights[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_auto_trains_where_it_helps_and_not_where_it_harms() -> None:
    """From 0: all points say 3, so longest is best; or one says −2 and the other 1: who trains on one leaves the other.

    (Trained on both, −2 would come nearer.) A client with one point can hold nothing out and does not train.
    """
    cohort = one_number_cohort(([1] * 10, [3] * 10), *[([1, 1], [-2, 1])] * 8, ([1], [5]), training=STEP)
    found = FedSPD(1, final_epochs="auto").finish(cohort, offered(cohort, 0)).rows[:, 0, 0]
    assert float(found[0]) == pytest.approx(3 * (1 - 0.9**20))  # 20 epochs over all ten
    assert found[1:].tolist() == [0] * 9


def test_auto_holds_out_a_fifth_drawn_by_key() -> None:
    cohort = one_number_cohort(([1] * 23, [0] * 23), ([1] * 4, [0] * 4), ([1], [0]), training=STEP)
    held = cohort.part(5, "held out")
    per_client = [held[cohort.points.owner == i] for i in range(3)]
    assert [int(h.sum()) for h in per_client] == [4, 1, 0]
    alone = cohort.take(torch.tensor([0])).part(5, "held out")
    assert torch.equal(alone, per_client[0])
    assert not torch.equal(cohort.part(5, "another")[:23], per_client[0])
    some = cohort.points.only(held)
    assert some.offset.tolist() == [0, 4, 5, 5]
    assert torch.equal(some.at, cohort.points.at[held])


def many() -> Cohort:
    """Clients of regressions with noise, of different sizes."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for n in (1, 2, 7, 12, 30, 31):
        x = torch.randn(n, generator=draw, dtype=F64)
        clients.append((x.tolist(), (2 * x + torch.randn(n, generator=draw, dtype=F64)).tolist()))
    return one_number_cohort(
        *clients, training=Training(learning_rate=0.1, batch_size=4, momentum=0.5, epochs=1)
    )


def same(a: Personal, b: Personal) -> None:
    torch.testing.assert_close(a.rows, b.rows, rtol=0, atol=1e-12)
    torch.testing.assert_close(a.weights, b.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("predict", ["parameters", "mixture"])
@pytest.mark.parametrize("epochs", ["auto", 3])
def test_each_client_finishes_alone_as_together(predict: Any, epochs: Any) -> None:
    algorithm, cohort = FedSPD(2, final_epochs=epochs, predict=predict), many()
    together = algorithm.finish(cohort, offered(cohort, -1, 1.5))
    moved = (together.rows - algorithm.personal(cohort, offered(cohort, -1, 1.5)).rows).abs().amax((1, 2)) > 0
    assert moved.any()
    for i in range(len(cohort)):
        one = cohort.take(torch.tensor([i]))
        same(
            algorithm.finish(one, offered(one, -1, 1.5)), Personal(together.rows[[i]], together.weights[[i]])
        )


def test_auto_is_one_of_its_lengths() -> None:
    cohort = many()
    offer = offered(cohort, -1, 1.5)

    def rows(epochs: Any) -> Tensor:
        return FedSPD(2, final_epochs=epochs).finish(cohort, offer).rows

    lengths = torch.stack([rows(n) for n in (0, 1, 2, 5, 10, 20)], 1)
    found = (lengths - rows("auto")[:, None]).abs().amax((2, 3)) < 1e-12
    assert found.any(1).all()
    assert len({tuple(each) for each in found.tolist()}) > 1  # not the same for all


def test_a_simulation_ends_with_the_mixture() -> None:
    stages = Stages((Stage(FedSPD(2, predict="mixture", final_epochs="auto"), 1, STEP),))
    data = regressions(clients=4, sizes=(5, 9), dimension=3, seed=1)
    run = simulation(stages, data, model=lambda: nn.Linear(3, 1), seed=0)
    run.step()
    assert run.finish().personal.rows.shape == (4, 2, 4)


@pytest.mark.parametrize("wrong", [-1, "long", 1.5, None])
def test_lengths_that_there_are_not(wrong: Any) -> None:
    with pytest.raises(SettingError, match="final_epochs"):
        FedSPD(2, final_epochs=wrong)
