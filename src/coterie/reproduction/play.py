"""Run an item: all that its results do not have yet, several runs at a time."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coterie.experiment.study import Task, begin, tasks_of
from coterie.experiment.workers import Tell, Workers
from coterie.reproduction import clusterings
from coterie.reproduction.items import Item
from coterie.reproduction.measures import curve, measure
from coterie.reproduction.results import Line, Results
from coterie.runs.folder import RunFolder
from coterie.runs.lock import locked


@dataclass(frozen=True)
class Wanted:
    """A run of an item; of a clustering all methods at once, of no name."""

    variant: str
    method: str
    seed: int
    settings: str  # a hash


def missing(item: Item, size: str, results: Results) -> list[Wanted]:
    """Runs of which a column is not there, made with the settings that the item has today."""
    there: dict[tuple[str, str, int], set[str]] = {}
    for line in results.lines:
        method = line.method if item.kind == "runs" else ""
        there.setdefault((line.variant, method, line.seed), set()).add(line.column)
    columns = {column.name for column in item.columns}
    return [
        Wanted(*row, seed, settings)
        for row, settings in item.hashes(size).items()
        for seed in item.seeds(size)
        if not columns <= there.get((*row, seed), set())
    ]


def tasks(item: Item, size: str, wanted: list[Wanted], out: Path) -> dict[str, tuple[Task, Wanted]]:
    """Of kind `runs`, by the task's name."""
    found = {}
    for variant, seed in dict.fromkeys((one.variant, one.seed) for one in wanted):
        experiment = item.experiment(variant, size, seed)
        folder = out / _folder(variant) / f"seed-{seed}"
        begin(experiment, folder)
        of_method = {task.label: task for task in tasks_of(experiment, folder, all_of_them=True)}
        for one in wanted:
            if (one.variant, one.seed) == (variant, seed):
                name = "/".join(part for part in (variant, f"seed-{seed}", one.method) if part)
                found[name] = (replace(of_method[one.method], name=name), one)
    return found


def _folder(variant: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", variant).strip("-.") or "all"


def play_runs(
    item: Item, ahead: dict[str, tuple[Task, Wanted]], results: Results, made: int, jobs: int, tell: Tell
) -> dict[str, str]:
    """Play them and keep each one's numbers when it is done; those that failed, with their reasons."""

    def heard(task: Task, what: Any, about: Any) -> None:
        if what == "done":
            results.add(_numbers(item, RunFolder(task.store), ahead[task.name][1], made))
            results.save()
        tell(task, what, about)

    for task, _ in ahead.values():
        store = RunFolder(task.store)
        if store.finished:  # by whom, and with which settings, is not known: it is played again
            with locked(store.folder):
                store.clear()
    return Workers([task for task, _ in ahead.values()], jobs, heard).play()


def _numbers(item: Item, store: RunFolder, run: Wanted, made: int) -> list[Line]:
    """Every column of a finished run; of a curve the rounds that were measured, and the last in any case."""
    summary, records = store.summary(), store.records()

    def line(column: str, number: int | None, value: float) -> Line:
        return Line(run.variant, run.method, column, run.seed, number, value, made, run.settings)

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


def play_clusterings(
    item: Item,
    size: str,
    wanted: list[Wanted],
    results: Results,
    made: int,
    jobs: int,
    done: Callable[[Wanted], None],
) -> None:
    """Of kind `clustering`: variants and seeds, each in a process of its own."""
    known = {column.of: column.name for column in item.columns}
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_ignore_ctrl_c)
    try:
        playing = {pool.submit(_cluster, item.settings(one.variant, size), one.seed): one for one in wanted}
        for future in as_completed(playing):
            run = playing[future]
            results.add(
                Line(run.variant, method, known[name], run.seed, None, value, made, run.settings)
                for method, numbers in future.result().items()
                for name, value in numbers.items()
                if name in known
            )
            results.save()
            done(run)
    finally:
        pool.shutdown(cancel_futures=True)  # those under way are waited for; none is begun


def _ignore_ctrl_c() -> None:
    """The parent says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cluster(settings: dict[str, Any], seed: int) -> clusterings.Found:
    torch.set_num_threads(1)
    return clusterings.play(settings, seed)
