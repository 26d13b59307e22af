"""Personal models for people: modules that predict, by client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data.federation import Task
from coterie.data.images import Pixels
from coterie.engine.rows import Rows
from coterie.engine.scores import mixture_of
from coterie.errors import CoterieError
from coterie.protocol.personal import Personal


def pixels_of(summary: Mapping[str, Any], like: Tensor) -> Pixels | None:
    """How a run's images were read, if it had any that were kept as uint8."""
    if not summary.get("pixels"):
        return None
    return Pixels(summary["normalise"], like.device, like.dtype)


def takes_integers(summary: Mapping[str, Any]) -> bool:
    """Was a run's model given whole numbers? Of old runs only one that predicts characters was."""
    return bool(summary.get("integers", summary["task"] == "next-character"))


def as_integers(x: Tensor, where: str) -> Tensor:
    """Inputs for such a model; floats may stand for whole numbers."""
    if x.is_floating_point() and not torch.equal(x, x.round()):
        raise CoterieError(
            f"{where} has other inputs than whole numbers, which those of the run's clients are"
        )
    return x.long()


class PersonalModel:
    """One client's model: call it with inputs for its predictions.

    Several modules mean that their predictions are averaged by weight: numbers as they are, classes as
    probabilities (given as logarithms). Where the run's images were kept as uint8, so may `x` be.
    """

    def __init__(
        self, modules: Sequence[nn.Module], weights: Tensor, task: Task, pixels: Pixels | None = None
    ):
        self.modules, self.weights, self.task, self.pixels = list(modules), weights, task, pixels

    def state_dicts(self) -> list[dict[str, Tensor]]:
        return [module.state_dict() for module in self.modules]

    def __call__(self, x: Any) -> Tensor:
        first = next(self.modules[0].parameters())
        x = torch.as_tensor(x, device=first.device)
        x = x if self.pixels is None else self.pixels.read(x)
        x = x.to(first.dtype) if x.is_floating_point() or x.dtype == torch.uint8 else x
        with torch.no_grad():
            outputs: list[Tensor] = [module(x) for module in self.modules]
            if len(outputs) == 1:
                return outputs[0]
            weights = (self.weights / self.weights.sum()).to(first.device, first.dtype)
            return mixture_of(outputs, weights.expand(len(x), -1), self.task)

    def predict(self, x: Any) -> Tensor:
        """The class, or the number."""
        output = self(x)
        return output if self.task == "regression" else output.argmax(-1)


class PersonalModels(Mapping[str, PersonalModel]):
    """Every client's model, by the client's id."""

    def __init__(
        self, rows: Rows, ids: Sequence[str], personal: Personal, task: Task, pixels: Pixels | None = None
    ):
        self._rows, self._personal, self._task, self._pixels = rows, personal, task, pixels
        self._at = {name: i for i, name in enumerate(ids)}

    def __getitem__(self, client: str) -> PersonalModel:
        if str(client) not in self._at:
            close = get_close_matches(str(client), self._at, 1)
            raise KeyError(
                f"there is no client {client!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        i = self._at[str(client)]
        modules = [self._rows.module_of(row) for row in self._personal.rows[i]]
        return PersonalModel(modules, self._personal.weights[i], self._task, self._pixels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)
