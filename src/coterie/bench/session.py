"""Every workload, all baselines interleaved, into one report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from coterie.bench.processes import Measured, Progress, run_interleaved
from coterie.bench.provenance import provenance
from coterie.bench.registry import baselines_for
from coterie.bench.roofline import Ceilings, ceilings, least_seconds
from coterie.bench.task import Conditions, Score, Task
from coterie.bench.workloads import WORKLOADS, Workload
from coterie.errors import CoterieError, require

Report = dict[str, Any]
ACCURACY = 0.02  # how far shares of right points may differ, where there is no loss to compare


def chosen(only: Sequence[str], device: str) -> dict[str, Workload]:
    """The workloads asked for; else all that suit the device."""
    for name in only:
        require(name in WORKLOADS, "--only", name, f"one of {', '.join(WORKLOADS)}")
    if only:
        return {name: WORKLOADS[name] for name in only}
    return {name: work for name, work in WORKLOADS.items() if device != "cpu" or not work.cuda_only}


def check(conditions: Conditions, repeats: int) -> None:
    require(repeats >= 1, "--repeats", repeats, "a whole number from 1")
    require(conditions.threads >= 1, "--threads", conditions.threads, "a whole number from 1")
    require(conditions.device in ("cpu", "cuda"), "--device", conditions.device, "cpu or cuda")
    if conditions.device == "cuda" and not torch.cuda.is_available():
        raise CoterieError("--device is 'cuda', but torch finds none here; allowed is cpu")
    if conditions.tf32 and conditions.device != "cuda":
        raise CoterieError("--tf32 is given without --device cuda; only such devices have it")


def run(
    works: dict[str, Workload],
    conditions: Conditions,
    repeats: int,
    pythons: dict[str, str],
    baselines: Sequence[str],
    report: Report,
    progress: Progress,
    finished: Callable[[], None],
) -> None:
    """Fill in the report, workload by workload, so that something is there when it is interrupted."""
    report["provenance"] = {**provenance(), **asdict(conditions), "repeats": repeats}
    limits = None
    if conditions.device == "cuda" and any(work.roofline for work in works.values()):
        limits = ceilings(conditions.tf32)
        report["ceilings"] = asdict(limits)
    report["workloads"] = {}
    for name, work in works.items():
        measured: dict[str, Measured] = {}
        with tempfile.TemporaryDirectory(prefix="coterie-bench-", ignore_cleanup_errors=True) as folder:
            task = Task(work, Path(folder) / "task", conditions)
            selected = baselines_for(work, conditions.device, conditions.threads, baselines)
            try:
                run_interleaved(
                    task, selected, pythons, repeats, partial(_progress_of, progress, name), measured
                )
            finally:
                report["workloads"][name] = {
                    "settings": work.named(),
                    "start": asdict(task.initial),
                    "baselines": rows(work, task.initial, measured, limits),
                }
        finished()


def _progress_of(progress: Progress, name: str, doing: str) -> None:
    progress(f"{name}: {doing}")


def rows(
    work: Workload, initial: Score, measured: dict[str, Measured], limits: Ceilings | None = None
) -> Report:
    """A line for each baseline, compared with the first of them."""
    if not measured:
        return {}
    usual = next(iter(measured.values()))
    steps = work.steps or (median(usual.steps) if usual.steps else None)
    least = least_seconds(work, limits) if limits and work.roofline else None
    return {
        name: _row(one, usual, steps, least, differs(work, initial, one.score, usual.score))
        for name, one in measured.items()
    }


def _row(one: Measured, usual: Measured, steps: float | None, least: float | None, differs: str) -> Report:
    if one.skipped or not one.seconds:
        return {"skipped": one.skipped or "interrupted"}
    middle = median(one.seconds)
    row: Report = {
        "seconds_a_round": middle,
        "spread": _spread(one.seconds),
        "all_seconds": [float(f"{s:.4g}") for s in one.seconds],
        "client_steps_per_second": None if steps is None else steps / middle,
        "times_usual": median(usual.seconds) / middle if usual.seconds else None,
        "start_up_seconds": one.start_up,
        "peak_memory_bytes": one.memory or None,
        "peak_device_memory_bytes": one.device_memory,
        "versions": one.versions,
        "loss": one.score.loss if one.score else None,
        "accuracy": one.score.accuracy if one.score else None,
        "differs": differs,
    }
    if least is not None and steps is not None:
        row["share_of_floor"] = least * steps / middle
    return row


def _spread(seconds: list[float]) -> float:
    """The distance of the quartiles relative to the median; of two rounds half their distance."""
    if len(seconds) == 1:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median(seconds)


def differs(work: Workload, initial: Score, mine: Score | None, usual: Score | None) -> str:
    """Where a model has not learned what the usual loop's has, so that speeds cannot be compared."""
    if mine is None or usual is None:
        return "not scored"
    if mine.loss is not None and usual.loss is not None and initial.loss is not None:
        gap, allowed = abs(mine.loss - usual.loss) / abs(initial.loss - usual.loss), work.tolerance
        what = f"off by {100 * gap:.2g} % of the way from the start"
        return "" if gap <= allowed else f"{what}, more than {100 * allowed:g} %"
    assert mine.accuracy is not None
    assert usual.accuracy is not None
    gap = abs(mine.accuracy - usual.accuracy)
    return "" if gap <= ACCURACY else f"off by {gap:.2g}, more than {ACCURACY}"
