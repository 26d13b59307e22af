"""Flower's simulation engine: its FedAvg, a ClientApp and a ServerApp, on Ray with a worker for every thread."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from . import torch_job
from .pipe import Job, Talk

MANY = 100_000  # rounds; the match says when it is over


class Over(Exception):
    """The match is over."""


class InTurns(FedAvg):  # type: ignore[misc]
    """Flower's own strategy, waiting for its turn before each round. What is timed is all that a round does."""

    def __init__(self, talk: Talk):
        everyone = talk.job["clients"]  # else it begins as soon as two have come
        super().__init__(fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone)
        self.talk, self.last = talk, ArrayRecord()

    def configure_train(self, *given: Any, **named: Any) -> Iterable[Message]:
        if not self.talk.begin():
            raise Over
        return super().configure_train(*given, **named)  # type: ignore[no-any-return]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        assert not failed, failed[0]
        assert len(replies) == self.talk.job["clients"], f"{len(replies)} clients came"
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.last = arrays
        self.talk.finish()
        return arrays, metrics


client_app = ClientApp()


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """As in Flower's own tutorial for PyTorch."""
    job = Job(message.content["config"]["folder"])
    torch.set_num_threads(1)  # a worker for every thread
    model = torch_job.models(job)[0]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = torch_job.client(job, int(context.node_config["partition-id"]))
    loader = DataLoader(TensorDataset(x, y), batch_size=job["batch"], shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=job["rate"])
    for _ in range(job["epochs"]):
        for bx, by in loader:
            optimizer.zero_grad()
            torch_job.loss(model(bx), by).backward()
            optimizer.step()
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(told), reply_to=message)


def serve(talk: Talk) -> ServerApp:
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy, start = InTurns(talk), ArrayRecord(torch_job.models(talk.job)[0].state_dict())
        config = ConfigRecord({"folder": str(talk.job.folder)})
        try:
            strategy.start(grid, start, num_rounds=MANY, train_config=config)
        except Over:
            state = strategy.last.to_torch_state_dict()
            talk.hand_in([{name: t.numpy() for name, t in state.items()}])

    return app


if __name__ == "__main__":
    talk = Talk()
    torch_job.set_up(talk.job)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    talk.versions("flwr", "ray", "torch")
    run_simulation(
        serve(talk),
        client_app,
        num_supernodes=talk.job["clients"],
        backend_config={
            "init_args": {
                "num_cpus": talk.job["threads"],
                "include_dashboard": False,
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
