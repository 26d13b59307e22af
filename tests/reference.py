"""The plain sequential way: one client after another, torch.optim, the user's own module, no padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.engine.model import FunctionalModel
from coterie.engine.training import Training
from coterie.prng import mix


@dataclass
class Client:
    x: Tensor
    y: Tensor
    key: Tensor
    exists: Tensor | None = None
    weight: Tensor | None = None
    at_least: int = 1  # points that a batch must have


def optimizer(training: Training, module: nn.Module, rate: float) -> torch.optim.Optimizer:
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            module.parameters(),
            rate,
            training.momentum,
            weight_decay=training.weight_decay,
            nesterov=training.nesterov,
        )
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    return kind(
        module.parameters(), rate, training.betas, eps=training.epsilon, weight_decay=training.weight_decay
    )


def train(
    model: FunctionalModel,
    training: Training,
    client: Client,
    start: Tensor,
    anchor: Tensor | None = None,
    pull: float = 0,
) -> Tensor:
    """The client's row after its local problem, from the sequential loop."""
    module = model.rows.module_of(start).train()
    solver = optimizer(training, module, training.learning_rate)
    old = None if anchor is None else list(model.rows.module_of(anchor).parameters())
    there = torch.arange(len(client.x)) if client.exists is None else client.exists.nonzero()[:, 0]
    weight = torch.ones(len(client.x), dtype=start.dtype) if client.weight is None else client.weight
    scale = weight / weight[there].mean()
    batch = training.batch_size or len(there)
    least = max(client.at_least, training.min_batch if len(there) >= batch else 1)
    epoch = step = 0
    per_epoch = sum(len(part) >= least for part in there.split(batch))
    steps = training.steps if training.steps is not None else training.epochs * per_epoch
    while step < steps:
        order = there
        if training.shuffle:
            order = there[mix(client.key, "order", epoch, there).argsort()]
        for part in order.split(batch):
            if step == steps:
                break
            if len(part) < least:
                continue
            solver.zero_grad()
            losses = model.loss(module(client.x[part]), client.y[part])
            objective = (losses * scale[part]).mean()
            if old is not None:
                pairs = zip(module.parameters(), old, strict=True)
                objective = objective + pull / 2 * sum(((p - a.detach()) ** 2).sum() for p, a in pairs)
            objective.backward()
            solver.step()
            step += 1
        epoch += 1
    return model.rows.row_of(module)
