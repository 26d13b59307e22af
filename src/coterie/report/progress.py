"""How far a run is: a bar at a terminal, a few lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from coterie.runs.recorder import Watch

LINES = 5  # per method, where there is no terminal


class Watcher(AbstractContextManager["Watcher"]):
    """Shows one method after another."""

    def __init__(self, console: Console):
        self.console = console
        self._bars: Progress | None = None
        self._open = ExitStack()
        if console.is_terminal:
            self._bars = _bars(console, "loss {task.fields[loss]}")

    def __enter__(self) -> Watcher:
        if self._bars is not None:
            self._open.enter_context(self._bars)
        return self

    def __exit__(self, *problem: Any) -> None:
        self._open.close()

    def method(self, label: str, rounds: int, done: int = 0) -> Watch:
        """What to call after every round of this method."""
        if self._bars is not None:
            return self._bar(self._bars, label, rounds, done)
        began, every = time.perf_counter(), max(1, rounds // LINES)

        def watch(record: dict[str, Any], rounds: int) -> None:
            now = record["round"] + 1
            if now % every == 0 or now == rounds:
                seconds = time.perf_counter() - began
                self.console.print(
                    f"{label}: round {now}/{rounds}, loss {_loss(record)}, {seconds:.1f} s", highlight=False
                )

        return watch

    def _bar(self, bars: Progress, label: str, rounds: int, done: int) -> Watch:
        bar = bars.add_task(label, total=rounds, completed=done, loss=_loss({}))

        def watch(record: dict[str, Any], rounds: int) -> None:
            bars.update(bar, completed=record["round"] + 1, total=rounds, loss=_loss(record))

        return watch


class ManyWatcher(AbstractContextManager["ManyWatcher"]):
    """Shows runs that are played at the same time: one bar for all of them, and one for each that is under way."""

    def __init__(self, console: Console, runs: int, rounds: int):
        self.console, self.runs, self.ended = console, runs, 0
        self._bars: Progress | None = None
        self._bar_of: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}
        if console.is_terminal:
            self._bars = _bars(console, "{task.fields[loss]}")
            self._all = self._bars.add_task(self._title(), total=rounds, loss="rounds")

    def __enter__(self) -> ManyWatcher:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *problem: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _title(self) -> str:
        return f"{self.ended} of {self.runs} runs"

    def began(self, name: str, rounds: int) -> None:
        self._began[name] = time.perf_counter()
        if self._bars is not None:
            self._bar_of[name] = self._bars.add_task(name, total=rounds, loss="")

    def round(self, name: str, number: int, loss: float | None, rounds: int) -> None:
        if self._bars is not None:
            said = f"loss {_loss({'loss': loss})}"
            before = self._bars.tasks[self._bars.task_ids.index(self._bar_of[name])].completed
            self._bars.update(self._bar_of[name], completed=number + 1, total=rounds, loss=said)
            self._bars.advance(self._all, number + 1 - before)

    def end(self, name: str, how: str) -> None:
        self.ended += 1
        if self._bars is not None:
            self._bars.remove_task(self._bar_of.pop(name))
            self._bars.update(self._all, description=self._title())
        seconds = time.perf_counter() - self._began[name]
        self.console.print(
            f"{name}: {how}, {seconds:.1f} s ({self._title()})", highlight=False, markup=False, soft_wrap=True
        )


def _bars(console: Console, loss: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(loss),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
    )


def _loss(record: dict[str, Any]) -> str:
    return "–" if record.get("loss") is None else f"{record['loss']:.4g}"
