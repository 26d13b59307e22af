"""The final table's numbers."""

from __future__ import annotations

import pytest
import torch

from coterie.runs.summary import importance_error, match


def test_centers_are_matched_at_the_least_total_loss() -> None:
    """Greedily, distribution 0 would take center 0 (1 < 2) and leave 10; together 2 + 3 is less than 1 + 10."""
    assert match(torch.tensor([[1.0, 3.0], [2.0, 10.0]])) == ([0, 1], [1, 0])
    assert match(torch.tensor([[torch.nan, 1.0], [1.0, torch.inf]])) == ([0, 1], [1, 0])


def test_importance_error_by_hand() -> None:
    found, true = torch.tensor([[0.1, 0.9], [0.6, 0.4]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert importance_error(found, true, ([0, 1], [1, 0])) == pytest.approx((0.1 + 0.1 + 0.1 + 0.1) / 4)
