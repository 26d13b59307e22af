"""What `coterie bench` and `python benchmarks/speed.py` do, without anything but rich."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.bench import match, table
from coterie.bench.entrants import entrants, pythons
from coterie.bench.job import Conditions
from coterie.bench.workloads import WORKLOADS
from coterie.errors import Interrupted

WIDE = 200  # columns, where there is no terminal to fit into


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bench(
    only: list[str],
    conditions: Conditions,
    repeats: int,
    python: list[str],
    out: Path | None,
) -> None:
    """Play, show the table and write the report; what there is of them, if it is interrupted."""
    match.check(conditions, repeats)
    works, found, report = match.chosen(only, conditions.device), pythons(python), dict[str, Any]()
    console = _console()
    interrupted = False
    try:
        with console.status("") as status:

            def tell(doing: str) -> None:
                status.update(doing)
                if not console.is_terminal:
                    console.print(doing, markup=False, highlight=False)

            match.play(works, conditions, repeats, found, report, tell)
    except KeyboardInterrupt:
        interrupted = True
    if report.get("workloads"):
        console.print(table.shown(report))
        console.print("\n" + "\n".join(table.origin(report)), markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        raise Interrupted("interrupted; the table has what was played until then, and nothing was written")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def show_list(device: str) -> None:
    """The workloads, and who plays each."""
    console = _console()
    for name, work in WORKLOADS.items():
        who = ", ".join(dict.fromkeys(entrant.name for entrant in entrants(work, device, cores())))
        alone = " (on CUDA, or with --only)" if work.cuda_only else ""
        console.print(f"{name}: {work.title}{alone}, by {who}", markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
