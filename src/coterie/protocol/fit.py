"""Does a client fit a run's centers? Its points are ranked by loss among those of the run's own clients.

A point has the loss of its center: the best one for its client, or for itself where each point has a cluster. Its rank
is the part of the clients' points of the same center that have a lower loss. A client that is like them has ranks from
0 to 1 evenly, and one that is not has many near 1, so what counts is the chance that one of its points is worse than
all of `RIVALS` drawn of theirs: 1 / (RIVALS + 1) if it is like them. Ranks need no scale, no single point weighs much,
and the best of several centers flatters the clients' points as it does the newcomer's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.evaluation import best_of
from coterie.protocol.message import Fields, Messages

FEWEST = 30  # points by which a client can be told; also those that a center needs to have ranks of its own
RIVALS = 4  # points of the run's clients that a point is compared with
QUANTILES = 20  # by which a client describes its losses of each center
SURE = 2.1  # standard deviations: 2 in 100 that are like the run's clients would be above
LEAST = 0.03  # the chance differs from client to client by no less than this, however alike they are

LIKE_THEM = 1 / (RIVALS + 1)
_VARIANCE = 1 / (2 * RIVALS + 1) - LIKE_THEM**2  # of rank ** RIVALS, the rank being uniform


# at the client


def measure(algorithm: Algorithm, cohort: Cohort, offer: Messages, withheld: bool = False) -> Fields:
    """My losses, on held-out points if I have any, since a newcomer's were not trained on; and where I would be put.

    `losses` (client, cluster, quantile) and `points` (client, cluster) are of the points that each center has.
    `importance` is what the centers alone say of my training points, and `margin` how much more loss my second best
    center has than my best.
    """
    losses = cohort.losses(offer.centers)
    center = own_center(cohort, losses, algorithm.soft)
    placed = cohort.fractions(center, losses.shape[1])
    found, count = _quantiles(cohort, losses, center)
    _, margin = best_of(cohort, losses, algorithm.soft)
    test = cohort.held_out()
    if test is not None:
        there = replace(cohort, points=test)
        tested = there.losses(offer.centers)
        center = own_center(there, tested, True) if algorithm.soft else placed.argmax(1)[test.owner]
        on_test, count_on_test = _quantiles(there, tested, center)
        has_any = there.sizes > 0
        found = torch.where(has_any[:, None, None], on_test, found)
        count = torch.where(has_any[:, None], count_on_test, count)
        _, apart = best_of(there, tested, algorithm.soft)
        margin = margin if margin is None or apart is None else torch.where(has_any, apart, margin)
    if withheld:  # of how many points I have, ranks need no more
        count = count.clamp(max=QUANTILES)
    answer = {"losses": found, "points": count.to(found.dtype), "importance": placed}
    return answer if margin is None else {**answer, "margin": margin}


def own_center(cohort: Cohort, losses: Tensor, soft: bool) -> Tensor:
    """(point,) the center that a point has: the best for itself, or for its client; one that diverged is nobody's."""
    losses = torch.where(losses.isnan(), torch.inf, losses)
    return losses.argmin(1) if soft else cohort.means(losses).argmin(1)[cohort.points.owner]


def of_center(losses: Tensor, center: Tensor) -> Tensor:
    """(point,) each point's loss under its center, of losses (point, cluster)."""
    return losses.gather(1, center[:, None])[:, 0]


def _quantiles(cohort: Cohort, losses: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """(client, cluster, quantile) of the losses of the points of each center, nan without any; and their number."""
    clusters = losses.shape[1]
    own, group = of_center(losses, center), cohort.points.owner * clusters + center
    order = own.argsort()
    order = order[group[order].argsort(stable=True)]
    count = torch.bincount(group, minlength=len(cohort) * clusters)
    level = (torch.arange(QUANTILES, device=count.device) + 0.5) / QUANTILES
    place = (count.cumsum(0) - count)[:, None] + (level * count[:, None]).long()
    sorted_and_nan = functional.pad(own[order], (0, 1), value=math.nan)
    found = sorted_and_nan[torch.where(count[:, None] > 0, place, len(own))]
    return found.view(len(cohort), clusters, QUANTILES), count.view(len(cohort), clusters)


# of all clients


@dataclass(frozen=True)
class Fit:
    """How well the centers fit the run's own clients: what they answered. Those that diverged do not count."""

    losses: Tensor  # (client, cluster, quantile) of the points that each center has
    points: Tensor  # (client, cluster) how many these are

    @staticmethod
    def of(answered: Messages) -> Fit:
        whole = (answered.losses.isfinite() | (answered.points == 0)[..., None]).flatten(1).all(1)
        return Fit(answered.losses[whole], answered.points[whole])

    @property
    def known(self) -> bool:
        return bool(self.points.sum() > 0)

    @property
    def weight(self) -> Tensor:
        """(client, cluster) points that count: no client, however large, stands for all."""
        return self.points.clamp(max=QUANTILES)

    def worse(self, losses: Tensor, center: Tensor) -> float:
        """The chance that a point of a newcomer, by losses and center (point,), is worse than `RIVALS` of the run's."""
        return float((self._ranks(losses, center) ** RIVALS).mean())

    def limit(self, points: int) -> float:
        """The highest such chance that fits a newcomer of so many points: clients differ, and points are drawn."""
        drawn = _VARIANCE * (1 / points + 1 / float(self.weight.sum()))
        return LIKE_THEM + SURE * math.sqrt(max(self._between(), LEAST**2) + drawn)

    def _between(self) -> float:
        """The variance of that chance over the run's clients, less what comes of their number of points; robust."""
        sizes = self.points.sum(1)
        known = sizes > 0
        center = torch.arange(self.points.shape[1], device=self.points.device)
        ranks = self._ranks(
            self.losses.nan_to_num(0).flatten(), center.repeat_interleave(QUANTILES).repeat(len(sizes))
        )
        each = (ranks.view_as(self.losses) ** RIVALS).mean(2)
        own = (each * self.points).sum(1)[known] / sizes[known]
        deviation = 1.4826 * float((own - own.median()).abs().median())  # of a normal distribution
        return deviation**2 - _VARIANCE / float(sizes[known].median())

    def _ranks(self, losses: Tensor, center: Tensor) -> Tensor:
        """(point,) the part of the run's points of the same center that have a lower loss; equal ones count half."""
        ranks = torch.empty_like(losses)
        for cluster in range(self.points.shape[1]):
            here = center == cluster
            few = self.weight[:, cluster].sum() < FEWEST
            which = slice(None) if few else slice(cluster, cluster + 1)
            count = self.weight[:, which]
            weight = count[count > 0].double().repeat_interleave(QUANTILES)
            value, order = self.losses[:, which][count > 0].flatten().sort()
            below = functional.pad(weight[order].cumsum(0), (1, 0))
            lower, upper = (torch.searchsorted(value, losses[here], side=side) for side in ("left", "right"))
            ranks[here] = ((below[lower] + below[upper]) / (2 * below[-1])).to(ranks.dtype)
        return ranks
