"""How a client trains: optimizer, batches, length, and the learning rate over the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.errors import SettingError, require
from coterie.validation import LARGEST, Checked


@dataclass(frozen=True)
class Training(Checked):
    """Settings of the local problem, shared by all clients and algorithms."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"  # as torch.optim has them
    learning_rate: float = 0.1  # η
    momentum: float = 0.0  # sgd: the share of the last step that is kept
    nesterov: bool = False  # sgd: look ahead along the momentum
    weight_decay: float = 0.0  # added to the gradient; adamw: decoupled
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw: decay of the two running means
    epsilon: float = 1e-8  # adam, adamw: added to the root
    batch_size: int | None = 10  # points a step; None: all
    min_batch: int = (
        1  # a smaller last batch is left out (batch_size: as drop_last does), unless it is the only one
    )
    epochs: int | None = 1  # passes over the data a round ...
    steps: int | None = None  # ... or this many steps, with epochs = None
    shuffle: bool = True  # a new order every epoch
    keep_optimizer: bool = False  # keep the optimizer's state from round to round
    schedule: Literal["constant", "exponential", "step", "cosine"] = "constant"  # of the rate over the rounds
    decay: float = 1.0  # exponential, step: the rate is multiplied by this ...
    every: int = 1  # ... each so many rounds (exponential: smoothly)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.learning_rate <= LARGEST,
            "learning_rate",
            self.learning_rate,
            f"above 0 and at most {LARGEST:g}",
        )
        require(0 <= self.momentum < 1, "momentum", self.momentum, "0 or more and below 1")
        decays = 0 <= self.weight_decay <= LARGEST
        require(decays, "weight_decay", self.weight_decay, f"from 0 to {LARGEST:g}")
        require(
            self.batch_size is None or self.batch_size >= 1,
            "batch_size",
            self.batch_size,
            "1 or more, or None for all points",
        )
        least, most = self.min_batch, self.batch_size
        allowed = "a whole number from 1" + ("" if most is None else f" to batch_size, which is {most}")
        require(least >= 1 and (most is None or least <= most), "min_batch", least, allowed)
        require(self.epochs is None or self.epochs >= 0, "epochs", self.epochs, "0 or more")
        require(self.steps is None or self.steps >= 0, "steps", self.steps, "0 or more")
        require(0 < self.decay <= 1, "decay", self.decay, "above 0 and at most 1")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        require(all(0 <= b < 1 for b in self.betas), "betas", self.betas, "two numbers from 0 to below 1")
        if (self.epochs is None) == (self.steps is None):
            raise SettingError("epochs", "and steps are both set or both unset; set one of them")
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov", "is true but momentum is 0; it needs momentum above 0")

    def rate_at(self, round: int, rounds: int) -> float:
        """The learning rate of a round, out of so many."""
        if self.schedule == "exponential":
            return self.learning_rate * float(self.decay ** (round / self.every))
        if self.schedule == "step":
            return self.learning_rate * float(self.decay ** (round // self.every))
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * round / max(1, rounds)))
        return self.learning_rate

    def times(self, factor: int) -> Training:
        """The same, so many times as long."""
        if self.epochs is not None:
            return replace(self, epochs=self.epochs * factor)
        return replace(self, steps=(self.steps or 0) * factor)

    @property
    def is_plain(self) -> bool:
        """Is a step the gradient times the rate, and nothing else?"""
        return self.optimizer == "sgd" and not self.momentum and not self.weight_decay

    def state_names(self) -> tuple[str, ...]:
        """The names of what the optimizer remembers of each parameter."""
        if self.optimizer == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("first", "second")


def update(
    training: Training, rate: Tensor, step: Tensor, rows: Tensor, gradient: Tensor, memory: dict[str, Tensor]
) -> None:
    """One optimizer step of many rows, in place; `memory` and `gradient` are changed too.

    As torch.optim does it, with `step` (row, 1) counting from 1 for each row by itself.
    """
    if training.weight_decay and training.optimizer != "adamw":
        gradient.add_(rows, alpha=training.weight_decay)
    if training.optimizer == "sgd":
        if training.momentum:
            velocity = memory["momentum"].mul_(training.momentum).add_(gradient)
            gradient = gradient.add_(velocity, alpha=training.momentum) if training.nesterov else velocity
        rows.addcmul_(gradient, rate, value=-1)
        return
    if training.weight_decay and training.optimizer == "adamw":
        rows.mul_(1 - rate * training.weight_decay)
    beta1, beta2 = training.betas
    first = memory["first"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    second = memory["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = second.sqrt().div_(torch.sqrt(1 - beta2**step)).add_(training.epsilon)
    rows.sub_(first / root.mul_((1 - beta1**step) / rate))
