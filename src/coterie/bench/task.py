"""The folder that every baseline of a workload is given, and the score of the models that it hands in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor, nn
from torch.nn import functional

from coterie.bench.workloads import Workload
from coterie.protocol.topology import Graph

SEED = 0
NOISE = 0.5  # of a regression's targets, so that losses end above 0 and can be compared
SEPARATION = 50.0  # the least distance of k-FED's components, in their deviations
WARM_UP = 0.05  # learning rate of the pass over each distribution that initialises clustered workloads


@dataclass(frozen=True)
class Conditions:
    """The same for all baselines."""

    device: str = "cpu"
    threads: int = 1
    tf32: bool = False


@dataclass(frozen=True)
class Score:
    """Of a model, on the training points."""

    loss: float | None
    accuracy: float | None  # the share of points that are right; None: a regression


def _kind(layer: nn.Module) -> str:
    """For a baseline in another framework: a layer's name, and of a convolution how it treats borders."""
    if not isinstance(layer, nn.Conv2d):
        return type(layer).__name__
    return "Conv2d SAME" if any(map(bool, layer.padding)) else "Conv2d VALID"


class Task:
    """Data and initial models of a workload, written once."""

    def __init__(self, work: Workload, folder: Path, conditions: Conditions):
        self.work, self.folder, self.conditions = work, folder, conditions
        folder.mkdir(parents=True)
        self.x, self.y = mixture(work) if work.algorithm == "kfed" else points(work)
        np.save(folder / "x.npy", self.x)
        np.save(folder / "y.npy", self.y)
        self.models = [] if work.algorithm == "kfed" else initial_models(work, self.x, self.y)
        torch.save(self.models, folder / "models.pt")
        states = [(s, name, t) for s, m in enumerate(self.models) for name, t in m.state_dict().items()]
        arrays: dict[str, Any] = {f"{s} {name}": t.numpy() for s, name, t in states}
        np.savez(folder / "initial.npz", **arrays)
        if work.degree is not None:
            ids = [str(i) for i in range(work.clients)]
            np.save(folder / "edges.npy", Graph(degree=work.degree).edges(ids, SEED, 0).numpy())
        x, y = torch.as_tensor(self.x), torch.as_tensor(self.y)
        self.initial = score(work, self.models, x, y) if self.models else Score(None, None)
        layers = [_kind(layer) for layer in self.models[0]] if self.models else []
        settings = {**work.named(), **vars(conditions), "seed": SEED, "layers": layers}
        (folder / "task.json").write_text(json.dumps(settings))

    def score(self, handed_in: Path) -> Score:
        """Of what was handed in, by the same code for all."""
        with np.load(handed_in) as arrays:
            if self.work.algorithm == "kfed":
                return Score(None, matched(self.y.ravel(), arrays["0 labels"]))
            for s, model in enumerate(self.models):
                names = [name for name in model.state_dict() if f"{s} {name}" in arrays]
                state = {name: torch.as_tensor(arrays[f"{s} {name}"]) for name in names}
                model.load_state_dict(state, strict=False)
        return score(self.work, self.models, torch.as_tensor(self.x), torch.as_tensor(self.y))


# data


def points(work: Workload) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Every client's points: in each distribution targets follow from inputs in another way, which can be learned."""
    g = torch.Generator().manual_seed(SEED)
    x = torch.randn(work.clients, work.points, *work.shape, generator=g)
    way = torch.randn(work.clusters, x[0, 0].numel(), work.outputs, generator=g)
    answers = torch.einsum("nif,cfo->cnio", x.flatten(2), way)
    y = answers.gather(0, distribution(work, g)[None, :, :, None].expand(1, -1, -1, work.outputs))[0]
    if work.outputs == 1:
        return x.numpy(), (y + NOISE * torch.randn(y.shape, generator=g)).numpy()
    return x.numpy(), y.argmax(-1).numpy()


def distribution(work: Workload, g: torch.Generator | None = None) -> Tensor:
    """(client, point) client i's main distribution is i mod S; the rest of its points is from the next one."""
    main = torch.arange(work.clients)[:, None] % work.clusters
    other = torch.arange(work.points)[None] >= round(work.share * work.points)
    return (main + other) % work.clusters


def initial_models(work: Workload, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> list[nn.Sequential]:
    """A model for each cluster. Several have seen their own distribution once, so that all baselines choose alike."""
    torch.manual_seed(SEED)
    models = [work.build().train() for _ in range(work.clusters)]
    if work.clusters > 1:
        own = distribution(work)
        for s, model in enumerate(models):
            mine = own == s
            tx, ty = torch.as_tensor(x)[mine], torch.as_tensor(y)[mine]
            parameters: list[Tensor] = list(model.parameters())
            for at in torch.randperm(len(tx)).split(work.batch_size):
                loss = functional.cross_entropy(model(tx[at]), ty[at])
                with torch.no_grad():
                    torch._foreach_add_(parameters, torch.autograd.grad(loss, parameters), alpha=-WARM_UP)
    return models


def mixture(work: Workload) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """k-FED's Table 1: k components in √k groups; each group lies on as many devices as every other."""
    k, d = work.clusters, work.shape[0]
    chance = np.random.default_rng(SEED)
    means = chance.normal(size=(k, d))
    means *= SEPARATION / pdist(means).min()
    groups = np.arange(k).reshape(round(k**0.5), -1)
    each = work.points // groups.shape[1]
    y = np.repeat(groups, work.clients // len(groups), axis=0).repeat(each, axis=1)
    return means[y] + chance.normal(size=(*y.shape, d)), y


# scores


def score(work: Workload, models: Sequence[nn.Module], x: Tensor, y: Tensor) -> Score:
    """Of several models a client has the one of least loss for its points (IFCA), or a point the one for it."""
    with torch.no_grad():
        per_client = [
            torch.stack([_losses(_steady(model), a, b) for model in models])
            for a, b in zip(x, y, strict=True)
        ]  # (cluster, loss or right, point) each
    both = torch.stack(per_client)
    loss, right = both[:, :, 0], both[:, :, 1]
    mean = loss.mean(2, keepdim=True).expand_as(loss) if work.algorithm == "ifca" else loss
    chosen = mean.argmin(1, keepdim=True)
    accuracy = None if work.outputs == 1 else float(right.gather(1, chosen).mean())
    return Score(float(loss.gather(1, chosen).mean()), accuracy)


def _steady(model: nn.Module) -> nn.Module:
    """As in training but for dropout: not all baselines have statistics of batch norm in common."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    return model


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(2, point) the loss, and whether it is right."""
    output = model(x)
    if y.is_floating_point():
        loss = (output - y).square().mean(-1)
        return torch.stack([loss, torch.zeros_like(loss)])
    right = (output.argmax(-1) == y).to(output.dtype)
    return torch.stack([functional.cross_entropy(output, y, reduction="none"), right])


def matched(truth: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """The share of points that are right under the best one-to-one matching of clusters and components."""
    both = contingency_matrix(truth, labels)
    return float(both[linear_sum_assignment(both, maximize=True)].sum() / len(truth))
