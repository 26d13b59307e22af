"""Run an item: all that its results do not have yet, several runs at a time."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
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

Asked = tuple[str, int]  # a variant and a seed


def missing(item: Item, size: str, results: Results) -> list[Asked]:
    """Variants and seeds of which a method is not there."""
    found = []
    for variant in item.variants:
        methods = item.settings(variant, size).get("method") if item.kind == "runs" else None
        for seed in item.seeds(size):
            there = {line.method for line in results.lines if (line.variant, line.seed) == (variant, seed)}
            if not there or (methods and not {one["label"] for one in methods} <= there):
                found.append((variant, seed))
    return found


def tasks(
    item: Item, size: str, asked: list[Asked], results: Results, out: Path
) -> dict[str, tuple[Task, Asked]]:
    """Of kind `runs`: every method of these variants and seeds that is not there, by the task's name."""
    found = {}
    for variant, seed in asked:
        experiment = item.experiment(variant, size, seed)
        folder = out / _folder(variant) / f"seed-{seed}"
        begin(experiment, folder)
        for task in tasks_of(experiment, folder, all_of_them=True):
            assert task.label is not None
            if not results.has(variant, task.label, seed):
                name = "/".join(part for part in (variant, f"seed-{seed}", task.label) if part)
                found[name] = (replace(task, name=name), (variant, seed))
    return found


def _folder(variant: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", variant).strip("-.") or "all"


def play_runs(
    item: Item, ahead: dict[str, tuple[Task, Asked]], results: Results, made: int, jobs: int, tell: Tell
) -> dict[str, str]:
    """Play them and keep each one's numbers when it is done; those that failed, with their reasons."""

    def heard(task: Task, what: Any, about: Any) -> None:
        if what == "done":
            variant, seed = ahead[task.name][1]
            results.add(_numbers(item, task, variant, seed, made))
            results.save()
        tell(task, what, about)

    for task, _ in ahead.values():
        store = RunFolder(task.store)
        if store.finished:  # by whom, and with which settings, is not known: it is played again
            with locked(store.folder):
                store.clear()
    return Workers([task for task, _ in ahead.values()], jobs, heard).play()


def _numbers(item: Item, task: Task, variant: str, seed: int, made: int) -> list[Line]:
    """Every column of a finished run."""
    store, found = RunFolder(task.store), []
    summary = store.summary()
    records = store.records(summary["rounds"])
    assert task.label is not None
    for column in item.columns:
        place = (variant, task.label, column.name, seed)
        if column.by_round:
            values = curve(column.of)(summary, records)
            found += [
                Line(*place, number + 1, value, made) for number, value in enumerate(values) if value == value
            ]
        else:
            found.append(Line(*place, None, measure(column.of)(summary, records), made))
    return found


def play_clusterings(
    item: Item,
    size: str,
    asked: list[Asked],
    results: Results,
    made: int,
    jobs: int,
    done: Callable[[Asked], None],
) -> None:
    """Of kind `clustering`: variants and seeds, each in a process of its own."""
    known = {column.of: column.name for column in item.columns}
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_ignore_ctrl_c)
    try:
        playing = {
            pool.submit(_cluster, item.settings(variant, size), seed): (variant, seed)
            for variant, seed in asked
        }
        for future in as_completed(playing):
            variant, seed = playing[future]
            for method, numbers in future.result().items():
                results.add(
                    Line(variant, method, known[name], seed, None, value, made)
                    for name, value in numbers.items()
                    if name in known
                )
            results.save()
            done((variant, seed))
    finally:
        pool.shutdown(cancel_futures=True)  # those under way are waited for; none is begun


def _ignore_ctrl_c() -> None:
    """The parent says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cluster(settings: dict[str, Any], seed: int) -> clusterings.Found:
    torch.set_num_threads(1)
    return clusterings.play(settings, seed)
