"""coterie itself; the variant "eager" is without compiling."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import numpy as np
import torch

from coterie import ALGORITHMS, Federation, Graph, KFed, Server, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.data.federation import Points

from . import torch_job
from .pipe import Job, Named, Talk


class Ours:
    def __init__(self, talk: Talk):
        job, start, data = talk.job, torch_job.models(talk.job), torch_job.clients(talk.job)
        points = Points.of([(x.cpu(), y.cpu()) for x, y in data])
        task: Literal["regression", "classification"] = (
            "regression" if job["outputs"] == 1 else "classification"
        )
        clients = Federation(tuple(map(str, range(len(data)))), points, task=task, n_outputs=job["outputs"])
        topology = Server() if job["degree"] is None else Graph(degree=job["degree"])
        training = Training(learning_rate=job["rate"], batch_size=job["batch"], epochs=job["epochs"])
        stage = Stage(self._algorithm(job), 1000, training, topology)
        self.coordinator = simulate(
            lambda: torch_job.models(talk.job)[0].cpu(),
            clients,
            Stages((stage,)),
            seed=job["seed"],
            device=torch.device(job["device"]),
            compile=talk.variant != "eager",
            tf32=job["tf32"],
        )
        self.rows, centers = self.coordinator.model.rows, self.coordinator.state.centers
        centers.copy_(torch.stack([self.rows.row_of(model) for model in start]).to(centers))

    @staticmethod
    def _algorithm(job: Job) -> Any:
        kind = {name.lower(): one for name, one in ALGORITHMS.items()}[job["algorithm"]]
        clusters = (
            {"n_clusters": job["clusters"]} if "n_clusters" in inspect.signature(kind).parameters else {}
        )
        return kind(**clusters, **job["settings"])

    def round(self) -> None:
        self.coordinator.step()

    def models(self) -> list[Named]:
        centers = self.coordinator.state.centers.mean(0)  # over a graph, of all listeners
        return torch_job.named([self.rows.module_of(row) for row in centers])


class OursOnPoints:
    """k-FED."""

    def __init__(self, talk: Talk):
        self.job, self.points = talk.job, list(np.array(talk.job.array("x")))

    def round(self) -> None:
        k, starts = self.job["clusters"], self.job["settings"]["starts"]
        self.model = KFed(k, round(k**0.5), n_init=starts, random_state=self.job["seed"]).fit(self.points)

    def models(self) -> list[Named]:
        return [{"labels": self.model.labels_}]


if __name__ == "__main__":
    talk = Talk()
    torch_job.set_up(talk.job)
    player = OursOnPoints(talk) if talk.job["algorithm"] == "kfed" else Ours(talk)
    talk.versions("torch", "numpy")
    talk.play(player.round, player.models)
