"""Several runs at a time: worker processes that play one task after another and tell how far they are.

A worker that dies takes one run with it, which goes on from its checkpoint when the study is resumed. Ctrl-C reaches
the workers through their parent alone: each ends its round, writes its checkpoint, and stops.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from coterie.errors import CoterieError, Lost
from coterie.experiment.experiment import Prepared, load_kept
from coterie.experiment.study import Task
from coterie.runs.folder import RunFolder

log = logging.getLogger("coterie")

What = Literal["began", "round", "done", "stopped", "failed", "said"]
Tell = Callable[
    [Task, What, Any], None
]  # round: (number, loss, rounds in all); failed: why; said: a sentence


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: bool = False  # has it begun to listen?
    task: Task | None = None
    folder: Path | None = None  # of the run whose data it has ready


class Workers:
    """The processes, what they are at, and what is still to be played."""

    def __init__(self, tasks: Sequence[Task], jobs: int, tell: Tell):
        self.waiting, self.jobs, self.tell = list(tasks), max(1, min(jobs, len(tasks))), tell
        self.failed: dict[str, str] = {}
        self.stopping = False
        self._workers: list[_Worker] = []
        self._spawn = multiprocessing.get_context(
            "spawn"
        )  # a fork would share torch's threads and CUDA context

    def play(self) -> dict[str, str]:
        """Play all; the names of those that failed, each with its reason.

        Ctrl-C and SIGTERM come as KeyboardInterrupt when all workers have stopped.
        """
        numbers = (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ()
        before = [signal.signal(number, self._stop) for number in numbers]
        try:
            for _ in range(self.jobs if self.waiting else 0):
                self._start()
            while self._workers:
                for pipe in wait([worker.pipe for worker in self._workers]):
                    self._listen(next(worker for worker in self._workers if worker.pipe is pipe))
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            for worker in self._workers:
                worker.process.terminate()
        if self.stopping:
            raise KeyboardInterrupt
        return self.failed

    def _stop(self, *_: object) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        log.warning("stopping when these rounds are done; press Ctrl-C again to stop at once")
        for worker in self._workers:
            if worker.ready and worker.process.pid is not None and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGINT)

    def _start(self) -> None:
        ours, theirs = self._spawn.Pipe()
        threads = max(1, torch.get_num_threads() // self.jobs)  # as many as OMP_NUM_THREADS says, if it does
        process = self._spawn.Process(target=_work, args=(theirs, threads, self.jobs), daemon=True)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if _in_main_thread() else None
        process.start()  # it ignores Ctrl-C, as its parent does now, until it can stop well
        if before is not None:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _hand_out(self, worker: _Worker) -> None:
        """The next task, or the end."""
        if self.stopping or not self.waiting:
            worker.pipe.close()
            self._workers.remove(worker)
            return
        busy = {one.folder for one in self._workers if one is not worker}
        # of the run whose data it has ready; or of one that no other worker is at; or any
        task = min(self.waiting, key=lambda task: (task.folder != worker.folder, task.folder in busy))
        try:
            worker.pipe.send(task)
        except OSError:  # it died between two tasks
            self._lose(worker)
            return
        self.waiting.remove(task)
        worker.task, worker.folder = task, task.folder
        self.tell(task, "began", None)

    def _lose(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers.remove(worker)
        if self.waiting and not self.stopping:
            self._start()

    def _listen(self, worker: _Worker) -> None:
        task = worker.task
        try:
            what, about = worker.pipe.recv()
        except (EOFError, OSError):
            if task is None:
                worker.process.join()
                raise Lost(f"a process cannot be started ({_how(worker.process.exitcode)})") from None
            self._lose(worker)
            what, about = "failed", f"its process ended ({_how(worker.process.exitcode)})"
        else:
            if what in ("ready", "done", "failed", "stopped"):
                worker.ready = True
                self._hand_out(worker)
        if task is None:
            return
        if what == "failed":
            self.failed[task.name] = about
        self.tell(task, what, about)


def _in_main_thread() -> bool:
    """Others may not take signals."""
    return threading.current_thread() is threading.main_thread()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return (
            f"{name}, which may be for want of memory: fewer --jobs take less" if name == "SIGKILL" else name
        )
    return f"exit code {code}"


# in a worker


class _Said(logging.Handler):
    """What a run says by itself, sent to the parent, which has the terminal."""

    def __init__(self, pipe: Connection):
        super().__init__(logging.INFO)
        self.pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self.pipe.send(("said", " ".join(record.getMessage().split())))


def _work(pipe: Connection, threads: int, jobs: int) -> None:
    os.setpgid(0, 0)  # so that Ctrl-C at the terminal does not reach it beside its parent's word
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(threads)
    # else every worker starts as many compiling processes as there are cores
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1 / jobs)
    logging.getLogger("coterie").addHandler(_Said(pipe))
    logging.getLogger("coterie").setLevel(logging.INFO)
    prepared: dict[Path, Prepared] = {}
    with suppress(BrokenPipeError):  # no parent
        pipe.send(("ready", None))
        while _answer(pipe, prepared, jobs):
            pass


def _answer(pipe: Connection, prepared: dict[Path, Prepared], jobs: int) -> bool:
    """Play the next task; False: there is none."""
    try:
        task = pipe.recv()
        if not _played(task, pipe, prepared):
            # perhaps for what earlier methods left there, such as their steps
            log.warning("the GPU has not enough memory; tried once more with nothing else on it")
            prepared.clear()
            gc.collect()
            torch.cuda.empty_cache()
            _play_prepared(task, pipe, prepared)
        pipe.send(("done", None))
    except KeyboardInterrupt:
        pipe.send(("stopped", None))
    except (EOFError, BrokenPipeError):  # no more tasks, or no parent
        return False
    except (CoterieError, OSError) as problem:
        pipe.send(("failed", " ".join(str(problem).split())))
    except (MemoryError, torch.cuda.OutOfMemoryError) as problem:
        prepared.clear()
        pipe.send(("failed", f"not enough memory for {jobs} at a time ({str(problem).split('.')[0]})"))
    except Exception as problem:
        traceback.print_exc()
        pipe.send(("failed", f"{type(problem).__name__}: {problem}"))
    return True


def _played(task: Task, pipe: Connection, prepared: dict[Path, Prepared]) -> bool:
    """False: the GPU had not enough memory. Nothing holds on to what it could not get enough of, as an error would."""
    try:
        _play_prepared(task, pipe, prepared)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def _play_prepared(task: Task, pipe: Connection, prepared: dict[Path, Prepared]) -> None:
    """With the data of the last task, if it had the same."""
    if task.folder not in prepared:
        prepared.clear()  # before the next is made: data may be large
        prepared[task.folder] = load_kept(task.folder).prepare()
    prepared[task.folder] = _play(prepared[task.folder], task, pipe)


def _play(prepared: Prepared, task: Task, pipe: Connection) -> Prepared:
    """One method, or all of them after their numbers of clusters are chosen."""

    def watch(record: dict[str, Any], rounds: int) -> None:
        pipe.send(("round", (record["round"], record.get("loss"), rounds)))

    if task.label is None:
        prepared = prepared.resolve_auto(
            task.folder, lambda method, out: prepared.choose(method, out).n_clusters
        )
    for method in prepared.experiment.methods:
        alone = task.label == method.label
        store = RunFolder(task.store if alone else prepared.experiment.folder_of(method, task.folder))
        if (alone or task.label is None) and not store.finished:
            prepared.play(
                method,
                store.folder,
                resume=store.experiment.exists(),
                watch=watch,
                more_rounds=task.more_rounds,
                models=task.models,
            )
    return prepared
