"""`coterie choose-clusters`, and what `coterie run` does before it plays: a number in place of every "auto"."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.console import open_console, say, show_table
from coterie.cli.data import DataFolder
from coterie.errors import CoterieError, Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.experiment.experiment import Experiment, Prepared
    from coterie.experiment.methods import Method
    from coterie.model_selection.choice import Choice
    from coterie.report.progress import Watcher
    from coterie.runs.recorder import Watch
    from coterie.runs.result import Record

log = logging.getLogger("coterie")


def choose_clusters(
    experiment: Annotated[Path, typer.Argument(help="A TOML file; its numbers of clusters do not matter.")],
    least: Annotated[int | None, typer.Option(help="The fewest clusters to try; 1 if not given.")] = None,
    most: Annotated[int | None, typer.Option(help="The most clusters to try; 8 if not given.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A change, such as choosing.n_init=4; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for what is found; runs/NAME-SEED-clusters if not given.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over in a folder that holds a choice.")
    ] = False,
    data_dir: DataFolder = None,
) -> int:
    """Choose the number of clusters, on training points that clients hold out."""
    from coterie.data.sources.catalogue import use
    from coterie.experiment.experiment import load
    from coterie.files import write_whole
    from coterie.report.progress import Watcher
    from coterie.runs.lock import locked

    use(data_dir)
    given = {name: n for name, n in (("least", least), ("most", most)) if n is not None}
    asked = _asking(load(experiment, set_ or (), seed).single(), given)
    folder = out or Path("runs") / f"{asked.name}-{asked.seed}-clusters"
    prepared = asked.prepare()
    console = open_console()
    with locked(folder):
        folders = _make_room(asked, folder, again)
        try:
            with Watcher(console) as watcher:
                for method, own in zip(asked.methods, folders, strict=True):
                    show(console, method, choose_number(prepared, method, own, watcher), own)
        except KeyboardInterrupt as stopped:
            raise Interrupted("interrupted; the same command goes on") from stopped
        write_whole(folder / "choice.toml", asked.resolved().encode())
    say(console, f"\nThe choice is in {folder}")
    return 0


def _asking(experiment: Experiment, given: dict[str, int]) -> Experiment:
    """The experiment's clustered methods, each with its number to be chosen between the limits that are given."""
    from coterie.experiment.schema import Section, saying
    from coterie.protocol.stages import check_clustered, is_clustered

    with saying(Section("", names={name: f"--{name}" for name in given})):
        choosing = replace(experiment.choosing, **given)
    methods = [m for m in experiment.methods if is_clustered(type(m.stages[-1].algorithm))]
    if not methods:
        check_clustered(type(experiment.methods[0].stages[-1].algorithm))
    return replace(experiment, choosing=choosing, methods=tuple(replace(m, auto=True) for m in methods))


def _make_room(asked: Experiment, folder: Path, again: bool) -> list[Path]:
    """A folder for each method; one that holds a run is refused."""
    from coterie.model_selection.choice import forget
    from coterie.runs.folder import RunFolder

    folders = [asked.folder_of(method, folder) for method in asked.methods]
    if any(RunFolder(one).taken for one in (folder, *folders)):
        raise CoterieError(f"--out is '{folder}', which holds a run; allowed is another folder")
    for one in folders if again else ():
        forget(one)
    return folders


def resolve_auto(prepared: Prepared, folder: Path, watcher: Watcher) -> Prepared:
    """The same experiment with numbers in place of "auto"; every choice is shown."""

    def choose(method: Method, own: Path) -> int:
        choice = choose_number(prepared, method, own, watcher)
        show(watcher.console, method, choice)
        return choice.n_clusters

    return prepared.resolve_auto(folder, choose)


def choose_number(prepared: Prepared, method: Method, folder: Path, watcher: Watcher) -> Choice:
    """The choice for one method, with a bar (or a line) for each number tried."""
    bars: dict[int, Watch] = {}

    def watch(clusters: int, record: Record, rounds: int) -> None:
        if clusters not in bars:
            bars[clusters] = watcher.method(f"{method.label}, n_clusters = {clusters}", rounds)
        if watcher.console.is_terminal or record["round"] + 1 == rounds:
            bars[clusters](record, rounds)

    return prepared.choose(method, folder, watch)


def show(console: Console, method: Method, choice: Choice, folder: Path | None = None) -> None:
    """The table, the sentence, and where a folder is given the plot."""
    from coterie.model_selection.choice import CSV, JSON, TRIED
    from coterie.report import plots, tables

    show_table(console, tables.chosen(choice))
    say(console, f"{method.label}: {choice.why()}")
    warning = choice.warning()
    if warning is not None:
        log.warning("%s: %s", method.label, warning)
    if folder is not None:
        say(
            console,
            f"The numbers are in {folder / CSV} and {folder / JSON}, what was tried in {folder / TRIED}",
        )
        try:
            say(console, f"The plot is {plots.draw_choice(choice, folder)}")
        except CoterieError as problem:  # the table is there all the same
            log.warning("%s", problem)
