"""Workers: what each of them gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.experiment.workers import Workers


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
