"""Are the centers separated? What clients can say of it, from the centers and their own data.

A client takes the centers for a mixture: a point is likely as Σ_s u_s·exp(−loss_s), with the importance u that makes
its own points likeliest. Its *margin* is how much likelier they are than with an even importance, in units of log S: 1
where every client is of one cluster, 0 where the centers are alike, or distinguish points (by class, say) but not
clients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages

STEADY = 0.05  # importance has stopped changing if less than this part of it moved, on average
MARGIN = 0.1  # centers are separated if the margin is higher, on average ...
GROWING = 0.1  # ... and has not grown by more than this part of it since it was last measured
ITERATIONS = 30  # of expectation and maximisation, a concave problem in the importance


def measure(cohort: Cohort, offer: Messages) -> Fields:
    """What a client sends when it is shown all centers: its loss, its margin, how far importance and margin moved."""
    losses = cohort.losses(offer.centers)
    even = losses.new_full((len(cohort), losses.shape[1]), 1 / losses.shape[1])
    importance = likeliest_importance(cohort, losses)
    loss = mixture_loss(cohort, losses, importance)
    margin = (mixture_loss(cohort, losses, even) - loss) / math.log(max(2, losses.shape[1]))
    moved = (importance - cohort.recall("importance seen", torch.zeros_like(importance))).abs().sum(1) / 2
    grown = margin - cohort.recall("margin seen", torch.zeros_like(margin))
    cohort.keep("importance seen", importance)
    cohort.keep("margin seen", margin)
    return {"loss": loss, "margin": margin, "moved": moved, "grown": grown}


def separated(sent: Messages) -> bool:
    """Do clients find the centers separated, no longer separating, and their importance the same as before?"""
    if not len(sent):
        return False
    margin, moved, grown = (float(sent.fields[name].mean()) for name in ("margin", "moved", "grown"))
    return margin > MARGIN and grown < GROWING * margin and moved < STEADY


def likeliest_importance(cohort: Cohort, losses: Tensor) -> Tensor:
    """(client, cluster) the importance that makes a client's points likeliest under losses (point, cluster)."""
    importance = losses.new_full((len(cohort), losses.shape[1]), 1 / losses.shape[1])
    for _ in range(ITERATIONS):
        importance = cohort.means(torch.softmax(_joint(cohort, losses, importance), 1))
    return importance


def mixture_loss(cohort: Cohort, losses: Tensor, importance: Tensor) -> Tensor:
    """(client,) −log of the mixture's likelihood, the mean over a client's points."""
    return cohort.means(-torch.logsumexp(_joint(cohort, losses, importance), 1))


def _joint(cohort: Cohort, losses: Tensor, importance: Tensor) -> Tensor:
    return importance.clamp(min=1e-12).log()[cohort.points.owner] - losses
