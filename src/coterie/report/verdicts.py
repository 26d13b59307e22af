"""The verdicts on the methods of a run, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.runs.verdict import WORDS, Verdict


def lines(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One per method with clusters, or that was stopped, by its label."""
    for label, summary in summaries.items():
        verdict = Verdict.of(summary.get("verdict"))
        stopped = summary.get("stopped", {}).get("says")
        if stopped is not None and (verdict is None or stopped not in verdict.sentences):
            yield f"\n{label}: {stopped}"
        if verdict is not None:
            yield f"\n{label}, {verdict}"


def over_seeds(runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """One line per method with clusters, from the summaries of each seed: how often it is good, and what was found."""
    if len(runs) == 1:
        yield from lines(runs[0])
        return
    for label in runs[0]:
        verdicts = [Verdict.of(run[label].get("verdict")) for run in runs]
        known = [verdict for verdict in verdicts if verdict is not None]
        if known:
            good = Counter(verdict.good for verdict in known)
            found = Counter(finding for verdict in known for finding in verdict.findings)
            said = ", ".join(f"{word} with {good[one]}" for one, word in WORDS.items() if good[one])
            often = ", ".join(f"{name} ({count})" for name, count in found.most_common(4))
            yield f"\n{label}, of {len(known)} seeds: {said}" + (f"; findings: {often}" if often else "")
