"""FedAvg as plain programs have it: the usual loop with a DataLoader, a lean one, and a lean one in processes."""

from __future__ import annotations

import copy
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from . import torch_task
from .pipe import Named, Pipe, Task


class Loop:
    """Client after client; their mean is the next model."""

    def __init__(self, task: Task):
        self.task, self.data = task, torch_task.clients(task)
        self.model = torch_task.models(task)[0]

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        raise NotImplementedError

    def round(self) -> None:
        states = []
        for x, y in self.data:
            model = copy.deepcopy(self.model)
            self.train(model, x, y)
            states.append(model.state_dict())
        mean = {name: torch.stack([s[name].float() for s in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)

    def models(self) -> list[Named]:
        return torch_task.named([self.model])

    def close(self) -> None:
        """Nothing is open."""


class Usual(Loop):
    """With a DataLoader for each client, as most programs have it."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        loader = DataLoader(TensorDataset(x, y), batch_size=self.task["batch_size"], shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.task["learning_rate"])
        for _ in range(self.task["epochs"]):
            for bx, by in loader:
                optimizer.zero_grad()
                torch_task.loss(model(bx), by).backward()
                optimizer.step()


class Lean(Loop):
    """Without a DataLoader, all parameters updated in one call."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        parameters: list[Tensor] = list(model.parameters())
        for _ in range(self.task["epochs"]):
            for at in torch.randperm(len(x), device=x.device).split(self.task["batch_size"]):
                gradients = torch.autograd.grad(torch_task.loss(model(x[at]), y[at]), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-self.task["learning_rate"])


class Processes(Lean):
    """The lean loop in as many processes as there are threads, one thread each: every process has its clients."""

    def __init__(self, task: Task):
        super().__init__(task)
        number, spawn = self.task["threads"], multiprocessing.get_context("spawn")
        self.connections, self.workers = [], []
        for rank in range(number):
            mine, theirs = spawn.Pipe()
            worker = spawn.Process(target=_work, args=(theirs, str(self.task.folder), rank), daemon=True)
            worker.start()
            self.connections.append(mine)
            self.workers.append(worker)

    def round(self) -> None:
        state = torch_task.named([self.model])[0]
        for connection in self.connections:
            connection.send(state)
        sums = [connection.recv() for connection in self.connections]
        mean = {name: np.sum([s[name] for s in sums], 0) / len(self.data) for name in state}
        self.model.load_state_dict({name: torch.as_tensor(value) for name, value in mean.items()})

    def close(self) -> None:
        for connection in self.connections:
            connection.send(None)
        for worker in self.workers:
            worker.join()


def _work(connection: Connection[Any, Any], folder: str, rank: int) -> None:
    """Whenever a state comes, train this process's clients from it and send back the sum of their states."""
    task = Task(folder)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    worker = Lean(task)
    while (state := connection.recv()) is not None:
        total = {name: np.zeros(value.shape, np.float64) for name, value in state.items()}
        for x, y in worker.data[rank :: task["threads"]]:
            worker.model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
            worker.train(worker.model, x, y)
            for name, value in torch_task.named([worker.model])[0].items():
                total[name] += value
        connection.send(total)


LOOPS: dict[str, type[Loop]] = {"usual": Usual, "lean": Lean, "processes": Processes}

if __name__ == "__main__":
    pipe = Pipe()
    torch_task.set_up(pipe.task)
    loop = LOOPS[pipe.variant](pipe.task)
    pipe.versions("torch", "numpy")
    pipe.serve(loop.round, loop.models)
    loop.close()
