"""How fast is a round, beside the loops that most federated programs run? `python benchmarks/speed.py --out FILE`

FedAvg on identical data and models, from the same start, all in one run: the usual sequential loop with a DataLoader,
a lean one without, and coterie. They take turns, so that a busy machine is busy for all. What counts is the ratio;
the unit is client-steps per second: one minibatch step of one client. All must come to the same training loss.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from report import provenance, write
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coterie import FedAvg, Federation, Stage, Stages, Training
from coterie.federation import Points
from coterie.models import build
from coterie.simulate import Simulation

Clients = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Workload:
    model: str
    shape: tuple[int, ...]
    classes: int  # 1: a regression
    clients: int
    points: int
    epochs: int
    batch: int = 10
    rate: float = 0.05
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def steps(self) -> int:
        """Client-steps in a round."""
        return self.clients * self.epochs * -(-self.points // self.batch)

    def build(self) -> nn.Module:
        return build(self.model, self.shape, self.classes, **dict(self.settings))()

    def data(self, device: torch.device) -> Clients:
        """Every client's points, with something to learn in them."""
        g = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients, self.points, *self.shape, generator=g)
        way = torch.randn(x[0, 0].numel(), self.classes, generator=g)
        y = x.flatten(2) @ way
        y = y if self.classes == 1 else y.argmax(-1)
        return [(a.to(device), b.to(device)) for a, b in zip(x, y, strict=True)]

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(output, y) if self.classes == 1 else functional.cross_entropy(output, y)


WORKLOADS = {
    "linear, 100 clients": Workload("linear", (10,), 1, 100, 150, 5, rate=0.01),
    "linear, 1000 clients": Workload("linear", (10,), 1, 1000, 150, 5, rate=0.01),
    "MLP 784-200-10": Workload("mlp", (784,), 10, 100, 150, 5, settings=(("hidden", (200,)),)),
    "CNN (FedSoft letters)": Workload("fedsoft_letters", (1, 28, 28), 26, 20, 50, 1),
    "CIFAR CNN (FedSPD, batch norm)": Workload("fedspd_cifar", (3, 32, 32), 10, 10, 20, 1),
}


class Loop:
    """Client after client; their mean is the next model."""

    def __init__(self, work: Workload, start: nn.Module, data: Clients):
        self.work, self.model, self.data = work, copy.deepcopy(start), data

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        raise NotImplementedError

    def round(self) -> None:
        states = []
        for x, y in self.data:
            model = copy.deepcopy(self.model).train()
            self.train(model, x, y)
            states.append(model.state_dict())
        mean = {name: torch.stack([s[name].float() for s in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)


class Usual(Loop):
    """With a DataLoader for each client, as most programs have it."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        loader = DataLoader(TensorDataset(x, y), batch_size=self.work.batch, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.work.rate)
        for _ in range(self.work.epochs):
            for bx, by in loader:
                optimizer.zero_grad()
                self.work.loss(model(bx), by).backward()
                optimizer.step()


class Lean(Loop):
    """Without a DataLoader, all parameters updated in one call."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        parameters = list(model.parameters())
        for _ in range(self.work.epochs):
            for at in torch.randperm(len(x), device=x.device).split(self.work.batch):
                gradients = torch.autograd.grad(self.work.loss(model(x[at]), y[at]), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-self.work.rate)


class Coterie:
    def __init__(self, work: Workload, start: nn.Module, data: Clients):
        points = Points.of([(x.cpu(), y.cpu()) for x, y in data])
        task = "regression" if work.classes == 1 else "classification"
        clients = Federation(tuple(map(str, range(len(data)))), points, task=task, n_outputs=work.classes)
        training = Training(rate=work.rate, batch=work.batch, epochs=work.epochs)
        stage = Stage(FedAvg(), 1000, training)
        device = data[0][0].device
        self.simulation = Simulation(work.build, clients, Stages((stage,)), device=device)
        row = self.simulation.network.rows.row_of(start).to(self.simulation.state.centers)
        self.simulation.state.centers.copy_(row)

    def round(self) -> None:
        self.simulation.step()

    @property
    def model(self) -> nn.Module:
        return self.simulation.network.rows.module_of(self.simulation.state.centers[0, 0])


WAYS: dict[str, Callable[..., Any]] = {"usual loop": Usual, "lean loop": Lean, "coterie": Coterie}


def compared(work: Workload, repeats: int, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    data, start = work.data(device), work.build().to(device)
    players = {way: make(work, start, data) for way, make in WAYS.items()}
    seconds: dict[str, list[float]] = {way: [] for way in players}
    for turn in range(repeats + 1):
        for way, player in players.items():
            began = time.perf_counter()
            player.round()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first is to warm up
                seconds[way].append(time.perf_counter() - began)
    losses = {way: _loss(work, player.model, data) for way, player in players.items()}
    usual = median(seconds["usual loop"])
    return {
        way: {
            "client_steps_per_second": round(work.steps / median(each)),
            "ratio_to_usual": round(usual / median(each), 2),
            "seconds_a_round": [round(s, 4) for s in each],
            "training_loss": round(losses[way], 4),
        }
        for way, each in seconds.items()
    }


def _loss(work: Workload, model: nn.Module, data: Clients) -> float:
    with torch.no_grad():
        return float(torch.stack([work.loss(model.eval()(x), y) for x, y in data]).mean())


def table(report: dict[str, Any]) -> list[str]:
    lines = [f"| | {' | '.join(f'{way}, cs/s' for way in WAYS)} | coterie over the usual | losses |"]
    lines.append("|---" * (len(WAYS) + 3) + "|")
    for name, ways in report.items():
        speeds = " | ".join(str(ways[way]["client_steps_per_second"]) for way in WAYS)
        losses = ", ".join(str(ways[way]["training_loss"]) for way in WAYS)
        lines.append(f"| {name} | {speeds} | {ways['coterie']['ratio_to_usual']} | {losses} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {}
    for name in options.only or WORKLOADS:
        found[name] = compared(WORKLOADS[name], options.repeats, torch.device(options.device))
        print(name, found[name], flush=True)
    print("\n".join(table(found)))
    if options.out:
        write(options.out, {"provenance": provenance(), "workloads": found})


if __name__ == "__main__":
    main()
