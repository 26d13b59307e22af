"""coterie itself; the variant "eager" is without compiling."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import numpy as np
import torch

from coterie import ALGORITHMS, Federation, Graph, KFed, Server, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.data.federation import Points

from . import torch_task
from .pipe import Named, Pipe, Task


class Ours:
    def __init__(self, pipe: Pipe):
        task, initial, data = pipe.task, torch_task.models(pipe.task), torch_task.clients(pipe.task)
        points = Points.of([(x.cpu(), y.cpu()) for x, y in data])
        kind: Literal["regression", "classification"] = (
            "regression" if task["outputs"] == 1 else "classification"
        )
        clients = Federation(tuple(map(str, range(len(data)))), points, task=kind, n_outputs=task["outputs"])
        topology = Server() if task["degree"] is None else Graph(degree=task["degree"])
        training = Training(
            learning_rate=task["learning_rate"], batch_size=task["batch_size"], epochs=task["epochs"]
        )
        stage = Stage(self._algorithm(task), 1000, training, topology)
        self.coordinator = simulate(
            lambda: torch_task.models(pipe.task)[0].cpu(),
            clients,
            Stages((stage,)),
            seed=task["seed"],
            device=torch.device(task["device"]),
            compile=pipe.variant != "eager",
            tf32=task["tf32"],
        )
        self.rows, centers = self.coordinator.model.rows, self.coordinator.state.centers
        centers.copy_(torch.stack([self.rows.row_of(model) for model in initial]).to(centers))

    @staticmethod
    def _algorithm(task: Task) -> Any:
        kind = {name.lower(): one for name, one in ALGORITHMS.items()}[task["algorithm"]]
        clusters = (
            {"n_clusters": task["clusters"]} if "n_clusters" in inspect.signature(kind).parameters else {}
        )
        return kind(**clusters, **task["settings"])

    def round(self) -> None:
        self.coordinator.step()

    def models(self) -> list[Named]:
        centers = self.coordinator.state.centers.mean(0)  # over a graph, of all clients
        return torch_task.named([self.rows.module_of(row) for row in centers])


class OursOnPoints:
    """k-FED."""

    def __init__(self, pipe: Pipe):
        self.task, self.points = pipe.task, list(np.array(pipe.task.array("x")))

    def round(self) -> None:
        k, n_init = self.task["clusters"], self.task["settings"]["n_init"]
        self.model = KFed(k, round(k**0.5), n_init=n_init, random_state=self.task["seed"]).fit(self.points)

    def models(self) -> list[Named]:
        return [{"labels": self.model.labels_}]


if __name__ == "__main__":
    pipe = Pipe()
    torch_task.set_up(pipe.task)
    baseline = OursOnPoints(pipe) if pipe.task["algorithm"] == "kfed" else Ours(pipe)
    pipe.versions("torch", "numpy")
    pipe.serve(baseline.round, baseline.models)
