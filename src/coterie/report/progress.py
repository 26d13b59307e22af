"""How far a run is: a bar at a terminal, a few lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
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
    """Shows runs that are played at the same time: one bar for all of them, and one for each that is under way.

    Time left is estimated from what each round counts: 1, or what `began` says of a run whose rounds take longer.
    """

    def __init__(self, console: Console, runs: int, total: float, unit: str = "rounds"):
        self.console, self.runs, self.ended = console, runs, 0
        self._total, self._counted, self._start = total, 0.0, time.perf_counter()
        self._bars: Progress | None = None
        self._under_way: dict[str, _UnderWay] = {}
        if console.is_terminal:
            self._bars = _bars(console, "{task.fields[loss]}")
            self._all = self._bars.add_task(self._title(), total=total, loss=unit)

    def __enter__(self) -> ManyWatcher:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *problem: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _title(self) -> str:
        return f"{self.ended} of {self.runs} runs"

    def began(self, name: str, rounds: int, each: float = 1.0) -> None:
        bar = None if self._bars is None else self._bars.add_task(name, total=rounds, loss="")
        self._under_way[name] = _UnderWay(rounds, each, bar)

    def round(self, name: str, number: int, loss: float | None, rounds: int) -> None:
        run = self._under_way[name]
        self._count(run, number + 1)
        if self._bars is not None and run.bar is not None:
            said = f"loss {_loss({'loss': loss})}"
            self._bars.update(run.bar, completed=number + 1, total=rounds, loss=said)

    def _count(self, run: _UnderWay, played: int) -> None:
        more = run.each * (played - run.played)
        run.played = played
        self._counted += more
        if self._bars is not None:
            self._bars.advance(self._all, more)

    def end(self, name: str, how: str) -> None:
        self.ended += 1
        run = self._under_way.pop(name)
        self._count(run, run.rounds)  # those that it did without
        if self._bars is not None and run.bar is not None:
            self._bars.remove_task(run.bar)
            self._bars.update(self._all, description=self._title())
        seconds = time.perf_counter() - run.began
        so_far = f" ({self._title()}{self._left()})" if how != "stopped" else ""  # then the others stop too
        self.console.print(
            f"{name}: {how}, {seconds:.1f} s{so_far}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _left(self) -> str:
        """About how long the rest takes; a bar says so itself."""
        if self._bars is not None or self.ended == self.runs or not self._counted:
            return ""
        passed = time.perf_counter() - self._start
        return f", about {_duration(passed * (self._total - self._counted) / self._counted)} left"


@dataclass
class _UnderWay:
    rounds: int
    each: float  # what a round of it counts
    bar: TaskID | None
    played: int = 0
    began: float = field(default_factory=time.perf_counter)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


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
