"""How good predictions are, client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Points, Task


@dataclass(frozen=True)
class Scores:
    """One number per client; nan without points, an infinite loss if it diverged. Without classes a loss only."""

    loss: Tensor
    accuracy: Tensor | None = None
    f1: Tensor | None = None  # macro: the mean over the classes that the client has or that were predicted

    def named(self) -> dict[str, Tensor]:
        found = {"loss": self.loss, "accuracy": self.accuracy, "f1": self.f1}
        return {name: value for name, value in found.items() if value is not None}


Kind = Literal["classes", "binary", "numbers"]


@dataclass(frozen=True)
class Outputs:
    """What the outputs (point, ...) of a model stand for."""

    task: Task
    labels: int = 0  # how many classes there are
    own_loss: bool = False  # is the loss the user's own? Then the shape of the outputs says what they are

    def kind(self, output: Tensor) -> Kind:
        """One number for each class; or one for two classes, the second where it is above 0; or numbers as they are."""
        if self.task == "regression":
            return "numbers"
        if not self.own_loss:
            return "classes"
        if self.task == "classification" and output.shape[1:].numel() == 1:
            return "binary" if self.labels <= 2 else "numbers"
        axes = 3 if self.task == "next-character" else 2
        return "classes" if output.dim() == axes and output.shape[-1] >= self.labels else "numbers"

    def predicted(self, output: Tensor) -> Tensor:
        """The class of each point; numbers as they are."""
        kind = self.kind(output)
        if kind == "binary":
            return (output.reshape(len(output)) > 0).long()
        return output if kind == "numbers" else output.argmax(-1)

    def mixed(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Outputs of several models averaged by weight (point, part): as numbers, or as log-probabilities.

        One number for two classes is a logit: that of the averaged probability.
        """
        kind, shape = self.kind(outputs[0]), (-1,) + (1,) * (outputs[0].dim() - 1)
        each = [(w.view(shape), o) for w, o in zip(weights.T, outputs, strict=True)]
        if kind == "numbers":
            return sum((torch.where(w > 0, w * o, 0) for w, o in each), torch.zeros_like(outputs[0]))
        if kind == "binary":
            return _log_mean(each, functional.logsigmoid) - _log_mean(
                each, lambda o: functional.logsigmoid(-o)
            )
        return _log_mean(each, lambda o: functional.log_softmax(o, -1))


def _log_mean(each: Sequence[tuple[Tensor, Tensor]], logarithm: Callable[[Tensor], Tensor]) -> Tensor:
    """log Σ weight·p, where `logarithm` of an output is log p. A model of no weight may have diverged."""
    terms = [torch.where(w > 0, torch.log(w) + logarithm(o), -torch.inf) for w, o in each]
    return torch.logsumexp(torch.stack(terms), 0)


def score_outputs(
    outputs: Sequence[Tensor],
    weights: Tensor,
    points: Points,
    loss: Callable[[Tensor, Tensor], Tensor],
    meaning: Outputs,
) -> Scores:
    """Scores of models whose outputs (point, ...) are mixed by the client's weights (client, part)."""
    owner, output = points.owner, _one_output(outputs, weights, points, meaning)
    clients = len(points.offset) - 1
    each = loss(output, points.y)
    losses = _mean_by(owner, torch.where(each.isnan(), torch.inf, each), clients)
    kind = meaning.kind(output)
    if kind == "numbers":
        return Scores(losses)
    guess, truth = meaning.predicted(output), points.y
    each = (guess == truth).to(losses.dtype)
    accuracy = _mean_by(owner, each.reshape(len(each), -1).mean(1), clients)
    classes = 2 if kind == "binary" else output.shape[-1]
    return Scores(losses, accuracy, _macro_f1(owner, guess, truth, clients, classes))


def squared_errors(
    outputs: Sequence[Tensor],
    weights: Tensor,
    points: Points,
    loss: Callable[[Tensor, Tensor], Tensor],
    meaning: Outputs,
) -> Tensor:
    """(client,) the mean squared error of predicted probabilities, which is Brier's score; of numbers, the loss.

    A proper score, as the cross-entropy is, but bounded: a few points that were predicted wrongly with great confidence
    do not decide.
    """
    output = _one_output(outputs, weights, points, meaning)
    kind = meaning.kind(output)
    if kind == "numbers":
        each = loss(output, points.y)
    elif kind == "binary":
        each = 2 * (torch.sigmoid(output.reshape(len(output))) - points.y).square()
    else:
        truth = functional.one_hot(points.y, output.shape[-1])
        each = (torch.softmax(output, -1) - truth).square().sum(-1).reshape(len(output), -1).mean(1)
    clients = len(points.offset) - 1
    return _mean_by(points.owner, torch.where(each.isnan(), torch.inf, each), clients)


def _one_output(outputs: Sequence[Tensor], weights: Tensor, points: Points, meaning: Outputs) -> Tensor:
    """Mixed by the client's weights (client, part)."""
    if len(outputs) == 1:
        return outputs[0]
    weights = weights / weights.sum(1, keepdim=True)
    return meaning.mixed(outputs, weights[points.owner].to(outputs[0].dtype))


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
