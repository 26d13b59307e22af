"""What `coterie bench` and `python benchmarks/speed.py` do, without anything but rich."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.bench import session, table
from coterie.bench.registry import entrants, known, pythons
from coterie.bench.task import Conditions
from coterie.bench.workloads import WORKLOADS
from coterie.errors import CoterieError, Interrupted, require
from coterie.files import make_folder, write_whole

WIDE = 200  # columns, where there is no terminal to fit into
NOISY = 0.5  # spread from which on a time says little


def default_threads() -> int:
    """Those that this process may use, or as many as OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bench(
    only: list[str],
    conditions: Conditions,
    repeats: int,
    python: list[str],
    out: Path | None,
    players: Sequence[str] = (),
) -> None:
    """Play, show the table, and write the report as it grows, workload by workload."""
    session.check(conditions, repeats)
    known(players)
    if out is not None:
        make_folder(out.parent)
        require(
            os.access(out.parent, os.W_OK), "--out", str(out), "a file in a folder that can be written to"
        )
    works, found, report = session.chosen(only, conditions.device), pythons(python), dict[str, Any]()
    played = {n: w for n, w in works.items() if entrants(w, conditions.device, conditions.threads, players)}
    if not played or (only and len(played) < len(works)):
        missing = ", ".join(name for name in works if name not in played)
        raise CoterieError(
            f"--player names none of those who play {missing} on {conditions.device}; allowed are those of --list"
        )
    console = _console()
    interrupted, written = False, 0

    def finished() -> None:
        nonlocal written
        if out is not None:
            write_whole(out, (json.dumps(report, indent=1) + "\n").encode())
            written += 1

    try:
        with _ended_like_ctrl_c(), console.status("") as status:

            def tell(doing: str) -> None:
                status.update(doing)
                if not console.is_terminal:
                    console.print(doing, markup=False, highlight=False)

            session.play(played, conditions, repeats, found, players, report, tell, finished)
    except KeyboardInterrupt:
        interrupted = True
    if report.get("workloads"):
        console.print(table.shown(report))
        said = [*table.origin(report), *table.noisy(report, NOISY)]
        console.print("\n" + "\n".join(said), markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        kept = f"{out} has the finished workloads: {written}" if written else "nothing was written"
        raise Interrupted(f"interrupted; the table has what was played until then, and {kept}")


def show_list(device: str) -> None:
    """The workloads, and who plays each."""
    console = _console()
    for name, work in WORKLOADS.items():
        who = "; ".join(dict.fromkeys(entrant.name for entrant in entrants(work, device, default_threads())))
        alone = " (on CUDA, or with --only)" if work.cuda_only else ""
        console.print(f"{name}: {work.title}{alone}; by {who}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM too ends the players and removes their folder."""
    if threading.current_thread() is not threading.main_thread():  # others may not take signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
