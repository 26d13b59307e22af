"""OneShot: clusters are found once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie import Participation, Stage, Stages
from coterie.algorithms import OneShot
from tests.builders import TRAINING, finish, larger_clients, simulation


def test_one_shot_finds_clusters_once_and_takes_in_those_who_come_later() -> None:
    data = larger_clients("pure")
    long = replace(TRAINING, epochs=20)
    run = simulation(Stages((Stage(OneShot(2), 3, long, participation=Participation(absent=0.5)),)), data)
    run.step()
    first = run.state.member[run.state.clustered].clone()
    known = run.state.clustered.clone()
    finish(run)
    assert torch.equal(run.state.member[known], first)  # it never asks again
    assert data.mixture is not None
    whole = data.mixture.argmax(1)[run.state.clustered]
    found = run.state.member[run.state.clustered]
    assert torch.equal(found, whole) or torch.equal(found, 1 - whole)


def test_one_shot_warns_where_fewer_clients_send_than_there_are_clusters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = Participation(fraction=0.15)  # 2 of 12
    run = finish(
        simulation(Stages((Stage(OneShot(4), 4, TRAINING, participation=few),)), larger_clients("pure"))
    )
    assert caplog.messages == ["2 clients sent a model, too few to find 4 clusters at once"]
    assert int(run.state.clustered.sum()) > 2
    assert run.state.centers.isfinite().all()
