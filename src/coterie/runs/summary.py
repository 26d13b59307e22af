"""The numbers of the final table: how good are centers, importance and personal models?"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from coterie.backends.evaluation import Result, Snapshot
from coterie.backends.simulation import Simulation
from coterie.engine.scores import Scores
from coterie.protocol.cohort import Personal
from coterie.protocol.privacy_accountant import account
from coterie.runs import metrics


def center_scores(simulation: Simulation, centers: Tensor) -> list[Scores]:
    """For each center (cluster, width), its scores on each known distribution."""
    cohort, known = simulation.clients.cohort, simulation.data.distributions
    if known is None:
        return []
    points, group = known.to(cohort.model.device, cohort.model.dtype), simulation.group

    def some() -> list[dict[str, Tensor]]:
        """Every process has some of the centers."""
        mine = centers[group.rank :: group.size]
        scored = [
            cohort.score(Personal.single(center.expand(len(known.sizes), -1)), points) for center in mine
        ]
        return [{name: each.cpu() for name, each in one.named().items()} for one in scored]

    found = group.all(some)
    scores = [found[s % group.size][s // group.size] for s in range(len(centers))]
    return [Scores(**{name: each.to(centers.device) for name, each in one.items()}) for one in scores]


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


def importance_error_of(simulation: Simulation, result: Snapshot) -> float | None:
    """That of a result, where the true shares are known and there are clusters to mistake."""
    mixture = simulation.data.mixture
    if mixture is None or simulation.data.distributions is None or not _has_centers(simulation):
        return None
    pairs = match(torch.stack([scores.loss for scores in center_scores(simulation, result.centers)]))
    return importance_error(result.importance, mixture, pairs) if len(pairs[0]) > 1 else None


def found_ari(simulation: Simulation, result: Snapshot) -> float | None:
    """The adjusted Rand index of a result, where there are clusters to be found."""
    mixture = simulation.data.mixture
    several = mixture is not None and mixture.shape[1] > 1 and result.importance.shape[1] > 1
    return metrics.ari(result.importance, mixture) if mixture is not None and several else None


def summarise(simulation: Simulation, result: Result) -> dict[str, Any]:
    """Plain numbers for summary.json."""
    summary: dict[str, Any] = {
        "algorithm": simulation.stage.algorithm.title(),
        "task": simulation.data.task,
        "classes": list(simulation.data.classes),
        "inputs": list(simulation.data.train.x.shape[1:]),
        "pixels": simulation.data.train.x.dtype == torch.uint8,
        "normalise": simulation.data.normalise,
        "augment": simulation.data.augment,
        "outputs": simulation.data.n_outputs,
        "features": list(simulation.data.features),
        "seed": simulation.seed,
        "rounds": simulation.progress.played,
        "moment": asdict(simulation.state.context),
        "clients": len(simulation.data),
        "topology": simulation.stage.topology.describe(simulation.data.ids, simulation.seed),
        "traffic": simulation.traffic.named(),
        "megabytes": simulation.traffic.total() / 1e6,
    }
    privacy = account(simulation.stages)
    if privacy is not None:
        summary["privacy"] = privacy
    summary["personal"] = _personal(result.scores)
    if simulation.data.distributions is not None and _has_centers(simulation):
        summary["centers"] = _centers(simulation, result)
    found = found_ari(simulation, result)
    if found is not None:
        summary["ari"], summary["pure_clients"] = found, _all_pure(simulation)
    finite: dict[str, Any] = _finite(summary)
    return finite


def _finite(value: Any) -> Any:
    """JSON has no words for nan and infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _all_pure(simulation: Simulation) -> bool:
    """Has every client points of one distribution alone?"""
    mixture = simulation.data.mixture
    return mixture is not None and bool((mixture.max(1).values == 1).all())


def _has_centers(simulation: Simulation) -> bool:
    return bool(simulation.stage.algorithm.final_offer(simulation.state.for_everyone()).fields)


def _personal(scores: Scores | None) -> dict[str, float]:
    if scores is None:
        return {}
    numbers = {}
    for name, each in scores.named().items():
        each = each[~each.isnan()]
        numbers[name] = float(each.mean()) if len(each) else float("nan")
        std, worst = metrics.spread(each, low_is_bad=name != "loss")
        numbers[f"{name}_std_over_clients"], numbers[f"{name}_worst_tenth"] = std, worst
    return numbers


def _centers(simulation: Simulation, result: Result) -> dict[str, Any]:
    """Each center on each distribution, and the one that is matched to it."""
    scores = center_scores(simulation, result.centers)
    loss = torch.stack([s.loss for s in scores])
    pairs = match(loss)
    found: dict[str, Any] = {"loss": loss.tolist(), "center_of_distribution": _center_of(pairs, loss)}
    if scores[0].accuracy is not None:
        found["accuracy"] = torch.stack([s.accuracy for s in scores if s.accuracy is not None]).tolist()
    mixture = simulation.data.mixture
    if mixture is not None and len(pairs[0]) > 1:
        found["importance_error"] = importance_error(result.importance, mixture, pairs)
    return found


def _center_of(pairs: tuple[list[int], list[int]], loss: Tensor) -> list[int]:
    """For each distribution its own center; one left without a partner takes its best."""
    own = dict(zip(pairs[1], pairs[0], strict=True))
    return [own.get(d, int(loss[:, d].argmin())) for d in range(loss.shape[1])]
