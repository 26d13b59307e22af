"""How a baseline and the session talk: in lines over the baseline's stdin and stdout. Needs nothing but numpy.

The session writes "round" or "end"; the baseline answers in JSON, with the seconds it took or where it hands in models.
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


class Task:
    """What is to be run: settings, and a folder with data and initial models."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self._settings: dict[str, Any] = json.loads((self.folder / "task.json").read_text())

    def __getitem__(self, name: str) -> Any:
        return self._settings[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """x or y, (client, point, ...), or edges, (aggregator, sender)."""
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return found


class Pipe:
    """The baseline's end of it."""

    def __init__(self) -> None:
        self.task = Task(sys.argv[1])
        self.variant = sys.argv[2] if len(sys.argv) > 2 else ""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever others print goes to the log
        self._began = 0.0

    def serve(self, round: Callable[[], int | None], models: Callable[[], list[Named]]) -> None:
        """Round after round, until the session ends. A round may return how many client-steps it had."""
        while self.begin():
            self.finish(round())
        self.hand_in(models())

    def begin(self) -> bool:
        """Wait for the session; False: there are no more rounds."""
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
        np.savez(self.task.folder / "handed_in.npz", **arrays)
        self._answer({"device_bytes": _device_bytes()})

    def versions(self, *packages: str) -> None:
        """Say that the baseline is ready, and its versions."""
        found = {name: version(name) for name in packages}
        self._answer({"versions": {**found, "Python": sys.version.split()[0]}})

    def skip(self, reason: str) -> None:
        """Say why the baseline cannot run this task, and end."""
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
