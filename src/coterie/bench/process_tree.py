"""The processes of a baseline: it, and all that it started. They are known by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "COTERIE_BENCH_BASELINE"  # the environment variable
PROC = Path("/proc")  # of Linux; elsewhere nothing is found


def members(mark: str) -> list[int]:
    """The processes alive now that have this mark; whoever they start inherits it."""
    wanted = f"{MARK}={mark}".encode()
    return [
        int(folder.name) for folder in PROC.glob("[0-9]*") if wanted in _read(folder / "environ").split(b"\0")
    ]


def peak_memory(mark: str) -> int:
    """Bytes: the sum of what each of its processes alive now had at most. 0 where the system does not say.

    What processes share, such as libraries, counts in each of them.
    """
    return sum(_most(pid) for pid in members(mark))


def end(mark: str, patience: float = 10.0) -> None:
    """Kill them all, and return when they are gone, for a process takes a while to die, or when patience is."""
    deadline = time.monotonic() + patience
    while (found := members(mark)) and time.monotonic() < deadline:
        for pid in found:  # again each time: one may have started another meanwhile
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _most(pid: int) -> int:
    lines = _read(PROC / str(pid) / "status").splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:")), 0)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""
