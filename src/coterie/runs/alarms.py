"""Warnings while a run is played, each once: too few rows, centers that became alike, a cluster left by all."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from coterie.protocol.result import Snapshot
from coterie.protocol.stages import Stage
from coterie.protocol.state import State

log = logging.getLogger("coterie")

ALIKE = 0.02  # two centers are alike if their losses differ by less than this part of them, on average over clients
APART = 0.2  # ... and were separate if by more than this


class Alarms:
    """What was seen of the present stage, so that only what changes is told."""

    def __init__(self) -> None:
        self._when = (0, 0)  # stage and attempt
        self._apart: set[tuple[int, int]] = set()
        self._held: set[int] = set()
        self._merged_once: set[tuple[int, int]] = set()
        self._lost_once: set[int] = set()
        self._waited_once = False

    def stage_ended(self, stage: Stage, following: Sequence[Stage], separated: bool) -> None:
        """One that was to separate the centers for the stage that follows, if any does."""
        if separated:
            return
        title = stage.algorithm.title()
        who = f"the initialisation of {following[0].algorithm.title()} (by {title})" if following else title
        log.warning(
            "%s did not separate the centers in %d rounds; what follows begins at centers that clients hardly tell "
            "apart: more rounds, or another init, may help",
            who,
            stage.rounds,
        )

    def received(self, rows: int, state: State) -> None:
        """A server that clusters clients by their rows waits until it has enough of them."""
        waits = "clustered" in state.fields and not bool(state.clustered.any())
        if rows and waits and not self._waited_once:
            self._waited_once = True
            log.warning(
                "%d client%s sent a model; more are needed to find %d clusters, so all are one for now",
                rows,
                "" if rows == 1 else "s",
                state.centers.shape[1],
            )

    def evaluated(self, when: tuple[int, int], now: Snapshot) -> None:
        """In this stage and attempt of it."""
        if when != self._when:
            self._when, self._apart, self._held = when, set(), set()
        known = now.importance.isfinite().all(1)
        if now.importance.shape[1] > 1 and bool(known.any()):
            self._lost(now.importance[known])
            if now.losses is not None:
                self._merged(now.losses[known])

    def _lost(self, importance: Tensor) -> None:
        """A center that was the largest of some client and is now of none."""
        held = set(importance.argmax(1).tolist())
        for cluster in sorted(self._held - held - self._lost_once):
            log.warning("cluster %d has lost its last client", cluster)
        self._lost_once |= self._held - held
        self._held = held

    def _merged(self, losses: Tensor) -> None:
        """By the losses (client, cluster) that clients have under each center."""
        clusters = losses.shape[1]
        for s in range(clusters):
            for t in range(s):
                both = losses[:, [s, t]]
                both = both[both.isfinite().all(1)]
                if not len(both):
                    continue
                apart = float((both[:, 0] - both[:, 1]).abs().mean() / both.mean())
                if apart > APART:
                    self._apart.add((t, s))
                elif apart < ALIKE and (t, s) in self._apart - self._merged_once:
                    self._merged_once.add((t, s))
                    log.warning("centers %d and %d, which were separate, have become alike", t, s)
