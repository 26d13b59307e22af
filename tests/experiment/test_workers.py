"""Workers: what each of them gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.experiment.study import Task
from coterie.experiment.workers import Workers, _play


@pytest.mark.parametrize(("all_threads", "jobs", "each"), [(6, 2, 3), (1, 1, 1), (1, 4, 1), (16, 3, 5)])
def test_a_worker_has_its_share_of_torchs_threads(
    monkeypatch: pytest.MonkeyPatch, all_threads: int, jobs: int, each: int
) -> None:
    """As many as OMP_NUM_THREADS allows, and not as many as there are cores, on which other programs may run."""
    given: list[Any] = []

    def process(**how: Any) -> SimpleNamespace:
        given.append(how["args"])
        return SimpleNamespace(start=lambda: None)

    pipe = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: all_threads)
    workers = Workers([object()] * jobs, jobs, lambda *_: None)  # type: ignore[list-item]
    monkeypatch.setattr(workers, "_spawn", SimpleNamespace(Pipe=lambda: (pipe, pipe), Process=process))
    workers._start()
    assert [threads for _, threads, _ in given] == [each]


@pytest.mark.parametrize(("device", "counted"), [("cpu", 0), ("cuda", 90)])
def test_other_runs_weigh_in_compiling_on_a_gpu_alone(tmp_path: Path, device: str, counted: int) -> None:
    """On a CPU a run that is resumed with fewer others would decide otherwise, and come to other bits."""
    given: list[int] = []
    prepared: Any = SimpleNamespace(
        simulation=SimpleNamespace(model=SimpleNamespace(device=torch.device(device))),
        experiment=SimpleNamespace(methods=[SimpleNamespace(label="FedAvg")]),
        play=lambda *_, more_rounds, **__: given.append(more_rounds),
    )
    task = Task(tmp_path, "FedAvg", tmp_path / "run", rounds=10, name="FedAvg", more_rounds=90)
    _play(prepared, task, pipe=None)  # type: ignore[arg-type]
    assert given == [counted]
