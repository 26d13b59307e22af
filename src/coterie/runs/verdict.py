"""Did a run find clusters that serve its clients? A verdict in a few sentences, from what clients themselves can see.

Nothing here knows the true mixture. `judge` is a pure function of what clients answered (protocol/judgement.py), for
which runs/judging.py asks them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.runs.verdict_words import sentences

MARGIN = 0.1  # clients tell two centers apart if they lose more than this part of log 2 when they cannot: as separation
DIFFER = (
    0.3  # predictions differ if they do by more than this; two models of one distribution do by 0.1 or less
)
CLASSES = (
    0.1  # centers divide classes if more than this part of what they divide goes by class, not by client
)
GAIN = 0.05  # clients gain by their centers if their loss is lower by more than this part than with one model
COARSE = (
    0.1  # a client differs from its center if an epoch alone gains it this part of all that it has learned
)
MISFIT = 1.2  # a client fits no center if its loss is more than so many times that of a blind guess
LEARNED = (
    0.05  # something was learned if clients' loss is lower by more than this part than that of a blind guess
)
FEW = 0.05  # less than this part of the clients is not worth a sentence
UNUSED = 0.1  # a center is unused if it is nobody's largest and has less than this part of an even share
CLEAR = 0.2  # a client is ambiguous if its largest importance leads by less than this

# what each finding makes of `good`; merged and unused centers do not count, if the others are fine
FAILURES = (
    "diverged",
    "nothing-learned",
    "unseparated",
    "divided",
    "one-model",
    "fedavg-as-good",
    "no-consensus",
)
DOUBTS = ("coarse", "misfits", "misassigned", "unknown")
TOO_MANY = {
    "unseparated",
    "one-model",
    "fedavg-as-good",
    "merged",
    "unused",
}  # clients do not need all centers
WORDS = {True: "good", False: "not good", None: "doubtful"}  # of `good`


@dataclass(frozen=True)
class Evidence:
    """What is known at the end of a run; (client, ...) are those of the clients that were asked and answered."""

    chosen: Tensor  # (client, cluster) the importance that the method says
    hard: bool  # does a client have one cluster?
    used: Tensor  # (cluster,) the mean of that over all clients of the run
    largest: Tensor  # (cluster,) how many clients of the run have it as their largest
    importance: Tensor  # (client, cluster) what makes a client's own points likeliest
    losses: Tensor  # (client, cluster) of each center, on held-out points
    personal: Tensor  # (client,) of the centers' predictions averaged by importance
    common: Tensor  # (client,) of the same averaged by `used`
    mean: Tensor  # (client,) of the mean of the centers
    guess: Tensor  # (client,) of a guess that does not look at inputs
    tuned: Tensor  # (client,) of the largest center after an epoch alone
    pooled: Tensor  # (client, cluster, cluster) what is lost if two centers cannot be told apart
    differ: Tensor  # (client, cluster, cluster) how much predictions differ
    lean: Tensor | None = None  # (client, class, cluster) what a class has of a cluster beyond importance
    apart: Tensor | None = (
        None  # (client,) over a graph: how much a peer's center differs from the mean of all copies
    )
    gap: float | None = None  # over a graph: its spectral gap
    rounds: int = 0  # of the last stage
    init_separated: bool | None = (
        None  # did the initialisation end with separated centers? None: it did not ask
    )
    finite: bool = True  # is every center finite?


@dataclass(frozen=True)
class Verdict:
    """Good is True if separated centers serve clients better than one model, None if in part or if it is not known."""

    good: bool | None
    findings: tuple[str, ...]
    sentences: tuple[str, ...]
    numbers: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{WORDS[self.good]}: {' '.join(self.sentences)}"

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "findings": list(self.findings), "sentences": list(self.sentences)}

    @staticmethod
    def of(told: dict[str, Any] | None) -> Verdict | None:
        """From a summary."""
        if told is None:
            return None
        return Verdict(told["good"], tuple(told["findings"]), tuple(told["sentences"]), told["numbers"])


def ended_badly(summary: Mapping[str, Any]) -> bool:
    """Was the run stopped, or did it diverge?"""
    return "stopped" in summary or "diverged" in (summary.get("verdict") or {}).get("findings", ())


def unknown(why: str) -> Verdict:
    return Verdict(None, ("unknown",), (f"Whether the clusters are any good is not known: {why}.",))


# what is measured


@dataclass(frozen=True)
class _Pairs:
    """Centers two by two."""

    distinct: Tensor  # (cluster, cluster) bool: do clients tell them apart?
    merged: list[tuple[int, int]]
    divided: list[tuple[int, int]]
    groups: list[list[int]]  # centers that clients do not tell apart, of those that are used


def _unused(e: Evidence) -> Tensor:
    """(cluster,) bool."""
    return (e.largest == 0) & (e.used < UNUSED / len(e.used))


def _margins(e: Evidence) -> Tensor:
    """(cluster, cluster) what clients lose if they cannot tell two centers apart, as a part of the most they could."""
    part = e.used[:, None] / (e.used[:, None] + e.used)
    most = -(torch.xlogy(part, part) + torch.xlogy(1 - part, 1 - part))
    share = (e.importance[:, :, None] + e.importance[:, None, :]).sum(0)
    return (e.pooled.sum(0) / (share * most)).nan_to_num(0.0)


def _pairs(margins: Tensor, differ: Tensor, unused: Tensor) -> _Pairs:
    distinct = margins > MARGIN
    alive = [s for s in range(len(unused)) if not unused[s]]
    alike = [(s, t) for s in alive for t in alive if s < t and not distinct[s, t]]
    groups = [[s] for s in alive]
    for s, t in alike:
        first, second = (next(g for g in groups if one in g) for one in (s, t))
        if first is not second:
            groups.remove(second)
            first += second
    merged = [(s, t) for s, t in alike if differ[s, t] < DIFFER]
    return _Pairs(distinct, merged, [pair for pair in alike if pair not in merged], groups)


def _by_class(e: Evidence) -> float | None:
    """How much of what centers divide goes by class: 0 none, 1 all; None where there are no classes."""
    if e.lean is None:
        return None
    share = e.importance.mean(0)
    return float(e.lean.nanmean(0).abs().sum() / 2 / (1 - share.square().sum()).clamp(min=1e-6))


def _ambiguous(e: Evidence, groups: list[list[int]]) -> int:
    """Clients with no clear cluster, where centers that are alike count as one."""
    if len(groups) < 2:
        return 0
    each = torch.stack([e.importance[:, group].sum(1) for group in groups], 1)
    two = each.topk(2, 1).values
    return int((two[:, 0] - two[:, 1] < CLEAR).sum())


def _served_badly(e: Evidence, own: Tensor) -> dict[str, int]:
    """How many clients each kind of trouble has; a client counts once."""
    likely = e.losses.gather(1, e.importance.argmax(1)[:, None])[:, 0]
    misfit = _worse_than_a_guess(e, own)
    misassigned = (own - likely > COARSE * (e.guess - likely)) & (own > likely) & ~misfit & e.hard
    learned = (e.guess - e.tuned).clamp(min=0)
    differ = (own - e.tuned > COARSE * learned) & (learned > 0) & ~misfit & ~misassigned
    each = {"misfits": misfit, "misassigned": misassigned, "still_differ": differ}
    return {name: int(which.sum()) for name, which in each.items()}


# the verdict


def judge(e: Evidence) -> Verdict:
    """Findings, the sentences that say them, and the numbers behind them."""
    e = _only(e, _whole(e))
    if not len(e.personal):
        return unknown("no client with points to judge by answered")
    own = e.losses.gather(1, e.chosen.argmax(1)[:, None])[:, 0] if e.hard else e.personal
    if not e.finite or float((~own.isfinite()).double().mean()) >= FEW or _exploded(e, own):
        return _diverged(e, own)
    e = replace(
        e, tuned=torch.where(e.tuned.isfinite(), e.tuned, own)
    )  # an epoch that diverges gains nothing
    known = own.isfinite()
    return _judged(_only(e, known), own[known])


def _judged(e: Evidence, own: Tensor) -> Verdict:
    """Of clients whose losses are finite; own (client,) are those of what they use."""
    unused, margins, differ = _unused(e), _margins(e), e.differ.mean(0)
    pairs = _pairs(margins, differ, unused)
    one, stand_in = _one_model(e)
    numbers: dict[str, Any] = {
        "clients_asked": len(own),
        "centers": len(unused),
        "groups": len(pairs.groups),
        "margins": _rounded(margins),
        "differences": _rounded(differ),
        "merged": pairs.merged,
        "divided": pairs.divided,
        "unused": unused.nonzero()[:, 0].tolist(),
        "by_class": _by_class(e),
        "loss": float(own.mean()),
        "loss_of_one_model": one,
        "one_model": stand_in,
        "gain": 1 - float(own.mean()) / one if one > 0 else 0.0,
        "loss_after_an_epoch_alone": float(e.tuned.mean()),
        "loss_of_a_guess": float(e.guess.mean()),
        "ambiguous": _ambiguous(e, pairs.groups),
        **_served_badly(e, own),
        "peers_apart": None if e.apart is None else float(e.apart.nanmean()),
        "spectral_gap": e.gap,
    }
    return concluded(_findings(e, numbers), numbers)


def _findings(e: Evidence, n: dict[str, Any]) -> tuple[str, ...]:
    few = FEW * n["clients_asked"]
    badly = {name: n[name] for name in ("misfits", "misassigned", "still_differ")}
    trouble = {name for name, count in badly.items() if count >= few}
    if sum(badly.values()) >= few:  # a few of each kind are as bad as some of one
        trouble.add(max(badly, key=lambda name: badly[name]))
    found = {
        "nothing-learned": n["loss"] > (1 - LEARNED) * n["loss_of_a_guess"] > 0,
        "unseparated": n["groups"] < 2,
        "divided": bool(n["divided"]) or (n["by_class"] or 0) > CLASSES,
        "merged": bool(n["merged"]),
        "unused": bool(n["unused"]),
        "one-model": n["gain"] < GAIN,
        "no-consensus": n["peers_apart"] is not None and n["peers_apart"] > DIFFER,
        "coarse": "still_differ" in trouble,
        "misfits": "misfits" in trouble,
        "misassigned": "misassigned" in trouble,
        "ambiguous": n["ambiguous"] >= few,
        "init-unseparated": e.init_separated is False,
        "sparse-graph": e.gap is not None and e.gap * e.rounds < 1,  # it takes about 1/gap rounds to cross it
    }
    return tuple(name for name, said in found.items() if said)


def concluded(findings: tuple[str, ...], numbers: dict[str, Any]) -> Verdict:
    """What findings add up to."""
    failed, doubted = set(findings) & set(FAILURES), set(findings) & set(DOUBTS)
    by_class_alone = _by_class_alone(findings, numbers)
    if by_class_alone and not doubted:  # what is divided costs no client anything
        failed, doubted = failed - {"divided"}, {"divided"}
    good = False if failed else None if doubted else True
    stand_in_is = (numbers["gain"] or 0) < -GAIN  # None: not finite
    one_is_better = numbers.get("fedavg_is_better", stand_in_is)
    return Verdict(good, findings, sentences(findings, numbers, one_is_better, by_class_alone), numbers)


def _by_class_alone(findings: tuple[str, ...], n: dict[str, Any]) -> bool:
    """Do clients tell all centers apart and gain by them, though some classes lean to one?"""
    return "divided" in findings and not n["divided"] and not set(findings) & TOO_MANY


def beside_fedavg(verdict: Verdict, summary: Mapping[str, Any], reference: Mapping[str, Any]) -> Verdict:
    """The same when FedAvg has been run on these clients too: is its one model as good as their personal ones?"""
    own, theirs = summary.get("personal", {}), reference.get("personal", {})
    name = "accuracy" if "accuracy" in own else "loss"
    known = None not in (own.get(name), theirs.get(name))
    if {"diverged", "unknown"} & set(verdict.findings) or not known or "stopped" in summary:
        return verdict
    mine, one = own[name], theirs[name]
    rounds, others = summary["rounds"], reference["rounds"]
    says = f"FedAvg reached {name} {one:.3f} in {others} rounds, and this {mine:.3f} in {rounds}"
    error, least = (1 - mine, 1 - one) if name == "accuracy" else (mine, one)
    better = least < (1 - GAIN) * error
    numbers = {**verdict.numbers, "fedavg": one, "beside_fedavg": says, "fedavg_is_better": better}
    as_good = error > (1 - GAIN) * least
    return concluded((*verdict.findings, *(["fedavg-as-good"] if as_good else [])), numbers)


def _whole(e: Evidence) -> Tensor:
    """(client,) bool: whose answer can be used. A client without held-out points has no losses."""
    parts = (e.guess, e.importance, e.pooled, e.differ)
    return torch.stack([part.reshape(len(part), -1).isfinite().all(1) for part in parts]).all(0)


def _only(e: Evidence, known: Tensor) -> Evidence:
    """Some of the clients."""
    if bool(known.all()):
        return e
    per_client: dict[str, Any] = {
        name: value[known]
        for name, value in vars(e).items()
        if isinstance(value, Tensor) and name not in ("used", "largest")
    }
    return replace(e, **per_client)


def _exploded(e: Evidence, own: Tensor) -> bool:
    """Are most clients worse off than with a guess?"""
    return float(_worse_than_a_guess(e, own).double().mean()) > 0.5


def _worse_than_a_guess(e: Evidence, own: Tensor) -> Tensor:
    """(client,) bool. Where all of a client's numbers are the same, a guess has no loss and tells nothing."""
    return (own > MISFIT * e.guess) & (e.guess > 0)


def _one_model(e: Evidence) -> tuple[float, str]:
    """The least loss of what could stand in for one model that was trained on all, and which that is."""
    each = {
        "the mean of the centers": float(e.mean.mean()),
        "the best single center": float(e.losses.mean(0).min()),
        "all centers, averaged alike for all clients": float(e.common.mean()),
    }
    finite = {name: loss for name, loss in each.items() if math.isfinite(loss)}
    best = min(finite, key=lambda name: finite[name]) if finite else "the mean of the centers"
    return each[best], best


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(float(one), 4) for one in row] for row in values]


def _diverged(e: Evidence, own: Tensor) -> Verdict:
    bad = int(((~own.isfinite()) | _worse_than_a_guess(e, own)).sum())
    have = "has" if bad == 1 else "have"
    what = f"{bad} of {len(own)} clients {have} a loss above that of a blind guess, or none that is finite"
    told = (
        f"The run diverged: {what if e.finite else 'a center is not finite'}.",
        "Try a smaller learning_rate.",
    )
    return Verdict(False, ("diverged",), told, {"clients_asked": len(own), "diverged": bad})
