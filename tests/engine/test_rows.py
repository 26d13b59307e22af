"""Models as rows of numbers."""

from __future__ import annotations

import pytest
from torch import nn

from coterie import CoterieError
from coterie.engine.rows import Rows


def test_parts_of_a_model() -> None:
    rows = Rows(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3)))
    assert len(rows.columns("all")) == rows.n_parameters == 20 + 45 + 18
    assert rows.columns("dense").tolist() == list(range(20, 83))
    assert rows.columns("last").tolist() == list(range(65, 80))
    with pytest.raises(CoterieError, match="no fully-connected layer"):
        Rows(nn.Conv2d(1, 2, 3)).columns("last")
