"""What a client can say of a run's centers at its end, for the verdict (runs/verdict.py).

Which centers a client takes, and how much of each, it finds on its training points; whether that is any good it finds
on its held-out points, if it has any, so that centers that fit the training points by heart gain nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.engine.scores import score_outputs
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort
from coterie.protocol.evaluation import smoothed
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import chosen
from coterie.protocol.separation import likeliest_importance, mixture_loss

# On held-out points, the loss
NUMBERS = (
    "losses",  # (cluster,) of each center
    "personal",  # of all centers' predictions, averaged by my importance
    "common",  # of the same, averaged by the importance that I was sent, which clients have on average
    "mean",  # of the mean of the centers
    "guess",  # of a guess that does not look at inputs
    "tuned",  # of my largest center, after an epoch on my points
)
PAIRS = (  # (cluster, cluster)
    "pooled",  # how much less likely my points are if I cannot tell two centers apart
    "differ",  # how much the predictions of two centers differ, from 0 to 1
)
OPTIONAL = (
    "lean",  # (class, cluster) how much more of a cluster my points of a class have than my importance says
    "apart",  # over a graph: how much my copy of my largest center differs from the mean of all copies
)


def judge(cohort: Cohort, offer: Messages) -> Fields:
    """All of these, and the importance that makes my training points likeliest."""
    centers = offer.centers
    training = cohort.losses(centers)
    unit = _unit(cohort, training)
    importance = likeliest_importance(cohort, training / unit[cohort.points.owner, None])
    importance = smoothed(importance.nan_to_num(1 / centers.shape[1]), cohort.sizes)
    alive = cohort.alive(centers)
    importance, common = (_of_the_living(each, alive) for each in (importance, offer.importance))
    test = cohort.held_out()
    judged = cohort if test is None else replace(cohort, points=test)
    outputs = [judged.outputs(centers[:, s]) for s in range(centers.shape[1])]
    each = [cohort.model.loss(output, judged.points.y) for output in outputs]
    losses = torch.stack(each, 1)
    losses = torch.where(losses.isfinite(), losses, torch.inf)
    likely = losses / unit[judged.points.owner, None]
    largest = importance.argmax(1)
    found = {
        "importance": importance,
        "losses": judged.means(losses),
        "personal": _loss(judged, outputs, importance),
        "common": _loss(judged, outputs, common),
        "mean": _loss(judged, [judged.outputs(centers.mean(1))]),
        "guess": _loss(judged, [guess(cohort, judged.points.owner, outputs[0])]),
        "tuned": _loss(judged, [judged.outputs(_tuned(cohort, chosen(centers, largest)))]),
        "pooled": _pooled(judged, likely, importance, common),
        "differ": _differences(judged, outputs, unit),
    }
    if test is None:  # a client of one point says nothing: that point chose the center that it would judge
        found["guess"] = torch.where(cohort.sizes > 1, found["guess"], torch.nan)
    if cohort.task == "classification" and cohort.meaning.kind(outputs[0]) != "numbers":
        found["lean"] = _lean(
            cohort, training, importance, max(2, outputs[0].shape[-1])
        )  # more points, less noise
    if "middle" in offer.fields:
        both = [judged.outputs(chosen(copies, largest)) for copies in (centers, offer.middle)]
        found["apart"] = _differences(judged, both, unit)[:, 0, 1]
    return found


def _loss(judged: Cohort, outputs: list[Tensor], weights: Tensor | None = None) -> Tensor:
    """(client,) of outputs averaged by weights (client, part), or of just one."""
    alone = outputs[0].new_ones(len(judged), 1)
    mixed = alone if weights is None else weights
    return score_outputs(outputs, mixed, judged.points, judged.model.loss, judged.meaning).loss


def _unit(cohort: Cohort, losses: Tensor) -> Tensor:
    """(client,) the loss by which a point is e times less likely.

    Cross-entropy is −log of a likelihood. A squared error is, in units of twice the variance of the noise: that is the
    loss which each point's best center leaves.
    """
    if cohort.task != "regression":
        return losses.new_ones(len(cohort))
    return 2 * cohort.means(losses.min(1).values).clamp(min=torch.finfo(losses.dtype).tiny)


def _of_the_living(importance: Tensor, alive: Tensor) -> Tensor:
    """(client, cluster) without the centers that diverged, unless all have."""
    left = torch.where(alive, importance, 0)
    total = left.sum(1, keepdim=True)
    return torch.where(total > 0, left / total, importance)


def guess(cohort: Cohort, owner: Tensor, like: Tensor) -> Tensor:
    """(point, ...) what would be predicted without looking at inputs, shaped as outputs are: see `guess`.

    Of numbers the client's mean; of classes all alike, for a client with one class would guess that and be right.
    """
    y = cohort.points.y
    if cohort.task != "regression":
        return torch.zeros_like(like)
    mean = cohort.means(y.reshape(len(y), -1).to(like.dtype))[owner]
    return mean.reshape(like.shape) if mean.numel() == like.numel() else torch.zeros_like(like)


def _tuned(cohort: Cohort, start: Tensor) -> Tensor:
    """(client, width) after one epoch on the client's own points, of which it remembers nothing."""
    forgetful = replace(cohort, client_state=ClientState(cohort.client_state.clients))
    training = replace(cohort.training, epochs=1, steps=None, schedule="constant", keep_optimizer=False)
    return forgetful.solve(start, training=training, purpose="judge")


