"""How a client makes its personal model of what it is offered in the end, and how it chooses among the ways.

No way is the best for all data: averaged parameters fail where clusters contradict each other, a mixture of predictions
where centers are weak, a final phase where a client has few points. With `personal = "auto"` each client chooses by its
error on points of its own. These must be new to the centers, which fit what they were trained on, and the more so the
fewer clients they are of. So a client holds out a tenth of its training points from the beginning. After three quarters
of the last stage's rounds it tries every way on them. From then on it trains on all its points, since nothing will be
judged by them any more.

A few points say little. So clients send the errors that they found, a number for each way, and are sent the mean of all
clients' with the final offer: each chooses as if it had `PRIOR` points more, on which it had these. A client that has
thousands of points follows its own, and one that has few does what is best for most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.prng import uniform
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.personal import Personal, chosen, mix_rows

Way = Literal[
    "own",  # as the algorithm does
    "auto",  # each client chooses
    "largest",  # the center of largest importance
    "parameters",  # the centers' parameters, averaged by importance
    "mixture",  # the centers' predictions, averaged by importance
    "mean",  # the centers' parameters, averaged evenly
    "largest+final",  # the same with a final phase on the client's own points
    "parameters+final",
    "mixture+final",
    "mean+final",
]

FINAL = "+final"
_STARTS = ("mixture", "parameters", "largest", "mean", "common")
WAYS = (*_STARTS, *(start + FINAL for start in _STARTS))  # all that a client may choose
HELD_OUT = 10  # one in so many points
FINAL_EPOCHS, FINAL_RATE = 10, 0.5  # as FedSPD has them; times the rate that training began with
FINAL_GAIN = (
    0.02  # the part of the error that a final phase must gain: what it begins with is still trained on
)
PRIOR = 200  # points that all clients' errors count for, beside a client's own
NEWCOMER = "newcomer"  # a field of what a newcomer is offered: its importance
ALIKE = 1e-6  # errors that differ by less than this part of them do not; rounding shall decide nothing


def chosen_after(rounds: int) -> int:
    """Of so many rounds of the last stage: when clients choose."""
    return rounds - rounds // 4


def held_out(cohort: Cohort) -> Tensor:
    """(point,) bool: the same in every round. A tenth of a few points is rounded up or down at random."""
    always = cohort.when(RoundContext(cohort.context.seed))
    count = cohort.sizes / HELD_OUT + uniform(always.key("how many for personal"))
    return always.some(count.long(), "personal")


def finish(way: Way, algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Personal:
    """The models that clients take away. `offer` has all centers, and a common model if there is one."""
    if way == "own":
        return algorithm.finish(cohort, offer)
    if way != "auto":
        return made(way, algorithm, cohort, offer)
    ways, choice = ways_to_choose(algorithm, offer), _choice(algorithm, cohort, offer)
    parts = offer.centers.shape[1] if algorithm.soft else 1
    rows = offer.centers.new_empty(len(cohort), parts, offer.centers.shape[2])
    weights = rows.new_zeros(len(cohort), parts)
    for number, name in enumerate(ways):
        at = (choice == number).nonzero()[:, 0]
        if len(at):
            own = made(name, algorithm, cohort.take(at), offer.take(at))
            rows[at] = own.rows.expand(-1, parts, -1)  # one that is no mixture fills all parts, ...
            weights[at, : own.weights.shape[1]] = own.weights  # ... of which the first counts
    known = torch.tensor([WAYS.index(name) for name in ways], device=choice.device)
    return Personal(rows, weights, known[choice].double())


def ways_to_choose(algorithm: Algorithm, offer: Messages) -> list[str]:
    """The first of those alike is taken. Where a client has one cluster, it is all of any average."""
    starts = ["mixture", "parameters", "largest", "mean"] if algorithm.soft else ["largest", "mean"]
    if "common" in offer.fields:
        starts.append("common")
    finals = starts if algorithm.soft else [*starts, "mixture"]
    return [*starts, *(start + FINAL for start in finals)]


def try_all(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Fields:
    """The mean error of every way on the points held out."""
    errors = _errors(algorithm, cohort, offer)
    cohort.keep("errors of ways", errors)
    return {"errors": errors}


def prior(tried: Messages) -> Tensor | None:
    """At the aggregator: (1, way) the mean over the clients that held points out; None where nobody did."""
    if not len(tried):
        return None
    found = tried.errors[(tried.errors > 0).any(1)]
    return found.mean(0, keepdim=True) if len(found) else None


def _errors(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Tensor:
    """(client, way) One that diverged is worse than twice the others. Of a client that holds out no points, 0."""
    out, ways = held_out(cohort), ways_to_choose(algorithm, offer)
    found = torch.zeros(len(cohort), len(ways), dtype=torch.float64, device=cohort.at.device)
    if not bool(out.any()):
        return found
    known, left_out = replace(cohort, points=cohort.points.only(~out)), cohort.points.only(out)
    for number, way in enumerate(ways):
        found[:, number] = known.squared_errors(made(way, algorithm, known, offer), left_out)
    worst = torch.where(found.isfinite(), found, 0).max(1, keepdim=True).values
    found = torch.where(found.isfinite(), found, 2 * worst + 1)
    return torch.where((left_out.sizes > 0)[:, None], found, 0)


def _choice(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Tensor:
    """(client,) the number of the way that each follows."""
    ways = ways_to_choose(algorithm, offer)
    unknown = torch.full((len(cohort), len(ways)), torch.nan, dtype=torch.float64, device=cohort.at.device)
    errors = cohort.recall("errors of ways", unknown)
    late = errors.isnan().any(1).nonzero()[:, 0]
    if len(late):  # who was not asked before
        errors = errors.clone()
        errors[late] = _errors(algorithm, cohort.take(late), offer.take(late))
    points = torch.bincount(cohort.points.owner[held_out(cohort)], minlength=len(cohort))
    errors = errors * points[:, None]
    if "prior" in offer.fields:
        errors = errors + PRIOR * offer.prior
    final = torch.tensor([way.endswith(FINAL) for way in ways], device=errors.device)
    errors = torch.where(final, errors * (1 + FINAL_GAIN), errors)
    least = errors.min(1, keepdim=True).values
    alike = errors <= least + ALIKE * least.abs()
    return torch.where(alike, torch.arange(len(ways), device=errors.device), len(ways)).min(1).values


def made(way: str, algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Personal:
    """Models made in one way, with the points of the cohort."""
    start = way.removesuffix(FINAL)
    personal = _begun(start, algorithm, cohort, offer)
    if start == way:
        return personal
    points = torch.ones_like(cohort.points.at, dtype=torch.bool)[:, None]
    if start == "mixture":  # trained on all points, the centers would become alike
        points = one_hot(cohort.nearest(offer.centers), offer.centers.shape[1]).bool()
        if not algorithm.soft:
            points = points.gather(1, _largest(algorithm, cohort, offer)[cohort.points.owner, None])
    return replace(personal, rows=_final_phase(cohort, personal.rows, points))


def _begun(start: str, algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Personal:
    if start == "common":
        return Personal.single(offer.common)
    if start == "mean":
        return Personal.single(offer.centers.mean(1))
    if start == "largest" or not algorithm.soft:
        return Personal.single(chosen(offer.centers, _largest(algorithm, cohort, offer)))
    importance = _importance(algorithm, cohort, offer)
    if start == "mixture":
        return Personal(offer.centers, importance)
    return Personal.single(mix_rows(importance, offer.centers))


def _largest(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Tensor:
    """(client,) the cluster of largest importance."""
    return _importance(algorithm, cohort, offer).argmax(1)


def _importance(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Tensor:
    """(client, cluster) as the algorithm finds it; a newcomer's has been found."""
    return offer.fields[NEWCOMER] if NEWCOMER in offer.fields else algorithm.importance(cohort, offer)


def _final_phase(cohort: Cohort, rows: Tensor, points: Tensor) -> Tensor:
    """Rows (client, part, width), each trained on its points (point, part); the client keeps nothing of it."""
    training = replace(
        cohort.training,
        learning_rate=cohort.training.learning_rate * FINAL_RATE,
        schedule="constant",
        epochs=FINAL_EPOCHS,
        steps=None,
        keep_optimizer=False,
    )
    forgetful = replace(cohort, client_state=ClientState(cohort.client_state.clients))
    return forgetful.solve(rows, points=points, training=training, purpose="final")
