"""Asks a run's clients, at its end, what the verdict needs to know."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from coterie.prng import mix
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages
from coterie.protocol.result import Snapshot
from coterie.runs.onboarding import Ask
from coterie.runs.result import Record
from coterie.runs.verdict import Evidence, Verdict, judge, unknown

log = logging.getLogger("coterie")

JUDGES = 200  # clients that are asked, drawn where there are more: each trains for an epoch


def verdict_of(coordinator: Coordinator, ask: Ask, result: Snapshot, records: list[Record]) -> Verdict | None:
    """Of a method with clusters; None of another."""
    algorithm, clusters = coordinator.stage.algorithm, result.importance.shape[1]
    if clusters < 2 or algorithm.votes or not coordinator.has_centers:
        return None
    importance = result.importance[result.importance.isfinite().all(1)]
    if not len(importance):
        return unknown("clients did not say how much of each cluster they have")
    # as if there were one client more that has all alike, so that no center has nothing
    used = (importance.sum(0) + 1 / clusters) / (len(importance) + 1)
    found = ask("judge", _offer(coordinator, used, result.centers))
    if found is None or not len(found):
        return unknown("clients were not asked, or none answered")
    known = result.importance[found.clients].isfinite().all(1) & found.importance.isfinite().all(1)
    evidence = _evidence(coordinator, found.take(known.nonzero()[:, 0]), result, used, records)
    return coordinator.clients.group.once(lambda: _judged(evidence))


def _judged(evidence: Evidence) -> Verdict:
    """A finished run is not lost for what cannot be judged."""
    try:
        return judge(evidence)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        log.warning("the run could not be judged: %s", problem)
        return unknown("what clients answered could not be judged")


def _offer(coordinator: Coordinator, used: Tensor, middle: Tensor) -> Messages:
    """All centers, and the importance that clients have on average; over a graph also the mean of peers' centers."""
    state = coordinator.state.for_everyone()
    shown = {"importance": used[None].to(state.centers.dtype)}
    if not state.at_server:
        shown["middle"] = middle[None]
    if not coordinator.among_peers:  # who have their own
        shown["centers"] = state.centers
    every = state.offer(**shown)
    if len(every) <= JUDGES:
        return every
    drawn = torch.argsort(mix(coordinator.seed, "judges", state.keys))[:JUDGES]
    return every.take(drawn.sort().values)


def _evidence(
    coordinator: Coordinator, found: Messages, result: Snapshot, used: Tensor, records: list[Record]
) -> Evidence:
    here = {name: _plain(value) for name, value in found.fields.items()}
    every = result.importance[result.importance.isfinite().all(1)]
    largest = torch.bincount(every.argmax(1), minlength=every.shape[1])
    stages = {record["stage"]: record["separated"] for record in records if "separated" in record}
    gaps = [r["spectral_gap"] for r in records if r.get("spectral_gap") is not None]
    return Evidence(
        chosen=_plain(result.importance[found.clients]),
        hard=not coordinator.stage.algorithm.soft,
        used=_plain(used),
        largest=largest.cpu(),
        gap=None if coordinator.state.at_server or not gaps else gaps[-1],
        rounds=coordinator.progress.round,
        init_separated=all(stages.values()) if stages else None,
        finite=bool(result.centers.isfinite().all()),
        **here,
    )


def _plain(values: Tensor) -> Tensor:
    return values.double().cpu()
