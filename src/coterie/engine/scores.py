"""How good predictions are, client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Points, Task


@dataclass(frozen=True)
class Scores:
    """One number per client; nan without points, an infinite loss if it diverged. Regression has a loss only."""

    loss: Tensor
    accuracy: Tensor | None = None
    f1: Tensor | None = None  # macro: the mean over the classes that the client has or that were predicted

    def named(self) -> dict[str, Tensor]:
        found = {"loss": self.loss, "accuracy": self.accuracy, "f1": self.f1}
        return {name: value for name, value in found.items() if value is not None}


def mixture_of(outputs: Sequence[Tensor], weights: Tensor, task: Task) -> Tensor:
    """Outputs of several models averaged by weight (point, part): as numbers, or as log-probabilities."""
    shape = (-1,) + (1,) * (outputs[0].dim() - 1)
    if task == "regression":
        return sum(
            (w.view(shape) * o for w, o in zip(weights.T, outputs, strict=True)), torch.zeros_like(outputs[0])
        )
    logs = [
        torch.log(w).view(shape) + functional.log_softmax(o, -1)
        for w, o in zip(weights.T, outputs, strict=True)
    ]
    return torch.logsumexp(torch.stack(logs), 0)


def score_outputs(
    outputs: Sequence[Tensor],
    weights: Tensor,
    points: Points,
    loss: Callable[[Tensor, Tensor], Tensor],
    task: Task,
) -> Scores:
    """Scores of models whose outputs (point, ...) are mixed by the client's weights (client, part)."""
    owner = points.owner
    if len(outputs) == 1:
        output = outputs[0]
    else:
        weights = weights / weights.sum(1, keepdim=True)
        output = mixture_of(outputs, weights[owner].to(outputs[0].dtype), task)
    clients = len(points.offset) - 1
    each = loss(output, points.y)
    losses = _mean_by(owner, torch.where(each.isnan(), torch.inf, each), clients)
    if task == "regression":
        return Scores(losses)
    guess, truth = output.argmax(-1), points.y
    each = (guess == truth).to(losses.dtype)
    accuracy = _mean_by(owner, each.reshape(len(each), -1).mean(1), clients)
    return Scores(losses, accuracy, _macro_f1(owner, guess, truth, clients, output.shape[-1]))


def _mean_by(owner: Tensor, values: Tensor, clients: int) -> Tensor:
    total = torch.zeros(clients, dtype=values.dtype, device=values.device).index_add_(0, owner, values)
    return total / torch.bincount(owner, minlength=clients)


def _macro_f1(owner: Tensor, guess: Tensor, truth: Tensor, clients: int, classes: int) -> Tensor:
    if guess.dim() > 1:  # text: every character is a prediction of its client's
        owner = owner[:, None].expand_as(guess).reshape(-1)
        guess, truth = guess.reshape(-1), truth.reshape(-1)

    def count(labels: Tensor, which: Tensor) -> Tensor:
        cells = torch.bincount((owner * classes + labels)[which], minlength=clients * classes)
        return cells.view(clients, classes).double()

    every = torch.ones_like(guess, dtype=torch.bool)
    right, guessed, true = count(truth, guess == truth), count(guess, every), count(truth, every)
    present = (guessed + true) > 0
    f1 = torch.where(present, 2 * right / (guessed + true).clamp(min=1), 0)
    return f1.sum(1) / present.sum(1)
