"""`coterie reproduce`: the tables and figures of the papers, ours beside theirs."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.console import open_console, say
from coterie.cli.data import DataFolder
from coterie.errors import CoterieError, Interrupted, Lost

if TYPE_CHECKING:
    from coterie.experiment.study import Task
    from coterie.reproduction.items import Item
    from coterie.reproduction.part import Part
    from coterie.reproduction.play import Work
    from coterie.reproduction.results import Results

log = logging.getLogger("coterie")


def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            help="Such as fedsoft-table-1, or fedsoft for all of a paper; without any, all are listed."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All items, the cheapest first.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on a CPU: far smaller than the paper's.")
    ] = False,
    bounded: Annotated[
        bool,
        typer.Option("--bounded", help="The paper's clients and models, with fewer rounds or less data."),
    ] = False,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only these variants, such as 'CIFAR-10*'; may be given more than once."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only these methods, such as FedAvg or 'FedSoft*'; likewise.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Only these of the item's seeds, such as 0 or 0-2.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in a process of its own.")] = 1,
    out: Annotated[
        Path, typer.Option(help="A folder for the runs, which items with the same settings share.")
    ] = Path("runs/reproduce"),
    results: Annotated[
        Path | None, typer.Option(help="A folder for the results; what it holds already is not run again.")
    ] = None,
    data_dir: DataFolder = None,
) -> int:
    """Run tables and figures of the papers, and show ours beside the published values and claims."""
    from coterie.cli.study import check_jobs
    from coterie.data.sources.catalogue import use
    from coterie.experiment.study import parse_seeds
    from coterie.reproduction.figures import needs_matplotlib
    from coterie.reproduction.items import folder_of_items
    from coterie.reproduction.part import Part
    from coterie.reproduction.results import place

    use(data_dir)
    check_jobs(jobs)
    if everything and items:
        raise CoterieError(f"--all is given beside {items[0]}; allowed is one of the two")
    folder, size = folder_of_items(), _size(quick, bounded)
    if not everything and not items:
        for option, value in (("--variant", variant), ("--method", method), ("--seeds", seeds)):
            if value is not None:
                raise CoterieError(f"{option} is given without an item; allowed is with one, or with --all")
        _list(folder, results or folder / "results")
        return 0
    part = Part(tuple(variant or ()), tuple(method or ()), parse_seeds(seeds) if seeds is not None else ())
    asked = part.chosen(_asked(None if everything else items, folder, size), size)
    if any(item.figure for item in asked):
        needs_matplotlib()
    where = {
        place(results, item, size) if results else out / f"{item.name}-{size}" / "results": item
        for item in asked
    }
    _run(where, size, part, out, jobs)
    return 0


def _run(asked: dict[Path, Item], size: str, part: Part, out: Path, jobs: int) -> None:
    """Play what is missing of these items, by where their results are, and show them."""
    from coterie.reproduction.play import Work, missing
    from coterie.reproduction.results import Results
    from coterie.runs.lock import locked

    with ExitStack() as held:
        for folder in dict.fromkeys(path.parent for path in asked):  # one writer, or lines are lost
            held.enter_context(locked(folder))
        works = [Work(item, size, Results.load(path, item, size)) for path, item in asked.items()]
        problem = _play(works, out, jobs, part)
        for work in works:
            if not problem or not missing(work.item, work.size, work.results, part):
                _show(work)
    if problem:
        raise problem


def _asked(words: list[str] | None, folder: Path, size: str) -> list[Item]:
    """The items that are named, or all; the cheapest first."""
    from coterie.reproduction.items import load, matching, names

    known = names(folder) if words is None else [name for word in words for name in matching(word, folder)]
    return sorted((load(name, folder) for name in dict.fromkeys(known)), key=lambda item: item.minutes(size))


def _size(quick: bool, bounded: bool) -> str:
    if quick and bounded:
        raise CoterieError(
            "--quick and --bounded are given; allowed is one of them, or none for the full size"
        )
    return "quick" if quick else "bounded" if bounded else "full"


def _play(works: list[Work], out: Path, jobs: int, part: Part) -> Lost | None:
    """What is missing of this part; why some of it is missing still."""
    from coterie.bench.provenance import provenance
    from coterie.report.progress import ManyWatcher
    from coterie.reproduction.play import play, prepare, take

    left = take(works, out, part)
    if not left:
        return None
    ahead = prepare(left, out)
    minutes = {one.task.name: one.minutes for one in ahead}
    again = "; the same command goes on"
    with ManyWatcher(open_console(), len(ahead), sum(minutes.values()), "estimated min") as watcher:

        def tell(task: Task, what: str, about: Any) -> None:
            if what == "began":
                watcher.began(task.name, task.rounds, minutes[task.name] / task.rounds)
            elif what == "round":
                watcher.round(task.name, *about)
            elif what == "said":
                log.warning("%s: %s", task.name, about)
            else:
                watcher.end(task.name, f"failed: {about}" if what == "failed" else what)

        try:
            failed = play(ahead, jobs, provenance(), tell)
        except KeyboardInterrupt as stopped:
            raise Interrupted(f"interrupted{again}") from stopped
    if not failed:
        return None
    first, why = next(iter(failed.items()))
    return Lost(f"{len(failed)} of {len(ahead)} runs failed, {first}: {why}{again}")


def _show(work: Work) -> None:
    from rich.markup import escape

    from coterie.report.tables import plain
    from coterie.reproduction.figures import draw, drawable
    from coterie.reproduction.page import blocks, claims, distances, former_runs, lacking

    console, asked, found = open_console(), work.item, work.results
    size = "quick, which proves nothing about the paper" if work.size == "quick" else work.size
    say(console, f"\n{asked.name}: {asked.title}: ours ({size}), and (the paper's)")
    for block in blocks(asked, found):
        console.print(plain(escape(block.variant), block.headings, block.rows))
    for says, outcome, numbers in claims(asked, found):
        say(console, f"{outcome}: {says}" + (f": {numbers}" if numbers else ""))
    for line in distances(asked, work.size, found):
        say(console, line)
    for departure in asked.table["departures"]:
        say(console, f"Departure: {departure}")
    if left := lacking(asked, work.size, found):
        say(console, f"Not run: {left}")
    if found.former:
        say(console, f"Not shown: {former_runs(found)}")
    say(console, f"\nThe results are in {found.path.with_suffix('.csv')}")
    if drawable(asked, found):
        picture = found.path.with_suffix(".png")
        draw(asked, found, picture)
        say(console, f"The picture is {picture}")


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
    open_console().print(plain("", headings, rows, left=3))


def _state(item: Item, size: str, found: Results) -> str:
    """Such as bounded, or full 12/60 (and 3 that lack a column; 3 runs made with former settings)."""
    from coterie.reproduction.page import former_runs
    from coterie.reproduction.play import missing

    left, whole = missing(item, size, found), item.runs(size)
    counted = f" {whole - len(left)}/{whole}" if left else ""
    there = {line.run for line in found.lines}
    partly = sum((one.variant, one.method, one.seed) in there for one in left)
    more = [f"and {partly} that lack a column" if partly else "", former_runs(found) if found.former else ""]
    return f"{size}{counted}" + (f" ({'; '.join(filter(None, more))})" if any(more) else "")
