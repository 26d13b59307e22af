"""The numbers of the final table: how good are centers, importance and personal models?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from coterie.data.federation import Description
from coterie.engine.model import LOSSES
from coterie.engine.scores import Scores
from coterie.engine.training import Training
from coterie.files import finite
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.personal import Personal
from coterie.protocol.privacy_accountant import account
from coterie.protocol.result import Result, Snapshot
from coterie.runs import metrics


def center_scores(coordinator: Coordinator, about: Description, centers: Tensor) -> list[Scores]:
    """For each center (cluster, width), its scores on each known distribution, which stand in for clients."""
    if about.distributions is None:
        return []
    model = coordinator.model
    keys = torch.arange(len(about.distributions.sizes))
    judges = Cohort.whole(model, Training(), about.distributions, keys, about.task, coordinator.seed)

    def scored() -> list[dict[str, Tensor]]:
        every = [judges.score(Personal.single(center.expand(len(keys), -1))) for center in centers]
        return [{name: each.cpu() for name, each in one.named().items()} for one in every]

    found = coordinator.clients.group.once(scored)
    return [Scores(**{name: each.to(centers.device) for name, each in one.items()}) for one in found]


def match(loss: Tensor) -> tuple[list[int], list[int]]:
    """Centers and distributions paired off, one to one, at the least total loss (cluster, distribution)."""
    from scipy.optimize import linear_sum_assignment  # here, since importing it takes a while

    known = loss.nan_to_num(torch.inf).clamp(max=torch.finfo(loss.dtype).max / (1 + loss.numel()))
    clusters, distributions = linear_sum_assignment(known.double().cpu().numpy())
    return clusters.tolist(), distributions.tolist()


def importance_error(importance: Tensor, mixture: Tensor, pairs: tuple[list[int], list[int]]) -> float:
    """Mean distance of estimated from true shares, over clients and paired clusters."""
    clusters, distributions = pairs
    return float((importance[:, clusters].cpu().double() - mixture[:, distributions].double()).abs().mean())


def importance_error_of(coordinator: Coordinator, about: Description, result: Snapshot) -> float | None:
    """That of a result, where the true shares are known and there are clusters to mistake."""
    if about.mixture is None or about.distributions is None or not coordinator.has_centers:
        return None
    if min(len(result.centers), about.mixture.shape[1]) < 2:
        return None  # before the centers are scored, which takes as long as evaluating
    pairs = match(torch.stack([scores.loss for scores in center_scores(coordinator, about, result.centers)]))
    return importance_error(result.importance, about.mixture, pairs)


def found_ari(about: Description, result: Snapshot) -> float | None:
    """The adjusted Rand index of a result, where there are clusters to be found."""
    mixture = about.mixture
    several = mixture is not None and mixture.shape[1] > 1 and result.importance.shape[1] > 1
    return metrics.ari(result.importance, mixture) if mixture is not None and several else None


def summarise(coordinator: Coordinator, about: Description, result: Result) -> dict[str, Any]:
    """Plain numbers for summary.json."""
    stage, traffic = coordinator.stage, coordinator.traffic
    summary: dict[str, Any] = {
        "algorithm": stage.algorithm.title(),
        "task": about.task,
        "classes": list(about.classes),
        "inputs": list(about.inputs),
        "pixels": about.pixels,
        "integers": about.integers and coordinator.model.takes_integers(about.inputs),
        "normalise": about.normalise,
        "augment": about.augment,
        "outputs": about.n_outputs,
        "own_loss": coordinator.model.loss is not LOSSES[about.task],
        "features": list(about.features),
        "seed": coordinator.seed,
        "rounds": coordinator.progress.played,
        "context": asdict(coordinator.state.context),
        "clients": len(coordinator),
        "clusters": len(result.centers) if coordinator.has_centers else 0,
        "topology": stage.topology.describe(coordinator.ids, coordinator.seed),
        "traffic": traffic.named(),
        "megabytes": traffic.total() / 1e6,
    }
    privacy = account(coordinator.stages)
    if privacy is not None:
        summary["privacy"] = privacy
    summary["personal"] = _personal(result.scores, result.sizes)
    if about.distributions is not None and coordinator.has_centers:
        summary["centers"] = centers_on_distributions(coordinator, about, result)
    found = found_ari(about, result)
    if found is not None:
        summary["ari"], summary["pure_clients"] = found, _all_pure(about)
    known: dict[str, Any] = finite(summary)
    return known


def _all_pure(about: Description) -> bool:
    """Has every client points of one distribution alone?"""
    return about.mixture is not None and bool((about.mixture.max(1).values == 1).all())


def _personal(scores: Scores | None, sizes: Tensor | None) -> dict[str, float]:
    """Over clients: mean, deviation and worst tenth; and the mean in which each counts by its training points."""
    if scores is None:
        return {}
    numbers = {}
    for name, each in scores.named().items():
        if sizes is not None:
            weight = sizes.to(each).masked_fill(each.isnan(), 0).nan_to_num()
            numbers[f"{name}_by_points"] = float(
                (each.masked_fill(weight == 0, 0) * weight).sum() / weight.sum()
            )
        each = each[~each.isnan()]
        numbers[name] = float(each.mean()) if len(each) else float("nan")
        std, worst = metrics.spread(each, low_is_bad=name != "loss")
        numbers[f"{name}_std_over_clients"], numbers[f"{name}_worst_tenth"] = std, worst
    return numbers


def centers_on_distributions(
    coordinator: Coordinator, about: Description, result: Snapshot
) -> dict[str, Any]:
    """Each center on each distribution, and the one that is matched to it."""
    scores = center_scores(coordinator, about, result.centers)
    loss = torch.stack([s.loss for s in scores])
    pairs = match(loss)
    found: dict[str, Any] = {"loss": loss.tolist(), "center_of_distribution": _center_of(pairs, loss)}
    if scores[0].accuracy is not None:
        found["accuracy"] = torch.stack([s.accuracy for s in scores if s.accuracy is not None]).tolist()
    if about.mixture is not None and len(pairs[0]) > 1:
        found["importance_error"] = importance_error(result.importance, about.mixture, pairs)
    return found


def _center_of(pairs: tuple[list[int], list[int]], loss: Tensor) -> list[int]:
    """For each distribution its own center; one left without a partner takes its best."""
    own = dict(zip(pairs[1], pairs[0], strict=True))
    return [own.get(d, int(loss[:, d].argmin())) for d in range(loss.shape[1])]
