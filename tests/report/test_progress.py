"""How far a run is, at a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from coterie.report.progress import Watcher


def test_a_bar_at_a_terminal() -> None:
    screen = io.StringIO()
    with Watcher(Console(file=screen, force_terminal=True, width=120)) as watcher:
        watch = watcher.method("FedSoft", 4)
        watch({"round": 0, "loss": 0.125}, 4)
        watch({"round": 3, "loss": None}, 4)
    text = screen.getvalue()
    assert all(part in text for part in ("FedSoft", "4/4", "loss", "left"))
