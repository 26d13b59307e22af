"""Workers: what each of them gets."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.experiment import workers
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
    some = Workers([object()] * jobs, jobs, lambda *_: None)  # type: ignore[list-item]
    monkeypatch.setattr(some, "_spawn", SimpleNamespace(Pipe=lambda: (pipe, pipe), Process=process))
    some._start()
    assert [threads for _, threads, _ in given] == [each]


def test_a_worker_compiles_with_as_many_threads_as_it_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    log = logging.getLogger("coterie")
    for where, name in ((os, "setpgid"), (signal, "signal"), (torch, "set_num_threads"), (log, "addHandler")):
        monkeypatch.setattr(where, name, lambda *_: None)
    monkeypatch.setattr(log, "setLevel", lambda _: None)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")  # so that what is set here is undone
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    workers._work(SimpleNamespace(send=gone), 3, 2)  # its parent is gone, so that it ends
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "3"


def test_a_worker_reads_inductors_settings_after_it_has_set_its_threads() -> None:
    """Inductor reads TORCHINDUCTOR_COMPILE_THREADS when it is imported."""
    code = "import sys, coterie.experiment.workers; sys.exit('torch._inductor.config' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("never", [False, True])
def test_a_worker_without_memory_tries_once_more_with_nothing_kept(
    monkeypatch: pytest.MonkeyPatch, never: bool
) -> None:
    """What earlier methods left on the GPU may be what is in the way."""
    tried: list[object] = []
    said: list[tuple[str, Any]] = []
    task = SimpleNamespace(folder=Path("here"))
    pipe = SimpleNamespace(recv=lambda: task, send=said.append)

    def play(there: object, *_: object) -> object:
        tried.append(there)
        if there == "kept" or never:
            raise torch.cuda.OutOfMemoryError("no room. At all")
        return there

    monkeypatch.setattr(workers, "load_kept", lambda _: SimpleNamespace(prepare=lambda: "fresh"))
    monkeypatch.setattr(workers, "_play", play)
    assert workers._answer(pipe, {task.folder: "kept"}, 3)  # type: ignore[arg-type, dict-item]
    assert tried == ["kept", "fresh"]
    assert said == [("failed", "not enough memory for 3 at a time (no room)") if never else ("done", None)]
