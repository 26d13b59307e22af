"""Have the centers come apart? What clients can say of it, from the centers and their own data.

A client takes the centers for a mixture: a point is likely as Σ_s share_s·exp(−loss_s), with the shares that make
its own points likeliest. Its *margin* is how much likelier they are than with even shares, in units of log S: 1 where
every client is of one cluster, 0 where the centers are alike, or tell points apart (by class, say) but not clients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages

STEADY = 0.05  # shares have stopped changing if less than this part of them moved, on average
APART = 0.1  # centers have come apart if the margin is higher, on average ...
GROWING = 0.1  # ... and has not grown by more than this part of it since it was last looked at
ITERATIONS = 30  # of expectation and maximisation, a concave problem in the shares


def look(cohort: Cohort, offer: Messages) -> Fields:
    """What a client tells when it is shown all centers: its loss, its margin, and how both shares and margin moved."""
    losses = cohort.losses(offer.centers)
    even = losses.new_full((len(cohort), losses.shape[1]), 1 / losses.shape[1])
    shares = likeliest_shares(cohort, losses)
    loss = mixture_loss(cohort, losses, shares)
    margin = (mixture_loss(cohort, losses, even) - loss) / math.log(max(2, losses.shape[1]))
    moved = (shares - cohort.recall("shares seen", torch.zeros_like(shares))).abs().sum(1) / 2
    grown = margin - cohort.recall("margin seen", torch.zeros_like(margin))
    cohort.keep("shares seen", shares)
    cohort.keep("margin seen", margin)
    return {"loss": loss, "margin": margin, "moved": moved, "grown": grown}


def separated(sent: Messages) -> bool:
    """Do those who looked find the centers apart, no longer parting, and their shares the same as before?"""
    if not len(sent):
        return False
    margin, moved, grown = (float(sent.fields[name].mean()) for name in ("margin", "moved", "grown"))
    return margin > APART and grown < GROWING * margin and moved < STEADY


def likeliest_shares(cohort: Cohort, losses: Tensor) -> Tensor:
    """(client, cluster) the shares that make a client's points likeliest under losses (point, cluster)."""
    shares = losses.new_full((len(cohort), losses.shape[1]), 1 / losses.shape[1])
    for _ in range(ITERATIONS):
        shares = cohort.means(torch.softmax(_joint(cohort, losses, shares), 1))
    return shares


def mixture_loss(cohort: Cohort, losses: Tensor, shares: Tensor) -> Tensor:
    """(client,) −log of the mixture's likelihood, the mean over a client's points."""
    return cohort.means(-torch.logsumexp(_joint(cohort, losses, shares), 1))


def _joint(cohort: Cohort, losses: Tensor, shares: Tensor) -> Tensor:
    return shares.clamp(min=1e-12).log()[cohort.points.owner] - losses
