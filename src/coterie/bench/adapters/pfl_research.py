"""pfl-research: its simulated backend with PyTorch; the variant "processes" has one for every thread, as torchrun does.

Its users keep the order of their points: it has no shuffle.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import torch

from . import torch_task
from .pipe import Pipe, Task

MANY = 100_000  # rounds; the session says when it is over


class Learner(torch.nn.Module):
    """A model as pfl wants it."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch_task.loss(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Interleaved:
    """Before each round every process waits for the first, which waits for the session."""

    def __init__(self, pipe: Pipe | None, processes: int):
        self.pipe, self.processes = pipe, processes

    def begin(self) -> bool:
        goes_on = torch.tensor(int(self.pipe.begin()) if self.pipe else 0)
        if self.processes > 1:
            torch.distributed.broadcast(goes_on, 0)
        return bool(goes_on)

    def finish(self) -> None:
        if self.pipe:
            self.pipe.finish()


def simulate(task: Task, rounds: Interleaved) -> torch.nn.Module:
    """pfl's own loop, which waits for the session before each round."""
    # pfl joins the other processes when it is imported, so not before they know of each other
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Wait(TrainingProcessCallback):  # type: ignore[misc]
        def on_train_begin(self, *, model: Any) -> Any:
            rounds.begin()
            return Metrics()

        def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Any]:
            rounds.finish()
            return not rounds.begin(), Metrics()

    users = {i: torch_task.client(task, i) for i in range(task["clients"])}
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    learner = Learner(torch_task.models(task)[0])
    server = torch.optim.SGD(learner.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(MANY, MANY + 1, len(users), None),
        backend=SimulatedBackend(data, data),
        model=PyTorchModel(learner, torch.optim.SGD, server),
        model_train_params=NNTrainHyperParams(
            local_batch_size=task["batch_size"],
            local_num_epochs=task["epochs"],
            local_learning_rate=task["learning_rate"],
        ),
        callbacks=[Wait()],
        send_metrics_to_platform=False,
    )
    return learner.model


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def join(rank: int, processes: int, port: int) -> None:
    """Be one of several processes, as torchrun would start them."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
    names |= {"LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "bench"}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)


def first() -> None:
    """The process that answers the session; it starts the others."""
    pipe = Pipe()
    torch_task.set_up(pipe.task)
    processes = pipe.task["threads"] if pipe.variant == "processes" else 1
    port, others = free_port(), []
    for rank in range(1, processes):
        words = [sys.executable, "-m", "adapters.pfl_research", str(pipe.task.folder), "worker"]
        others.append(subprocess.Popen([*words, str(rank), str(processes), str(port)]))
    if processes > 1:
        join(0, processes, port)
    pipe.versions("pfl", "torch")
    model = simulate(pipe.task, Interleaved(pipe, processes))
    pipe.hand_in(torch_task.named([model]))
    for other in others:
        other.wait()


def other() -> None:
    rank, processes, port = map(int, sys.argv[3:])
    task = Task(sys.argv[1])
    torch_task.set_up(task)
    join(rank, processes, port)
    simulate(task, Interleaved(None, processes))


if __name__ == "__main__":
    np.random.seed(0)
    if sys.argv[2:3] == ["worker"]:
        other()
    else:
        first()
