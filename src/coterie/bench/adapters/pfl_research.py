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

from . import torch_job
from .pipe import Job, Talk

MANY = 100_000  # rounds; the match says when it is over


class Learner(torch.nn.Module):
    """A model as pfl wants it."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch_job.loss(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Turns:
    """Before each round everybody waits for the first process, which waits for its turn."""

    def __init__(self, talk: Talk | None, processes: int):
        self.talk, self.processes = talk, processes

    def begin(self) -> bool:
        goes_on = torch.tensor(int(self.talk.begin()) if self.talk else 0)
        if self.processes > 1:
            torch.distributed.broadcast(goes_on, 0)
        return bool(goes_on)

    def finish(self) -> None:
        if self.talk:
            self.talk.finish()


def simulate(job: Job, turns: Turns) -> torch.nn.Module:
    """pfl's own loop, from one round to the next when it is our turn."""
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
            turns.begin()
            return Metrics()

        def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Any]:
            turns.finish()
            return not turns.begin(), Metrics()

    users = {i: torch_job.client(job, i) for i in range(job["clients"])}
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    learner = Learner(torch_job.models(job)[0])
    server = torch.optim.SGD(learner.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(MANY, MANY + 1, len(users), None),
        backend=SimulatedBackend(data, data),
        model=PyTorchModel(learner, torch.optim.SGD, server),
        model_train_params=NNTrainHyperParams(
            local_batch_size=job["batch"], local_num_epochs=job["epochs"], local_learning_rate=job["rate"]
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
    """Be one of several processes, as torchrun would tell them."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
    told |= {"LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "bench"}
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)


def first() -> None:
    """The process that talks; it starts the others."""
    talk = Talk()
    torch_job.set_up(talk.job)
    processes = talk.job["threads"] if talk.variant == "processes" else 1
    port, others = free_port(), []
    for rank in range(1, processes):
        words = [sys.executable, "-m", "adapters.pfl_research", str(talk.job.folder), "worker"]
        others.append(subprocess.Popen([*words, str(rank), str(processes), str(port)]))
    if processes > 1:
        join(0, processes, port)
    talk.versions("pfl", "torch")
    model = simulate(talk.job, Turns(talk, processes))
    talk.hand_in(torch_job.named([model]))
    for other in others:
        other.wait()


def other() -> None:
    rank, processes, port = map(int, sys.argv[3:])
    job = Job(sys.argv[1])
    torch_job.set_up(job)
    join(rank, processes, port)
    simulate(job, Turns(None, processes))


if __name__ == "__main__":
    np.random.seed(0)
    if sys.argv[2:3] == ["worker"]:
        other()
    else:
        first()
