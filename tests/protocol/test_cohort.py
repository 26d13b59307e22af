"""Clients that are computed together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie import IFCA, FedAvg, Stage, Stages
from coterie.backends.simulation import Together, simulate
from coterie.data.federation import Federation, Points
from coterie.engine import model as engine_model
from coterie.engine import storage
from coterie.protocol.cohort import Cohort
from coterie.protocol.personal import Personal, mix_rows
from tests.builders import CPU, F64, affine, one_number_cohort


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


@pytest.mark.parametrize("apart", [False, True])
def test_clients_with_convolutions_are_evaluated_one_after_another_on_a_cpu_where_that_is_faster(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grouped convolution of many points takes it longer. The numbers are the same, where some have no points too."""
    sizes = [3, 0, 7, 1, 0]
    pictures = [torch.rand(size, 1, 6, 6) for size in sizes]
    data = few_pictures([torch.rand(2, 1, 6, 6) for _ in sizes])
    run = simulate(convolutional, data, Stages((Stage(FedAvg(), 1),)), device=CPU)
    flops = run.model.convolution_flops * max(sizes)
    monkeypatch.setattr(engine_model, "APART", flops if apart else flops + 1)
    assert isinstance(run.clients, Together)
    cohort = replace(run.clients.cohort, points=points_of(pictures))
    rows = torch.randn(5, run.model.rows.width)
    ways: list[str] = []
    for way in ("_evaluate_alone", "_evaluate_together"):
        monkeypatch.setattr(Cohort, way, noting(ways, way, getattr(Cohort, way)))
    found = cohort.outputs(rows)
    assert ways == ["_evaluate_alone" if apart else "_evaluate_together"]
    each = [run.model.outputs(row, x) for row, x in zip(rows, pictures, strict=True) if len(x)]
    torch.testing.assert_close(found, torch.cat(each))


def test_tables_are_put_away_where_clients_are_evaluated_one_after_another(
    little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = few_pictures([torch.rand(2, 1, 6, 6) for _ in range(24)])
    run = simulate(convolutional, data, Stages((Stage(FedAvg(), 1),)), device=CPU)
    monkeypatch.setattr(engine_model, "APART", 0.0)
    calls: list[int] = []
    monkeypatch.setattr(storage, "put_away", lambda: calls.append(len(calls)))
    assert isinstance(run.clients, Together)
    run.clients.cohort.outputs(torch.randn(24, run.model.rows.width))
    assert calls


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


def points_of(pictures: list[torch.Tensor]) -> Points:
    return Points.of([(x, torch.arange(len(x)) % 3) for x in pictures])


def few_pictures(each: list[torch.Tensor]) -> Federation:
    points = points_of(each)
    return Federation(tuple(f"{i:02}" for i in range(len(each))), points, points, n_outputs=3)


def noting(called: list[str], name: str, what: Any) -> Any:
    def noted(*args: Any) -> Any:
        called.append(name)
        return what(*args)

    return noted
