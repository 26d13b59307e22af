"""`coterie reproduce`: the tables and figures of the papers, ours beside theirs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.console import open_console, say
from coterie.cli.data import DataFolder
from coterie.errors import CoterieError, Interrupted, Lost

if TYPE_CHECKING:
    from coterie.experiment.study import Task
    from coterie.reproduction.items import Item
    from coterie.reproduction.play import Wanted
    from coterie.reproduction.results import Results

log = logging.getLogger("coterie")


def reproduce(
    item: Annotated[
        str | None, typer.Argument(help="Such as fedsoft-table-1; without one, all are listed.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on a CPU: far smaller than the paper's.")
    ] = False,
    bounded: Annotated[
        bool,
        typer.Option("--bounded", help="The paper's clients and models, with fewer rounds or less data."),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in a process of its own.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the runs; runs/reproduce if not given.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="A folder for the results; what it holds already is not run again.")
    ] = None,
    data_dir: DataFolder = None,
) -> int:
    """Run a table or figure of the papers, and show ours beside the published values and claims."""
    from coterie.cli.study import check_jobs
    from coterie.data.sources.catalogue import use
    from coterie.reproduction.figures import needs_matplotlib
    from coterie.reproduction.items import folder_of_items, load
    from coterie.reproduction.results import Results, place

    use(data_dir)
    check_jobs(jobs)
    if quick and bounded:
        raise CoterieError(
            "--quick and --bounded are given; allowed is one of them, or none for the full size"
        )
    items = folder_of_items()
    if item is None:
        _list(items, results or items / "results")
        return 0
    asked, size = load(item, items), "quick" if quick else "bounded" if bounded else "full"
    if "figure" in asked.table:
        needs_matplotlib()
    folder = (out or Path("runs") / "reproduce") / f"{asked.name}-{size}"
    found = Results.load(place(results, asked, size) if results else folder / "results", asked, size)
    _play(asked, size, found, folder, jobs)
    _show(asked, found)
    if "figure" in asked.table:
        from coterie.reproduction.figures import draw

        picture = found.path.with_suffix(".png")
        draw(asked, found, picture)
        say(open_console(), f"The picture is {picture}")
    return 0


def _play(asked: Item, size: str, found: Results, folder: Path, jobs: int) -> None:
    from coterie.bench.provenance import provenance
    from coterie.report.progress import ManyWatcher
    from coterie.reproduction.play import missing, play_clusterings, play_runs, tasks

    ahead = missing(asked, size, found)
    if not ahead:
        return
    made = found.maker(provenance())
    console = open_console()
    again = "; the same command goes on"
    try:
        if asked.kind == "clustering":

            def done(one: Wanted) -> None:
                say(console, f"{one.variant or asked.name}, seed {one.seed}: done")

            play_clusterings(asked, size, ahead, found, made, jobs, done)
            return
        runs = tasks(asked, size, ahead, folder)
        with ManyWatcher(console, len(runs), sum(task.rounds for task, _ in runs.values())) as watcher:

            def tell(task: Task, what: str, about: Any) -> None:
                if what == "began":
                    watcher.began(task.name, task.rounds)
                elif what == "round":
                    watcher.round(task.name, *about)
                elif what in ("done", "failed", "stopped"):
                    watcher.end(task.name, f"failed: {about}" if what == "failed" else what)

            failed = play_runs(asked, runs, found, made, jobs, tell)
    except KeyboardInterrupt as stopped:
        raise Interrupted(f"interrupted{again}") from stopped
    if failed:
        first, why = next(iter(failed.items()))
        raise Lost(f"{len(failed)} of {len(runs)} runs failed, {first}: {why}{again}")


def _show(asked: Item, found: Results) -> None:
    from rich.markup import escape

    from coterie.report.tables import plain
    from coterie.reproduction.page import blocks, claims, former_runs

    console = open_console()
    say(console, f"\n{asked.title}: ours, and (the paper's)")
    for block in blocks(asked, found):
        console.print(plain(escape(block.variant), block.headings, block.rows))
    for says, outcome, numbers in claims(asked, found):
        say(console, f"{outcome}: {says}" + (f": {numbers}" if numbers else ""))
    for departure in asked.table["departures"]:
        say(console, f"Departure: {departure}")
    if found.former:
        say(console, f"Not shown: {former_runs(found)}")
    say(console, f"\nThe results are in {found.path.with_suffix('.csv')}")


def _list(items: Path, results: Path) -> None:
    from coterie.report.tables import plain
    from coterie.reproduction.items import SIZES, load, names
    from coterie.reproduction.results import Results, place

    rows = []
    for name in names(items):
        item = load(name, items)
        each = {size: Results.load(place(results, item, size), item, size) for size in SIZES}
        states = [_state(item, size, found) for size, found in each.items() if found.lines or found.former]
        rows.append(
            [name, item.title, item.data, *(item.cost(size) for size in SIZES), ", ".join(states) or "–"]
        )
    headings = ["item", "title", "data", "quick", "bounded", "full", "results there"]
    open_console().print(plain("", headings, rows))


def _state(item: Item, size: str, found: Results) -> str:
    """Such as bounded, or full 12/60 (3 runs made with former settings)."""
    from coterie.reproduction.page import former_runs
    from coterie.reproduction.play import missing

    left, whole = len(missing(item, size, found)), len(item.hashes(size)) * len(item.seeds(size))
    counted = f" {whole - left}/{whole}" if left else ""
    return f"{size}{counted}" + (f" ({former_runs(found)})" if found.former else "")
