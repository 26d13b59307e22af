"""What a player and the match say to each other: a line of JSON each, over the player's stdin and stdout.

The match says "round" or "end"; a player answers with what it took, or hands in its models. Needs nothing but numpy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Named = dict[str, npt.NDArray[Any]]  # a model's state, by the names that torch has for it


class Job:
    """What is to be played: settings, and a folder with data and models."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self._settings: dict[str, Any] = json.loads((self.folder / "job.json").read_text())

    def __getitem__(self, name: str) -> Any:
        return self._settings[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """x or y, (client, point, ...), or edges, (listener, speaker)."""
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return found


class Talk:
    """A player's side."""

    def __init__(self) -> None:
        self.job = Job(sys.argv[1])
        self.variant = sys.argv[2] if len(sys.argv) > 2 else ""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever others print goes to the log
        self._began = 0.0

    def play(self, round: Callable[[], int | None], models: Callable[[], list[Named]]) -> None:
        """Round after round, until the end. A round may say how many client-steps it had."""
        while self.begin():
            self.finish(round())
        self.hand_in(models())

    def begin(self) -> bool:
        """Wait for one's turn; False: there is none, it is over."""
        asked = sys.stdin.readline().strip()
        self._began = time.perf_counter()
        return asked == "round"

    def finish(self, steps: int | None = None) -> None:
        _wait_for_the_device()
        self._answer({"seconds": time.perf_counter() - self._began, "steps": steps})

    def hand_in(self, models: list[Named]) -> None:
        """One model, or one for each cluster."""
        arrays: dict[str, Any] = {
            f"{s} {name}": value for s, model in enumerate(models) for name, value in model.items()
        }
        np.savez(self.job.folder / "handed_in.npz", **arrays)
        self._answer({"device_bytes": _device_bytes()})

    def versions(self, *packages: str) -> None:
        """Say that one is ready, and what one is."""
        found = {name: version(name) for name in packages}
        self._answer({"versions": {**found, "Python": sys.version.split()[0]}})

    def skip(self, reason: str) -> None:
        """Say why one cannot play."""
        self._answer({"skipped": " ".join(reason.split())})
        raise SystemExit(0)

    def _answer(self, said: dict[str, Any]) -> None:
        print(json.dumps(said), file=self._answers, flush=True)


def _wait_for_the_device() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())
