"""`coterie show`: a run, finished or not: its clusters, who is in them, and how well its clients are served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.console import open_console, say, show_table
from coterie.errors import require

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.report.shown import Shown


def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of one of its methods.")],
    worst: Annotated[int, typer.Option(help="How many of the clients that are served worst to show.")] = 5,
    all_: Annotated[bool, typer.Option("--all", help="All members of every cluster.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Every column.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON, with all members.")] = False,
) -> int:
    """Who is in which cluster, and how well is each client served?"""
    from coterie.report import tables
    from coterie.report.shown import as_json, read

    require(worst >= 0, "--worst", worst, "a whole number from 0")
    (found, to_come), console = read(run, wide or json), open_console()
    if json:
        say(console, as_json(found, worst))
        return 0
    numbers = {one.label: one.numbers for one in found if one.finished}
    if numbers:
        show_table(console, tables.end_of_run(numbers, console.width))
    for one in found:
        _show(console, one, worst, all_, wide)
    for label in to_come:
        say(console, f"\n{label}: not begun")
    if to_come or not all(one.finished or one.in_python for one in found):
        say(console, f"\n`coterie resume {run}` goes on with what is not finished")
    return 0


def _show(console: Console, one: Shown, worst: int, all_: bool, wide: bool) -> None:
    from coterie.report import clusters

    say(console, f"\n{one.label}: {one.state()}, in {one.folder}")
    console.print(one.settings, markup=False, highlight=False)
    if one.clusters:
        console.print()
        show_table(console, clusters.clusters_table(one.clusters, wide))
    if one.clusters and one.finished:
        listed = clusters.all_members if all_ else clusters.first_members
        members = (listed(each, f"cluster {each.number}, ", console.width) for each in one.clusters)
        say(console, "\n" + "\n".join(members))
    if one.verdict:
        say(console, "\n" + "\n".join(one.verdict))
    served_worst = clusters.worst(one.lines, worst) if one.finished else []
    if served_worst:
        console.print(f"\nServed worst, by {'loss' if served_worst[0].accuracy is None else 'accuracy'}:")
        show_table(console, clusters.clients_table(served_worst, bool(one.clusters), wide))
