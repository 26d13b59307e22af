"""Fixtures of several rooms. One thread a test process: `make test` runs one process per core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.data import regressions
from coterie.engine import storage
from tests.builders import tar

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to what they start


@pytest.fixture
def data() -> Federation:
    return regressions(clients=24, sizes=(8, 20), test_points=5)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So little that every table of rows lies on disk, and clients are computed a few at a time."""
    storage.memory.cache_clear()
    monkeypatch.setenv("COTERIE_MEMORY", f"{storage.SHARE * 600 / 2**30:.9f}")  # 600 bytes a table
    monkeypatch.setattr(storage, "NEAR", 300)
    yield
    storage.memory.cache_clear()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in `tmp_path`; whatever still runs at the end of the test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, **pipes, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client called npm that brings one archive; what it does can be changed."""
    archive = tar(tmp_path / "things.tgz", {"package/a": b"one", "package/b": b"two", "package/c": b"three"})
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\ncp {archive} things-1.0.tgz\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return script


@pytest.fixture
def data_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with small files in the shape of MNIST, CIFAR-10 and EMNIST, and some roles."""
    rng = np.random.default_rng(0)
    for name, shape, classes in (
        ("mnist", (28, 28), 10),
        ("cifar10", (32, 32, 3), 10),
        ("emnist_balanced", (28, 28), 47),
    ):
        sides = {}
        for side, n in (("train", 940), ("test", 470)):
            sides[f"x_{side}"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
            sides[f"y_{side}"] = (np.arange(n) % classes).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", **sides)
    with (tmp_path / "shakespeare_roles.jsonl").open("w") as file:
        for i in range(6):  # two ways of speaking
            text = ("to be or not to be " if i % 2 else "AAH, OOH; AAH, OOH; ") * (40 + 5 * i)
            file.write(json.dumps({"play": "a play", "role": f"role {i}", "text": text}) + "\n")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path
