"""What clients find out about models on their own data; nothing here trains a center."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.protocol import personalise
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import Personal


def evaluate(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Fields:
    """My importance, and the scores of the model that I would use now on my held-out points."""
    importance = algorithm.importance(cohort, offer)
    return _scored(cohort, offer, importance, algorithm.personal(cohort, offer))


def finish(algorithm: Algorithm, cohort: Cohort, offer: Messages, way: personalise.Way = "own") -> Fields:
    """The same of the model that I take away, after the algorithm's final phase; and that model."""
    importance = algorithm.importance(cohort, offer)
    personal = personalise.finish(way, algorithm, cohort, offer)
    scored = _scored(cohort, offer, importance, personal)
    chose = {} if personal.way is None else {"way": personal.way}
    return {**scored, **chose, "rows": personal.rows, "weights": personal.weights}


def _scored(cohort: Cohort, offer: Messages, importance: Tensor, personal: Personal) -> Fields:
    found = {"importance": importance}
    if cohort.knows_losses(offer.fields.get("centers")):  # found on the way, so that they cost nothing
        found["losses"] = cohort.means(cohort.losses(offer.centers))
    test = cohort.held_out()
    if test is not None:
        found.update(cohort.score(personal, test).named())
    return found


def training_loss(cohort: Cohort) -> Fields:
    """The mean loss that I saw in my last training, infinite if I diverged, nan if I never trained."""
    unknown = torch.full((len(cohort),), torch.nan, dtype=cohort.model.dtype, device=cohort.at.device)
    return {"loss": cohort.recall("loss", unknown)}


def center_loss(cohort: Cohort, offer: Messages) -> Fields:
    """The mean loss of the center that I am offered on my training points."""
    return {"loss": cohort.means(cohort.losses(offer.center[:, None]))[:, 0]}


def gradient(cohort: Cohort, offer: Messages) -> Fields:
    """The gradient of my mean loss at the row that I am offered."""
    whole: Tensor | None = None
    for some, found in cohort.gradients(offer.row):
        if len(found) == len(cohort):
            return {"gradient": found}
        whole = found.new_empty(len(cohort), found.shape[1]) if whole is None else whole
        whole[some] = found
    assert whole is not None
    return {"gradient": whole}


def best_of(cohort: Cohort, losses: Tensor, soft: bool) -> tuple[Tensor, Tensor | None]:
    """(client,) the loss of a client's best center, and the margin to the second; `soft`: point by point."""
    losses = torch.where(losses.isnan(), torch.inf, losses)
    least = (losses if soft else cohort.means(losses)).topk(min(2, losses.shape[1]), 1, largest=False).values
    least = cohort.means(least) if soft else least
    return least[:, 0], least[:, 1] - least[:, 0] if least.shape[1] > 1 else None


def likelihood(algorithm: Algorithm, cohort: Cohort, offer: Messages) -> Fields:
    """How well the clusters, as I have them, predict my held-out and my training points; nan without any.

    Where a client has one cluster: the loss of its model. Where each point has one: −log Σ_s u_s·exp(−loss_s), the
    likelihood of FedEM, the importance u having been found on the points trained on.
    """
    test = cohort.held_out()
    assert test is not None
    if not algorithm.soft:
        personal = algorithm.personal(cohort, offer)
        return {"held_out": cohort.score(personal, test).loss, "training": cohort.score(personal).loss}
    importance = smoothed(algorithm.importance(cohort, offer), cohort.sizes)

    def loss(there: Cohort) -> Tensor:
        joint = importance.log()[there.points.owner] - there.losses(offer.centers)
        return there.means(-torch.logsumexp(joint, 1))

    return {"held_out": loss(replace(cohort, points=test)), "training": loss(cohort)}


def smoothed(importance: Tensor, sizes: Tensor) -> Tensor:
    """Importance (client, cluster) with one point more, divided evenly: what was not seen may still come."""
    seen = importance * sizes[:, None]
    return (seen + 1 / importance.shape[1]) / (seen.sum(1, keepdim=True) + 1)
