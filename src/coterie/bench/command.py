"""What `coterie bench` and `python benchmarks/speed.py` do, without anything but rich."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.bench import session, table
from coterie.bench.registry import baselines_for, check_names, pythons
from coterie.bench.results import write
from coterie.bench.task import Conditions
from coterie.bench.workloads import WORKLOADS
from coterie.errors import CoterieError, Interrupted, require
from coterie.files import make_folder

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
    baselines: Sequence[str] = (),
) -> None:
    """Measure, show the table, and write the report as it grows, workload by workload."""
    session.check(conditions, repeats)
    check_names(baselines)
    if out is not None:
        make_folder(out.parent)
        require(
            os.access(out.parent, os.W_OK), "--out", str(out), "a file in a folder that can be written to"
        )
    works, found, report = session.chosen(only, conditions.device), pythons(python), dict[str, Any]()
    device, threads = conditions.device, conditions.threads
    runnable = {name: work for name, work in works.items() if baselines_for(work, device, threads, baselines)}
    if not runnable or (only and len(runnable) < len(works)):
        missing = ", ".join(name for name in works if name not in runnable)
        raise CoterieError(
            f"--baseline names none that can run {missing} on {device}; allowed are those of --list"
        )
    console = _console()
    interrupted, written = False, 0

    def finished() -> None:
        nonlocal written
        if out is not None:
            write(out, report)
            written += 1

    try:
        with _ended_like_ctrl_c(), console.status("") as status:

            def progress(doing: str) -> None:
                status.update(doing)
                if not console.is_terminal:
                    console.print(doing, markup=False, highlight=False)

            session.run(runnable, conditions, repeats, found, baselines, report, progress, finished)
    except KeyboardInterrupt:
        interrupted = True
    if report.get("workloads"):
        console.print(table.shown(report))
        said = [*table.origin(report), *table.noisy(report, NOISY)]
        console.print("\n" + "\n".join(said), markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        kept = f"{out} has the finished workloads: {written}" if written else "nothing was written"
        raise Interrupted(f"interrupted; the table has what was measured until then, and {kept}")


def show_list(device: str) -> None:
    """The workloads, and the baselines of each."""
    console = _console()
    for name, work in WORKLOADS.items():
        found = baselines_for(work, device, default_threads())
        names = "; ".join(dict.fromkeys(baseline.name for baseline in found))
        alone = " (on CUDA, or with --only)" if work.cuda_only else ""
        console.print(
            f"{name}: {work.title}{alone}; by {names}", markup=False, highlight=False, soft_wrap=True
        )


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM too ends the baselines and removes their folder."""
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
