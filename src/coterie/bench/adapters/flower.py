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

from . import torch_task
from .pipe import Pipe, Task

MANY = 100_000  # rounds; the session says when it is over


class Over(Exception):
    """The session is over."""


class Interleaved(FedAvg):  # type: ignore[misc]
    """Flower's own strategy, which waits for the session before each round. All that a round does is timed."""

    def __init__(self, pipe: Pipe):
        everyone = pipe.task["clients"]  # else it begins as soon as two clients are there
        super().__init__(fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone)
        self.pipe, self.last = pipe, ArrayRecord()

    def configure_train(self, *given: Any, **named: Any) -> Iterable[Message]:
        if not self.pipe.begin():
            raise Over
        return super().configure_train(*given, **named)  # type: ignore[no-any-return]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        assert not failed, failed[0]
        assert len(replies) == self.pipe.task["clients"], f"{len(replies)} clients replied"
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.last = arrays
        self.pipe.finish()
        return arrays, metrics


client_app = ClientApp()


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """As in Flower's own tutorial for PyTorch."""
    task = Task(message.content["config"]["folder"])
    torch.set_num_threads(1)  # a worker for every thread
    model = torch_task.models(task)[0]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = torch_task.client(task, int(context.node_config["partition-id"]))
    loader = DataLoader(TensorDataset(x, y), batch_size=task["batch_size"], shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=task["learning_rate"])
    for _ in range(task["epochs"]):
        for bx, by in loader:
            optimizer.zero_grad()
            torch_task.loss(model(bx), by).backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


def serve(pipe: Pipe) -> ServerApp:
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy, initial = Interleaved(pipe), ArrayRecord(torch_task.models(pipe.task)[0].state_dict())
        config = ConfigRecord({"folder": str(pipe.task.folder)})
        try:
            strategy.start(grid, initial, num_rounds=MANY, train_config=config)
        except Over:
            state = strategy.last.to_torch_state_dict()
            pipe.hand_in([{name: t.numpy() for name, t in state.items()}])

    return app


if __name__ == "__main__":
    pipe = Pipe()
    torch_task.set_up(pipe.task)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    pipe.versions("flwr", "ray", "torch")
    run_simulation(
        serve(pipe),
        client_app,
        num_supernodes=pipe.task["clients"],
        backend_config={
            "init_args": {
                "num_cpus": pipe.task["threads"],
                "include_dashboard": False,
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
