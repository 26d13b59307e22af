"""Every baseline is a process of its own. They run interleaved: each its next round, then each the one after."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coterie
from coterie.bench.process_tree import MARK, end, peak_memory
from coterie.bench.registry import Baseline
from coterie.bench.task import Score, Task

PATIENCE = 900.0  # seconds, for one answer
HERE = Path(__file__).parent


class CannotRun(Exception):
    """Why a baseline cannot run, or cannot go on."""


@dataclass
class Measured:
    """What was measured of a baseline."""

    seconds: list[float] = field(default_factory=list)  # of each round but the first
    steps: list[int] = field(default_factory=list)  # client-steps of those rounds, where it counts them
    start_up: float | None = None  # from the start of the process to the end of its first round
    memory: int = 0  # bytes, at most
    device_memory: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    score: Score | None = None
    skipped: str = ""  # why


class BaselineProcess:
    """A baseline at work. All have the same number of cores and threads."""

    def __init__(self, baseline: Baseline, python: str, task: Task):
        folder, threads = task.folder, task.conditions.threads
        self.baseline, self.folder, self.measured = baseline, folder, Measured()
        self._log = folder / f"{baseline.module}-{baseline.variant}.log"
        self._mark = str(self._log)
        self._began = time.perf_counter()
        words = [python, "-m", f"adapters.{baseline.module}", str(folder), *filter(None, [baseline.variant])]
        with self._log.open("w") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**_environment(baseline, folder, threads), MARK: self._mark},
                    start_new_session=True,  # Ctrl-C is for the session alone
                )
            except OSError as problem:
                raise CannotRun(f"{python} cannot be run: {problem.strerror}") from None
        _limit_cores(self._process.pid, threads)
        try:
            self.measured.versions = self._answer()["versions"]
        except BaseException:
            self.stop()
            raise

    def round(self) -> None:
        first = self.measured.start_up is None
        answer = self._ask("round")
        if first:
            self.measured.start_up = time.perf_counter() - self._began
        else:
            self.measured.seconds.append(answer["seconds"])
            self.measured.steps += [] if answer["steps"] is None else [answer["steps"]]
        self.measured.memory = max(self.measured.memory, peak_memory(self._mark))

    def hand_in(self) -> Path:
        self.measured.device_memory = self._ask("end")["device_bytes"]
        return self.folder / "handed_in.npz"

    def stop(self, wait: float = 0.0) -> None:
        """Let it end by itself for so many seconds; then end it and all it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=wait)
        self._process.kill()
        self._process.wait()
        end(self._mark)

    def _ask(self, what: str) -> dict[str, Any]:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(what + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise CannotRun(self._reason()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        if not ready:
            raise CannotRun(f"it did not answer for {PATIENCE:.0f} s")
        line = pipe.readline()
        if not line:
            raise CannotRun(self._reason())
        said: dict[str, Any] = json.loads(line)
        if "skipped" in said:
            raise CannotRun(said["skipped"])
        return said

    def _reason(self) -> str:
        """What its log says last: the error, if one is named."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|NotFound)\b", line)]
        last = (errors or lines or ["it ended without a word"])[-1][:200]
        absent = re.search(r"(?:No module named|No package metadata was found for) '?([\w.-]+)", last)
        return f"{absent[1]} is not installed" if absent else last


def _environment(baseline: Baseline, folder: Path, threads: int) -> dict[str, str]:
    """Where adapters are found, and how many threads each baseline has."""
    mine = [str(Path(coterie.__file__).parent.parent), os.environ.get("PYTHONPATH")]
    paths = filter(None, [str(HERE), *([] if baseline.simulator else mine)])
    own = {name: value.format(folder=folder) for name, value in baseline.environment.items()}
    alike = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**os.environ, **alike, **own, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}


def _limit_cores(pid: int, threads: int) -> None:
    """As many cores as threads: some libraries ask for cores alone."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.sched_setaffinity(pid, cores)


Progress = Callable[[str], None]


def run_interleaved(
    task: Task,
    baselines: list[Baseline],
    pythons: dict[str, str],
    repeats: int,
    progress: Progress,
    measured: dict[str, Measured],
) -> None:
    """Fill in what was measured of each. They are started one after another, and then run the same number of rounds."""
    running: dict[str, BaselineProcess] = {}
    try:
        for baseline in baselines:
            progress(f"{baseline.name} starts")
            measured[baseline.name] = Measured()
            with _left_out(baseline.name, measured, running):
                process = BaselineProcess(baseline, pythons.get(baseline.simulator, sys.executable), task)
                running[baseline.name], measured[baseline.name] = process, process.measured
                process.round()
        for repeat in range(repeats):
            for name in list(running):
                progress(f"{name}, repeat {repeat + 1} of {repeats}")
                with _left_out(name, measured, running):
                    for _ in range(task.work.rounds_per_repeat):
                        running[name].round()
        for name in list(running):
            with _left_out(name, measured, running):
                measured[name].score = task.score(running[name].hand_in())
                running.pop(name).stop(wait=20.0)
    finally:
        for process in running.values():
            process.stop()


@contextlib.contextmanager
def _left_out(
    name: str, measured: dict[str, Measured], running: dict[str, BaselineProcess]
) -> Iterator[None]:
    """A baseline that cannot go on is left out, with the reason; the others go on."""
    try:
        yield
    except CannotRun as problem:
        measured[name].skipped = str(problem)
        if name in running:
            running.pop(name).stop()
