"""The models of all clients, evaluated no more often than needed."""

from __future__ import annotations

import pytest
import torch

import coterie
from coterie import IFCA, FedSPD
from coterie.data.federation import Federation
from coterie.protocol.blocks import Kept
from tests.builders import affine


def test_models_of_all_clients() -> None:
    one = torch.rand(1, 1, 3)
    models = Kept(6)
    for some in (slice(0, 2), slice(2, 4)):
        models.put(some, one.expand(2, -1, -1))
    assert models.rows.stride(0) == 0, "one model for all is kept once"
    models.put(slice(4, 6), 2 * one.expand(2, -1, -1))
    assert torch.equal(models.rows, torch.cat([one.expand(4, -1, -1), 2 * one.expand(2, -1, -1)]))


def test_what_is_evaluated_last_is_not_evaluated_again(
    data: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    importance = IFCA.importance
    monkeypatch.setattr(IFCA, "importance", lambda *a: calls.append(1) or importance(*a))
    run = coterie.run(affine, data, IFCA(2), rounds=3, init="random", evaluate_every=0)
    assert len(calls) == 2, "once for importance, once for the models"
    calls.clear()
    same = coterie.run(affine, data, IFCA(2), rounds=3, init="random", evaluate_every=3)
    assert len(calls) == 2
    assert same.summary["personal"] == run.summary["personal"]
    assert same.summary["traffic"] == run.summary["traffic"]
    assert same.records[-1]["test_loss"] == pytest.approx(same.summary["personal"]["loss"])
    assert same.records[-1]["test_loss_std"] == same.summary["personal"]["loss_std_over_clients"]


def test_a_final_phase_is_evaluated_by_itself(data: Federation) -> None:
    run = coterie.run(affine, data, FedSPD(2, final_epochs=5), rounds=2, init="random", evaluate_every=2)
    assert run.records[-1]["test_loss"] > run.summary["personal"]["loss"]
