"""Many runs at once, for `coterie run --seeds --jobs --sweep` and `coterie resume` of their folder."""

from __future__ import annotations

import csv
import io
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.console import open_console, say
from coterie.errors import CoterieError, Interrupted, Lost

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment
    from coterie.experiment.study import Sweep, Task
    from coterie.report.compare import Line
    from coterie.toml import Table

log = logging.getLogger("coterie")


def run_study(
    read: tuple[Table, str, Path], sweep: Sweep | None, folder: Path, jobs: int, again: bool, wide: bool
) -> bool:
    """Begin a study in its folder, and play it; nothing is written or cleared before all of it is known to be right.

    Did every run end well?
    """
    from coterie.experiment.experiment import parse
    from coterie.experiment.study import (
        begin,
        begin_sweep,
        clear,
        refuse_links,
        refuse_links_of_sweep,
        tuning_of,
    )
    from coterie.experiment.trust import remember
    from coterie.runs.lock import locked

    check_jobs(jobs)
    asked = parse(*read)
    tuning = None if sweep is None else tuning_of(read, sweep)
    _refuse_taken(folder, again)
    refuse_links(asked, folder)
    if tuning is not None:
        refuse_links_of_sweep(tuning.experiment, folder)
    _check(asked)
    remember(asked)
    with locked(folder):
        if _refuse_taken(folder, again):  # perhaps since, by another process
            clear(folder)
        if tuning is None:
            begin(asked, folder)
        else:
            begin_sweep(tuning, folder)
    return go_on(folder, jobs, wide)


def _refuse_taken(folder: Path, again: bool) -> bool:
    """Unless it is to be started over; is there anything to clear?"""
    from coterie.experiment.study import is_study
    from coterie.runs.folder import RunFolder

    taken = RunFolder(folder).taken or is_study(folder)
    if taken and not again:
        raise CoterieError(
            f"--out is '{folder}', which already holds a run; allowed is another folder, --again to start over, "
            f"or `coterie resume {folder}`"
        )
    return taken


def check_jobs(jobs: int) -> None:
    if not 1 <= jobs <= 256:
        raise CoterieError(f"--jobs is {jobs}; allowed is 1 to 256 runs at a time")


def _check(asked: Experiment) -> None:
    """Refuse before anything is written what no run could do; data of the first seed stands for all."""
    first = asked.with_seed(asked.seeds[0]) if asked.seeds else asked
    federation = first.federation()
    for method in first.methods:
        method.check(federation.ids, first.seed)
    first.factory(federation)()


def go_on(folder: Path, jobs: int, wide: bool, trust: bool = False) -> bool:
    """Play what is not finished of the study in this folder: its sweep first, then its runs; then the table.

    Did every run end well? Of what a sweep tries, some may not.
    """
    from coterie.experiment.experiment import load_kept
    from coterie.experiment.study import (
        CHOICE,
        SWEEP,
        TUNING,
        begin,
        choose,
        mend,
        refuse_links,
        refuse_links_of_sweep,
    )
    from coterie.experiment.trust import check
    from coterie.files import read_kept, with_checksum, write_json

    check_jobs(jobs)
    if (folder / TUNING / SWEEP).is_file() and not (folder / "experiment.toml").is_file():
        tuning = load_kept(folder / TUNING)
        check(tuning, folder, trust)
        refuse_links_of_sweep(tuning, folder)
        _play(tuning, folder / TUNING, folder, jobs)
        chosen, lines = choose(folder)
        write_json(folder / CHOICE, with_checksum({"tried": lines}))
        begin(chosen, folder)
    if not (folder / "experiment.toml").is_file():
        raise CoterieError(
            f"{folder} holds no experiment.toml; allowed is the folder of a run that was begun"
        )
    if (folder / CHOICE).is_file():
        _show_choice(read_kept(folder / CHOICE)["tried"])
    asked = load_kept(folder)
    check(asked, folder, trust)
    refuse_links(asked, folder)
    mend(asked, folder)
    _play(asked, folder, folder, jobs)
    return _show(asked, folder, wide)


def _play(asked: Experiment, place: Path, folder: Path, jobs: int) -> None:
    from coterie.experiment.study import tasks_of
    from coterie.experiment.workers import Workers
    from coterie.report.progress import ManyWatcher
    from coterie.runs.lock import locked

    tasks = tasks_of(asked, place)
    if not tasks:
        return
    own = all(task.store != place for task in tasks)  # otherwise the one run here locks the folder itself
    with (
        locked(place) if own else nullcontext(),
        ManyWatcher(open_console(), len(tasks), sum(task.rounds for task in tasks)) as watcher,
    ):

        def tell(task: Task, what: str, about: Any) -> None:
            if what == "began":
                watcher.began(task.name, task.rounds)
            elif what == "round":
                watcher.round(task.name, *about)
            elif what == "said":
                log.warning("%s: %s", task.name, about)
            else:
                watcher.end(task.name, f"failed: {about}" if what == "failed" else what)

        try:
            failed = Workers(tasks, jobs, tell).play()
        except KeyboardInterrupt as stopped:
            raise Interrupted(f"interrupted; go on with `coterie resume {folder}`") from stopped
    if failed:
        first, why = next(iter(failed.items()))
        raise Lost(
            f"{len(failed)} of {len(tasks)} runs failed, {first}: {why}; go on with `coterie resume {folder}`"
        )


# what came out


def _show(asked: Experiment, folder: Path, wide: bool) -> bool:
    """The table over seeds, also as table.csv, and the verdicts; did every run end well?"""
    from coterie.experiment.reference import compare_with_fedavg
    from coterie.experiment.study import TABLE, runs_of
    from coterie.files import write_whole
    from coterie.report import tables
    from coterie.report.compare import lines, read_runs
    from coterie.report.verdicts import over_seeds
    from coterie.runs.folder import RunFolder
    from coterie.runs.verdict import ended_badly

    console = open_console()
    summaries = [
        compare_with_fedavg({m.label: RunFolder(one.folder_of(m, place)) for m in one.methods})
        for place, one in runs_of(asked, folder).items()
    ]
    places = [one.folder_of(m, place) for place, one in runs_of(asked, folder).items() for m in one.methods]
    console.print(tables.compared(lines(read_runs(places, wide)), console.width))
    write_whole(folder / TABLE, _csv(lines(read_runs(places, True))).encode())
    for line in over_seeds(summaries):
        say(console, line)
    say(console, f"\nThe runs are in {folder}, the table in {folder / TABLE}")
    first, what = next(iter(runs_of(asked, folder))), "one seed" if asked.seeds else "the run"
    say(console, f"`coterie show {first}` shows {what} client by client")
    return not any(ended_badly(one) for run in summaries for one in run.values())


def _csv(lines: list[Line]) -> str:
    columns = [line.over_seeds() for line in lines]
    headings = list(dict.fromkeys(heading for one in columns for heading in one))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["method", "seeds", *(f"{h}{part}" for h in headings for part in ("", " std"))])
    for line, found in zip(lines, columns, strict=True):
        cells = [value for h in headings for value in found.get(h, (None, None))]
        table.writerow([line.name, len(line.runs), *("" if one is None else one for one in cells)])
    return text.getvalue()


def _show_choice(lines: list[dict[str, Any]]) -> None:
    from coterie.report import tables

    open_console().print(tables.swept(lines))
