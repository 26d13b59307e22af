"""Before a run: every number of clusters that is "auto" is chosen, shown, and written down."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from coterie.backends.processes import here
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment, Prepared
from coterie.experiment.methods import Method
from coterie.files import make_folder, write_whole
from coterie.model_selection.choice import Choice
from coterie.report import plots, tables
from coterie.report.progress import Watcher
from coterie.runs.folder import RunFolder
from coterie.runs.recorder import Watch
from coterie.runs.result import Record

log = logging.getLogger("coterie")


def place(experiment: Experiment, folder: Path, method: Method) -> RunFolder:
    """One method is kept in the run's folder itself, several are kept below it."""
    return RunFolder(folder / method.label if experiment.several else folder)


def settle(prepared: Prepared, folder: Path, watcher: Watcher) -> Prepared:
    """The same experiment with numbers in place of "auto", in the folder too."""
    asked = prepared.experiment
    if not asked.auto:
        return prepared
    methods = []
    for method in asked.methods:
        if method.auto:
            choice = choose_number(prepared, method, place(asked, folder, method).folder, watcher)
            show(watcher.console, method, choice)
            method = method.with_clusters(choice.n_clusters)
        methods.append(method)
    settled = replace(asked, methods=tuple(methods))
    here().once(lambda: _write(settled, folder))
    return replace(prepared, experiment=settled)


def _write(settled: Experiment, folder: Path) -> None:
    if not settled.several:
        make_folder(folder / "clients")  # as in a run that was begun
    write_whole(folder / "experiment.toml", settled.resolved().encode())


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
    console.print(tables.chosen(choice))
    console.print(f"{method.label}: {choice.why()}", markup=False, highlight=False, soft_wrap=True)
    warning = choice.warning()
    if warning is not None:
        log.warning("%s: %s", method.label, warning)
    if folder is not None:
        try:
            plots.draw(choice, folder)
        except CoterieError as problem:  # the table is there all the same
            log.warning("%s", problem)
