"""Clients that are computed together."""

from __future__ import annotations

import torch

from tests.builders import one_number_cohort


def test_a_batch_of_each_client() -> None:
    cohort = one_number_cohort(([1] * 25, [0] * 25), ([1] * 4, [0] * 4))
    first, second = cohort.batch("a"), cohort.batch("b")
    assert [int(first[:25].sum()), int(first[25:].sum())] == [10, 4]
    assert not torch.equal(first, second)
