"""A verdict in words: what its findings (runs/verdict.py) mean to a user, and what to try next."""

from __future__ import annotations

import math
from typing import Any


def sentences(
    findings: tuple[str, ...], n: dict[str, Any], one_is_better: bool, by_class_alone: bool
) -> tuple[str, ...]:
    """What came out, at most two remarks, and what to try next."""
    moot = {"coarse"} if "divided" in findings else set()
    moot |= set() if {"unseparated", "divided"} & set(findings) else {"init-unseparated"}  # it did no harm
    remarks = [_REMARKS[name](n) for name in _REMARKS if name in findings and name not in moot]
    first = _outcome(findings, n, one_is_better, by_class_alone)
    made = next((names for names in _NEXT if set(names.split()) <= set(findings)), None)
    steps = {**_NEXT, **_WITHOUT_FEDAVG} if _fedavg_is_worse(findings, n) else _NEXT
    if made == "divided" and by_class_alone:
        steps = {**steps, made: _HARD}
    return (first, *remarks[:2], *([f"Try {steps[made]}."] if made else []))


def _fedavg_is_worse(findings: tuple[str, ...], n: dict[str, Any]) -> bool:
    """It was run too, and its one model serves clients worse than their own do."""
    return "beside_fedavg" in n and "fedavg-as-good" not in findings


def _outcome(findings: tuple[str, ...], n: dict[str, Any], one_is_better: bool, by_class_alone: bool) -> str:
    clusters, groups = n["centers"], n["groups"]
    if "nothing-learned" in findings:
        of_a_guess = f"loss {_digits(n['loss'])}, and {_digits(n['loss_of_a_guess'])} with a guess"
        return f"Nothing was learned that a blind guess does not know ({of_a_guess}): of clusters this says nothing."
    losses = f"loss {_digits(n['loss'])}, and {_digits(n['loss_of_one_model'])} with {n['one_model']}"
    if "beside_fedavg" in n:
        losses = n["beside_fedavg"]
    one = "One model is better" if one_is_better else "One model is as good"
    fedavg_is_worse = _fedavg_is_worse(findings, n)
    points = "points" if n.get("by_class") is None else "points (by class, perhaps)"
    if "divided" in findings and "unseparated" in findings:
        so = "" if fedavg_is_worse else f": {one.lower()}"
        return f"The centers divide {points}, not clients{so} ({losses})."
    if "unseparated" in findings and "coarse" in findings:
        return f"Clients differ, but the {clusters} centers did not separate: to clients they are one ({losses})."
    if "unseparated" in findings and fedavg_is_worse:
        return f"The {clusters} centers did not separate: what clients gain is not by clusters ({losses})."
    if "unseparated" in findings:
        return f"{one}: your clients seem to be of one distribution ({losses})."
    if by_class_alone:
        return f"Clients tell the centers apart, but these divide points by class as well ({losses})."
    if "divided" in findings:
        return f"Some centers divide {points}, not clients ({losses})."
    if "one-model" in findings:
        as_good = f"about as much as with {n['one_model']}" if fedavg_is_worse else one.lower()
        return f"Clients prefer different centers but gain little by it: {as_good} ({losses})."
    if "fedavg-as-good" in findings:
        return f"{one}: {n['beside_fedavg']}."
    number = f"The {clusters} centers" if groups == clusters else f"{groups} groups of the {clusters} centers"
    if fedavg_is_worse:
        return f"{number} are separated, and clients gain by having their own ({losses})."
    gain = "much" if n["gain"] is None else f"{n['gain']:.0%}"
    return f"{number} are separated, and by having their own, clients' loss is {gain} lower ({losses})."


def _digits(number: float | None) -> str:
    """What is not finite is None in a summary."""
    return "not finite" if number is None or not math.isfinite(number) else f"{number:.3g}"


def _names(pairs: list[tuple[int, int]]) -> str:
    return ", ".join(f"{s} and {t}" for s, t in pairs[:3]) + (", ..." if len(pairs) > 3 else "")


def _of(n: dict[str, Any], what: str, one: str, many: str) -> str:
    """So many clients do something, said of one or of many."""
    return f"{n[what]} of {n['clients_asked']} clients {one if n[what] == 1 else many}"


_HARD = (
    "fewer clusters, or an algorithm whose clients have one cluster each (IFCA), which cannot divide points"
)
_REMARKS: dict[str, Any] = {
    "no-consensus": lambda n: (
        f"Peers do not agree on the centers: copies of one differ in {n['peers_apart']:.0%} of what they predict."
    ),
    "misfits": lambda n: f"{_of(n, 'misfits', 'fits', 'fit')} no center: a blind guess is better.",
    "misassigned": lambda n: (
        f"{_of(n, 'misassigned', 'is', 'are')} in a cluster that another center would serve better."
    ),
    "coarse": lambda n: (
        f"{_of(n, 'still_differ', 'still differs from its', 'still differ from their')} center: one epoch on "
        f"{'its' if n['still_differ'] == 1 else 'their'} own points improves it much."
    ),
    "merged": lambda n: f"Centers {_names(n['merged'])} predict alike.",
    "unused": lambda n: f"Nobody uses center {', '.join(map(str, n['unused']))}.",
    "init-unseparated": lambda n: "The initialisation ended before its centers were separated.",
    "sparse-graph": lambda n: (
        f"The graph mixes slowly (spectral gap {n['spectral_gap']:.2g}): these rounds cannot cross it."
    ),
    "ambiguous": lambda n: f"{_of(n, 'ambiguous', 'has', 'have')} no clear cluster.",
}
_NEXT: dict[str, str] = {  # the first of which all findings were made
    "nothing-learned": "more rounds, or another learning_rate: a larger one if the loss falls slowly, else a smaller",
    "no-consensus": "init='sketch' if it began otherwise, more neighbours, or more rounds",
    "divided merged": "fewer clusters (`coterie choose-clusters` finds how many)",
    "unseparated coarse": "init='clients' if it began otherwise, or more rounds",
    "coarse merged": "fewer clusters (`coterie choose-clusters` finds how many), or more rounds",
    "divided": "init='clients' if it began otherwise, fewer clusters, or FedAvg if your clients do not differ",
    "fedavg-as-good": "FedAvg, which is simpler, or fewer clusters, whose centers have more data each",
    "misassigned": "an algorithm whose clients choose by loss (IFCA) or have several clusters (FedEM)",
    "unseparated": "FedAvg, which is simpler",
    "coarse": "more clusters (`coterie choose-clusters` finds how many) or more rounds",
    "one-model": "FedAvg, which is simpler, or Local if nothing is shared",
    "misfits": "to look at the data of those clients, or one cluster more",
    "merged": "fewer clusters (`coterie choose-clusters` finds how many)",
    "unused": "fewer clusters (`coterie choose-clusters` finds how many)",
    "sparse-graph": "more neighbours or more rounds",
}
_WITHOUT_FEDAVG: dict[str, str] = {  # where it was run and is worse, it is not what to try
    "divided": "init='clients' if it began otherwise, or fewer clusters",
    "unseparated": "init='clients' if it began otherwise, or more rounds",
    "one-model": "fewer clusters, or Local if nothing is shared",
}
