"""How far a run is, at a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from coterie.report.progress import ManyWatcher, Watcher


def test_a_bar_at_a_terminal() -> None:
    screen = io.StringIO()
    with Watcher(Console(file=screen, force_terminal=True, width=120)) as watcher:
        watch = watcher.method("FedSoft", 4)
        watch({"round": 0, "loss": 0.125}, 4)
        watch({"round": 3, "loss": None}, 4)
    text = screen.getvalue()
    assert all(part in text for part in ("FedSoft", "4/4", "loss", "left"))


def test_one_bar_for_all_runs() -> None:
    """A run that counts more per round moves it further."""
    screen = io.StringIO()
    with ManyWatcher(
        Console(file=screen, force_terminal=True, width=120), 2, 30.0, "estimated min"
    ) as watcher:
        watcher.began("short", 10)
        watcher.round("short", 4, 0.5, 10)
        watcher.began("long", 4, each=5.0)
        watcher.round("long", 0, None, 4)
        assert watcher._counted == 10
        watcher.end("short", "done")
        watcher.end("long", "stopped early")
        assert watcher._counted == 30
    text = screen.getvalue()
    assert all(part in text for part in ("2 of 2 runs", "30/30", "estimated min", "left"))


def test_time_left_where_there_is_no_terminal() -> None:
    screen = io.StringIO()
    with ManyWatcher(Console(file=screen, width=200), 2, 30.0) as watcher:
        watcher._start -= 10
        watcher.began("short", 10)
        watcher.end("short", "done")
        watcher.began("long", 4, each=5.0)
        watcher.end("long", "done")
    first, second = screen.getvalue().splitlines()
    assert first.endswith("(1 of 2 runs, about 20 s left)")
    assert second.endswith("(2 of 2 runs)")


def test_a_run_that_is_stopped_counts_as_none() -> None:
    """The others stop with it: there is nothing left to wait for."""
    screen = io.StringIO()
    with ManyWatcher(Console(file=screen, width=200), 2, 30.0) as watcher:
        watcher.began("short", 10)
        watcher.end("short", "stopped")
    assert screen.getvalue() == "short: stopped, 0.0 s\n"
