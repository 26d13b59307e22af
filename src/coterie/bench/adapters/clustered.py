"""IFCA, FedSoft and FedSPD as plain programs have them: client after client, with a DataLoader each."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from . import torch_task
from .pipe import Named, Pipe


class Clustered:
    """What the three share."""

    def __init__(self, pipe: Pipe):
        self.task, self.data = pipe.task, torch_task.clients(pipe.task)
        self.centers = torch_task.models(pipe.task)
        self.number = 0  # of rounds run
        self.steps = 0  # of all clients in this round

    def round(self) -> int:
        self.steps = 0
        self.run()
        self.number += 1
        return self.steps

    def run(self) -> None:
        raise NotImplementedError

    def models(self) -> list[Named]:
        return torch_task.named(self.centers)

    def trained(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        epochs: int,
        anchor: nn.Module | None = None,
        pull: float = 0.0,
    ) -> nn.Module:
        loader = DataLoader(TensorDataset(x, y), batch_size=self.task["batch_size"], shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.task["learning_rate"])
        for _ in range(epochs):
            for bx, by in loader:
                optimizer.zero_grad()
                loss = torch_task.loss(model(bx), by)
                if anchor is not None:
                    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
                    loss = loss + pull / 2 * sum((w - a.detach()).square().sum() for w, a in pairs)
                loss.backward()
                optimizer.step()
                self.steps += 1
        return model


def losses(centers: Sequence[nn.Module], x: Tensor, y: Tensor) -> Tensor:
    """(cluster, point)"""
    with torch.no_grad():
        return torch.stack([functional.cross_entropy(c.eval()(x), y, reduction="none") for c in centers])


def average(models: Sequence[nn.Module], weights: Sequence[float]) -> nn.Module:
    mean, total = copy.deepcopy(models[0]), sum(weights)
    states = [m.state_dict() for m in models]
    mean.load_state_dict(
        {name: sum(w / total * s[name] for w, s in zip(weights, states, strict=True)) for name in states[0]}
    )
    return mean.train()


class IFCA(Clustered):
    """Choose the center of least loss, train it; a mean for each cluster."""

    def run(self) -> None:
        rows: list[list[nn.Module]] = [[] for _ in self.centers]
        for x, y in self.data:
            choice = int(losses(self.centers, x, y).mean(1).argmin())
            model = copy.deepcopy(self.centers[choice]).train()
            rows[choice].append(self.trained(model, x, y, self.task["epochs"]))
        for s, own in enumerate(rows):
            if own:
                self.centers[s] = average(own, [1.0] * len(own))


class FedSoft(Clustered):
    """Those drawn train once, held to the centers' mean by importance; a mean over the draws for each cluster."""

    def run(self) -> None:
        settings = self.task["settings"]
        if self.number % settings["refresh"] == 0:
            self.importance = np.array([self._importance(x, y) for x, y in self.data])
        chance = self.importance / self.importance.sum(0)
        n, chosen = len(self.data), np.random.default_rng([self.task["seed"], self.number])
        draws = np.array([chosen.multinomial(settings["draws"], column) for column in chance.T])
        rows: dict[int, nn.Module] = {}
        for i in range(n):
            if draws[:, i].any():
                x, y = self.data[i]
                anchor = average(self.centers, list(self.importance[i]))
                pull = settings["pull"] * self.importance[i].sum()
                model = copy.deepcopy(anchor)
                rows[i] = self.trained(model, x, y, self.task["epochs"], anchor, pull)
        for s, drawn in enumerate(draws):
            self.centers[s] = average([rows[i] for i in range(n) if drawn[i]], [float(d) for d in drawn if d])

    def _importance(self, x: Tensor, y: Tensor) -> Tensor:
        nearest = losses(self.centers, x, y).argmin(0)
        counts = torch.bincount(nearest, minlength=len(self.centers)) / len(x)
        return counts.clamp(min=1e-4).cpu()


class FedSPD(Clustered):
    """Everyone has centers of its own, trains one on the points nearest to it, and averages it with neighbours."""

    def __init__(self, pipe: Pipe):
        super().__init__(pipe)
        self.own = [copy.deepcopy(self.centers) for _ in self.data]
        self.edges = np.array(pipe.task.array("edges"))  # (aggregator, sender)

    def run(self) -> None:
        chosen = np.random.default_rng([self.task["seed"], self.number])
        epochs = self.task["epochs"] * (2 if self.number == 0 else 1)
        drew, rows = [], []
        for (x, y), centers in zip(self.data, self.own, strict=True):
            label = losses(centers, x, y).argmin(0)
            share = torch.bincount(label, minlength=len(centers)).cpu().numpy() / len(x)
            s = int(chosen.choice(len(centers), p=share))
            model = copy.deepcopy(centers[s]).train()
            rows.append(self.trained(model, x[label == s], y[label == s], epochs))
            drew.append(s)
        for i in range(len(self.data)):
            received = [int(j) for j in self.edges[1][self.edges[0] == i] if drew[j] == drew[i]]
            self.own[i][drew[i]] = average([rows[j] for j in received], [1.0] * len(received))

    def models(self) -> list[Named]:
        each = zip(*self.own, strict=True)
        return torch_task.named([average(column, [1.0] * len(column)) for column in each])


LOOPS: dict[str, type[Clustered]] = {"ifca": IFCA, "fedsoft": FedSoft, "fedspd": FedSPD}

if __name__ == "__main__":
    pipe = Pipe()
    torch_task.set_up(pipe.task)
    loop = LOOPS[pipe.task["algorithm"]](pipe)
    pipe.versions("torch", "numpy")
    pipe.serve(loop.round, loop.models)
