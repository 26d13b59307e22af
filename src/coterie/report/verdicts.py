"""The verdicts on the methods of a run, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coterie.runs.verdict import Verdict

_WORDS = {True: "good", False: "not good", None: "in part, or not known"}


def lines(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One per method with clusters, or that was stopped, by its label."""
    for label, summary in summaries.items():
        verdict = Verdict.of(summary.get("verdict"))
        stopped = summary.get("stopped", {}).get("says")
        if stopped is not None and (verdict is None or stopped not in verdict.sentences):
            yield f"\n{label}: {stopped}"
        if verdict is not None:
            yield f"\n{label}, {_WORDS[verdict.good]}: {verdict}"
