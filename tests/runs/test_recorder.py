"""In which rounds models are evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import FedAvg, Participation
from coterie.data.federation import Federation
from coterie.runs.recorder import EvaluationInterval
from coterie.runs.result import Record
from tests.builders import affine


def evaluated(run: coterie.Run) -> list[int]:
    return [record["round"] + 1 for record in run.records if "test_loss" in record]


def test_models_are_evaluated_less_often_where_few_train(data: Federation) -> None:
    """One of 24 clients in a round: half as many messages as clients have been sent after 12 rounds."""
    few = Participation(fraction=1 / 24)
    assert evaluated(coterie.run(affine, data, FedAvg(), rounds=30, participation=few)) == [12, 24, 30]
    assert evaluated(coterie.run(affine, data, FedAvg(), rounds=25)) == [10, 20, 25]
    seldom = coterie.run(affine, data, FedAvg(), rounds=25, participation=few, evaluate_every=10)
    assert evaluated(seldom) == [10, 20, 25]
    assert evaluated(coterie.run(affine, data, FedAvg(), rounds=12, evaluate_every=0)) == []


def test_where_hardly_anyone_trains_models_are_evaluated_all_the_same() -> None:
    interval = EvaluationInterval("auto", 10_000)
    assert [n for n in range(1, 301) if interval.played(3)] == [100, 200, 300]


def test_a_resumed_run_is_evaluated_in_the_same_rounds(data: Federation, tmp_path: Path) -> None:
    def stop(record: Record, rounds: int) -> None:
        if record["round"] == 6:
            raise KeyboardInterrupt

    how: dict[str, Any] = {
        "rounds": 15,
        "participation": Participation(fraction=1 / 24),
        "out": tmp_path / "run",
    }
    with pytest.raises(KeyboardInterrupt):
        coterie.run(affine, data, FedAvg(), watch=stop, **how)
    assert evaluated(coterie.run(affine, data, FedAvg(), resume=True, **how)) == [12, 15]


def test_time_spent_evaluating_is_recorded(data: Federation) -> None:
    run = coterie.run(affine, data, FedAvg(), rounds=2)
    assert all(0 < r["seconds_evaluating"] <= r["seconds"] for r in run.records)
