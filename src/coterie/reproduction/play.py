"""Run items: all that their results do not have yet, several runs at a time, and no run twice.

A run is known by a hash of its settings and by its seed, and is kept as runs/HASH/seed-N, whichever item asked for it
first. `made.json` there says who made it and is written last: every item with these settings and this seed then reads
its own numbers there.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.errors import CoterieError, Lost
from coterie.experiment.experiment import Experiment
from coterie.experiment.study import Task, begin, sharing
from coterie.experiment.workers import Tell, Workers
from coterie.files import make_folder, write_json
from coterie.protocol.stages import Progress
from coterie.reproduction import clusterings
from coterie.reproduction.items import Item
from coterie.reproduction.measures import curve, measure
from coterie.reproduction.part import ALL, Part
from coterie.reproduction.points import HEADS, Point, rows_of
from coterie.reproduction.results import Line, Results
from coterie.runs.folder import RunFolder
from coterie.runs.lock import locked
from coterie.runs.verdict import ended_badly

MADE, CLUSTERING = "made.json", "clustering.json"
Run = tuple[str, int]  # a hash of settings, and a seed


@dataclass(frozen=True)
class Wanted:
    """A run of an item; of a clustering all methods at once, of no name."""

    variant: str
    method: str
    seed: int
    settings: str  # a hash


def missing(item: Item, size: str, results: Results, part: Part = ALL) -> list[Wanted]:
    """Runs of which a column is not there, or what a figure draws, made with the settings that the item has today."""
    there: dict[tuple[str, str, int], set[str]] = {}
    ended_well = {line.run for line in results.lines if not math.isnan(line.value)}
    for line in results.lines:
        method = line.method if item.kind == "runs" else ""
        there.setdefault((line.variant, method, line.seed), set()).add(line.column)
    columns = {column.name for column in item.columns}
    drawn = {(point.variant, point.method) for point in results.points}
    return [
        Wanted(*row, seed, settings)
        for row, settings in item.hashes(size).items()
        for seed in item.seeds(size)
        if part.has(*row, seed)
        if not columns <= there.get((*row, seed), set())
        or (_has_points(item, size, seed) and (*row, seed) in ended_well and row not in drawn)
    ]


def _has_points(item: Item, size: str, seed: int) -> bool:
    """Points are drawn of the first seed alone."""
    return item.figure in HEADS and seed == item.seeds(size)[0]


@dataclass(frozen=True)
class Work:
    """An item to be run in one size, and what there is of it."""

    item: Item
    size: str
    results: Results

    @property
    def name(self) -> str:
        return f"{self.item.name}-{self.size}"


For = list[tuple[Work, Wanted]]  # all that one run is for


@dataclass(frozen=True)
class Ahead:
    """A run to be played."""

    task: Task
    wanted: For

    @property
    def kind(self) -> str:
        return self.wanted[0][0].item.kind

    @property
    def minutes(self) -> float:
        """About how long it takes."""
        work, _ = self.wanted[0]
        return work.item.minutes(work.size) / work.item.runs(work.size)


def take(works: Iterable[Work], out: Path, part: Part = ALL) -> dict[Run, For]:
    """What is missing: numbers are taken from the runs that are there, and the other runs are left."""
    left: dict[Run, For] = {}
    for work in works:
        for one in missing(work.item, work.size, work.results, part):
            left.setdefault((one.settings, one.seed), []).append((work, one))
    return {run: wanted for run, wanted in left.items() if not _take(_folder_of(run, out), wanted)}


def _folder_of(run: Run, out: Path) -> Path:
    return out / "runs" / run[0] / f"seed-{run[1]}"


def _take(folder: Path, wanted: For) -> bool:
    """Is the run there? Then all that want its numbers have them."""
    if not (folder / MADE).is_file():
        return False
    made = json.loads((folder / MADE).read_text(encoding="utf-8"))
    for work, one in wanted:
        lines = _of_clustering if work.item.kind == "clustering" else _of_run
        work.results.add(lines(work.item, folder, one, work.results.maker(made)))
        if _has_points(work.item, work.size, one.seed):
            work.results.add_points(_points(work.item, folder, one))
        work.results.save()
    return True


def _of_run(item: Item, folder: Path, run: Wanted, made: int) -> list[Line]:
    """Every column of a finished run; of a curve the rounds that were measured, and the last in any case.

    One that diverged may have the centers of an earlier round: its numbers are none.
    """
    store = RunFolder(folder)
    summary = store.summary()

    def line(column: str, number: int | None, value: float) -> Line:
        return Line(run.variant, run.method, column, run.seed, number, value, made, run.settings)

    if ended_badly(summary):
        last = summary["rounds"]
        return [line(one.name, last if one.by_round else None, math.nan) for one in item.columns]
    records = store.records(summary["rounds"])
    found = []
    for column in item.columns:
        if not column.by_round:
            found.append(line(column.name, None, measure(column.of)(summary, records)))
            continue
        values = curve(column.of)(summary, records)
        found += [
            line(column.name, number + 1, value)
            for number, value in enumerate(values)
            if value == value or number + 1 == len(values)
        ]
    return found


def _points(item: Item, folder: Path, run: Wanted) -> list[Point]:
    """Of every round in a figure that has something by round, else of the last; none of a run that diverged."""
    if ended_badly(RunFolder(folder).summary()):
        return []
    every_round = any(column.by_round for column in item.columns)
    rows = rows_of(str(item.figure), RunFolder(folder), every_round)
    return [Point(run.variant, run.method, run.settings, number, row) for number, row in rows]


def _of_clustering(item: Item, folder: Path, run: Wanted, made: int) -> list[Line]:
    known = {column.of: column.name for column in item.columns}
    found = json.loads((folder / CLUSTERING).read_text(encoding="utf-8"))
    place = run.seed, None
    return [
        Line(run.variant, method, known[name], *place, _number(value), made, run.settings)
        for method, numbers in found.items()
        for name, value in numbers.items()
        if name in known
    ]


def _number(value: float | None) -> float:
    """What is not finite is null in JSON."""
    return math.nan if value is None else value


# playing


def prepare(left: Mapping[Run, For], out: Path) -> list[Ahead]:
    """Write what is to be run."""
    several = len({work.name for wanted in left.values() for work, _ in wanted}) > 1
    begun: dict[Path, Experiment] = {}
    found = []
    for run, wanted in left.items():
        work, one = wanted[0]
        parts = (work.item.name if several else "", one.variant, f"seed-{one.seed}", one.method)
        name, store = "/".join(filter(None, parts)), _folder_of(run, out)
        if work.item.kind == "clustering":
            found.append(Ahead(Task(store, None, store, 1, name), wanted))
            continue
        folder = out / work.name / folder_name(one.variant) / f"seed-{one.seed}"
        if folder not in begun:
            begun[folder] = work.item.experiment(one.variant, work.size, one.seed)
            begin(begun[folder], folder)
        found.append(Ahead(_task(begun[folder], folder, one.method, store, name), wanted))
    return _sharing(found)


def _sharing(ahead: Sequence[Ahead]) -> list[Ahead]:
    """Runs of an item have like steps."""
    of_item: dict[str, list[Ahead]] = {}
    for one in ahead:
        of_item.setdefault(one.wanted[0][0].name, []).append(one)
    return [
        Ahead(task, one.wanted)
        for runs in of_item.values()
        for task, one in zip(sharing([one.task for one in runs]), runs, strict=True)
    ]


def folder_name(variant: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", variant).strip("-.") or "all"


def _task(experiment: Experiment, folder: Path, label: str, store: Path, name: str) -> Task:
    """A run that was begun under other names, or finished by it is not known whom, starts over."""
    method = next(one for one in experiment.methods if one.label == label)
    there, text = RunFolder(store), experiment.only(method).resolved()
    if there.finished or (there.experiment.is_file() and there.text() != text):
        with locked(store):
            there.clear()
    return Task(folder, label, store, Progress(method.stages).planned, name, models=False)


def play(ahead: Sequence[Ahead], jobs: int, made: dict[str, str], tell: Tell) -> dict[str, str]:
    """Play them, and keep the numbers of each when it is done; those that failed, with their reasons."""
    wanted = {one.task.name: one.wanted for one in ahead}

    def heard(task: Task, what: Any, about: Any) -> None:
        if what == "done":
            write_json(task.store / MADE, made)
            _take(task.store, wanted[task.name])
        tell(task, what, about)

    failed = _play_clusterings([one for one in ahead if one.kind == "clustering"], jobs, heard)
    return failed | Workers([one.task for one in ahead if one.kind == "runs"], jobs, heard).play()


def _play_clusterings(ahead: Sequence[Ahead], jobs: int, tell: Tell) -> dict[str, str]:
    """Each in a process of its own."""
    waiting, failed = list(ahead), {}
    playing: dict[Future[clusterings.Found], Task] = {}
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_ignore_ctrl_c)
    try:
        while waiting or playing:
            while waiting and len(playing) < jobs:
                task, (work, one) = waiting[0].task, waiting.pop(0).wanted[0]
                playing[pool.submit(_cluster, work.item.settings(one.variant, work.size), one.seed)] = task
                tell(task, "began", None)
            for future in wait(playing, return_when=FIRST_COMPLETED).done:
                task = playing.pop(future)
                try:
                    found = future.result()
                except BrokenProcessPool as broken:
                    raise Lost(
                        "a process ended, perhaps for want of memory: fewer --jobs take less"
                    ) from broken
                except CoterieError as problem:
                    failed[task.name] = str(problem)
                    tell(task, "failed", problem)
                    continue
                make_folder(task.store)
                write_json(task.store / CLUSTERING, found)
                tell(task, "done", None)
    finally:
        pool.shutdown(cancel_futures=True)  # those under way are waited for; none is begun
    return failed


def _ignore_ctrl_c() -> None:
    """The parent says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cluster(settings: dict[str, Any], seed: int) -> clusterings.Found:
    torch.set_num_threads(1)
    return clusterings.play(settings, seed)
