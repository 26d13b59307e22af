"""The error by which clients choose their models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Points
from coterie.engine.model import LOSSES
from coterie.engine.scores import Outputs, squared_errors

ONE = torch.ones(2, 1)


def points(*labels: list[Any]) -> Points:
    return Points.of(
        [(torch.zeros(len(y), 1), torch.tensor(y, dtype=None if y else torch.long)) for y in labels]
    )


def test_of_classes_it_is_briers_score() -> None:
    """Probabilities 3/4 and 1/4: right is (1/4)² + (1/4)², wrong (3/4)² + (3/4)²; the second client has no points."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    found = squared_errors(
        [logits], ONE, points([0, 1], []), LOSSES["classification"], Outputs("classification")
    )
    assert float(found[0]) == pytest.approx((2 / 16 + 18 / 16) / 2)
    assert bool(found[1].isnan())


def test_of_a_mixture_probabilities_are_averaged() -> None:
    sure, other = torch.tensor([[50.0, -50.0]]), torch.tensor([[-50.0, 50.0]])
    weights = torch.tensor([[3.0, 1.0]])
    found = squared_errors(
        [sure, other], weights, points([0]), LOSSES["classification"], Outputs("classification")
    )
    assert float(found) == pytest.approx(2 / 16, abs=1e-6)


def test_one_logit_for_two_classes_is_as_two() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output[:, 0], y.float(), reduction="none")

    meaning = Outputs("classification", labels=2, own_loss=True)
    found = squared_errors([torch.tensor([[3.0]]).log()], ONE[:1], points([1]), loss, meaning)
    assert float(found) == pytest.approx(2 / 16)


def test_of_numbers_it_is_the_loss_and_of_text_the_mean_over_characters() -> None:
    numbers = squared_errors(
        [torch.tensor([[2.0], [2.0]])],
        ONE[:1],
        points([1.0, 4.0]),
        LOSSES["regression"],
        Outputs("regression"),
    )
    assert float(numbers) == pytest.approx((1 + 4) / 2)
    logits = torch.tensor([[[3.0, 1.0], [1.0, 3.0]]]).log()
    text = squared_errors(
        [logits], ONE[:1], points([[0, 0]]), LOSSES["next-character"], Outputs("next-character")
    )
    assert float(text) == pytest.approx((2 / 16 + 18 / 16) / 2)


def test_what_diverged_is_infinitely_bad() -> None:
    nan = torch.full((1, 2), torch.nan)
    found = squared_errors([nan], ONE[:1], points([0]), LOSSES["classification"], Outputs("classification"))
    assert float(found) == float("inf")
