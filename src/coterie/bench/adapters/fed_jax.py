"""FedJAX: its own federated averaging, every step compiled, with the model written in jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from .pipe import Named, Pipe, Task

Parameters = dict[str, Any]


def model_of(task: Task) -> Callable[[Parameters, Any], Any]:
    """What the layers of the torch model do."""

    def forward(parameters: Parameters, x: Any) -> Any:
        for number, layer in enumerate(task["layers"]):
            weight: Any = parameters.get(f"{number}.weight")
            bias: Any = parameters.get(f"{number}.bias")
            if layer == "Flatten":
                x = x.reshape(len(x), -1)
            elif layer == "Linear":
                x = x @ weight.T + bias
            elif layer == "ReLU":
                x = jnp.maximum(x, 0)
            elif layer.startswith("Conv2d"):
                x = jax.lax.conv_general_dilated(x, weight, (1, 1), layer.split()[1]) + bias[:, None, None]
            elif layer == "MaxPool2d":
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x

    return forward


def loss_of(task: Task) -> Callable[..., Any]:
    """(point,) the loss."""
    forward = model_of(task)

    def loss(parameters: Parameters, batch: Any, _rng: Any) -> Any:
        output = forward(parameters, batch["x"])
        if task["outputs"] == 1:
            return jnp.square(output - batch["y"]).mean(-1)
        return -jnp.take_along_axis(jax.nn.log_softmax(output), batch["y"][:, None], 1)[:, 0]

    return loss


class FederatedAveraging:
    def __init__(self, task: Task):
        hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=task["batch_size"], num_epochs=task["epochs"])
        gradient = fedjax.grad(loss_of(task))
        client, server = fedjax.optimizers.sgd(task["learning_rate"]), fedjax.optimizers.sgd(1.0)
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(gradient, client, server, hparams)
        with np.load(task.folder / "initial.npz") as initial:
            parameters = {name.removeprefix("0 "): jax.numpy.asarray(initial[name]) for name in initial.files}
        self.state = self.algorithm.init(parameters)
        x, y = np.array(task.array("x")), np.array(task.array("y"))
        self.data = [fedjax.ClientDataset({"x": a, "y": b}) for a, b in zip(x, y, strict=True)]
        self.key = jax.random.PRNGKey(task["seed"])

    def round(self) -> None:
        self.key, now = jax.random.split(self.key)
        keys = jax.random.split(now, len(self.data))
        clients = [(str(i), one, keys[i]) for i, one in enumerate(self.data)]
        self.state, _ = self.algorithm.apply(self.state, clients)
        jax.block_until_ready(self.state.params)

    def models(self) -> list[Named]:
        return [{name: np.asarray(value) for name, value in self.state.params.items()}]


if __name__ == "__main__":
    pipe = Pipe()
    kinds = {layer.split()[0] for layer in pipe.task["layers"]}
    strange = kinds - {"Flatten", "Linear", "ReLU", "Conv2d", "MaxPool2d"}
    if strange:
        pipe.skip(f"its models keep no state beside parameters, so no {', '.join(sorted(strange))}")
    baseline = FederatedAveraging(pipe.task)
    pipe.versions("fedjax", "jax", "numpy")
    pipe.serve(baseline.round, baseline.models)