def _lean(cohort: Cohort, losses: Tensor, importance: Tensor, classes: int) -> Tensor:
    """(client, class, cluster) the share of points that are of a class and a cluster, beyond what importance says."""
    prior = importance[cohort.points.owner]
    beyond = torch.softmax(prior.log() - losses, 1).nan_to_num(1 / losses.shape[1]) - prior
    found = losses.new_zeros(len(cohort) * classes, losses.shape[1])
    found.index_add_(0, cohort.points.owner * classes + cohort.points.y, beyond)
    return found.view(len(cohort), classes, -1) / cohort.sizes[:, None, None]


def _pooled(judged: Cohort, losses: Tensor, importance: Tensor, common: Tensor) -> Tensor:
    """(client, cluster, cluster) how much less likely points are if two share their importance as all clients' do."""
    clusters = losses.shape[1]
    own = mixture_loss(judged, losses, importance)
    found = losses.new_zeros(len(judged), clusters, clusters)
    for s in range(clusters):
        for t in range(s):
            both, shared = importance[:, s] + importance[:, t], importance.clone()
            part = (common[:, s] / (common[:, s] + common[:, t])).nan_to_num(0.5)
            shared[:, s], shared[:, t] = both * part, both * (1 - part)
            found[:, s, t] = found[:, t, s] = mixture_loss(judged, losses, shared) - own
    return found


def _differences(judged: Cohort, outputs: list[Tensor], unit: Tensor) -> Tensor:
    """(client, cluster, cluster) between two centers' predictions, the mean over points.

    Of classes: how much of the probability they give to different ones. Of numbers: d²/(d² + noise²).
    """
    kind, clusters = judged.meaning.kind(outputs[0]), len(outputs)
    number = kind == "numbers"
    made = outputs if number else [_probabilities(each, kind == "binary") for each in outputs]
    found = outputs[0].new_zeros(len(judged), clusters, clusters)
    for s in range(clusters):
        for t in range(s):
            gap = (made[s] - made[t]).reshape(len(made[s]), -1)
            if number:
                square = judged.means(gap.square().mean(1))
                each = square / (square + unit / 2)
            else:
                each = judged.means((made[s] - made[t]).abs().sum(-1).reshape(len(gap), -1).mean(1) / 2)
            found[:, s, t] = found[:, t, s] = each
    return found.nan_to_num(1.0)  # one that diverged is like no other


def _probabilities(output: Tensor, binary: bool) -> Tensor:
    """(point, ..., class) of outputs."""
    if not binary:
        return torch.softmax(output, -1)
    second = torch.sigmoid(output.reshape(len(output), 1))
    return torch.cat([1 - second, second], 1)
