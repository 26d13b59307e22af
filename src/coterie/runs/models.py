"""The models of a run for people: modules that take what the run's data was, and predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from coterie.engine.model import first_line
from coterie.engine.rows import Rows
from coterie.engine.scores import Outputs
from coterie.errors import CoterieError
from coterie.protocol.personal import Personal
from coterie.runs.inputs import Inputs


def outputs_of(summary: Mapping[str, Any]) -> Outputs:
    """What the outputs of a run's models stand for."""
    return Outputs(summary["task"], summary.get("outputs", 0), bool(summary.get("own_loss")))


class TrainedModel(nn.Module):
    """A model that takes inputs as the run's data had them and reads them as training did; in eval mode.

    Where the run's images were uint8, `x` is uint8 too, or floats from 0 to 1, which are pixels divided by 255.
    `module` is the user's own, which takes what has been read: floats, normalised if the run normalised.
    """

    def __init__(self, module: nn.Module, inputs: Inputs, outputs: Outputs):
        super().__init__()
        self.module, self.inputs, self.outputs = module, inputs, outputs
        self.eval().requires_grad_(False)  # to train it on: model.module.requires_grad_()

    def extra_repr(self) -> str:
        return f"takes {self.inputs}, for {self.outputs.task}"

    def forward(self, x: Any) -> Tensor:
        output: Tensor = self.module(self.inputs.read(x, like=next(self.parameters())))
        return output

    def predict(self, x: Any) -> Tensor:
        """The class, or the number."""
        with torch.no_grad():
            read = self.inputs.read(x, like=next(self.parameters()))
            try:
                return self.outputs.predicted(self.module(read))
            except (RuntimeError, IndexError, ValueError, TypeError) as problem:
                raise CoterieError(
                    f"the model does not take x of shape {tuple(read.shape)} ({first_line(problem)}); allowed are "
                    "inputs as the run's clients had them, of the same shape and with no other tokens"
                ) from problem


class PersonalModel(TrainedModel):
    """One client's model: its `module` is the user's own, or a `Mixture` of several."""

    def state_dicts(self) -> list[dict[str, Tensor]]:
        """Of the user's own modules."""
        parts = self.module.parts if isinstance(self.module, Mixture) else [self.module]
        return [part.state_dict() for part in parts]


class Mixture(nn.Module):
    """Several modules whose predictions are averaged by weight: numbers as they are, classes as probabilities.

    Those of classes are given as logarithms.
    """

    weights: Tensor  # (part,)

    def __init__(self, parts: Sequence[nn.Module], weights: Tensor, outputs: Outputs):
        super().__init__()
        self.parts, self.outputs = nn.ModuleList(parts), outputs
        self.register_buffer("weights", weights / weights.sum())

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = [part(x) for part in self.parts]
        weights = self.weights.to(outputs[0].dtype)
        return self.outputs.mixed(outputs, weights.expand(len(x), -1))


def personal_model(
    rows: Rows, own: Tensor, weights: Tensor, inputs: Inputs, outputs: Outputs
) -> PersonalModel:
    """Of rows (part, width), whose predictions are averaged by weight (part,)."""
    if bool((own == own[0]).all()):  # beside clients with mixtures, a single model fills all parts
        own, weights = own[:1], weights[:1]
    parts = [rows.module_of(row) for row in own]
    return PersonalModel(parts[0] if len(parts) == 1 else Mixture(parts, weights, outputs), inputs, outputs)


class PersonalModels(Mapping[str, PersonalModel]):
    """Every client's model, by the client's id."""

    def __init__(self, rows: Rows, ids: Sequence[str], personal: Personal, inputs: Inputs, outputs: Outputs):
        self._rows, self._personal, self._inputs, self._outputs = rows, personal, inputs, outputs
        self._at = {name: i for i, name in enumerate(ids)}

    def __getitem__(self, client: str) -> PersonalModel:
        if str(client) not in self._at:
            close = get_close_matches(str(client), self._at, 1)
            raise KeyError(
                f"there is no client {client!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        i, personal = self._at[str(client)], self._personal
        return personal_model(self._rows, personal.rows[i], personal.weights[i], self._inputs, self._outputs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)
