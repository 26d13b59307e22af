"""Clients that are computed together."""

from __future__ import annotations

import pytest
import torch

from coterie import IFCA, FedAvg, Stage, Stages
from coterie.backends.simulation import simulate
from coterie.data.federation import Federation
from coterie.engine import storage
from coterie.protocol.personal import Personal, mix_rows
from tests.builders import F64, affine, one_number_cohort


def test_a_batch_of_each_client() -> None:
    cohort = one_number_cohort(([1] * 25, [0] * 25), ([1] * 4, [0] * 4))
    first, second = cohort.batch("a"), cohort.batch("b")
    assert [int(first[:25].sum()), int(first[25:].sum())] == [10, 4]
    assert not torch.equal(first, second)


def test_mixed_rows_are_weighted_means_of_centers() -> None:
    centers = torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.0, -2.0]], dtype=F64)
    weights = torch.tensor([[1.0, 1.0, 2.0], [0.0, 2.0, 0.0]], dtype=F64)
    right = torch.tensor([[1.0, 1.0], [3.0, 6.0]], dtype=F64)
    shown = centers.expand(2, -1, -1)  # a server's, the same for all
    assert torch.equal(mix_rows(weights, shown), right)
    assert torch.equal(mix_rows(weights, shown.clone()), right)


def test_losses_are_computed_once_for_the_same_centers(data: Federation) -> None:
    run = simulate(affine, data, Stages((Stage(IFCA(2), 1),)))
    cohort, centers = run.clients.cohort, run.state.centers.expand(24, -1, -1)
    first = cohort.losses(centers)
    assert cohort.losses(centers) is first
    assert cohort.take(torch.arange(3)).losses(centers[:3]).shape[0] == int(cohort.sizes[:3].sum())
    centers[0, 0] += 1  # another model in the same place
    assert not torch.equal(cohort.losses(centers), first)


def test_tables_are_put_away_while_clients_are_gone_through(
    data: Federation, little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the pages of a table on disk would all be in memory at the end."""
    run = simulate(affine, data, Stages((Stage(FedAvg(), 1),)))
    cohort, rows = run.clients.cohort, torch.randn(24, run.model.rows.width)
    run.model.chunk = 2
    calls: list[int] = []
    monkeypatch.setattr(storage, "put_away", lambda: calls.append(len(calls)))
    list(cohort.gradients(rows))
    assert calls
    calls.clear()
    cohort.score(Personal.single(rows))
    assert calls
